"""The claim rule: when two cells of a record may be said to differ. One rule, one family for an experiment.

Cells timed in the same rounds: the median of their ratios by round is claimed to differ from 1 when
  1. the sign test, adjusted by Holm over the whole family, is below 0.05,
  2. the 95% interval of the ratio excludes 1,
  3. the effect is at least the smallest that is claimed: 2%, or twice the widest half-width of A/A,
  4. neither cell is flagged, and the comparison is not doubted (processes disagree, a regime changed it).
The family is every pair of cells that the same rounds timed, in time and in time per position, whoever asks:
the summary (each path over the baseline) and the verdicts (what a prediction says) get the same answer.
Holm steps down, so pairs that plainly differ cost the others nothing.

A/A is no claim but the check on all of them. It is judged by conditions 1 to 3 among the A/A of the
experiment alone, so that many cells never hide a baseline that differs from itself.

Cells that nothing pairs (loads of a server, cells of different processes): both 95% intervals must lie apart
by the smallest effect (`apart`). That is stricter than 0.05 for one pair: two intervals of like width that do
not meet have p < 0.006. Counts and observations have no interval: they differ when they differ.
"""

import math
from collections.abc import Sequence
from itertools import combinations

from inference_lab.analysis.rounds import METRICS, CellKey, Rounds
from inference_lab.analysis.statistics import (
    ALPHA,
    Comparison,
    Interval,
    compare,
    excludes_one,
    holm,
    sign_test,
    within,
)

SMALLEST_EFFECT = 0.02


class ClaimRule:
    """The claim rule over the rounds of one experiment."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.aa = rounds.aa_comparisons()  # by varied value
        self.smallest_effect = smallest_effect(list(self.aa.values()))
        pairs = [pair for pair in combinations(rounds.times, 2) if rounds.paired(pair[0][1], pair[1][1])]
        family = dict.fromkeys(self._question(of, *pair) for pair in pairs for of in METRICS)
        p_values = [sign_test(rounds.ratios(*question)) for question in family]
        self._adjusted = dict(zip(family, holm(p_values), strict=True))

    def compare(self, of: str, at: CellKey, over: CellKey) -> Comparison:
        """`of` (a key of METRICS) at one cell over another that the same rounds timed, round by round."""
        return compare(self.rounds.ratios(of, at, over))

    def claims(self, of: str, at: CellKey, over: CellKey) -> bool:
        """Whether `of` differs between the two by conditions 1 to 3, undoubted; flags are the caller's."""
        found = self.compare(of, at, over)
        first, second = sorted((at, over), key=list(self.rounds.times).index)
        p = self._adjusted[self._question(of, first, second)]
        return _claimed(found, p, self.smallest_effect) and not doubts(found, self.smallest_effect)

    def _question(self, of: str, a: CellKey, b: CellKey) -> tuple[str, CellKey, CellKey]:
        """Two metrics that differ by one factor for both cells ask the same: time, else time per position."""
        factors = {self.rounds.of_time(of, key, 1) for key in (a, b)}
        return ("positions_per_s" if len(factors) > 1 else "p50_ms"), a, b


def claims(comparisons: Sequence[Comparison], smallest: float) -> list[bool]:
    """For each comparison of one family: do conditions 1 to 3 hold?"""
    adjusted = holm([comparison.p for comparison in comparisons])
    return [_claimed(c, p, smallest) for c, p in zip(comparisons, adjusted, strict=True)]


def _claimed(found: Comparison, adjusted_p: float, smallest: float) -> bool:
    return adjusted_p < ALPHA and excludes_one(found.ratio.lo, found.ratio.hi) and found.effect >= smallest


def apart(intervals: Sequence[Interval], *, exact: bool) -> bool | None:
    """Whether a ratio that no rounds pair is below 1 (True) or not (False); None: nothing may be claimed.

    `exact`: both sides were counted or observed, so any difference is one.
    """
    if exact:
        return within(intervals, -math.inf, math.nextafter(1, 0))
    if within(intervals, -math.inf, 1 / (1 + SMALLEST_EFFECT)):
        return True
    return False if within(intervals, 1 + SMALLEST_EFFECT, math.inf) else None


def smallest_effect(same: Sequence[Comparison]) -> float:
    """The smallest effect that is claimed: 2%, or twice the widest half-width of the A/A intervals."""
    widths = [
        (c.ratio.hi - c.ratio.lo) / 2 for c in same if c.ratio.lo is not None and c.ratio.hi is not None
    ]
    return max([SMALLEST_EFFECT, *(2 * width for width in widths)])


def doubts(comparison: Comparison, least: float) -> list[str]:
    """Why the claim rule is not enough here: `processes` disagree, or a `regime` changed the answer."""
    found: list[str] = []
    ratio = comparison.ratio
    if (
        comparison.by_process
        and excludes_one(ratio.lo, ratio.hi)
        and not excludes_one(*comparison.by_process)
    ):
        found.append("processes")
    if comparison.states and len({_side(state, least) for state in comparison.states}) > 1:
        found.append("regime")
    return found


def _side(ratio: float, least: float) -> int:
    return (ratio >= 1 + least) - (ratio <= 1 / (1 + least))

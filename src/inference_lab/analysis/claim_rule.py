"""The claim rule: when two cells of a record may be said to differ. One rule, one family for an experiment.

docs/glossary.md defines it. Summary (each path over the baseline) and verdicts (what a prediction says) ask
the same family, so they agree; Holm steps down, so pairs that plainly differ cost the others nothing.
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
    """The claim rule over the rounds of one experiment.

    The family is every pair of cells that the same rounds timed, in time and in time per position.
    """

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        own = {value: rounds.times[rounds.baseline, value] for value in rounds.replica}
        self.aa = {value: compare(again / own[value]) for value, again in rounds.replica.items()}
        self.smallest_effect = smallest_effect(list(self.aa.values()))
        pairs = [pair for pair in combinations(rounds.times, 2) if rounds.paired(pair[0][1], pair[1][1])]
        family = dict.fromkeys(self._question(of, *pair) for pair in pairs for of in METRICS)
        p_values = [sign_test(rounds.ratios(*question)) for question in family]
        self._adjusted = dict(zip(family, holm(p_values), strict=True))

    def compare(self, of: str, at: CellKey, over: CellKey) -> Comparison:
        """`of` (a key of METRICS) at one cell over another that the same rounds timed, round by round."""
        return compare(self.rounds.ratios(of, at, over))

    def claims(self, of: str, at: CellKey, over: CellKey) -> bool:
        """Whether `of` differs between the two, without objection; flags are the caller's."""
        found = self.compare(of, at, over)
        first, second = sorted((at, over), key=list(self.rounds.times).index)
        p = self._adjusted[self._question(of, first, second)]
        return _claimed(found, p, self.smallest_effect) and not objections(found, self.smallest_effect)

    def _question(self, of: str, a: CellKey, b: CellKey) -> tuple[str, CellKey, CellKey]:
        """Two metrics that differ by one factor for both cells ask the same: time, else time per position."""
        factors = {self.rounds.of_time(of, key, 1) for key in (a, b)}
        return ("positions_per_s" if len(factors) > 1 else "p50_ms"), a, b


def claims(comparisons: Sequence[Comparison], smallest: float) -> list[bool]:
    """For each comparison of one family: is it significant after Holm, away from 1 and large enough?

    A/A is judged so among the A/A of its experiment alone: many cells never hide a baseline that differs
    from itself.
    """
    adjusted = holm([comparison.p for comparison in comparisons])
    return [_claimed(c, p, smallest) for c, p in zip(comparisons, adjusted, strict=True)]


def _claimed(found: Comparison, adjusted_p: float, smallest: float) -> bool:
    return adjusted_p < ALPHA and excludes_one(found.ratio.bounds[1:]) and found.effect >= smallest


def apart(intervals: Sequence[Interval], *, exact: bool) -> bool | None:
    """Whether a ratio that no rounds pair is below 1 (True) or not (False); None: nothing may be claimed.

    `exact`: both sides were counted or observed, so any difference is one. Else both 95% intervals must lie
    apart by the smallest effect: stricter than 0.05, as two of like width that do not meet have p < 0.006.
    """
    if exact:
        return within(intervals, -math.inf, math.nextafter(1, 0))
    if within(intervals, -math.inf, 1 / (1 + SMALLEST_EFFECT)):
        return True
    return False if within(intervals, 1 + SMALLEST_EFFECT, math.inf) else None


def smallest_effect(same: Sequence[Comparison]) -> float:
    """The smallest effect that is claimed: 2%, or twice the widest half-width of the A/A intervals."""
    return max([SMALLEST_EFFECT, *(2 * width for c in same if (width := c.ratio.half_width) is not None)])


def objections(comparison: Comparison, least: float) -> list[str]:
    """Why the claim rule is not enough here: `processes` disagree, or a `regime` changed the answer."""
    by_process, states = comparison.by_process, comparison.states
    found: list[str] = []
    if by_process and excludes_one(comparison.ratio.bounds[1:]) and not excludes_one(by_process):
        found.append("processes")
    sides = {(ratio >= 1 + least) - (ratio <= 1 / (1 + least)) for ratio in states or ()}
    return [*found, "regime"] if len(sides) > 1 else found

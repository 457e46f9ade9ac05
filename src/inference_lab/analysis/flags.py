"""What may be wrong with a timing record, cell by cell: a code for the table, cause and way out in words.

Answers: which cells make no claim, and why? `judge` gives the bounds, else BOUNDS.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inference_lab.analysis.claim_rule import ClaimRule, claims, objections
from inference_lab.analysis.rounds import Rounds
from inference_lab.analysis.statistics import Comparison, Times, compare, estimate, excludes_one
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record
from inference_lab.records.samples import Cell

Concerns = Callable[[Mapping[str, str]], bool]

BOUNDS = {
    "max_others_cpu": 0.2,  # cores used by others, median over the run
    "max_probe_drift": 0.1,  # relative change of a fixed calculation
    "max_warmup_residual": 0.1,  # relative excess of a process's first rounds over its later ones
}
FEWEST = 6  # signs that can all agree by chance in less than 5% (2 / 2**6)
COUNTED = ("requests", "attempts", "tokens", "steps")  # units of what no lateness can move
_CHANGING = "times are of a machine still changing: let it settle, then measure again"


def is_timed(row: Mapping[str, str]) -> bool:
    """Whether a row of a load's summary is no mere count."""
    return row["unit"] not in COUNTED


class Flag(NamedTuple):
    """A code of `summary_table.CODES`, or "" for a note that stops no claim; cause and way out in words."""

    code: str
    advice: str
    concerns: Concerns = lambda _: True  # which rows of a load's cell


@dataclass(frozen=True)
class Judged:
    """Every comparison of a record and every flag: the numbers of the summary that are not quantiles."""

    ratios: Mapping[tuple[str, int], Comparison]  # path / baseline in the same round
    claimed: Mapping[tuple[str, int], bool]
    same: Mapping[int, Comparison]  # replica / baseline: A/A
    smallest_effect: float  # that is claimed
    flags: Mapping[tuple[str, int], list[Flag]]


def judge_rounds(record: Record, rounds: Rounds, judge: Judge) -> Judged:
    """The comparisons of every cell to the baseline, and what is wrong with each cell."""
    bounds = {**BOUNDS, **judge.given()}
    rule = ClaimRule(rounds)
    same, smallest = rule.aa, rule.smallest_effect
    pairs = {cell: (cell, (rounds.baseline, cell[1])) for cell in rounds.times if cell[0] != rounds.baseline}
    ratios = {cell: rule.compare("p50_ms", *pair) for cell, pair in pairs.items()}
    differs = dict(zip(same, claims(list(same.values()), smallest), strict=True))
    everywhere = [*others_at_work(record, bounds["max_others_cpu"])]
    everywhere += _drift(rounds.probe, bounds["max_probe_drift"])
    if not same:
        everywhere.append(Flag("", "A/A not assessed: the baseline was measured once a round"))
    flags = {
        cell: [
            *everywhere,
            *_threads(record, rounds.cells[cell]),
            *([_baseline_differs(same[cell[1]])] if differs.get(cell[1]) else []),
            *_warmup_residual(times, bounds["max_warmup_residual"]),
            *(_objections(ratios[cell], smallest) if cell in ratios else []),
        ]
        for cell, times in rounds.times.items()
    }
    claimed = {
        cell: rule.claims("p50_ms", *pair) and not any(flag.code for side in pair for flag in flags[side])
        for cell, pair in pairs.items()
    }
    return Judged(ratios, claimed, same, smallest, flags)


def others_at_work(record: Record, bound: float) -> Iterator[Flag]:
    """Others used more than `bound` cores: times make no claim, counts do."""
    others = record.manifest.get("environment", {}).get("others_used_cores")
    if others is None:
        yield Flag("", "load of others not assessed: the record does not hold it")
    elif others["median"] > bound:
        used = f"others used {others['median']:.3g} cores (median; at most {others['max']:.3g})"
        yield Flag("busy", f"{used}, allowed are {bound:.3g}; measure again on a quiet machine", is_timed)


def _threads(record: Record, cell: Cell) -> Iterator[Flag]:
    """More threads wanted to run than there were cores, with those that the experiment kept busy itself."""
    cores = record.manifest.get("environment", {}).get("affinity")
    beside: int = record.manifest.get("neighbours", {}).get(cell.path, 0)
    if cores is not None and cell.blas_threads + beside > len(cores):
        shared = f"{cell.blas_threads} threads of BLAS and {beside} beside them shared {len(cores)} cores"
        cause = "a split product waits for the scheduler; allow as many cores as threads"
        yield Flag("threads", f"{shared}: {cause}")


def _drift(probe: Times | None, bound: float) -> Iterator[Flag]:
    """A fixed calculation got slower or faster in every process, or from each process to the next."""
    if probe is None or probe.shape[1] < 2:
        yield Flag("", "drift not assessed: no probe, or one round only")
        return
    half = probe.shape[1] // 2
    ratios = probe[:, -half:] / probe[:, :half]
    if len(ratios) >= FEWEST:  # enough to decide by one ratio a process: rounds of a process are alike
        ratios = np.percentile(ratios, 50, axis=1, keepdims=True)
    change = compare(ratios).ratio
    if excludes_one(change.bounds[1:]) and abs(change.value - 1) > bound:
        words = f"within a process the probe changed to {change.value:.3g} of its first half"
        yield Flag("drift", f"{words}; {_CHANGING}")
    medians = np.percentile(probe, 50, axis=1)
    steps, total = np.sign(np.diff(medians)), float(medians[-1] / medians[0])
    if len(medians) >= FEWEST and abs(int(steps.sum())) == len(steps) and abs(total - 1) > bound:
        words = f"the probe changed from process to process to {total:.3g} of the first"
        yield Flag("drift", f"{words}; {_CHANGING}")


def _baseline_differs(aa: Comparison) -> Flag:
    words = f"the baseline measured twice in the same rounds differs from itself by {aa.effect:.1%} (A/A)"
    return Flag("aa", f"{words}: ratios of this value mean nothing; measure again on a quiet machine")


def _warmup_residual(times: Times, bound: float) -> Iterator[Flag]:
    """The first rounds of every process, at least FEWEST in all, are slower than its later half."""
    processes, rounds = times.shape
    first = -(-FEWEST // processes)
    if rounds < 2 * first:
        return
    excess = times[:, :first] / np.percentile(times[:, rounds // 2 :], 50, axis=1, keepdims=True)
    if float(excess.min()) > 1 + bound:
        words = f"the first rounds of every process took {estimate(excess, 0.5).value:.3g} times as long"
        yield Flag("warmup-residual", f"{words} as its later ones; raise warmups")


def _objections(comparison: Comparison, smallest: float) -> Iterator[Flag]:
    found = objections(comparison, smallest)
    if "processes" in found and comparison.by_process:
        low, high = comparison.by_process
        words = f"drawn by whole processes the ratio lies in [{low:.4g}, {high:.4g}]: processes disagree"
        yield Flag("processes", f"{words}; measure with more processes")
    if comparison.states:
        low, high = comparison.states
        moved = f"the ratio moved between {low:.4g} and {high:.4g} for stretches of rounds"
        if "regime" in found:
            words = "which do not tell one story; find what changed, then measure again"
            yield Flag("regime", f"{moved}, {words}")
        elif high / low > 1 + smallest:
            yield Flag("", moved)

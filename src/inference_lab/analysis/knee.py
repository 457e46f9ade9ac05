"""Where doubling the batch stops paying: the knee of throughput, as an interval.

growing ... growing | cannot tell ... | stopped
                    ^ lo              ^ hi
"""

from collections.abc import Sequence
from dataclasses import dataclass

from inference_lab.analysis.intervals import Estimate, Interval, compare
from inference_lab.analysis.rounds import Rounds


@dataclass(frozen=True)
class Doubling:
    """What going from `value` to twice `value` did to throughput, and every interval of it."""

    value: int
    gain: Estimate
    intervals: Sequence[Interval]


@dataclass(frozen=True)
class Knee:
    """`answer` is interval, Not reached or Inconclusive; lo and hi are the values it lies between."""

    answer: str
    lo: int | None
    hi: int | None
    doublings: Sequence[Doubling]


def doublings(rounds: Rounds, path: str) -> list[Doubling]:
    """The gain in throughput of each doubling that was measured, paired by round: 2 t(B) / t(2B)."""
    found: list[Doubling] = []
    for value in sorted(rounds.values):
        if 2 * value in rounds.values:
            gain = compare(2 * rounds.times[path, value] / rounds.times[path, 2 * value])
            found.append(Doubling(value, gain.ratio, gain.intervals))
    return found


def find_knee(steps: Sequence[Doubling], factor: float) -> Knee:
    """The smallest value from which doubling raises throughput by less than `factor`, as an interval.

    It lies between the first doubling that does not surely grow and the first that surely stopped.
    """
    growth = [_growth(step, factor) for step in steps]
    if "stopped" in growth:
        last = growth.index("stopped")
        first = next(i for i, seen in enumerate(growth) if seen != "growing")
        return Knee("interval", steps[first].value, steps[last].value, steps)
    if growth and set(growth) == {"growing"}:
        return Knee("Not reached", None, None, steps)
    return Knee("Inconclusive", None, None, steps)


def _growth(step: Doubling, factor: float) -> str:
    if all(lo is not None and lo >= factor for lo, _ in step.intervals):
        return "growing"
    if all(hi is not None and hi < factor for _, hi in step.intervals):
        return "stopped"
    return "cannot tell"

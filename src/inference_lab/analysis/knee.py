"""Where doubling the batch stops paying: the knee of throughput, as an interval.

growing ... growing | cannot tell ... | stopped
                    ^ lo              ^ hi
"""

from collections.abc import Sequence
from dataclasses import dataclass

from inference_lab.analysis.comparisons import Cell, Evidence, NoEvidence, Quantity


@dataclass(frozen=True)
class Doubling:
    """What going from `value` to twice `value` did to throughput."""

    value: int
    gain: Quantity

    def growth(self, factor: float) -> str:
        """growing, stopped, or cannot tell: does throughput surely rise by `factor`, surely not?"""
        if all(lo is not None and lo >= factor for lo, _ in self.gain.intervals):
            return "growing"
        stopped = all(hi is not None and hi < factor for _, hi in self.gain.intervals)
        return "stopped" if stopped else "cannot tell"


@dataclass(frozen=True)
class Knee:
    """`answer` is interval, Not reached or Inconclusive; lo and hi are the values it lies between."""

    answer: str
    lo: int | None
    hi: int | None
    doublings: Sequence[Doubling]

    def __str__(self) -> str:
        last = 2 * self.doublings[-1].value
        if self.answer == "Not reached":
            return f"every doubling up to {last} still grew"
        if self.answer == "Inconclusive":
            return f"up to {last} the intervals cannot tell where growth ends"
        at = f"at {self.lo}" if self.lo == self.hi else f"between {self.lo} and {self.hi}"
        return f"growth ends {at}"


def measured_knee(evidence: Evidence, of: str, rest: Cell, factor: float) -> Knee:
    """The knee of the column `of` over the varied axis, from every value whose double was measured too.

    Raises NoEvidence when there is no such pair, or a cell is flagged.
    """
    axis, values = evidence.axis, sorted(evidence.values)
    steps = [
        Doubling(value, evidence.ratio(of, {**rest, axis: 2 * value}, {**rest, axis: value}))
        for value in values
        if 2 * value in values
    ]
    if not steps:
        raise NoEvidence(f"no value of {axis} is the double of another")
    return find_knee(steps, factor)


def find_knee(steps: Sequence[Doubling], factor: float) -> Knee:
    """The smallest value from which doubling raises throughput by less than `factor`, as an interval.

    It lies between the first doubling that does not surely grow and the first that surely stopped.
    """
    growth = [step.growth(factor) for step in steps]
    if "stopped" in growth:
        first = next(i for i, seen in enumerate(growth) if seen != "growing")
        return Knee("interval", steps[first].value, steps[growth.index("stopped")].value, steps)
    return Knee("Inconclusive" if "cannot tell" in growth else "Not reached", None, None, steps)

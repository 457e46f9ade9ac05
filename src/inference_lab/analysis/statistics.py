"""What a set of times, or two sets paired by round, can support: quantiles and ratios with their intervals.

Assumes nothing about the shape of the times. Every number is an order statistic, a quotient, or a count, so
it has the same bits on every CPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, ndtr

Times = NDArray[Any]  # (processes, rounds), ns or ratios
Interval = tuple[float | None, float | None]  # lower and upper bound; None: nothing is known of that end

ALPHA = 0.05
WINDOW = 5  # rounds over which a state of the machine is looked for
RESAMPLES = 399


@dataclass(frozen=True)
class Estimate:
    """A value with its 95% interval; a bound that n cannot support is None."""

    value: float
    lo: float | None
    hi: float | None
    n: int

    @property
    def bounds(self) -> tuple[float, float | None, float | None]:
        """Value, lower bound, upper bound."""
        return self.value, self.lo, self.hi

    @property
    def half_width(self) -> float | None:
        """Half the width of the interval; None when it is open."""
        return None if self.lo is None or self.hi is None else (self.hi - self.lo) / 2


@dataclass(frozen=True)
class Comparison:
    """The median of per-round ratios, what supports it, and what could contradict it."""

    ratio: Estimate
    p: float  # sign test: how likely such one-sidedness is if neither is slower
    by_process: tuple[float, float] | None  # 95% bootstrap over processes; None for fewer than 3
    states: tuple[float, float] | None  # the ratio in two states of the machine; None: one state

    @property
    def effect(self) -> float:
        """How far the ratio is from 1, the same for a/b and b/a."""
        return max(self.ratio.value, 1 / self.ratio.value) - 1

    @property
    def intervals(self) -> list[Interval]:
        """Every interval a conclusion has to hold in: by rounds, by processes, from state to state."""
        return [self.ratio.bounds[1:], *(found for found in (self.by_process, self.states) if found)]


def estimate(values: Times, quantile: float) -> Estimate:
    """A quantile by linear interpolation with its distribution-free 95% order-statistic interval.

    Interpolation: `numpy.percentile`, method `linear` (Hyndman & Fan 1996, type 7). Interval: see `ranks`.
    """
    ordered = np.sort(values, axis=None)
    low, high = (None if rank is None else float(ordered[rank - 1]) for rank in ranks(ordered.size, quantile))
    return Estimate(float(np.percentile(ordered, 100 * quantile)), low, high, int(ordered.size))


@lru_cache
def ranks(n: int, quantile: float) -> tuple[int | None, int | None]:
    """The 1-based ranks between which a quantile lies with 95%; None where n is too small.

    Conover, Practical Nonparametric Statistics (1999), 3.2, as in `scipy.stats.quantile_test`, which
    is not imported because it takes more than a second to load. n=120, P95: ranks 109 and 119.
    """
    below = cast("NDArray[Any]", bdtr(np.arange(n + 1.0), n, quantile))  # P(at most k values lie below)
    low = int(np.searchsorted(below, ALPHA / 2))
    high = int(np.searchsorted(below, 1 - ALPHA / 2)) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def sign_test(ratios: Times) -> float:
    """The two-sided p of as many ratios on one side of 1; ties are left out.

    Dixon & Mood (1946); `scipy.stats.binomtest(above, above + below).pvalue`.
    """
    above, below = int(np.sum(ratios > 1)), int(np.sum(ratios < 1))
    return min(1.0, 2 * float(bdtr(float(min(above, below)), above + below, 0.5)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p values adjusted for having asked all these questions: Holm (1979), step-down."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def compare(ratios: Times) -> Comparison:
    """(processes, rounds) ratios of two calls of the same round -> what they say together."""
    return Comparison(estimate(ratios, 0.5), sign_test(ratios), bootstrap(ratios), states(ratios))


def bootstrap(ratios: Times) -> tuple[float, float] | None:
    """95% percentile interval of the median when whole processes are drawn again, with a fixed seed.

    Davison & Hinkley, Bootstrap Methods (1997), 3.8: processes, not rounds, are independent of each
    other. Fewer than 3 processes cannot be drawn from: None.
    """
    processes = len(ratios)
    if processes < 3:
        return None
    drawn = np.random.default_rng(0).integers(0, processes, (RESAMPLES, processes))
    ordered = np.sort(ratios[drawn].reshape(RESAMPLES, -1), axis=1)
    medians = (ordered[:, (ordered.shape[1] - 1) // 2] + ordered[:, ordered.shape[1] // 2]) / 2
    low, high = np.percentile(medians, [100 * ALPHA / 2, 100 - 100 * ALPHA / 2])
    return float(low), float(high)


def states(ratios: Times) -> tuple[float, float] | None:
    """The ratio in the low and the high state of the run, or None when rounds follow no pattern.

    A pattern is fewer runs above and below the median than chance gives (Wald & Wolfowitz 1940, normal
    approximation, one-sided). The states are P10 and P90 of medians over `WINDOW` rounds of a process.
    """
    side = ratios.ravel() > np.percentile(ratios, 50)
    n, above = side.size, int(side.sum())
    below = n - above
    if min(above, below) < 2 or ratios.shape[-1] < WINDOW:
        return None
    runs = 1 + int(np.sum(side[1:] != side[:-1]))
    expected = 1 + 2 * above * below / n
    spread = ((expected - 1) * (expected - 2) / (n - 1)) ** 0.5
    if float(ndtr((runs - expected) / spread)) >= ALPHA:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(ratios, WINDOW, axis=-1)
    low, high = np.percentile(np.percentile(windows, 50, axis=-1), [10, 90])
    return float(low), float(high)


def within(intervals: Sequence[Interval], low: float, high: float) -> bool | None:
    """Return True when every interval lies inside [low, high], False when all lie outside, else None.

    An open bound may lie anywhere: it is inside nothing, but a lower one where `low` is -inf.
    """
    known = [(-math.inf if lo is None else lo, math.inf if hi is None else hi) for lo, hi in intervals]
    if all(hi < low or lo > high for lo, hi in known):
        return False
    return True if all(low <= lo and hi <= high and hi < math.inf for lo, hi in known) else None


def excludes_one(interval: Interval) -> bool:
    """Whether 1 lies outside; an open bound excludes nothing."""
    return within([interval], 1, 1) is False


def with_interval(value: float | None, bounds: Interval) -> str:
    """1.79 [1.78, 1.80]; an end that n cannot bound says open; nothing for None."""
    if value is None:
        return ""
    lo, hi = ("open" if bound is None else short(bound) for bound in bounds)
    return f"{short(value)} [{lo}, {hi}]"


def short(value: float) -> str:
    """Four significant digits, from 1000 on whole numbers: 1.793, 231,047."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

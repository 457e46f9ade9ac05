"""What an interval says whose ends may be open: plain comparisons, no statistics."""

import math
from collections.abc import Sequence

Interval = tuple[float | None, float | None]  # lower and upper bound; None: nothing is known of that end


def within(intervals: Sequence[Interval], low: float, high: float) -> bool | None:
    """True when every interval lies inside [low, high], False when every one lies outside, else None.

    An open bound lies anywhere; low may be -inf.
    """
    unbounded = low == -math.inf
    if all(
        (unbounded or (lo is not None and low <= lo)) and hi is not None and hi <= high
        for lo, hi in intervals
    ):
        return True
    if all((hi is not None and hi < low) or (lo is not None and lo > high) for lo, hi in intervals):
        return False
    return None


def excludes_one(lo: float | None, hi: float | None) -> bool:
    """Whether 1 lies outside; an open bound excludes nothing."""
    return (lo is not None and lo > 1) or (hi is not None and hi < 1)


def with_interval(value: float | None, bounds: Interval) -> str:
    """1.79 [1.78, 1.80]; an end that n cannot bound says open; nothing for None."""
    if value is None:
        return ""
    lo, hi = ("open" if bound is None else short(bound) for bound in bounds)
    return f"{short(value)} [{lo}, {hi}]"


def short(value: float) -> str:
    """Four significant digits, from 1000 on whole numbers: 1.793, 231,047."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"

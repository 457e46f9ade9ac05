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

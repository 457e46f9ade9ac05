"""summary.csv of kernels beside their limits: that of a timing record, and how near each path comes to them.

The limit of a call is the longest of what it must read, what it must multiply and what NumPy takes to be
called, of the same round. Not their sum: a product is timed with its call, and reads what it multiplies.
"""

from collections.abc import Container

import numpy as np

from inference_lab.analysis import timing
from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.statistics import compare
from inference_lab.analysis.summary_table import as_text, bounded, with_bounds
from inference_lab.config.judge import Judge
from inference_lab.errors import RecordError
from inference_lab.records.record import Record, csv_text

LIMITS = ("read", "gemm", "calls")
COLUMNS = (*timing.COLUMNS, *bounded("of_limit"))


def check_limits(record: Record, paths: Container[str], what: str) -> None:
    """Nothing, when all limits are among the paths that `what` is made of; else RecordError."""
    if missing := [path for path in LIMITS if path not in paths]:
        raise RecordError(f"{record.experiment}: no path {missing[0]}; {what} needs all limits")


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv: timing's columns, then limit / time, the median over rounds with its interval.

    1 is as fast as the limit allows; empty for the limits themselves. Raises RecordError as timing
    does, and when a limit was not measured.
    """
    rounds = rounds_of(record)
    check_limits(record, rounds.paths, "the peers' summary")
    rows = timing.rows(record, rounds, judge)
    for row, (path, value) in zip(rows, rounds.times, strict=True):
        if path not in LIMITS:
            limit = np.maximum.reduce([rounds.times[limit, value] for limit in LIMITS])
            bounds = with_bounds("of_limit", compare(limit / rounds.times[path, value]).ratio.bounds)
            row |= {name: as_text(number) for name, number in bounds.items()}
    return csv_text(COLUMNS, rows)

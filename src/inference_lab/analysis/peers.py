"""summary.csv of kernels beside their limits: that of a timing record, and how near each path comes to them.

The limit of a call is the longest of what it must read, what it must multiply and what NumPy takes to be
called: the paths `read`, `gemm` and `calls` of the same round. Not their sum: a product is timed with its
call, and reads what it multiplies. Does not know how they were made.
"""

from collections.abc import Container

import numpy as np

from inference_lab.analysis import timing
from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.statistics import compare
from inference_lab.analysis.summary_table import bounded, with_bounds
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
    check_limits(record, {path for path, _ in rounds.times}, "the peers' summary")
    rows: list[dict[str, str]] = []
    for row in timing.rows(record, rounds, judge):
        at = row["path"], int(row[rounds.axis])
        if row["path"] not in LIMITS:
            limit = np.maximum.reduce([rounds.times[path, at[1]] for path in LIMITS])
            row |= timing.as_text(with_bounds("of_limit", *compare(limit / rounds.times[at]).ratio.bounds))
        rows.append(row)
    return csv_text(COLUMNS, rows)

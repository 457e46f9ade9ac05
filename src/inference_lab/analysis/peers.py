"""summary.csv of kernels beside their limits: that of a timing record, and how near each path comes to them.

The limit of a call is the longest of what it must read, what it must multiply and what NumPy takes to be
called: the paths `read`, `gemm` and `calls` of the same round. Not their sum: a product is timed with its
call, and reads what it multiplies. Does not know how they were made.
"""

import csv
import io
from collections.abc import Container

import numpy as np

from inference_lab.analysis import timing
from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.statistics import compare
from inference_lab.config.judge import Judge
from inference_lab.errors import RecordError
from inference_lab.records.record import Record

LIMITS = ("read", "gemm", "calls")
COLUMNS = (*timing.COLUMNS, "of_limit", "of_limit_lo", "of_limit_hi")


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
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    for row in csv.DictReader(io.StringIO(timing.summarise(record, judge))):
        value = int(row[rounds.axis])
        if row["path"] not in LIMITS:
            limit = np.maximum.reduce([rounds.times[path, value] for path in LIMITS])
            reached = compare(limit / rounds.times[row["path"], value]).ratio
            for column, number in zip(COLUMNS[-3:], reached.bounds, strict=True):
                row[column] = "" if number is None else f"{number:.9g}"
        table.writerow(row)
    return text.getvalue()

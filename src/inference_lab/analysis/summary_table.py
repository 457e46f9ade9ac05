"""Rows of a summary: read, and picked by what they are about.

Answers: which row is meant, and what does a column of it say? Does not know how the numbers were made.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_lab.config.judge import Judge
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.files import read_text
from inference_lab.records.record import Record
from inference_lab.records.samples import csv_rows

# aa: the baseline differs from itself; processes, regime: see intervals
CODES = (
    *("threads", "busy", "drift", "aa", "warmup-residual", "processes", "regime"),
    "client-limited",  # the load client was late by more than its bound
    "server-late",  # the server of declared times was, or it stood still
    "stands-out",  # one load is far from those beside it
    "two-sides",  # what client and server say of one load cannot both be right
    "unscraped",  # the server did not say what it should
    "stamps",  # other stamps than were asked for
)
SEPARATOR = " | "  # between one advice and the next in a row of the summary
_AGAIN = "delete it and rebuild it from raw"


class SummaryRow(dict[str, str]):
    """One row of a summary: the text of each column, and numbers with their bounds on request."""

    def __init__(self, columns: Mapping[str, str], place: str = "summary.csv") -> None:
        super().__init__(columns)
        self.place = place  # file and line, for messages

    def __missing__(self, column: str) -> str:
        raise ConfigError(f"{self.place}: no column {column!r}; there are {', '.join(self)}")

    def number(self, column: str) -> float | None:
        """Return the column as a finite number, None when it is empty. Raises RecordError otherwise."""
        if not (text := self[column]):
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise RecordError(
                f"{self.place}: {column} is {text!r}, must be empty or a finite number; {_AGAIN}"
            )
        return value

    def interval(self, column: str) -> tuple[float | None, float | None]:
        """Return the lower and the upper bound of a column; None, None where the table has none."""
        lo, hi = (self.number(name) if name in self else None for name in bound_names(column))
        return lo, hi


@dataclass(frozen=True)
class View:
    """Everything a figure or a generated page may read.

    `source` names the experiment, `files` with the sha256 of every file the view holds (raw ones and the
    summary), and the command that rebuilds what is drawn from it.
    """

    record: Record
    summary: Sequence[SummaryRow]
    judge: Judge
    source: Mapping[str, Any]


def bound_names(column: str) -> tuple[str, str]:
    """Return the names of a column's bounds: `_lo`, `_hi` before a unit of time, else at the end.

    p50_ms: p50_lo_ms, p50_hi_ms. ratio: ratio_lo, ratio_hi.
    """
    stem, _, unit = column.rpartition("_")
    if column == "aa_ratio":
        return "aa_lo", "aa_hi"
    if unit in ("ms", "us"):
        return f"{stem}_lo_{unit}", f"{stem}_hi_{unit}"
    return f"{column}_lo", f"{column}_hi"


def bounded(column: str) -> tuple[str, str, str]:
    """Return the names of a column and of its bounds."""
    return column, *bound_names(column)


def with_bounds(column: str, bounds: Sequence[float | None]) -> dict[str, float | None]:
    """Return a value with its lower and upper bound under their names."""
    return dict(zip(bounded(column), bounds, strict=True))


def read_summary(path: Path) -> list[SummaryRow]:
    """Read every row of a summary. Raises RecordError naming file, line and rule when the table is torn."""
    return summary_rows(read_text(path, "rebuild it from raw"), str(path))


def summary_rows(text: str, file: str) -> list[SummaryRow]:
    """Return the rows in the text of a summary.csv, checked as in `read_summary`; errors name `file`."""
    header, lines = csv_rows(text, file, _AGAIN)
    if not lines:
        raise RecordError(f"{file}: there is a header but no row; {_AGAIN}")
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    return [SummaryRow(row, f"{file} line {number}") for number, row in enumerate(rows, start=2)]


def pick(rows: Sequence[SummaryRow], cell: Mapping[str, object], place: str) -> SummaryRow | None:
    """The one row whose columns say what `cell` says, None when no such cell was measured.

    Raises ConfigError for a column the table does not have or a cell that fits several rows.
    """
    if unknown := [column for column in cell if column not in rows[0]]:
        raise ConfigError(f"{place}: no column {unknown[0]!r}; the summary has {', '.join(rows[0])}")
    fit = [row for row in rows if all(row[column] == as_text(value) for column, value in cell.items())]
    if len(fit) > 1:
        raise ConfigError(f"{place}: {in_words(cell)} fits {len(fit)} rows; name more columns to mean one")
    return fit[0] if fit else None


def as_text(value: object) -> str:
    """A value as a summary holds it: true, false, nine digits, 8 for 8.0, empty for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_words(cell: Mapping[str, object]) -> str:
    """path=preallocated batch_size=8."""
    return " ".join(f"{column}={as_text(value)}" for column, value in cell.items())

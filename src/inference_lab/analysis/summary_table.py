"""Rows of a summary: read, and picked by what they are about.

Answers: which row is meant, and what does a column of it say? Does not know how the numbers were made.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.files import read_text

Row = Mapping[str, str]

# invalid: measuring itself said so; aa: the baseline differs from itself; processes, regime: see intervals
CODES = (
    *("invalid", "oracle", "threads", "busy", "drift", "aa", "warmup-residual", "processes", "regime"),
    "client-limited",  # the load client was late by more than its bound
    "server-late",  # the server of declared times was, or it stood still
    "stands-out",  # one load is far from those beside it
    "two-sides",  # what client and server say of one load cannot both be right
    "unscraped",  # the server did not say what it should
    "stamps",  # other stamps than were asked for
)
SEPARATOR = " | "  # between one advice and the next in a row of the summary

_AGAIN = "delete it and rebuild it from raw"


def read_summary(path: Path) -> list[dict[str, str]]:
    """Every row of a summary as text under its columns.

    Raises RecordError naming file, line and rule when the table is torn or a row is there twice.
    """
    return summary_rows(read_text(path, "rebuild it from raw"), str(path))


def summary_rows(text: str, file: str) -> list[dict[str, str]]:
    """The rows in the text of a summary.csv, checked as `read_summary` says; `file` is named in errors."""
    if not text.endswith("\n"):
        raise RecordError(f"{file}: the last row is cut off (no line end); {_AGAIN}")
    try:
        header, *lines = csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise RecordError(f"{file}: no CSV ({error}); {_AGAIN}") from None
    if not lines:
        raise RecordError(f"{file}: there is a header but no row; {_AGAIN}")
    if len(set(header)) != len(header):
        raise RecordError(f"{file}: a column stands twice in {','.join(header)}; {_AGAIN}")
    for number, line in enumerate(lines, start=2):
        if len(line) != len(header):
            raise RecordError(f"{file} line {number}: {len(line)} values, must be {len(header)}; {_AGAIN}")
        if lines.index(line) != number - 2:
            raise RecordError(f"{file} line {number}: stands twice; each row stands once; {_AGAIN}")
    return [dict(zip(header, line, strict=True)) for line in lines]


def number(row: Row, column: str, place: str) -> float | None:
    """The column as a finite number, None when empty. Raises RecordError for anything else."""
    if not row[column]:
        return None
    try:
        found = float(row[column])
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise RecordError(f"{place}: {column} is {row[column]!r}, must be empty or a finite number; {_AGAIN}")
    return found


def bounds(row: Row, column: str, place: str) -> tuple[float | None, float | None]:
    """Lower and upper bound of a column; None, None where the table has none."""
    lo, hi = (bound_column(row, column, end) for end in ("lo", "hi"))
    return (number(row, lo, place) if lo else None), (number(row, hi, place) if hi else None)


def bound_column(row: Row, column: str, end: str) -> str | None:
    """p50_ms, lo -> p50_lo_ms; ratio, hi -> ratio_hi; aa_ratio, lo -> aa_lo; None where there is none."""
    stem, _, unit = column.rpartition("_")
    return next((x for x in (f"{column}_{end}", f"{stem}_{end}_{unit}", f"{stem}_{end}") if x in row), None)


def pick(rows: Sequence[Row], cell: Mapping[str, Any], place: str) -> Row | None:
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
    """A value of a prediction as it would stand in a table: true, false, 8 for 8.0, empty for null."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.9g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def in_words(cell: Mapping[str, Any]) -> str:
    """path=preallocated batch_size=8."""
    return " ".join(f"{column}={as_text(value)}" for column, value in cell.items())

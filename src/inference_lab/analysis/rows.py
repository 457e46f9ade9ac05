"""Rows of a summary: read, checked against themselves, picked by what they are about.

Answers: which row is meant, and what does a column of it say? Does not know how the numbers were made.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from inference_lab.analysis.interval import Interval, excludes_one
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

_ORDERED = (  # of a timing row, ascending wherever they are not empty
    ("min_ms", "p50_ms", "p95_ms", "max_ms"),
    ("p50_lo_ms", "p50_ms", "p50_hi_ms"),
    ("p95_lo_ms", "p95_ms", "p95_hi_ms"),
    ("positions_per_s_lo", "positions_per_s", "positions_per_s_hi"),
    ("ratio_lo", "ratio", "ratio_hi"),
    ("aa_lo", "aa_ratio", "aa_hi"),
)
_AGAIN = "delete it and rebuild it from raw"


def read_summary(path: Path) -> list[dict[str, str]]:
    """Every row of a summary as text under its columns.

    Raises RecordError naming file, line and rule when the table is torn, a row stands twice, a number is
    none, or flags contradict the row.
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
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    check_rows(rows, file)
    return rows


def check_rows(rows: Sequence[Row], file: str) -> None:
    """Raises RecordError when the flags or numbers of a timing row contradict each other."""
    if "ratio_claimed" not in rows[0]:
        return
    for number, row in enumerate(rows, start=2):
        if wrong := _contradiction(row, f"{file} line {number}", rows[0]["n"]):
            raise RecordError(f"{file} line {number}: {wrong}; {_AGAIN}")


def _contradiction(row: Row, place: str, n: str) -> str | None:
    codes = row["flags"].split()
    if unknown := [code for code in codes if code not in CODES]:
        return f"flag {unknown[0]!r} is not known; there are {', '.join(CODES)}"
    if codes and not row["advice"]:
        return f"flags are {row['flags']!r} but advice is empty; a flag has a reason"
    if codes and row["ratio_claimed"] == "yes":
        return f"ratio_claimed is yes but flags are {row['flags']!r}; a flagged cell makes no claim"
    if row["n"] != n:
        return f"n is {row['n']}, the first row has {n}; every cell has the same number"
    for names in _ORDERED:
        seen = [(name, found) for name in names if (found := number(row, name, place)) is not None]
        for (low, a), (high, b) in pairwise(seen):
            if a > b:
                return f"{low} is {a:.9g}, more than {high} ({b:.9g})"
    if row["ratio_claimed"] == "yes" and not excludes_one(*bounds(row, "ratio", place)):
        return "ratio_claimed is yes but the interval of ratio holds 1"
    if "aa" in codes and not excludes_one(number(row, "aa_lo", place), number(row, "aa_hi", place)):
        return "flags say aa but the interval of aa_ratio holds 1"
    return None


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


def bounds(row: Row, column: str, place: str) -> Interval:
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

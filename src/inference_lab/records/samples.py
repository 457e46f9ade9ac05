"""Raw timing samples as they are written and read: one row per timed call, nothing derived, nothing dropped.

Measuring writes them without pandas; reading gives a table whose every check is a mask.
"""

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from inference_lab.errors import RecordError
from inference_lab.records.files import read_text

Table: TypeAlias = Any  # a pandas DataFrame: pandas ships no types that pyright can use
CONTROL_KINDS = ("warmup", "probe", "replica")
CONTROLS = "controls.csv"  # how the name of a file of controls ends


class Cell(NamedTuple):
    """One combination of conditions: what a call computes, and with how many BLAS threads."""

    path: str
    batch_size: int
    sequence_length: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    dtype: str
    blas_threads: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call. Times are integer ns of `perf_counter_ns`; `kind` is "sample" in raw.csv."""

    process: int
    round: int
    position: int
    path: str
    batch_size: int
    sequence_length: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    dtype: str
    blas_threads: int
    elapsed_ns: int
    started_ns: int
    checksum: str
    kind: str = "sample"

    @property
    def cell(self) -> Cell:
        """The conditions of the call."""
        return Cell(*(getattr(self, name) for name in CELL_COLUMNS))


CELL_COLUMNS = Cell._fields
TIMING_COLUMNS = tuple(field.name for field in fields(Sample))[:-1]
CONTROL_COLUMNS = (*TIMING_COLUMNS, "kind")
_INTEGERS = frozenset(field.name for field in fields(Sample) if field.type is int)
_INTEGER = r"0|-?[1-9][0-9]{0,17}"  # fits into 64 bits
_FROM_ZERO = ("process", "round", "position", "started_ns")  # the other integers begin at 1
_RESTORE = "restore it from git or measure again"


def write_samples(samples: Iterable[Sample], *, controls: bool = False) -> str:
    """Return the text of raw.csv, or of controls.csv with its column `kind`; rows as they happened."""
    columns = CONTROL_COLUMNS if controls else TIMING_COLUMNS
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(astuple(sample)[: len(columns)] for sample in samples)
    return text.getvalue()


def read_samples(path: Path, *, controls: bool = False) -> Table:
    """Read every row of a raw.csv (or controls.csv) in order, under CONTROL_COLUMNS.

    Raises RecordError naming file, line, value and rule when the table is empty, truncated, has a missing or
    unknown column, a value outside its column's type or range, or the same place in a run twice.
    """
    from pandas import DataFrame

    columns = CONTROL_COLUMNS if controls else TIMING_COLUMNS
    _, rows = csv_rows(read_text(path, f"name the right one, {_RESTORE}"), str(path), _RESTORE, columns)
    if not rows and not controls:
        raise RecordError(f"{path}: there is a header but no row; {_RESTORE}")
    table: Table = DataFrame(rows, columns=list(columns), dtype="str")
    for name in columns:
        text, lowest = table[name], 0 if name in _FROM_ZERO else 1
        if name in _INTEGERS:
            whole = text.str.fullmatch(_INTEGER)
            table[name] = text.where(whole, "-1").astype("int64")
            wrong = table[name] < lowest
            rule = f"an integer of at least {lowest} (times are whole ns)"
        else:
            wrong = ~text.isin(CONTROL_KINDS) if name == "kind" else text == ""
            rule = " or ".join(CONTROL_KINDS) if name == "kind" else "text"
        if wrong.any():
            row = int(wrong.to_numpy().argmax())
            words = f"{name} is {text[row][:40]!r}, must be {rule}"
            raise RecordError(f"{path} line {row + 2}: {words}; {_RESTORE}")
    if not controls:
        table["kind"] = "sample"
    place = ["process", "round", "position", "kind"]
    again = table.duplicated(place).to_numpy()
    if again.any():
        second = int(again.argmax())
        first = int((table[place] == table.loc[second, place]).all(axis=1).to_numpy().argmax())
        where = ", ".join(f"{name} {table[name][second]}" for name in place[:3])
        raise RecordError(f"{path} line {second + 2}: duplicate of line {first + 2} ({where}); {_RESTORE}")
    return table


def cell_of(samples: Table) -> Cell:
    """Return the conditions of the first sample."""
    return Cell(*next(samples[[*CELL_COLUMNS]].itertuples(index=False)))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read every row of a raw.csv of another kind than timing, as text under its own columns.

    Raises RecordError when the table is empty, truncated, or a row has more or fewer values than columns.
    """
    header, rows = csv_rows(read_text(path, f"name the right one, {_RESTORE}"), str(path), _RESTORE)
    return [dict(zip(header, row, strict=True)) for row in rows]


def csv_rows(
    text: str, file: str, way_out: str, columns: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return the header of a table, which must be `columns` where given, and the rows, each as wide.

    Raises RecordError naming `file`, line, rule and `way_out` when the text is no whole table.
    """
    if not text:
        raise RecordError(f"{file}: the file is empty; {way_out}")
    if not text.endswith("\n"):
        raise RecordError(f"{file}: the last row is cut off (no line end); {way_out}")
    try:
        header, *rows = csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise RecordError(f"{file}: no CSV ({error}); {way_out}") from None
    if columns and header != [*columns]:
        lacks = [f"column {name} is missing" for name in columns if name not in header]
        unknown = [f"column {name} is not known" for name in header if name not in columns]
        words = [*lacks, *unknown, "columns are doubled or out of order"][0]
        raise RecordError(f"{file}: {words}; it must have exactly {','.join(columns)}; {way_out}")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise RecordError(f"{file} line {line}: {len(row)} values, must be {len(header)}; {way_out}")
    return header, rows

"""Raw timing samples as they are written and read: one row a sample, nothing derived, nothing dropped.

Answers: are these rows a whole, unmixed measurement? Does not know what they mean.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from inference_lab.errors import RecordError
from inference_lab.records.files import read_text

CONTROL_KINDS = ("warmup", "probe", "replica")
CONTROLS = "controls.csv"  # how the name of a file of controls ends


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
    def cell(self) -> tuple[str, int, int, int, int, int, str, int]:
        """What was timed: path, B, T, C, H, G, dtype, BLAS threads."""
        return (
            self.path,
            self.batch_size,
            self.sequence_length,
            self.d_model,
            self.num_heads,
            self.num_kv_heads,
            self.dtype,
            self.blas_threads,
        )


TIMING_COLUMNS = tuple(f.name for f in fields(Sample))[:-1]
CONTROL_COLUMNS = (*TIMING_COLUMNS, "kind")
CELL_COLUMNS = TIMING_COLUMNS[3:11]
_INTEGERS = frozenset(f.name for f in fields(Sample) if f.type is int)
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,18}")
_RESTORE = "restore it from git or measure again"
_MINIMUM = {"round": 0, "position": 0, "process": 0, "started_ns": 0}


def write_samples(samples: Iterable[Sample], *, controls: bool = False) -> str:
    """Text of raw.csv, or of controls.csv with its `kind` column: UTF-8, `\\n`, rows as they happened."""
    columns = CONTROL_COLUMNS if controls else TIMING_COLUMNS
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows(astuple(sample)[: len(columns)] for sample in samples)
    return text.getvalue()


def read_samples(path: Path, *, controls: bool = False) -> list[Sample]:
    """Every row of a raw.csv (or controls.csv) in order, checked.

    Raises RecordError naming file, row and rule when the table is empty, truncated, has a missing or
    extra column, a value that is not of its column's type or range, or the same place in a run twice.
    """
    columns = CONTROL_COLUMNS if controls else TIMING_COLUMNS
    header, rows = _table(path)
    if missing := [name for name in columns if name not in header]:
        raise RecordError(f"{path}: column {missing[0]} is missing; it needs {','.join(columns)}; {_RESTORE}")
    if tuple(header) != columns:
        extra = next((name for name in header if name not in columns), None)
        what = f"column {extra} is not known" if extra else "columns are doubled or out of order"
        raise RecordError(f"{path}: {what}; it must have exactly {','.join(columns)}; {_RESTORE}")
    if not rows and not controls:
        raise RecordError(f"{path}: there is a header but no row; {_RESTORE}")
    samples = [_sample(path, number, columns, row) for number, row in enumerate(rows, start=2)]
    _no_row_twice(path, samples)
    return samples


def read_rows(path: Path) -> list[dict[str, str]]:
    """Every row of a raw.csv of another kind than timing, as text under its own columns.

    Raises RecordError when the table is empty, truncated, or a row has more or fewer values than columns.
    """
    header, rows = _table(path)
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise RecordError(f"{path} line {line}: {len(row)} values, must be {len(header)}; {_RESTORE}")
    return [dict(zip(header, row, strict=True)) for row in rows]


def _table(path: Path) -> tuple[list[str], list[list[str]]]:
    text = read_text(path, "name the right one, restore it or measure again")
    if not text:
        raise RecordError(f"{path}: the file is empty; {_RESTORE}")
    if not text.endswith("\n"):
        raise RecordError(f"{path}: the last row is cut off (no line end); {_RESTORE}")
    try:
        header, *rows = csv.reader(io.StringIO(text))
    except csv.Error as error:
        raise RecordError(f"{path}: no CSV ({error}); {_RESTORE}") from None
    return header, rows


def _sample(path: Path, line: int, columns: Sequence[str], row: Sequence[str]) -> Sample:
    if len(row) != len(columns):
        raise RecordError(f"{path} line {line}: {len(row)} values, must be {len(columns)}; {_RESTORE}")
    values: dict[str, int | str] = {}
    for name, value in zip(columns, row, strict=True):
        if name in _INTEGERS:
            lowest = _MINIMUM.get(name, 1)
            if not _INTEGER.fullmatch(value) or int(value) < lowest:
                raise RecordError(
                    f"{path} line {line}: {name} is {value[:40]!r}, must be an integer of at least {lowest}"
                    f" (times are whole ns); {_RESTORE}"
                )
            values[name] = int(value)
        elif not value or (name == "kind" and value not in CONTROL_KINDS):
            allowed = " or ".join(CONTROL_KINDS) if name == "kind" else "text"
            raise RecordError(f"{path} line {line}: {name} is {value[:40]!r}, must be {allowed}; {_RESTORE}")
        else:
            values[name] = value
    return Sample(**values)  # pyright: ignore[reportArgumentType]  (columns are Sample's own fields)


def _no_row_twice(path: Path, samples: Sequence[Sample]) -> None:
    seen: dict[tuple[int, int, int, str], int] = {}
    for line, sample in enumerate(samples, start=2):
        place = (sample.process, sample.round, sample.position, sample.kind)
        if place in seen:
            raise RecordError(
                f"{path} line {line}: process {place[0]} round {place[1]} position {place[2]} stands already"
                f" on line {seen[place]}; a sample is written once; {_RESTORE}"
            )
        seen[place] = line

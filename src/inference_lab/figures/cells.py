"""What a timing figure plots: rows of summary.csv as checked numbers, joined to the samples behind them.

Answers: which cells, over which axis, with which estimates. Does not know how they look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View, bound_column, number
from inference_lab.errors import RecordError
from inference_lab.records.samples import CELL_COLUMNS

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of summary.csv: its path, its value of the varied axis, and how many samples it has."""

    path: str
    value: int
    n: int
    row: Mapping[str, str]
    place: str

    @property
    def flags(self) -> list[str]:
        """Codes of what is wrong with this cell; a flagged cell makes no claim."""
        return self.text("flags").split()

    def text(self, column: str) -> str:
        """The column as it is written. Raises RecordError when the row lacks it."""
        value = self.row.get(column)
        if value is None:
            raise _malformed(self.place, column, "missing", "present")
        return value

    def estimate(self, column: str) -> Estimate | None:
        """The column with its bounds, None where it is empty.

        Raises RecordError for a column that is missing or without bounds, and unless the numbers are
        positive and the bounds stand on their own sides of the value.
        """
        ends = [bound_column(self.row, column, end) or f"{column} ({end})" for end in ("lo", "hi")]
        value, lo, hi = (self._positive(name) for name in (column, *ends))
        if value is None:
            return None
        if (lo or value) > value or (hi or value) < value:
            raise _malformed(self.place, column, f"{value:g}", f"between its bounds, {lo} and {hi}")
        return Estimate(value, lo, hi, self.n)

    def needed(self, column: str) -> Estimate:
        """The same for a column every cell must have. Raises RecordError when it is empty."""
        return self._not_empty(column, self.estimate(column))

    def number(self, column: str) -> float:
        """A column without bounds that every cell must have. Raises RecordError unless it is positive."""
        return self._not_empty(column, self._positive(column))

    def _not_empty(self, column: str, found: Found | None) -> Found:
        if found is None:
            raise _malformed(self.place, column, "empty", "a positive number")
        return found

    def _positive(self, column: str) -> float | None:
        if not self.text(column):
            return None
        found = number(self.row, column, self.place)
        if found is None or found <= 0:
            raise _malformed(self.place, column, repr(self.row[column]), "empty or a positive number")
        return found


def varied_axis(view: View) -> str:
    """The column the experiment varies. Raises RecordError when the manifest does not name one."""
    conditions = view.record.manifest.get("conditions")
    vary = conditions.get("vary") if isinstance(conditions, Mapping) else None
    axis = next(iter(vary), None) if isinstance(vary, Mapping) else None
    if axis not in CELL_COLUMNS:
        raise RecordError(
            f"manifest.json of {view.record.experiment}: conditions.vary names {axis!r}, must name one of"
            f" {', '.join(CELL_COLUMNS)}; restore it or measure again"
        )
    return str(axis)


def cells(view: View) -> list[Cell]:
    """Every row of the summary in order, each with its samples.

    Raises RecordError when a row is malformed or stands twice, when its n is not the number of its
    samples, or when a sample has no row: a figure that leaves a sample out is not drawn.
    """
    axis, experiment = varied_axis(view), view.record.experiment
    sizes = view.record.samples.groupby(list(CELL_COLUMNS)).size()
    behind = {tuple(map(str, key)): int(n) for key, n in sizes.items()}
    found: list[Cell] = []
    for line, row in enumerate(view.summary, start=2):
        place = f"summary.csv of {experiment}, line {line}"
        for column in (*CELL_COLUMNS, "n"):
            if not row.get(column):
                raise _malformed(place, column, "missing or empty", "present")
        n = behind.pop(tuple(row[column] for column in CELL_COLUMNS), 0)
        if not n or row["n"] != str(n):
            raise _malformed(place, "n", row["n"], f"{n}, the samples left for its cell")
        if not (value := row[axis]).isdecimal() or int(value) < 1:
            raise _malformed(place, axis, repr(value), "a positive integer to be an axis")
        found.append(Cell(row["path"], int(value), n, row, place))
    if behind:
        raise RecordError(
            f"summary.csv of {experiment}: no row for the samples of {' '.join(next(iter(behind)))};"
            " every sample belongs to a row; rebuild it from raw.csv"
        )
    if not found:
        raise RecordError(f"summary.csv of {experiment}: there is no row; rebuild it from raw.csv")
    return found


def known(estimates: Sequence[Estimate]) -> list[float]:
    """Every value and every bound that n supports: what an axis must show."""
    numbers = [number for e in estimates for number in (e.value, e.lo, e.hi)]
    return [number for number in numbers if number is not None]


def by_path(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each path, ascending along the varied axis; paths in order of first appearance."""
    paths: dict[str, list[Cell]] = {}
    for cell in cells:
        paths.setdefault(cell.path, []).append(cell)
    return {path: sorted(some, key=lambda cell: cell.value) for path, some in paths.items()}


def _malformed(place: str, column: str, value: str, must: str) -> RecordError:
    return RecordError(
        f"{place}: {column} is {value}, must be {must}; delete summary.csv and rebuild it from raw.csv"
    )

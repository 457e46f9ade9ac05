"""What all timing figures share: the varied axis, a mark and a lane for each path, flags, conditions.

Answers: which cells are drawn, over which axis, and how is a path marked in every figure of an experiment?
"""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import Axis, Lane, Panel, Point, Series, draw_panels, estimate_of
from inference_lab.figures.style import ALARM, MARKS, SMALL, Axes, Figure, Line
from inference_lab.records.samples import CELL_COLUMNS

_LABELS = {
    "batch_size": "batch size B (sequences)",
    "sequence_length": "sequence length T (tokens)",
    "num_heads": "query heads H",
    "num_kv_heads": "key/value heads G",
    "d_model": "model width C",
    "blas_threads": "BLAS threads",
}
CellKey = tuple[str, int]  # path and varied value


class TimingAxes:
    """A timing record over its varied axis: its paths with their marks, and the rows of their cells.

    Raises RecordError when there are more paths than marks that differ, or a cell has no row.
    """

    def __init__(self, view: View) -> None:
        self.view, self.rounds = view, rounds_of(view.record)
        self.name, self.baseline = self.rounds.axis, self.rounds.baseline
        self.paths, self.values = list(self.rounds.paths), sorted(map(int, self.rounds.values))
        self.rows = {(row["path"], int(row[self.name])): row for row in view.summary}
        if missing := [cell for cell in self.rounds.times if cell not in self.rows]:
            raise RecordError(
                f"summary.csv of {view.record.experiment}: no row for {missing[0][0]} at {self.name}"
                f" {missing[0][1]}; rebuild it from raw.csv"
            )
        if len(self.paths) > len(MARKS):
            raise RecordError(
                f"{view.record.experiment}: {len(self.paths)} paths, a figure has marks for {len(MARKS)};"
                " split the experiment"
            )
        self.marks = dict(zip(self.paths, MARKS, strict=False))
        self.call: str = view.judge.call or "one call"
        log = self.values[-1] >= 4 * self.values[0]
        places = [math.log2(value) if log else float(value) for value in self.values]
        label = _LABELS.get(self.name, self.name) + (", log scale" if log else "")
        self.axis = Axis(label, self.values, places, spread=0.84)

    def estimate(self, cell: CellKey, column: str) -> Estimate:
        """A column of a cell's row with its bounds. Raises RecordError when it is empty."""
        if (estimate := estimate_of(self.rows[cell], column)) is None:
            raise RecordError(
                f"summary.csv of {self.view.record.experiment}: {column} of {cell[0]} at {self.name}"
                f" {cell[1]} is empty; rebuild it from raw.csv"
            )
        return estimate

    def samples(self, cell: CellKey, metric: str) -> Sequence[float]:
        """A metric of every timed call of a cell, in the order measured."""
        return self.rounds.metric(metric, *cell).ravel().tolist()

    def flags(self, cell: CellKey) -> list[str]:
        """The codes of a cell: with one of them it makes no claim."""
        return self.rows[cell]["flags"].split()

    def series(
        self, paths: Sequence[str], point: Callable[[int, CellKey], Point], **look: Any
    ) -> list[Series]:
        """A series for each path, each in a lane of its own; `point` makes that of a column and cell."""
        return [
            Series(
                path,
                self.marks[path],
                [point(column, (path, value)) for column, value in enumerate(self.values)],
                (lane, len(paths)),
                **look,
            )
            for lane, path in enumerate(paths)
        ]

    def draw(
        self, paths: Sequence[str], panels: Sequence[Panel], title: str, read: str, *, ratios: bool = False
    ) -> tuple[Figure, list[Axes]]:
        """A figure of these paths; in one of `ratios`, flags of the baseline mark what is compared to it."""
        flagged: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        hatched: list[tuple[int, Lane]] = []
        for lane, path in enumerate(paths):
            for column, value in enumerate(self.values):
                codes = self.flags((path, value)) + (self.flags((self.baseline, value)) if ratios else [])
                if codes:
                    flagged[path, ", ".join(dict.fromkeys(codes))].append(value)
                    hatched.append((column, (lane, len(paths))))
        foot = [Line(read)]
        if flagged:
            named = "; ".join(f"{path} {', '.join(map(str, v))}: {c}" for (path, c), v in flagged.items())
            words = f"⚑ hatched: flagged, no claim is made. {self.name} of {named}."
            foot.append(Line(words, SMALL, ALARM, "bold"))
        legend = {path: self.marks[path] for path in paths}
        return draw_panels(
            *(self.view, self.axis, panels, title, self._conditions(paths), *foot),
            legend=legend, hatched=hatched,
        )  # fmt: skip

    def _conditions(self, paths: Sequence[str]) -> str:
        rows, words = [row for (path, _), row in self.rows.items() if path in paths], list[str]()
        for column in (*CELL_COLUMNS, "n"):
            if column not in ("path", self.name):
                values = " or ".join(dict.fromkeys(row[column] for row in rows))
                words.append(f"{column} = {values}" if column == "n" else f"{column} {values}")
        return " · ".join(words) + " samples per cell"

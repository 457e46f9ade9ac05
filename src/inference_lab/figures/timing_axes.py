"""What all timing figures share: the varied axis, a mark and a lane for each path, flags, conditions.

Answers: which cells are drawn, over which axis, and how is a path marked in every figure of an experiment?
"""

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from inference_lab.analysis.rounds import CellKey, rounds_of
from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import Axis, Lane, Panel, Point, Series, draw_panels, estimate_of
from inference_lab.figures.style import MARKS, Axes, Figure, Line, alarm
from inference_lab.records.samples import CELL_COLUMNS

_LABELS = {
    "batch_size": "batch size B (sequences)",
    "sequence_length": "sequence length T (tokens)",
    "num_heads": "query heads H",
    "num_kv_heads": "key/value heads G",
    "d_model": "model width C",
    "blas_threads": "BLAS threads",
}


class TimingAxes:
    """A timing record over its varied axis: its paths with their marks, and the rows of their cells.

    `drawn` are the paths that the figure shows. Raises RecordError when there are more paths than marks.
    """

    def __init__(self, view: View) -> None:
        self.view, self.rounds = view, rounds_of(view.record)
        self.name, self.baseline = self.rounds.axis, self.rounds.baseline
        self.paths, self.values = list(self.rounds.paths), sorted(self.rounds.values)
        self.rows = {(row["path"], int(row[self.name])): row for row in view.summary}
        if len(self.paths) > len(MARKS):
            paths = f"{view.record.experiment}: {len(self.paths)} paths"
            raise RecordError(f"{paths}, a figure has marks for {len(MARKS)}; split the experiment")
        self.drawn = self.paths
        self.marks = dict(zip(self.paths, MARKS, strict=False))
        self.call: str = view.judge.call or "one call"
        is_log = self.values[-1] >= 4 * self.values[0]
        places = [math.log2(value) if is_log else value for value in self.values]
        label = _LABELS.get(self.name, self.name) + ", log scale" * is_log
        self.axis = Axis(label, self.values, places, spread=0.84)

    def estimate(self, cell: CellKey, column: str) -> Estimate:
        """A column of a cell's row with its bounds. Raises RecordError when it is empty."""
        if cell not in self.rows:
            raise RecordError(f"summary.csv: no row for {cell[0]} at {self.name} {cell[1]}; rebuild it")
        if (estimate := estimate_of(self.rows[cell], column)) is None:
            raise RecordError(f"{self.rows[cell].place}: {column} is empty; rebuild it from raw")
        return estimate

    def samples(self, cell: CellKey, metric: str) -> list[float]:
        """A metric of every timed call of a cell, in the order measured."""
        return self.rounds.metric(metric, *cell).ravel().tolist()

    def flags(self, cell: CellKey) -> list[str]:
        """The codes of a cell: with one of them it makes no claim."""
        return self.rows[cell]["flags"].split()

    def series(self, point: Callable[[CellKey], Point], **look: Any) -> list[Series]:
        """A series for each drawn path, each in a lane of its own; `point` makes that of a cell."""
        made: list[Series] = []
        for lane, path in enumerate(self.drawn):
            points = list(enumerate(point((path, value)) for value in self.values))
            made.append(Series(path, self.marks[path], points, (lane, len(self.drawn)), **look))
        return made

    def draw(self, panels: Sequence[Panel], title: str, read: str, *over: str) -> tuple[Figure, list[Axes]]:
        """A figure of the drawn paths; flags of the paths that they are `over` mark them, too."""
        flagged: dict[tuple[str, str], list[str]] = {}
        hatched: list[tuple[int, Lane]] = []
        for (lane, path), (column, value) in product(enumerate(self.drawn), enumerate(self.values)):
            if codes := [code for each in (path, *over) for code in self.flags((each, value))]:
                flagged.setdefault((path, ", ".join(dict.fromkeys(codes))), []).append(str(value))
                hatched.append((column, (lane, len(self.drawn))))
        foot = [Line(read)]
        if flagged:
            named = "; ".join(f"{path} {', '.join(at)}: {codes}" for (path, codes), at in flagged.items())
            foot.append(alarm(f"hatched: flagged, no claim is made. {self.name} of {named}."))
        legend = {path: self.marks[path] for path in self.drawn}
        rows = [row for (path, _), row in self.rows.items() if path in self.drawn]
        fixed = [name for name in CELL_COLUMNS if name not in ("path", self.name)]
        values = {name: " or ".join(dict.fromkeys(row[name] for row in rows)) for name in (*fixed, "n")}
        head = (
            " · ".join(f"{name} {values[name]}" for name in fixed) + f" · n = {values['n']} samples per cell"
        )
        return draw_panels(self.view, self.axis, panels, title, head, *foot, legend=legend, hatched=hatched)

"""A sheet of cells: one column a cell, grouped along the varied axis; every sample a light point in it.

Answers: where a cell stands and how its samples, estimates and flags are drawn.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.cells import Cell, by_path, varied_axis
from inference_lab.figures.style import ALARM, MARKS, SMALL, Axes, Figure, Line, Mark, page
from inference_lab.records.samples import CELL_COLUMNS

READ_SAMPLES = "Light points: every sample, left to right in the order measured."
READ_INTERVAL = "Bars: 95% interval; an open arrow: n is too small for a bound on that side."
_AXIS = {
    "batch_size": "batch size B (sequences)",
    "sequence_length": "sequence length T (tokens)",
    "num_heads": "query heads H",
    "num_kv_heads": "key/value heads G",
    "d_model": "model width C",
    "blas_threads": "BLAS threads",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """The column one cell owns: centre and width in units of the horizontal axis."""

    centre: float
    width: float

    def at(self, share: float) -> float:
        """A place in the column: -1 is its left edge, 1 its right."""
        return self.centre + share * self.width / 2


@dataclass(frozen=True, slots=True)
class Sheet:
    """A figure that lacks only its data."""

    figure: Figure
    panels: Sequence[Axes]
    slots: Mapping[tuple[str, int], Slot]
    marks: Mapping[str, Mark]

    def slot(self, cell: Cell) -> Slot:
        """Where the cell stands."""
        return self.slots[cell.path, cell.value]


def timed_call(view: View) -> str:
    """What one sample timed, in words."""
    conditions = view.record.manifest["conditions"]
    if steps := conditions["fixed"].get("decode_steps"):
        return f"{steps} decode steps behind T cached tokens"
    # A full decode is of a single head: with heads, what is no number of steps is a prefill.
    if "prefill" in conditions["paths"] or "num_heads" in conditions["fixed"]:
        return "filling a cache with T tokens"
    return "one full decode"


def marks_of(cells: Sequence[Cell]) -> dict[str, Mark]:
    """The mark of each path, the same in every figure of an experiment.

    Raises RecordError when there are more paths than marks that differ.
    """
    paths = list(by_path(cells))
    if len(paths) > len(MARKS):
        raise RecordError(
            f"a figure tells {len(MARKS)} paths apart, the summary has {len(paths)} ({', '.join(paths)});"
            " split the experiment"
        )
    return dict(zip(paths, MARKS, strict=False))


def sheet(
    view: View,
    shown: Sequence[Cell],
    marks: Mapping[str, Mark],
    heights: Sequence[float],
    title: str,
    read: str,
) -> Sheet:
    """A sheet for the cells shown; `read` says how to read it, `heights` are the panels' in points."""
    axis = varied_axis(view)
    marks = {path: marks[path] for path in by_path(shown)}
    foot = [Line(read)]
    if flags := _flags(shown):
        foot.append(Line(f"⚑ hatched: flagged, no claim is made. {axis} of {flags}.", SMALL, ALARM, "bold"))
    figure, panels = page(view, marks, heights, title, _conditions(shown, axis), *foot)

    values = sorted({cell.value for cell in shown})
    log = len(values) > 1 and values[-1] >= 4 * values[0]
    place = {value: math.log2(value) if log else float(value) for value in values}
    gap = min((after - before for before, after in pairwise(place.values())), default=1.0)
    wide = 0.84 * gap / len(marks)
    order = {path: number - (len(marks) - 1) / 2 for number, path in enumerate(marks)}
    slots = {(c.path, c.value): Slot(place[c.value] + order[c.path] * wide, 0.9 * wide) for c in shown}
    for panel in panels:
        panel.set_xticks(
            list(place.values()), [f"{value:,}" if panel is panels[-1] else "" for value in values]
        )
        panel.set_xticks([(before + after) / 2 for before, after in pairwise(place.values())], minor=True)
        panel.tick_params(axis="x", which="minor", length=0)
        panel.grid(axis="x", which="minor")
        panel.set_xlim(place[values[0]] - gap / 2, place[values[-1]] + gap / 2)
        for cell in shown:
            if cell.flags:
                _flag(
                    panel, slots[cell.path, cell.value], f"{panel.get_gid()}-flagged-{cell.path}-{cell.value}"
                )
    panels[-1].set_xlabel(_AXIS.get(axis, axis) + (", log scale" if log else ""))
    return Sheet(figure, panels, slots, marks)


def samples(panel: Axes, sheet: Sheet, cell: Cell, values: Sequence[float]) -> None:
    """The cell's values as light points; the place within the column is the order, so a drift is seen."""
    mark, slot, n = sheet.marks[cell.path], sheet.slot(cell), len(values)
    places = [slot.at(1.8 * (i + 0.5) / n - 0.9) for i in range(n)]
    panel.plot(
        places, values, mark.marker, color=mark.color, alpha=min(0.6, max(0.25, 3 / n**0.5)), zorder=2,
        markersize=3.5 if n < 30 else 2.4, markeredgewidth=0, gid=f"samples-{cell.path}-{cell.value}",
    )  # fmt: skip


def line(
    panel: Axes, sheet: Sheet, cells: Sequence[Cell], estimates: Sequence[Estimate], *, at: float = 0
) -> None:
    """The line that joins one path's estimates along the varied axis."""
    mark = sheet.marks[cells[0].path]
    places = [sheet.slot(cell).at(at) for cell in cells]
    values = [estimate.value for estimate in estimates]
    panel.plot(places, values, linestyle=mark.line, color=mark.color, linewidth=1, zorder=3)


def point(
    panel: Axes,
    sheet: Sheet,
    cell: Cell,
    estimate: Estimate,
    name: str,
    *,
    at: float = 0,
    hollow: bool = False,
) -> None:
    """One estimate: its interval as a bar, or an open arrow towards a bound that n cannot support."""
    mark, place = sheet.marks[cell.path], sheet.slot(cell).at(at)
    gid = f"{name}-{cell.path}-{cell.value}"
    for side, bound, up in (("lo", estimate.lo, -1), ("hi", estimate.hi, 1)):
        if bound is None:
            arrow = {"arrowstyle": "<-", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9, "color": mark.color}
            arrow["gid"] = f"open-{side}-{gid}"
            at_value = (place, estimate.value)
            panel.annotate("", at_value, (0, 20 * up), textcoords="offset points", arrowprops=arrow, zorder=4)
        else:
            panel.plot([place] * 2, [estimate.value, bound], color=mark.color, linewidth=1.6, zorder=4)
            panel.plot(place, bound, "_", color=mark.color, markersize=6, markeredgewidth=1.6, zorder=4)
    face, edge = ("white", mark.color) if hollow else (mark.color, "white")
    panel.plot(
        place, estimate.value, mark.marker, markerfacecolor=face, markeredgecolor=edge,
        markeredgewidth=1.2 if hollow else 0.6, zorder=4.5, gid=gid,
    )  # fmt: skip


def _flag(panel: Axes, slot: Slot, gid: str) -> None:
    band = panel.axvspan(slot.at(-1), slot.at(1), fill=False, hatch="////", zorder=0.5, gid=gid)
    band.set(edgecolor="#b9b9b9", linewidth=0)
    above = panel.get_xaxis_transform()
    panel.text(slot.centre, 1, "⚑", transform=above, ha="center", va="bottom", color=ALARM)


def _flags(shown: Sequence[Cell]) -> str:
    """`dynamic 1, 2: aa; dynamic 4: drift`: the values of each path that share the same flags."""
    flagged: dict[tuple[str, str], list[str]] = {}
    for cell in shown:
        if cell.flags:
            flagged.setdefault((cell.path, ", ".join(cell.flags)), []).append(str(cell.value))
    return "; ".join(f"{path} {', '.join(values)}: {flags}" for (path, flags), values in flagged.items())


def _conditions(shown: Sequence[Cell], axis: str) -> str:
    says: list[str] = []
    for column in (*CELL_COLUMNS, "n"):
        if column not in ("path", axis):
            values = dict.fromkeys(cell.row[column] for cell in shown)
            says.append(f"{column}{' = ' if column == 'n' else ' '}{' or '.join(values)}")
    return " · ".join(says) + " samples a cell"

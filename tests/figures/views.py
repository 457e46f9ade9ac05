"""What figures are drawn from, and what is read back from a drawn figure: its own data, not its ids."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation, Text

from inference_lab.analysis.summary_table import SummaryRow, View
from inference_lab.figures.style import Mark
from tests.analysis.views import SOURCE, view_of
from tests.synthetic import steady, timing_record

Place = tuple[float, float]


def small_view(*, knee: float | None = None, **changes: Any) -> View:
    """A view of few samples; `changes` go to `timing_record`."""
    record = timing_record(**{"processes": 1, "rounds": 9, "warmups": 1, "machine": steady(0.05), **changes})
    return view_of(record, **({"knee_factor": knee} if knee else {}), call="one full decode")


def changed(view: View, rows: Mapping[tuple[str, str], Mapping[str, str]]) -> View:
    """The view with other columns in the rows of these paths and batch sizes; nothing else is flagged."""
    summary = [
        SummaryRow({**row, "flags": "", **rows.get((row["path"], row["batch_size"]), {})}, row.place)
        for row in view.summary
    ]
    return replace(view, summary=summary)


def words(figure: Figure) -> str:
    """All text of a figure."""
    return " ".join(text.get_text() for text in figure.findobj(Text))


def arrows(axes: Axes) -> dict[Place, list[bool]]:
    """The places with open arrows: True for each that points up."""
    found: dict[Place, list[bool]] = {}
    for text in axes.texts:
        if isinstance(text, Annotation) and text.arrow_patch is not None:
            (x, y), (_, up) = text.xy, text.get_position()
            found.setdefault((float(x), float(y)), []).append(float(up) > 0)
    return found


def _places(line: Line2D) -> list[Place]:
    xs, ys = line.get_xdata(), line.get_ydata()
    return [(float(x), float(y)) for x, y in zip(list(xs), list(ys), strict=True)]  # pyright: ignore


def samples(axes: Axes, mark: Mark) -> list[Place]:
    """The light points of a mark."""
    lines = [x for x in axes.get_lines() if x.get_marker() == mark.marker and not x.get_markeredgewidth()]
    return [place for line in lines if line.get_color() == mark.color for place in _places(line)]


def estimates(axes: Axes, mark: Mark) -> dict[Place, bool]:
    """The large points of a mark, left to right; True where one is filled."""
    lines = [x for x in axes.get_lines() if x.get_marker() == mark.marker and x.get_markeredgewidth()]
    own = [line for line in lines if mark.color in (line.get_markerfacecolor(), line.get_markeredgecolor())]
    return dict(sorted((_places(line)[0], line.get_markerfacecolor() == mark.color) for line in own))


def lines(axes: Axes, *, width: float) -> list[list[Place]]:
    """The lines of this width."""
    return [_places(line) for line in axes.get_lines() if line.get_linewidth() == width]


__all__ = ["SOURCE", "view_of"]

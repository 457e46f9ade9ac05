"""The one look of every figure, and its bytes: same record, same SVG, on any day and under any matplotlibrc.

Lengths are points; WIDTH is 800 px. Colors: Okabe and Ito's for color-blind readers
(https://jfly.uni-koeln.de/color/); marker and line style say the same again for print in grey.
"""

import io
import math
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.pop("MPLBACKEND", None)  # as Jupyter sets it, it names a module that is not installed here
os.environ["MATPLOTLIBRC"] = os.devnull
with chdir("/"):  # a matplotlibrc in the working directory comes before that variable
    import matplotlib

from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.figures.compact import compact
from inference_lab.records.forms import source_text

WIDTH, MARGIN, LEFT, RIGHT, GAP = 600, 10, 64, 10, 16
TITLE, TEXT, SMALL = 12, 9, 8
INK, FAINT, ALARM = "#222222", "#777777", "#a01010"

# A name of our own for the DejaVu Sans inside matplotlib: a system's font of that name is another file.
FONT = "DejaVu Sans of matplotlib"
_FILES = Path(matplotlib.get_data_path(), "fonts", "ttf")
font_manager.fontManager.ttflist += [
    font_manager.FontEntry(fname=str(_FILES / "DejaVuSans.ttf"), name=FONT, weight="normal"),
    font_manager.FontEntry(fname=str(_FILES / "DejaVuSans-Bold.ttf"), name=FONT, weight="bold"),
]
_STYLE: dict[Any, Any] = {
    "font.family": FONT,
    "font.size": TEXT,
    "text.color": INK,
    "text.parse_math": False,  # a `$` in the name of a CPU is a `$`
    "svg.fonttype": "path",
    "svg.hashsalt": "inference_lab",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
}


@dataclass(frozen=True, slots=True)
class Mark:
    """How one thing looks, in color and in grey."""

    color: str
    marker: str
    line: Any  # a name, or (offset, (on, off, ...)) in points


MARKS = (
    Mark("#0072b2", "o", "-"),
    Mark("#d55e00", "s", "--"),
    Mark("#009e73", "^", "-."),
    Mark("#000000", "D", ":"),
    Mark("#cc79a7", "v", (0, (6, 1.5))),
    Mark("#56b4e9", "P", (0, (1, 3))),
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text on a page."""

    text: str
    size: float = SMALL
    color: str = INK
    weight: str = "normal"


@contextmanager
def _styled() -> Generator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


class drawing:  # noqa: N801 (a decorator)
    """Turn a function from a view to a figure into one from a view to the figure's SVG, styled."""

    def __init__(self, make: Callable[[View], Figure]) -> None:
        self._make = make

    @_styled()
    def figure(self, view: View) -> Figure:
        """Draw the figure."""
        return self._make(view)

    @_styled()
    def __call__(self, view: View) -> str:
        """Draw the SVG, its origin in `dc:source`: `records.forms.read_metadata` reads it back."""
        text = io.StringIO()
        metadata = {"Title": view.record.experiment, "Source": source_text(view.source), "Date": None}
        self._make(view).savefig(text, format="svg", metadata=metadata)
        return compact(text.getvalue())


def new_figure(
    view: View, legend: Mapping[str, Mark], heights: Sequence[float], title: str, head: str, *foot: Line,
    right: float = RIGHT,
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure with one empty Axes for each height (points, top to bottom) and all the words around them.

    Above: title, `head`, legend. Below: `foot`, machine, origin, rebuilding. `right` is kept free of axes.
    """
    title_line = Line(f"{view.record.experiment}: {title}", TITLE, weight="bold")
    files = " · ".join(f"{name} {digest[:12]}…" for name, digest in view.source["files"].items())
    origin = f"sha256 of {files} · rebuild: {view.source['command']}"
    above = _wrapped(title_line, Line(head, TEXT))
    below = _wrapped(*foot, *(Line(text, color=FAINT) for text in (_machine(view), origin)))
    columns = len(legend) if sum(50 + 6 * len(label) for label in legend) < WIDTH - LEFT else 2
    keys = MARGIN + _height(above)
    top = keys + 14 * math.ceil(len(legend) / columns if legend else 0) + 8
    bottom = top + sum(heights) + GAP * (len(heights) - 1) + 38
    height = bottom + _height(below) + MARGIN / 2
    figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
    for lines, at in ((above, MARGIN), (below, bottom)):
        for line in lines:
            place = (MARGIN / WIDTH, 1 - at / height)
            figure.text(*place, line.text, size=line.size, color=line.color, weight=line.weight, va="top")
            at += 1.4 * line.size
    if legend:
        add_legend(figure, legend, (LEFT / WIDTH, 1 - keys / height), borderpad=0.2, handlelength=3.2,
                   ncols=columns, columnspacing=2.5)  # fmt: skip
    panels: list[Axes] = []
    for tall in heights:
        top += tall
        place = (LEFT / WIDTH, 1 - top / height, 1 - (LEFT + right) / WIDTH, tall / height)
        panels.append(figure.add_axes(place))
        top += GAP
    return figure, panels


def add_legend(
    to: Figure | Axes, legend: Mapping[str, Mark], place: tuple[float, float], **look: Any
) -> None:
    """A legend of a figure or of one panel, its upper left corner at a place of it."""
    marks = [Line2D([], [], color=mark.color, marker=mark.marker, ls=mark.line) for mark in legend.values()]
    to.legend(marks, list(legend), loc="upper left", bbox_to_anchor=place, borderaxespad=0, **look)


def alarm(words: str) -> Line:
    """A line about flags."""
    return Line(f"⚑ {words}", SMALL, ALARM, "bold")


def flag_lines(codes: Iterable[str], words: str = "no claim is made") -> list[Line]:
    """The line below a figure that names flags; none without flags."""
    named = ", ".join(dict.fromkeys(codes))
    return [alarm(f"flagged, {words}: {named}")] if named else []


def interval(panel: Axes, x: float, estimate: Estimate, mark: Mark, *, hollow: bool = False) -> None:
    """One value with its interval as a bar; an open arrow towards a bound that n cannot support.

    Nothing here is negative, so there is no arrow below a 0.
    """
    value, long = estimate.value, 20 if panel.get_window_extent().height >= 100 else 14
    for bound, up in ((estimate.lo, -long), (estimate.hi, long)):
        if bound is not None and bound != value:
            panel.plot([x] * 2, [value, bound], color=mark.color, linewidth=1.6, zorder=4)
            panel.plot(x, bound, "_", color=mark.color, markersize=6, markeredgewidth=1.6, zorder=4)
        elif bound is None and (up > 0 or value > 0):
            arrow = {"arrowstyle": "<-", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9, "color": mark.color}
            panel.annotate("", (x, value), (0, up), textcoords="offset points", arrowprops=arrow, zorder=4)
    hollow = hollow or mark.marker == "x"
    face, edge, wide = ("white", mark.color, 1.2) if hollow else (mark.color, "white", 0.6)
    panel.plot(x, value, mark.marker, markerfacecolor=face, markeredgecolor=edge, clip_on=False,
               markeredgewidth=wide, zorder=4.5)  # fmt: skip


def scale(panel: Axes, values: Sequence[float], label: str, *, log: bool | None = None) -> None:
    """Sets limits, ticks and label of the vertical axis so that all the values (> 0) are seen.

    Logarithmic when they span more than a decade (or when told), else linear from zero; it says which.
    """
    low, high = min(values), max(values)
    if log if log is not None else high > 10 * low:
        room = max(1.12, (high / low) ** 0.06)
        low, high, label = low / room, high * room, f"{label}, log scale"
        panel.set_yscale("log")
        decades = LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,))
        panel.yaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 5, 10]) if high < 3 * low else decades)
        panel.yaxis.set_minor_locator(NullLocator())
    else:
        low, high = 0, 1.1 * high
    panel.yaxis.set_major_formatter(
        lambda tick, _: f"{tick / 1e6:,.10g} M" if tick >= 1e6 else f"{tick:,.10g}"
    )
    panel.set_ylim(low, high)
    panel.set_ylabel(label)


def _machine(view: View) -> str:
    manifest = view.record.manifest
    environment = manifest.get("environment")
    if not environment:
        return "Machine unknown: the raw file came without a manifest."
    facts = {
        name: environment.get(key)
        for name, key in (("", "cpu_model"), ("cores ", "cores"), ("Python ", "python"))
    }
    if manifest.get("kind", "timing") == "timing":  # else nothing that BLAS or NumPy calculated was timed
        blas = environment.get("blas") or {}
        facts["NumPy "] = (environment.get("packages") or {}).get("numpy")
        facts["BLAS "] = " ".join(str(blas[key]) for key in ("name", "version") if blas.get(key))
        facts["BLAS threads "] = blas.get("threads")
    facts["recorded "] = manifest.get("started_at", "")[:16]
    return " · ".join(f"{name}{fact or 'unknown'}" for name, fact in facts.items())


def _wrapped(*lines: Line) -> list[Line]:
    wrapped: list[Line] = []
    for line in lines:
        font = font_manager.FontProperties(size=line.size, weight=line.weight)
        room, texts = 0.0, list[str]()
        for word in line.text.split():
            wide: float = text_to_path.get_text_width_height_descent(f"{word} ", font, ismath=False)[0]
            if not texts or wide > room:
                room = WIDTH - 2.0 * MARGIN
                texts.append(word)
            else:
                texts[-1] += f" {word}"
            room -= wide
        wrapped += [replace(line, text=text) for text in texts]
    return wrapped


def _height(lines: Sequence[Line]) -> float:
    return sum(1.4 * line.size for line in lines)

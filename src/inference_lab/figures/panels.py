"""Panels over one axis, declared and then drawn: values with their intervals, and the samples behind them.

Answers: where in a column does a series stand? What the values mean is the caller's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import SummaryRow, View, bound_names
from inference_lab.figures import style
from inference_lab.figures.style import Axes, Figure, Line, Mark, interval

READ_SAMPLES = "Light points: every sample, left to right in the order measured."
READ_INTERVAL = "Bars: 95% interval; an open arrow: n is too small for a bound on that side."
Lane = tuple[int, int]  # number i of n, one beside the other in a column


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis: one column for each value, at these places.

    The lanes of a column, one beside the other, take `spread` of its width.
    """

    label: str
    values: Sequence[object]
    places: Sequence[float]
    spread: float
    ticks: bool = True  # one for each value; else a few even numbers

    @property
    def gap(self) -> float:
        """The width of the narrowest column."""
        return min((after - before for before, after in pairwise(self.places)), default=1.0)

    def at(self, column: int, lane: Lane, share: float = 0) -> float:
        """A place in a lane of a column: -1 is the lane's left edge, 1 its right."""
        number, lanes = lane
        wide = self.spread * self.gap / lanes
        return self.places[column] + (number - (lanes - 1) / 2) * wide + share * 0.9 * wide / 2


@dataclass(frozen=True, slots=True)
class Point:
    """An estimate, samples, or both; a broad bar rises from `foot` to the estimate."""

    estimate: Estimate | None = None
    samples: Sequence[float] = ()
    hollow: bool = False
    foot: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """What one mark shows in its lane of each column; `shift` moves the estimates in that lane."""

    label: str
    mark: Mark
    points: Sequence[tuple[int, Point]]  # by column
    lane: Lane = (0, 1)
    shift: float = 0
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn over one vertical axis; `log` as in `style.scale`, which shows `also`, too."""

    label: str
    series: Sequence[Series]
    height: float
    log: bool | None = None
    also: Sequence[float] = ()

    def values(self) -> list[float]:
        """Every number that the vertical axis must show."""
        points = [point for series in self.series for _, point in series.points]
        estimates = [point.estimate for point in points if point.estimate]
        feet = [point.foot for point in points if point.foot is not None]
        return [*self.also, *feet, *known(estimates), *(value for point in points for value in point.samples)]


def known(estimates: Sequence[Estimate]) -> list[float]:
    """Every value and every bound that n supports."""
    return [number for e in estimates for number in (e.value, e.lo, e.hi) if number is not None]


def estimate_of(row: SummaryRow, column: str, factor: float = 1) -> Estimate | None:
    """A column of a summary with its bounds, None where it is empty; a count is its own interval."""
    if (value := row.number(column)) is None:
        return None
    is_exact = bound_names(column)[0] not in row
    ends = (value, value) if is_exact else row.interval(column)
    lo, hi = (None if end is None else factor * end for end in ends)
    return Estimate(factor * value, lo, hi, int(row["n"]))


def draw_panels(
    view: View, axis: Axis, panels: Sequence[Panel], title: str, head: str, *foot: Line,
    legend: Mapping[str, Mark] | None = None, hatched: Collection[tuple[int, Lane]] = (),
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A figure of these panels; without a common legend each panel has its own beside it.

    `hatched`: lanes of columns that are marked in every panel, because no claim is made there.
    """
    heights, right = [panel.height for panel in panels], style.RIGHT if legend else 158
    figure, every = style.new_figure(view, legend or {}, heights, title, head, *foot, right=right)
    for axes, panel in zip(every, panels, strict=True):
        for series in panel.series:
            _draw(axes, axis, series)
        for column, lane in hatched:
            left, right = (axis.at(column, lane, share) for share in (-1, 1))
            axes.axvspan(left, right, fill=False, hatch="////", zorder=0.5, ec="#b9b9b9", lw=0)
            axes.text((left + right) / 2, 1, "⚑", transform=axes.get_xaxis_transform(), color=style.ALARM,
                      ha="center", va="bottom")  # fmt: skip
        style.scale(axes, panel.values(), panel.label, log=panel.log)
        _columns(axes, axis, labelled=axes is every[-1])
        if not legend:
            marks = {series.label: series.mark for series in panel.series}
            style.add_legend(axes, marks, (1.01, 1), borderpad=0, fontsize=style.SMALL, handlelength=2,
                             labelspacing=0.4)  # fmt: skip
    every[-1].set_xlabel(axis.label)
    return figure, every


def _columns(axes: Axes, axis: Axis, *, labelled: bool) -> None:
    """Ticks in the middle of each column, thin lines between columns."""
    axes.set_xlim(axis.places[0] - axis.gap / 2, axis.places[-1] + axis.gap / 2)
    axes.tick_params(labelbottom=labelled)
    if axis.ticks:
        axes.set_xticks(axis.places, [f"{v:,}" if isinstance(v, int) else str(v) for v in axis.values])
        axes.set_xticks([(before + after) / 2 for before, after in pairwise(axis.places)], minor=True)
        axes.tick_params(axis="x", which="minor", length=0)
        axes.grid(axis="x", which="minor")


def _draw(axes: Axes, axis: Axis, series: Series) -> None:
    mark, lane = series.mark, series.lane
    if most := max((len(point.samples) for _, point in series.points), default=0):
        # The place within the lane is the order in which samples were measured, so a drift is seen.
        samples = [
            (axis.at(column, lane, 1.8 * (i + 0.5) / len(point.samples) - 0.9), value)
            for column, point in series.points
            for i, value in enumerate(point.samples)
        ]
        axes.plot(
            *zip(*samples, strict=True), mark.marker, color=mark.color, zorder=2, markeredgewidth=0,
            markersize=3.5 if most < 30 else 2.4, alpha=min(0.6, max(0.25, 3 / most**0.5)),
        )  # fmt: skip
    estimates = [
        (axis.at(column, lane, series.shift), point.estimate, point)
        for column, point in series.points
        if point.estimate
    ]
    if series.joined:
        places, values = [x for x, _, _ in estimates], [estimate.value for _, estimate, _ in estimates]
        axes.plot(places, values, linestyle=mark.line, color=mark.color, linewidth=1, zorder=3)
    for x, estimate, point in estimates:
        if point.foot is not None:
            axes.plot([x] * 2, [point.foot, estimate.value], color=mark.color, linewidth=5, alpha=0.25,
                      solid_capstyle="butt")  # fmt: skip
        interval(axes, x, estimate, mark, hollow=point.hollow)

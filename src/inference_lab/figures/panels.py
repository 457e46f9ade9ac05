"""Panels over one axis, declared and then drawn: values with their intervals, and the samples behind them.

Answers: where in a column does a series stand? What the values mean is the caller's.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import SummaryRow, View, bound_names
from inference_lab.figures.style import (
    ALARM,
    RIGHT,
    Axes,
    Figure,
    Line,
    Mark,
    interval,
    legend_beside,
    new_figure,
    scale,
)

READ_SAMPLES = "Light points: every sample, left to right in the order measured."
READ_INTERVAL = "Bars: 95% interval; an open arrow: n is too small for a bound on that side."
Lane = tuple[int, int]  # number i of n, one beside the other in a column
_KEYS = 158  # points right of a panel for a legend of its own


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
    """What a series has in one column: an estimate, samples, or both; a broad bar rises from `foot` to it."""

    column: int
    estimate: Estimate | None = None
    samples: Sequence[float] = ()
    hollow: bool = False
    foot: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The points of one mark, in one lane of each column; `shift` moves the estimates in that lane."""

    label: str
    mark: Mark
    points: Sequence[Point]
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
        points = [point for series in self.series for point in series.points]
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
    view: View,
    axis: Axis,
    panels: Sequence[Panel],
    title: str,
    head: str,
    *foot: Line,
    legend: Mapping[str, Mark] | None = None,
    hatched: Collection[tuple[int, Lane]] = (),
) -> tuple[Figure, list[Axes]]:
    """A figure of these panels; without a common legend each panel has its own beside it.

    `hatched`: lanes of columns that are marked in every panel, because no claim is made there.
    """
    heights, right = [panel.height for panel in panels], RIGHT if legend else _KEYS
    figure, all_axes = new_figure(view, legend or {}, heights, title, head, *foot, right=right)
    for axes, panel in zip(all_axes, panels, strict=True):
        for series in panel.series:
            _draw(axes, axis, series)
        for column, lane in hatched:
            _hatch(axes, axis, column, lane)
        scale(axes, panel.values(), panel.label, log=panel.log)
        _columns(axes, axis, labelled=axes is all_axes[-1])
        if not legend:
            legend_beside(axes, {series.label: series.mark for series in panel.series})
    all_axes[-1].set_xlabel(axis.label)
    return figure, all_axes


def _columns(axes: Axes, axis: Axis, *, labelled: bool) -> None:
    """Ticks in the middle of each column, thin lines between columns."""
    axes.set_xlim(axis.places[0] - axis.gap / 2, axis.places[-1] + axis.gap / 2)
    if not axis.ticks:
        axes.tick_params(labelbottom=labelled)
        return
    words = [f"{value:,}" if isinstance(value, int) else str(value) for value in axis.values]
    axes.set_xticks(axis.places, words if labelled else [""] * len(words))
    axes.set_xticks([(before + after) / 2 for before, after in pairwise(axis.places)], minor=True)
    axes.tick_params(axis="x", which="minor", length=0)
    axes.grid(axis="x", which="minor")


def _hatch(axes: Axes, axis: Axis, column: int, lane: Lane) -> None:
    left, right = (axis.at(column, lane, share) for share in (-1, 1))
    band = axes.axvspan(left, right, fill=False, hatch="////", zorder=0.5)
    band.set(edgecolor="#b9b9b9", linewidth=0)
    above = axes.get_xaxis_transform()
    axes.text((left + right) / 2, 1, "⚑", transform=above, ha="center", va="bottom", color=ALARM)


def _draw(axes: Axes, axis: Axis, series: Series) -> None:
    mark, lane = series.mark, series.lane
    if most := max((len(point.samples) for point in series.points), default=0):
        # The place within the lane is the order in which samples were measured, so a drift is seen.
        places = [
            axis.at(point.column, lane, 1.8 * (i + 0.5) / len(point.samples) - 0.9)
            for point in series.points
            for i in range(len(point.samples))
        ]
        values = [value for point in series.points for value in point.samples]
        axes.plot(
            places, values, mark.marker, color=mark.color, alpha=min(0.6, max(0.25, 3 / most**0.5)), zorder=2,
            markersize=3.5 if most < 30 else 2.4, markeredgewidth=0,
        )  # fmt: skip
    estimates = [(point, point.estimate) for point in series.points if point.estimate]
    places = [axis.at(point.column, lane, series.shift) for point, _ in estimates]
    if series.joined:
        values = [estimate.value for _, estimate in estimates]
        axes.plot(places, values, linestyle=mark.line, color=mark.color, linewidth=1, zorder=3)
    for x, (point, estimate) in zip(places, estimates, strict=True):
        if point.foot is not None:
            axes.plot([x] * 2, [point.foot, estimate.value], color=mark.color, linewidth=5, alpha=0.25,
                      solid_capstyle="butt")  # fmt: skip
        interval(axes, x, estimate, mark, hollow=point.hollow)

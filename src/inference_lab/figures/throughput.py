"""How many positions per second one timed call makes over the varied axis, beside ideal scaling.

Ideal from the smallest value on: batches and threads multiply throughput; any other axis leaves it as it is.
"""

import math
from itertools import pairwise

from inference_lab.analysis.summary_table import View
from inference_lab.figures.panels import READ_INTERVAL, READ_SAMPLES, Panel, Point, Series
from inference_lab.figures.style import Figure, drawing
from inference_lab.figures.timing_axes import TimingAxes


@drawing
def draw(view: View) -> Figure:
    """Draw positions/s with the ideal line; with `judge.knee_factor` also what growth must reach."""
    axes, knee_factor = TimingAxes(view), view.judge.knee_factor
    multiplies = axes.name in ("batch_size", "blas_threads")
    rates = axes.series(
        axes.paths,
        lambda column, cell: Point(
            column, axes.estimate(cell, "positions_per_s"), axes.samples(cell, "positions_per_s")
        ),
    )
    times = [value / axes.values[0] if multiplies else 1 for value in axes.values]
    ideal = {series.label: [_rate(series, 0) * by for by in times] for series in rates}
    bars = [
        (series, column, _rate(series, column - 1) * knee_factor ** math.log2(value / before))
        for series in rates
        for column, (before, value) in enumerate(pairwise(axes.values), start=1)
        if knee_factor
    ]
    grows = f"growth in proportion to {axes.name}" if multiplies else "no change"
    read = f"{READ_SAMPLES} Filled: at P50. {READ_INTERVAL} Thin line: {grows} from the smallest value."
    if knee_factor:
        read += (
            f" Dotted bar: what this value must reach to count as growth, {knee_factor:g} times the value"
            " before for each doubling (knee_factor)."
        )
    also = [*(rate for line in ideal.values() for rate in line), *(rate for _, _, rate in bars)]
    panel = Panel("positions per second", rates, 300, also=also)
    figure, (drawn,) = axes.draw(axes.paths, [panel], f"throughput of {axes.call}", read)
    for series in rates:
        places = [axes.axis.at(column, series.lane) for column in range(len(axes.values))]
        drawn.plot(places, ideal[series.label], color=series.mark.color, linewidth=0.7, alpha=0.6)
    for series, column, rate in bars:
        ends = [axes.axis.at(column, series.lane, side) for side in (-1, 1)]
        drawn.plot(ends, [rate] * 2, color=series.mark.color, linestyle=(0, (1, 1)), linewidth=1.6)
    return figure


def _rate(series: Series, column: int) -> float:
    estimate = series.points[column].estimate
    assert estimate is not None
    return estimate.value

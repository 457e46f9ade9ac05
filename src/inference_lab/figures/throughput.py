"""How many positions per second one timed call makes over the varied axis, beside ideal scaling.

Ideal from the smallest value on: batches and threads multiply throughput; any other axis leaves it as it is.
"""

import math
from itertools import chain, pairwise

from inference_lab.analysis.summary_table import View
from inference_lab.figures.panels import READ_INTERVAL, READ_SAMPLES, Panel, Point
from inference_lab.figures.style import Figure, drawing
from inference_lab.figures.timing_axes import TimingAxes


@drawing
def draw(view: View) -> Figure:
    """Draw positions/s with the ideal line; with `judge.knee_factor` also what growth must reach."""
    axes, factor, of = TimingAxes(view), view.judge.knee_factor, "positions_per_s"
    multiplies = axes.name in ("batch_size", "blas_threads")
    series = axes.series(lambda cell: Point(axes.estimate(cell, of), axes.samples(cell, of)))
    times = [value / axes.values[0] if multiplies else 1 for value in axes.values]
    rates = [[axes.estimate((path, value), of).value for value in axes.values] for path in axes.paths]
    ideal = [[own[0] * by for by in times] for own in rates]
    doublings = [math.log2(after / before) for before, after in pairwise(axes.values)] if factor else []
    bars = [[rate * (factor or 1) ** n for rate, n in zip(own, doublings, strict=False)] for own in rates]
    grows = f"growth in proportion to {axes.name}" if multiplies else "no change"
    read = f"{READ_SAMPLES} Filled: at P50. {READ_INTERVAL} Thin line: {grows} from the smallest value."
    if factor:
        must = f"{factor:g} times the value before for each doubling (knee_factor)"
        read += f" Dotted bar: what this value must reach to count as growth, {must}."
    panel = Panel("positions per second", series, 300, also=[*chain(*ideal, *bars)])
    figure, (drawn,) = axes.draw([panel], f"throughput of {axes.call}", read)
    for one, line in zip(series, ideal, strict=True):
        places = [axes.axis.at(column, one.lane) for column in range(len(line))]
        drawn.plot(places, line, color=one.mark.color, linewidth=0.7, alpha=0.6)
    for one, own in zip(series, bars, strict=True):
        for column, rate in enumerate(own, start=1):
            ends = [axes.axis.at(column, one.lane, side) for side in (-1, 1)]
            drawn.plot(ends, [rate] * 2, color=one.mark.color, linestyle=(0, (1, 1)), linewidth=1.6)
    return figure

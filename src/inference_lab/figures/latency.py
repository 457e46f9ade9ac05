"""How long one timed call takes: every sample, P50 and P95 over the varied axis.

Over batch sizes a second panel shows P50 divided by the batch: what one sequence costs.
"""

from inference_lab.analysis.summary_table import View
from inference_lab.figures.panels import READ_INTERVAL, READ_SAMPLES, Panel, Point
from inference_lab.figures.style import Figure, drawing
from inference_lab.figures.timing_axes import TimingAxes


@drawing
def draw(view: View) -> Figure:
    """Draw wall time (ms) and, over batch sizes, of P50 per sequence (ms)."""
    axes = TimingAxes(view)
    # Side by side in a lane, so that their bars never hide each other.
    p50 = axes.series(
        lambda cell: Point(axes.estimate(cell, "p50_ms"), axes.samples(cell, "p50_ms")), shift=-0.25
    )
    p95 = axes.series(
        lambda cell: Point(axes.estimate(cell, "p95_ms"), hollow=True), shift=0.25, joined=False
    )
    panels = [Panel("wall time (ms)", [*p50, *p95], 280)]
    if axes.name == "batch_size":
        each = axes.series(lambda cell: Point(axes.estimate(cell, "per_sequence_ms")))
        panels = [Panel("wall time (ms)", [*p50, *p95], 240), Panel("P50 per sequence (ms)", each, 130)]
    read = f"{READ_SAMPLES} Filled: P50. Hollow: P95. {READ_INTERVAL}"
    figure, _ = axes.draw(panels, f"time of {axes.call}", read)
    return figure

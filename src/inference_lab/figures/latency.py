"""How long one full decode takes: every sample, P50 and P95 over the varied axis.

Over batch sizes a second panel shows P50 divided by the batch: what one sequence costs.
"""

from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.summary_table import View
from inference_lab.figures.cells import by_path, cells, known, varied_axis
from inference_lab.figures.sheet import (
    READ_INTERVAL,
    READ_SAMPLES,
    line,
    marks_of,
    point,
    samples,
    sheet,
    timed_call,
)
from inference_lab.figures.style import scale, styled, svg


@styled()
def draw(view: View) -> str:
    """SVG of wall time (ms) and, over batch sizes, of P50 per sequence (ms).

    Raises RecordError when a row of the summary is malformed.
    """
    shown = cells(view)
    over_batches = varied_axis(view) == "batch_size"
    page = sheet(
        view,
        shown,
        marks_of(shown),
        (240, 130) if over_batches else (280,),
        f"time of {timed_call(view)}",
        f"{READ_SAMPLES} Filled: P50. Hollow: P95. {READ_INTERVAL}",
    )
    seen, timed = list[float](), rounds_of(view.record)
    for row in by_path(shown).values():
        p50s = [cell.needed("p50_ms") for cell in row]
        p95s = [cell.needed("p95_ms") for cell in row]
        # side by side in the slot, so that their bars never hide each other
        line(page.panels[0], page, row, p50s, at=-0.25)
        for cell, p50, p95 in zip(row, p50s, p95s, strict=True):
            point(page.panels[0], page, cell, p50, "p50", at=-0.25)
            point(page.panels[0], page, cell, p95, "p95", at=0.25, hollow=True)
            elapsed_ms = timed.metric("p50_ms", cell.path, cell.value).ravel().tolist()
            samples(page.panels[0], page, cell, elapsed_ms)
            seen += elapsed_ms
    scale(page.panels[0], seen, "wall time (ms)")
    if over_batches:
        seen = []
        for row in by_path(shown).values():
            costs = [cell.needed("per_sequence_ms") for cell in row]
            line(page.panels[1], page, row, costs)
            for cell, cost in zip(row, costs, strict=True):
                point(page.panels[1], page, cell, cost, "per-sequence")
            seen += known(costs)
        scale(page.panels[1], seen, "P50 per sequence (ms)")
    return svg(page.figure, view)

"""How many positions a second one full decode makes over the varied axis, beside what ideal scaling would.

Ideal from the smallest value on: batches and threads multiply throughput; any other axis leaves it as it is.
"""

import math

from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.summary_table import View
from inference_lab.figures.cells import by_path, cells, varied_axis
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
    """SVG of positions/s with the ideal line and, when `judge.knee_factor` is given, what growth must reach.

    Raises RecordError when a row of the summary is malformed.
    """
    shown, axis = cells(view), varied_axis(view)
    multiplies = axis in ("batch_size", "blas_threads")
    knee_factor = view.judge.knee_factor
    grows = f"growth in proportion to {axis}" if multiplies else "no change"
    read = f"{READ_SAMPLES} Filled: at P50. {READ_INTERVAL} Thin line: {grows} from the smallest value."
    if knee_factor:
        read += (
            f" Dotted bar: what this value must reach to count as growth, {knee_factor:g} times the value"
            " before for each doubling (knee_factor)."
        )
    page = sheet(view, shown, marks_of(shown), (300,), f"throughput of {timed_call(view)}", read)
    panel, seen, timed = page.panels[0], list[float](), rounds_of(view.record)
    for path, row in by_path(shown).items():
        rates = [cell.needed("positions_per_s") for cell in row]
        line(panel, page, row, rates)
        color = page.marks[path].color
        ideal = [rates[0].value * (cell.value / row[0].value if multiplies else 1) for cell in row]
        panel.plot(
            [page.slot(cell).centre for cell in row],
            ideal,
            color=color,
            linewidth=0.7,
            alpha=0.6,
            gid=f"ideal-{path}",
        )
        for cell, rate in zip(row, rates, strict=True):
            point(panel, page, cell, rate, "rate")
            each = timed.metric("positions_per_s", cell.path, cell.value).ravel().tolist()
            samples(panel, page, cell, each)
            seen += each
        if knee_factor:
            for before, rate, cell in zip(row, rates, row[1:], strict=False):
                must = rate.value * knee_factor ** math.log2(cell.value / before.value)
                slot = page.slot(cell)
                panel.plot(
                    [slot.at(-1), slot.at(1)], [must] * 2, color=color, linestyle=(0, (1, 1)), linewidth=1.6,
                    gid=f"knee-{path}-{cell.value}",
                )  # fmt: skip
                seen.append(must)
        seen += ideal
    scale(panel, seen, "positions per second")
    return svg(page.figure, view)

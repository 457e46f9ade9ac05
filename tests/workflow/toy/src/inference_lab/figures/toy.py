"""Each cell's median as a line of text in an SVG."""

import toyplot  # a package whose version the checks change

from inference_lab import toy_pause
from inference_lab.analysis.summary_table import View
from inference_lab.records.forms import source_text


def draw(view: View) -> str:
    """Text of the SVG."""
    toy_pause.here("figure")
    toy_pause.half_written("figure", f"results/{view.record.experiment}/plot.svg")
    lines = [f"{row['path']} {row['batch_size']} {row['p50_ms']} ms" for row in view.summary]
    return toyplot.svg(source_text(view.source), lines)

"""Each cell's count as a line of text in an SVG."""

import toyplot

from inference_lab.analysis.summary_table import View
from inference_lab.records.forms import source_text


def draw(view: View) -> str:
    """Text of the SVG."""
    lines = [f"{row['path']} {row['batch_size']} n={row['n']}" for row in view.summary]
    return toyplot.svg(source_text(view.source), lines)

"""observations.md: what was observed of each operation, and which short-cuts the observations refute."""

from inference_lab.analysis.summary_table import View
from inference_lab.pages.render import page


def draw(view: View) -> str:
    """Return the text of observations.md."""
    return page("observations", view)

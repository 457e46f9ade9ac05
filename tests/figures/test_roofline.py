"""The roofline: where marks are, what they say, and what is refused."""

import math
import unittest
from dataclasses import replace
from functools import cache

from matplotlib.figure import Figure

from inference_lab.analysis import peers
from inference_lab.analysis.summary_table import SummaryRow, View, summary_rows
from inference_lab.errors import RecordError
from inference_lab.figures.roofline import draw
from inference_lab.figures.style import MARKS
from tests.analysis.test_peers import PATHS, record
from tests.checkout import judge_of
from tests.figures.views import SOURCE, estimates, lines, words


@cache
def view_of() -> View:
    """Two cells whose intensities are 1/2 and 2."""
    made = record()
    return View(made, summary_rows(peers.summarise(made, judge_of()), "summary.csv"), judge_of(), SOURCE)


def drawn(**flags: str) -> Figure:
    """The figure, with flags by path."""
    view = view_of()
    rows = [SummaryRow({**row, "flags": flags.get(row["path"], "")}) for row in view.summary]
    return draw.figure(replace(view, summary=rows))


class RooflineTest(unittest.TestCase):
    """Marks by hand: intensity 1/2 and 2, multiplying 1/5, 4/5, 1/10 and 4/10 of the calls."""

    def test_marks_are_at_their_ratios(self) -> None:
        """Only the kernels are marks, not the limits; the ridge of the roof is at 1."""
        (panel,) = drawn().axes
        for mark, heights in zip(MARKS, ((0.2, 0.8), (0.1, 0.4)), strict=False):
            places = [place for x, y in estimates(panel, mark) for place in (x, y)]
            for place, expected in zip(places, (0.5, heights[0], 2, heights[1]), strict=True):
                self.assertTrue(math.isclose(place, expected, rel_tol=1e-6))
        self.assertEqual([estimates(panel, mark) for mark in MARKS[2:]], [{}] * 4)
        roof = next(line for line in lines(panel, width=1.2) if len(line) == 3)
        self.assertEqual([roof[1], roof[2][1]], [(1, 1), 1])

    def test_labels_and_flags(self) -> None:
        """Each mark has its share of the limit and its batch size; flags of kernels are named below."""
        text = words(drawn())
        for label in ("40% 1", "80% 4", "20% 1", "40% 4"):
            self.assertIn(label, text)
        self.assertIn("no claim is made: drift", words(drawn(numpy="drift")))
        self.assertNotIn("no claim is made", words(drawn(gemm="drift")))

    def test_a_limit_not_measured(self) -> None:
        """A roofline without one of its limits is refused, not drawn without it."""
        view = replace(view_of(), record=record(paths=PATHS[:-1]))
        with self.assertRaisesRegex(RecordError, "no path calls; a roofline needs all limits"):
            draw(view)

"""The figure of a selfcheck: every comparison, every share, what was left out."""

import unittest
from dataclasses import replace

from matplotlib.figure import Figure

from inference_lab.errors import RecordError
from inference_lab.figures.selfcheck import draw
from inference_lab.figures.style import MARKS
from tests.analysis.selfchecks import PROCESSES, selfcheck_record, selfcheck_view
from tests.figures.views import Place, estimates, samples, words
from tests.synthetic import Call, steady, together

CLAIMED, NOT, NARROW, BY_RUN = MARKS[:4]


class SelfcheckFigureTest(unittest.TestCase):
    """What a reader sees."""

    def test_every_comparison_is_a_point(self) -> None:
        """Claimed and unclaimed comparisons are at their ratios: nulls at 0, effects around 10%."""
        figure = draw.figure(selfcheck_view(selfcheck_record()))
        ratios, shares, coverage = figure.axes
        claimed, unclaimed = samples(ratios, CLAIMED), samples(ratios, NOT)
        self.assertEqual((len(claimed), len(unclaimed)), (8, 8))
        self.assertTrue(all(x < 0.5 for x, _ in unclaimed))
        self.assertTrue(all(x > 0.5 for x, _ in claimed))
        self.assertLess(max(y for _, y in unclaimed), min(y for _, y in claimed))
        self.assertEqual([len(estimates(panel, CLAIMED)) for panel in (shares, coverage)], [2, 1])
        self.assertEqual((len(estimates(shares, NARROW)), len(self.by_run(figure))), (2, 4))
        self.assertIn("16 comparisons of 4 runs", words(figure))

    def by_run(self, figure: Figure) -> list[Place]:
        """The points of coverage by run."""
        lines = [line for line in figure.axes[2].get_lines() if line.get_marker() == BY_RUN.marker]
        return [(float(x), 0) for line in lines for x in list(line.get_xdata())]  # pyright: ignore

    def test_a_false_claim_is_seen(self) -> None:
        """A null that was claimed is a point of the colour of claims."""

        def slow(call: Call) -> float:
            return 1.3 if call.path == "null_1" and call.process < PROCESSES else 1.0

        figure = draw.figure(selfcheck_view(selfcheck_record(together(slow, steady(0.01)))))
        self.assertEqual(len([x for x, _ in samples(figure.axes[0], CLAIMED) if x < 0.5]), 2)

    def test_runs_left_out_are_named(self) -> None:
        """A busy run has no point, and the head says so; with none left the figure is still drawn."""
        figure = draw.figure(selfcheck_view(selfcheck_record(busy=(1,))))
        self.assertEqual(len(self.by_run(figure)), 3)
        self.assertIn("Left out as invalid: run 1.", words(figure))
        figure = draw.figure(selfcheck_view(selfcheck_record(busy=(0, 1, 2, 3))))
        self.assertIn("0 comparisons of 0 runs", words(figure))

    def test_a_summary_without_a_row_is_refused(self) -> None:
        """A share that has no row is not left out without a word."""
        view = selfcheck_view(selfcheck_record())
        with self.assertRaisesRegex(RecordError, "no row all 10; rebuild it from raw.csv"):
            draw(replace(view, summary=[row for row in view.summary if row["effect_percent"] == "0"]))

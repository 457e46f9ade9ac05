"""The figure of a selfcheck: every comparison, every share, what was left out."""

import re
import unittest
from dataclasses import replace
from xml.etree import ElementTree

from inference_lab.errors import RecordError
from inference_lab.figures.selfcheck import draw
from tests.analysis.selfchecks import PROCESSES, selfcheck_record, selfcheck_view
from tests.synthetic import Call, steady, together

SVG = "{http://www.w3.org/2000/svg}"


def marks(svg: str, gid: str) -> list[tuple[float, float]]:
    """Where the marks of one group stand; [] when there is no such group."""
    groups = [group for group in ElementTree.fromstring(svg).iter(f"{SVG}g") if group.get("id") == gid]
    return [(float(use.get("x", "nan")), float(use.get("y", "nan")))
            for group in groups for use in group.iter(f"{SVG}use")]  # fmt: skip


def words(svg: str) -> str:
    """All text of a figure."""
    return " ".join(re.findall("<!-- (.*?) -->", svg))


class SelfcheckFigureTest(unittest.TestCase):
    """What a reader sees."""

    def test_every_comparison_is_a_point(self) -> None:
        """Claimed and unclaimed comparisons stand at their ratios: nulls at 0, effects around 10%."""
        svg = draw(selfcheck_view(selfcheck_record()))
        points = {
            gid: marks(svg, gid) for gid in ("ratios-claimed-0", "ratios-not-claimed-0", "ratios-claimed-10")
        }
        self.assertEqual([len(some) for some in points.values()], [0, 8, 8])
        self.assertGreater(min(y for _, y in points["ratios-not-claimed-0"]),
                           max(y for _, y in points["ratios-claimed-10"]))  # fmt: skip
        self.assertEqual(len(marks(svg, "coverage-by-run")), 4)
        for gid in ("claimed_share-all-0", "claimed_share-all-10", "covers_one_share-all-0"):
            self.assertEqual(len(marks(svg, gid)), 1, gid)
        self.assertIn("16 comparisons of 4 runs", words(svg))

    def test_a_false_claim_is_seen(self) -> None:
        """A null that was claimed is a point of the colour of claims."""

        def slow(call: Call) -> float:
            return 1.3 if call.path == "null_1" and call.process < PROCESSES else 1.0

        svg = draw(selfcheck_view(selfcheck_record(together(slow, steady(0.01)))))
        self.assertEqual(len(marks(svg, "ratios-claimed-0")), 2)

    def test_runs_left_out_are_named(self) -> None:
        """A busy run has no point, and the head says so; with none left the figure is still drawn."""
        svg = draw(selfcheck_view(selfcheck_record(busy=(1,))))
        self.assertEqual(len(marks(svg, "coverage-by-run")), 3)
        self.assertIn("Left out as invalid: run 1.", words(svg))
        svg = draw(selfcheck_view(selfcheck_record(busy=(0, 1, 2, 3))))
        self.assertIn("0 comparisons of 0 runs", words(svg))

    def test_a_summary_without_a_row_is_refused(self) -> None:
        """A share that has no row is not left out without a word."""
        view = selfcheck_view(selfcheck_record())
        with self.assertRaisesRegex(RecordError, "no row all 10; rebuild it from raw.csv"):
            draw(replace(view, summary=[row for row in view.summary if row["effect_percent"] == "0"]))


if __name__ == "__main__":
    unittest.main()

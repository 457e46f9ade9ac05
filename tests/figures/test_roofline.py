"""The roofline: where marks stand, what they say, and what is refused."""

import re
import unittest

from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.roofline import draw
from tests.analysis.test_peers import PATHS, record
from tests.checkout import judge_of
from tests.figures.views import SOURCE, view_of

SHARES = {"numpy": ("0.5", "0.9"), "torch": ("0.25", "0.45")}  # of the limit, batch 1 and 4


def drawn(paths: tuple[str, ...] = PATHS, flags: dict[tuple[str, int], str] | None = None) -> str:
    """The figure of two cells whose intensities are 1/2 and 2."""
    view = view_of(record(paths=paths), flags=flags)
    rows: list[dict[str, str]] = []
    for row in view.summary:
        shares = SHARES.get(row["path"], ("", ""))
        share = shares[row["batch_size"] == "4"]
        rows.append({**row, **dict.fromkeys(("of_limit", "of_limit_lo", "of_limit_hi"), share)})
    return draw(View(view.record, rows, judge_of(), SOURCE))


def place(svg: str, gid: str) -> tuple[float, float]:
    """The x and y of one mark."""
    part = svg[svg.index(f'id="{gid}"') :]
    found = re.search(r'<use [^>]*?x="([\d.]+)" y="([\d.]+)"', part)
    assert found is not None
    return float(found[1]), float(found[2])


class RooflineTest(unittest.TestCase):
    """Marks by hand: intensity 1/2 and 2, multiplying 1/5, 4/5, 1/10 and 4/10 of the calls."""

    def test_marks_stand_at_their_ratios(self) -> None:
        """A factor of 4 up is twice as far as a factor of 2, and both paths share their intensities."""
        svg = drawn()
        (x1, y1), (x4, y4) = place(svg, "numpy-1"), place(svg, "numpy-4")
        (u1, v1), (u4, v4) = place(svg, "torch-1"), place(svg, "torch-4")
        self.assertEqual((x1, x4), (u1, u4))
        self.assertLess(x1, x4)
        self.assertAlmostEqual(y1 - y4, v1 - v4, places=3)
        self.assertAlmostEqual(y1 - y4, 2 * (v1 - y1), places=3)

    def test_the_ridge_is_at_one(self) -> None:
        """The roof bends halfway between intensities 1/2 and 2 on the log scale."""
        svg = drawn()
        roof = svg[svg.index('id="roof"') :]
        points = re.findall(r"[ML] ([\d.]+) ([\d.]+)", roof[: roof.index("/>")])
        middle = (place(svg, "numpy-1")[0] + place(svg, "numpy-4")[0]) / 2
        self.assertEqual(len(points), 3)
        self.assertAlmostEqual(float(points[1][0]), middle, places=3)
        self.assertEqual(points[1][1], points[2][1])

    def test_limits_are_no_marks(self) -> None:
        """Only the kernels are drawn as marks."""
        svg = drawn()
        self.assertNotRegex(svg, 'id="(read|gemm|calls)-')

    def test_labels_tell_the_share_of_the_limit(self) -> None:
        """Each mark tells its share of the limit and its batch size."""
        svg = drawn()
        for label in ("50% 1", "90% 4", "25% 1", "45% 4"):
            self.assertTrue(f"<!-- {label} -->" in svg, label)

    def test_flags_are_told(self) -> None:
        """A flagged cell of a kernel is named below, and nothing is when none is flagged."""
        self.assertIn("no claim is made: drift", drawn(flags={("numpy", 4): "drift"}))
        self.assertNotIn("no claim is made", drawn())

    def test_a_limit_not_measured(self) -> None:
        """A record without a limit is refused with the name of what is missing."""
        with self.assertRaisesRegex(RecordError, "no path calls; a roofline needs all limits"):
            drawn(paths=PATHS[:-1])


if __name__ == "__main__":
    unittest.main()

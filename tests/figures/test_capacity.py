"""The figure of tokens per GiB."""

import unittest
from typing import Any

from inference_lab.analysis.summary_table import SummaryRow, View
from inference_lab.config.sections import read_measure
from inference_lab.experiments.capacity import rows
from inference_lab.figures.capacity import draw
from inference_lab.figures.style import MARKS
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.figures.views import SOURCE, words

SECTION: Any = read_measure(
    {
        "by": "capacity",
        "vary": {"dtype": ["float32", "float16", "bfloat16"]},
        "fixed": {"block_size": 16, "sequence_length": 1000},
    },
    "a test",
)
ROWS = [SummaryRow(row) for row in rows(SECTION)]


class CapacityFigureTest(unittest.TestCase):
    """What a reader sees."""

    def test_one_mark_per_model_in_order_and_doubling(self) -> None:
        """From the model of fewest tokens up; dtypes of one size share a mark and have twice the tokens."""
        figure = draw.figure(View(Record("m2_capacity", {}, [], [], ROWS), ROWS, judge_of(), SOURCE))
        one, half = (
            [float(x) for line in figure.axes[0].get_lines() if line.get_color() == mark.color
             for x in list(line.get_xdata())]  # pyright: ignore
            for mark in MARKS[:2]
        )  # fmt: skip
        self.assertEqual((len(one), one), (11, sorted(one)))
        for single, double in zip(one, half, strict=True):
            self.assertAlmostEqual(double / single, 2, delta=0.01)  # floor() leaves a block at most
        for said in ("Gemma-2B   18 · 1 · 256", "float16, bfloat16", "tokens of keys and values in one GiB"):
            self.assertIn(said, words(figure))

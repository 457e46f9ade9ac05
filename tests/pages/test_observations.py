"""The page of p0."""

import unittest

from inference_lab.analysis.summary_table import View
from inference_lab.experiments.observations import rows
from inference_lab.mechanisms.numpy_semantics import OPERATIONS
from inference_lab.pages.observations import draw
from inference_lab.records.record import Record
from tests.checkout import judge_of

NAMES = list(OPERATIONS)
SOURCE = {"files": {"raw.csv": "c" * 64, "summary.csv": "e" * 64}, "command": "rebuild it"}


class PageTest(unittest.TestCase):
    """Observations as a reader sees them."""

    def page(self, **changed: str) -> str:
        """The page; `changed` are columns of the observation reshape_swapped."""
        made = [{**row, **changed} if row["observation"] == "reshape_swapped" else row for row in rows(NAMES)]
        return draw(View(Record("p0", {}, None, None, made), made, judge_of(), SOURCE))

    def test_every_observation_has_its_line(self) -> None:
        """One line of the table each, with yes, no and a dash for what is not defined; below, the origin."""
        page = self.page()
        for row in rows(NAMES):
            self.assertIn(f"| {row['observation']} |", page)
        self.assertIn("raw.csv `cccccccccccc`, summary.csv `eeeeeeeeeeee` by `rebuild it`", page)
        self.assertIn("| broadcast_view | 2 3 4 | 0 0 8 | neither | 192 | no | yes | – | yes |", page)

    def test_short_cuts_are_refuted_by_the_rows_themselves(self) -> None:
        """The copy that owns nothing is named; were it a view, it would not be."""
        rule = "What does not own its data"
        (said,) = (line for line in self.page().splitlines() if rule in line)
        self.assertIn("`advanced_index`, `reshape_swapped`", said)
        (said,) = (line for line in self.page(shares_memory="true").splitlines() if rule in line)
        self.assertNotIn("reshape_swapped", said)

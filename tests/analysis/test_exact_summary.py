"""The summary of records that timed nothing."""

import csv
import io
import unittest

from inference_lab.analysis.exact_summary import summarise
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from tests.checkout import judge_of

ROWS = ({"model": "a, b", "bytes": "12"}, {"model": "c", "bytes": ""})


class TableTest(unittest.TestCase):
    """Rows in, the same rows out."""

    def test_rows_pass_through(self) -> None:
        """Every column and text, empty ones and commas too, in the order recorded."""
        text = summarise(Record("x", {}, None, None, ROWS), judge_of())
        self.assertEqual(list(csv.DictReader(io.StringIO(text))), list(ROWS))
        self.assertTrue(text.startswith("model,bytes\n"))

    def test_no_row_and_a_row_twice_are_refused(self) -> None:
        """Neither is a whole record."""
        for rows, message in (((), "no row"), ((ROWS[0], ROWS[1], ROWS[0]), "stands twice: a, b,12")):
            with self.subTest(message), self.assertRaisesRegex(RecordError, message):
                summarise(Record("x", {}, None, None, rows), judge_of())


if __name__ == "__main__":
    unittest.main()

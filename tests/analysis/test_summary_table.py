"""A summary read back whole, and its rows picked."""

import tempfile
import unittest
from pathlib import Path

from inference_lab.analysis import exact_summary
from inference_lab.analysis.summary_table import SummaryRow, bound_names, pick, read_summary
from inference_lab.analysis.timing import summarise
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.synthetic import Call, steady, timing_record, together


def replica_is_slow_at_4(call: Call) -> float:
    """A baseline that differs from itself at B=4."""
    return 1.3 if call.kind == "replica" and call.value == 4 else 1.0


TEXT = summarise(timing_record(machine=together(steady(0.01), replica_is_slow_at_4)), judge_of())


class ReadSummary(unittest.TestCase):
    """`read_summary`."""

    def setUp(self) -> None:
        """A folder of its own for every test."""
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory()), "summary.csv")

    def read(self, text: str) -> list[SummaryRow]:
        """The rows of the text, through a file."""
        self.path.write_text(text, encoding="utf-8")
        return read_summary(self.path)

    def test_what_was_written_is_read(self) -> None:
        """Every row and column of a summary with a flag comes back."""
        rows = self.read(TEXT)
        self.assertEqual([row["flags"] for row in rows], ["", "", "aa", "", "", "", "aa", ""])
        self.assertEqual(rows[6]["ratio_claimed"], "no")

    def test_torn_tables_are_refused(self) -> None:
        """Missing, empty, cut off, ragged, doubled: one line that names the file and the way out."""
        for case, text in {
            "empty": "",
            "header alone": TEXT.splitlines(keepends=True)[0],
            "cut off": TEXT[:-3],
            "a value short": TEXT.replace(",yes,", ",", 1),
            "a field without end": TEXT + '"' + "x" * 200_000 + "\n",
        }.items():
            with self.subTest(case), self.assertRaisesRegex(RecordError, r"summary\.csv.*rebuild"):
                self.read(text)
        self.path.unlink()
        with self.assertRaisesRegex(RecordError, r"^[^\[]*: no such file; rebuild it from raw$"):
            read_summary(self.path)

    def test_exact_rows_pass_through(self) -> None:
        """What timed nothing has its recorded rows as summary: every text, empty ones and commas too."""
        rows = ({"model": "a, b", "bytes": "12"}, {"model": "c", "bytes": ""})
        text = exact_summary.summarise(Record("x", {}, rows=rows), judge_of())
        self.assertEqual(self.read(text), list(rows))
        with self.assertRaisesRegex(RecordError, "no row"):
            exact_summary.summarise(Record("x", {}), judge_of())


class PickRows(unittest.TestCase):
    """Rows by what they are about, columns with their bounds."""

    A = SummaryRow({"path": "a", "view": "true", "p50_ms": "1", "p50_lo_ms": ""})
    B = SummaryRow({"path": "b", "view": "", "p50_ms": "2"})

    def test_pick(self) -> None:
        """One row, or none; true and undefined are written as a table writes them."""
        cells = (
            ({"path": "a"}, self.A),
            ({"view": True}, self.A),
            ({"view": None}, self.B),
            ({"path": "c"}, None),
        )
        for cell, row in cells:
            self.assertIs(pick((self.A, self.B), cell, "here"), row)
        for cell, words in (({}, "fits 2 rows"), ({"paths": "a"}, "no column 'paths'")):
            with self.assertRaisesRegex(ConfigError, f"here: .*{words}"):
                pick((self.A, self.B), cell, "here")

    def test_bounds_are_before_the_unit_or_at_the_end(self) -> None:
        """p50_lo_ms, ratio_lo, positions_per_s_lo and aa_lo are found; a count has no bounds."""
        bounds = ("p50_lo_ms", "ratio_lo", "positions_per_s_lo", "aa_lo")
        row = SummaryRow(dict.fromkeys((*bounds, "bytes"), "1"))
        for column, bound in zip(("p50_ms", "ratio", "positions_per_s", "aa_ratio"), bounds, strict=True):
            self.assertEqual(bound_names(column)[0], bound)
            self.assertEqual(row.interval(column), (1, None))
        self.assertEqual(row.interval("bytes"), (None, None))
        self.assertIsNone(self.A.number("p50_lo_ms"))

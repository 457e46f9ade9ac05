"""Raw timing samples: what is written is read back, what is malformed is refused in one line."""

import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import RecordError
from inference_lab.records.samples import CONTROL_KINDS, Sample, read_samples, write_samples
from tests.checkout import CONTROLS, SAMPLES
from tests.synthetic import samples_of

WHOLE = write_samples(SAMPLES)
HEADER, FIRST, SECOND, *_ = WHOLE.splitlines(keepends=True)
COUNTS = st.integers(1, 10**18 - 1)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1)


def without_column(text: str, name: str) -> str:
    """The table without one of its columns."""
    at = text.splitlines()[0].split(",").index(name)
    rows = [line.split(",") for line in text.splitlines()]
    return "".join(",".join(row[:at] + row[at + 1 :]) + "\n" for row in rows)


def with_value(name: str, value: str) -> str:
    """The whole table with another value in a column of its second line."""
    row = dict(zip(HEADER.strip().split(","), FIRST.strip().split(","), strict=True))
    row[name] = value
    return WHOLE.replace(FIRST, ",".join(row.values()) + "\n")


# what is wrong: (text of the file, what its one line must say)
MALFORMED: dict[str, tuple[str, tuple[str, ...]]] = {
    "empty": ("", ("empty",)),
    "a header alone": (HEADER, ("no row",)),
    "a line end alone": ("\n", ("column process is missing",)),
    "cut off in a row": (WHOLE[:-9], ("cut off",)),
    "cut off before the line end": (WHOLE[:-1], ("cut off",)),
    "no header": (WHOLE.replace(HEADER, ""), ("column process is missing",)),
    "missing column": (without_column(WHOLE, "checksum"), ("column checksum is missing",)),
    "unknown column": (WHOLE.replace("elapsed_ns", "elapsed_ns,mood"), ("column mood is not known",)),
    "time in other units": (
        without_column(WHOLE, "elapsed_ns").replace("blas_threads", "blas_threads,elapsed_ms"),
        ("column elapsed_ns is missing",),
    ),
    "columns out of order": (WHOLE.replace("process,round", "round,process"), ("out of order",)),
    "a column twice": (WHOLE.replace("checksum", "checksum,checksum"), ("doubled",)),
    "a value too few": (WHOLE.replace(FIRST, FIRST[3:]), ("line 2", "13 values, must be 14")),
    "a value too many": (WHOLE.replace(SECOND, "7," + SECOND), ("line 3", "15 values, must be 14")),
    "a blank line": (WHOLE.replace(SECOND, "\n" + SECOND), ("line 3", "0 values")),
    "a row twice": (WHOLE + SECOND, ("line 6", "duplicate of line 3")),
    "NaN": (with_value("elapsed_ns", "nan"), ("line 2", "elapsed_ns is 'nan'", "whole ns")),
    "milliseconds among ns": (with_value("elapsed_ns", "2.5"), ("line 2", "elapsed_ns is '2.5'")),
    "a unit in the value": (with_value("elapsed_ns", "2000us"), ("line 2", "elapsed_ns is '2000us'")),
    "a time of nothing": (with_value("elapsed_ns", "0"), ("line 2", "elapsed_ns is '0'", "at least 1")),
    "negative time": (with_value("elapsed_ns", "-5"), ("line 2", "elapsed_ns is '-5'")),
    "batch of none": (with_value("batch_size", "0"), ("line 2", "batch_size is '0'")),
    "negative round": (with_value("round", "-1"), ("line 2", "round is '-1'", "at least 0")),
    "other digits": (with_value("elapsed_ns", "٣"), ("line 2", "elapsed_ns is '٣'")),
    "too many digits": (with_value("elapsed_ns", "9" * 5000), ("line 2", "elapsed_ns is")),
    "no path": (with_value("path", ""), ("line 2", "path is ''")),
    "an endless value": (with_value("path", "x" * 200_000), ("no CSV", "field larger")),
    "a quote that never ends": (with_value("path", '"dynamic'), ("line 2", "4 values, must be 14")),
}


class RawTest(unittest.TestCase):
    """raw.csv and controls.csv."""

    def setUp(self) -> None:
        """A file of its own for every test."""
        self.raw = Path(self.enterContext(tempfile.TemporaryDirectory()), "raw.csv")

    def refusal(self, text: str | bytes, *, controls: bool = False) -> str:
        """The words with which a file of this content is refused."""
        self.raw.write_bytes(text.encode() if isinstance(text, str) else text)
        with self.assertRaises(RecordError) as raised:
            read_samples(self.raw, controls=controls)
        return str(raised.exception)

    def test_every_malformed_table_is_refused(self) -> None:
        """Each malformed table is refused in one short line: file, row, value, and the way out."""
        for what, (text, said) in MALFORMED.items():
            with self.subTest(what):
                words = self.refusal(text)
                for expected in (str(self.raw), *said, "restore it from git or measure again"):
                    self.assertIn(expected, words)
                self.assertNotIn("\n", words)
                self.assertLess(len(words), 600)

    def test_a_file_that_cannot_be_read_is_refused(self) -> None:
        """A missing file, a folder and bytes that are no UTF-8 are refused by name."""
        self.assertIn("cannot be read", self.refusal(b"\xff\xfe" + WHOLE.encode()))
        for path, said in (
            (self.raw.with_name("no.csv"), "no such file"),
            (self.raw.parent, r"cannot be read \(Is a directory\)"),
        ):
            with self.subTest(said), self.assertRaisesRegex(RecordError, said):
                read_samples(path)

    def test_controls_carry_a_known_kind(self) -> None:
        """A row of controls.csv says which control it is: a formal sample or a new kind is refused."""
        controls = write_samples(CONTROLS, controls=True)
        for kind in ("sample", "", "guess"):
            with self.subTest(kind):
                words = self.refusal(controls.replace("probe\n", f"{kind}\n"), controls=True)
                self.assertIn(f"kind is {kind!r}", words)
        self.assertIn("column kind is missing", self.refusal(WHOLE, controls=True))

    def test_controls_may_be_none(self) -> None:
        """No warm-up, probe or replica is a whole measurement, no sample is none."""
        self.raw.write_text(write_samples([], controls=True))
        self.assertEqual(len(read_samples(self.raw, controls=True)), 0)

    def test_one_place_may_hold_two_kinds(self) -> None:
        """A warm-up and the first round share their numbers without being the same row."""
        both = [*CONTROLS, *(replace(sample, kind="warmup") for sample in CONTROLS)]
        self.raw.write_text(write_samples(both, controls=True))
        self.assertEqual(samples_of(read_samples(self.raw, controls=True)), both)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        counts=st.lists(COUNTS, min_size=8, max_size=8),
        places=st.lists(st.integers(0, 10**15), min_size=4, max_size=4),
        names=st.tuples(NAMES, NAMES, NAMES),
        kind=st.sampled_from(CONTROL_KINDS),
    )
    def test_what_is_written_is_read_back(
        self, counts: list[int], places: list[int], names: tuple[str, str, str], kind: str
    ) -> None:
        """Every sample survives the file exactly: no digit, quote, comma or letter is lost."""
        (process, round_, position, started), (path, dtype, checksum) = places, names
        *cell, threads, elapsed = counts[:7]
        written = Sample(
            process, round_, position, path, *cell, dtype, threads, elapsed, started, checksum, kind
        )
        self.raw.write_text(write_samples([written], controls=True), encoding="utf-8", newline="")
        self.assertEqual(samples_of(read_samples(self.raw, controls=True)), [written])

    def test_bytes_are_those_of_the_contract(self) -> None:
        """The header names the columns of the contract in order, lines end in one line feed."""
        columns = (
            "process,round,position,path,batch_size,sequence_length,d_model,num_heads,num_kv_heads,dtype,"
            "blas_threads,elapsed_ns,started_ns,checksum"
        )
        self.assertEqual(HEADER, f"{columns}\n")
        self.assertEqual(write_samples([], controls=True), f"{columns},kind\n")
        self.assertNotIn("\r", WHOLE)

    def test_a_cell_is_what_was_timed(self) -> None:
        """Samples of one cell differ in place and time alone; another batch size is another cell."""
        first, other, again, _ = SAMPLES
        self.assertEqual(first.cell, again.cell)
        self.assertNotEqual(first.cell, other.cell)


if __name__ == "__main__":
    unittest.main()

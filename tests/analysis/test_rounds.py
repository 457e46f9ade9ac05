"""Rows that are not the whole, unmixed measurement their manifest declares are refused."""

import tempfile
import unittest
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.analysis.rounds import rounds_of
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.records.samples import TIMING_COLUMNS, Sample, read_samples, write_samples
from tests.synthetic import timing_record

RECORD = timing_record(vary={"batch_size": (1, 2)}, processes=2, rounds=3, warmups=1)
LINES = write_samples(RECORD.samples).splitlines()[1:]
ROWS = st.integers(0, len(LINES) - 1)

Fault = Callable[[list[str]], list[str]]


@st.composite
def removed(draw: Any) -> Fault:
    """Some rows are gone."""
    gone = draw(st.sets(ROWS, min_size=1, max_size=len(LINES) - 1))
    return lambda lines: [line for number, line in enumerate(lines) if number not in gone]


@st.composite
def doubled(draw: Any) -> Fault:
    """A row stands a second time somewhere."""
    row, at = draw(ROWS), draw(ROWS)
    return lambda lines: [*lines[:at], lines[row], *lines[at:]]


@st.composite
def reordered(draw: Any) -> Fault:
    """Two rows changed places."""
    first, second = draw(st.lists(ROWS, min_size=2, max_size=2, unique=True))

    def swap(lines: list[str]) -> list[str]:
        lines = list(lines)
        lines[first], lines[second] = lines[second], lines[first]
        return lines

    return swap


@st.composite
def altered(draw: Any) -> Fault:
    """One value of one row says something else; a time is in µs or ms instead of ns."""
    row, column = draw(ROWS), draw(st.integers(0, len(TIMING_COLUMNS) - 1))
    values = LINES[row].split(",")
    name, value = TIMING_COLUMNS[column], values[column]
    if name == "elapsed_ns":
        value = draw(st.sampled_from([int(value) // 1000, int(value) * 1000, int(value) // 10**6, -1]))
    elif name == "started_ns":
        value = draw(st.sampled_from([other.split(",")[column] for other in LINES]).filter(value.__ne__))
    elif value.isdecimal():
        value = draw(st.integers(-1, 1000).map(str).filter(value.__ne__))
    else:
        value = draw(
            st.sampled_from(["", "float32", "no_cache", "dynamic", "preallocated"]).filter(value.__ne__)
        )
    values[column] = str(value)
    return lambda lines: [*lines[:row], ",".join(values), *lines[row + 1 :]]


class CorruptedRows(unittest.TestCase):
    """Faults in a raw.csv, found without knowing its digest."""

    def setUp(self) -> None:
        """A folder of its own for every test."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.raw = Path(folder.name) / "raw.csv"

    def read(self, text: str) -> None:
        """Reads the text as the record's raw.csv, up to the arrays."""
        self.raw.write_text(text, encoding="utf-8")
        rounds_of(Record("m1", RECORD.manifest, read_samples(self.raw), RECORD.controls))

    def test_the_rows_as_they_are_pass(self) -> None:
        """Without a fault the same file is accepted, so the refusals below are of the faults."""
        self.read("\n".join([",".join(TIMING_COLUMNS), *LINES]) + "\n")

    @given(st.one_of(removed(), doubled(), reordered(), altered()))
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_every_faulty_table_is_refused(self, fault: Fault) -> None:
        """Rows removed, doubled, reordered or altered are refused, every time, in one line with a way out."""
        with self.assertRaises(RecordError) as refused:
            self.read("\n".join([",".join(TIMING_COLUMNS), *fault(LINES)]) + "\n")
        self.assertNotIn("\n", str(refused.exception))
        self.assertIn("measure again", str(refused.exception))

    @given(st.integers(1, len("\n".join(LINES))))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_every_truncated_file_is_refused(self, cut: int) -> None:
        """A file that ends early is refused wherever it ends, also at the end of a line."""
        with self.assertRaises(RecordError):
            self.read(("\n".join([",".join(TIMING_COLUMNS), *LINES]) + "\n")[:-cut])


class Refusals(unittest.TestCase):
    """What a refusal says, and faults in the controls."""

    def refused(self, samples: list[Sample], controls: list[Sample], *words: str, **conditions: Any) -> None:
        """The record is refused with a message that holds these words."""
        manifest = {**RECORD.manifest, "conditions": {**RECORD.manifest["conditions"], **conditions}}
        with self.assertRaises(RecordError) as refused:
            rounds_of(Record("m1", manifest, samples, controls))
        for word in words:
            self.assertIn(word, str(refused.exception))

    def test_messages_name_file_row_and_rule(self) -> None:
        """Each rule names the file, the line, the value and what it must be."""
        rows, controls = list(RECORD.samples), list(RECORD.controls)
        other = replace(rows[4], dtype="float32")
        self.refused([*rows[:4], other, *rows[5:]], controls, "raw.csv line 6", "dtype is float32", "float64")
        self.refused(rows[:-1], controls, "raw.csv", "process 1 round 2", "5 of 6")
        other = replace(rows[4], checksum="other")
        self.refused([*rows[:4], other, *rows[5:]], controls, "checksum", "same work")
        self.refused(rows, controls, "process 0 round 2", "2 processes of 2 rounds", rounds=2)
        self.refused(rows, controls, "in process 0 round 3", "6 of 8", rounds=4)

    def test_a_cell_timed_twice_in_a_round(self) -> None:
        """A second, later row of one cell in one round is refused, though no two rows are alike."""
        rows = list(RECORD.samples)
        last = rows[-1]
        again = replace(last, position=last.position + 3, started_ns=last.started_ns + 10**9)
        self.refused([*rows, again], list(RECORD.controls), f"line {len(rows) + 2}", "stands twice")

    def test_positions_without_gaps(self) -> None:
        """A position that no call of its round has is refused even where the order stays right."""
        rows = list(RECORD.samples)
        rows[-1] = replace(rows[-1], position=500)
        self.refused(rows, list(RECORD.controls), "position is 500", "count from 0")

    def test_mixed_units(self) -> None:
        """One row in µs among rows in ns is refused, by name."""
        rows = list(RECORD.samples)
        rows[3] = replace(rows[3], elapsed_ns=rows[3].elapsed_ns // 1000)
        self.refused(rows, list(RECORD.controls), "raw.csv line 5", "all times are ns")

    def test_controls_are_whole_too(self) -> None:
        """A missing replica or probe, and a replica of another path, are refused."""
        controls = list(RECORD.controls)
        for kind in ("replica", "probe"):
            found = [i for i, control in enumerate(controls) if control.kind == kind]
            self.refused(
                list(RECORD.samples), controls[: found[0]] + controls[found[0] + 1 :], "controls.csv", kind
            )
        at = next(i for i, control in enumerate(controls) if control.kind == "replica")
        controls[at] = replace(controls[at], path="preallocated")
        self.refused(list(RECORD.samples), controls, "a replica repeats the baseline")

    def test_each_number_of_threads_has_its_processes(self) -> None:
        """Cells of one number of threads stand by its processes; a process lost or shared is refused."""
        threads = timing_record(vary={"blas_threads": (1, 2)}, processes=2, rounds=3, warmups=0)
        rounds = rounds_of(threads)
        for (path, value), times in rounds.times.items():
            rows = [s for s in threads.samples if (s.path, s.blas_threads) == (path, value)]
            self.assertEqual({row.process for row in rows}, {value - 1, value + 1})
            self.assertEqual(
                times.tolist(), [[row.elapsed_ns for row in some] for some in (rows[:3], rows[3:])]
            )
        self.assertEqual(rounds.same().keys(), {1, 2})
        assert rounds.probe is not None
        self.assertEqual(rounds.probe.shape, (4, 3))
        self.assertFalse(rounds.paired("1", "2"))
        self.assertTrue(rounds.paired("1", "1"))
        self.assertTrue(rounds_of(RECORD).paired("1", "2"))

        lost = [sample for sample in threads.samples if sample.process != 3]
        shared = [
            replace(s, blas_threads=1) if s.process == 1 and s.round == 2 else s for s in threads.samples
        ]
        for samples, told in ((lost, "blas_threads 2: [1]"), (shared, "blas_threads 1: [0, 1, 2]")):
            with self.assertRaisesRegex(
                RecordError, "raw.csv: the manifest declares 2 processes of"
            ) as refused:
                rounds_of(replace(threads, samples=samples))
            self.assertIn(told, str(refused.exception))

    def test_arrays_by_process_and_round(self) -> None:
        """Times stand by process and round, whatever the order within a round; metrics use B and T."""
        rounds = rounds_of(RECORD)
        for (path, value), times in rounds.times.items():
            for sample in RECORD.samples:
                if (sample.path, sample.batch_size) == (path, value):
                    self.assertEqual(times[sample.process, sample.round], sample.elapsed_ns)
        first = rounds.cells["dynamic", 2][0]
        metric = rounds.metric("positions_per_s", "dynamic", 2)[0, 0]
        self.assertAlmostEqual(metric, 2 * 128 / (first.elapsed_ns / 1e9))

    def test_steps_behind_a_cache(self) -> None:
        """With decode_steps fixed, a call makes that many positions, however many tokens are cached."""
        rounds = rounds_of(timing_record(rounds=1, processes=1, fixed={"decode_steps": 8}))
        first = rounds.cells["dynamic", 4][0]
        self.assertEqual(rounds.positions(first), 8)
        self.assertAlmostEqual(
            rounds.metric("positions_per_s", "dynamic", 4)[0, 0], 4 * 8 / (first.elapsed_ns / 1e9)
        )

"""Rows that are not the whole, unmixed measurement their manifest declares are refused."""

import re
import tempfile
import unittest
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.analysis.rounds import rounds_of
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.records.samples import TIMING_COLUMNS, Sample, read_samples, write_samples
from tests.synthetic import samples_of, table_of, timing_record

RECORD = timing_record(vary={"batch_size": (1, 2)}, processes=2, rounds=3, warmups=1)
SAMPLES, CONTROLS = samples_of(RECORD.samples), samples_of(RECORD.controls)
LINES = write_samples(SAMPLES).splitlines()[1:]
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
        """Have what every test of the class needs, gone at its end."""
        self.raw = Path(self.enterContext(tempfile.TemporaryDirectory()), "raw.csv")

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


def refusal(
    samples: Sequence[Sample] = SAMPLES, controls: Sequence[Sample] = CONTROLS, **conditions: Any
) -> str:
    """Return the message with which these rows are refused under the record's conditions."""
    manifest = {**RECORD.manifest, "conditions": {**RECORD.manifest["conditions"], **conditions}}
    try:
        rounds_of(Record("m1", manifest, table_of(samples), table_of(controls)))
    except RecordError as error:
        return str(error)
    return ""


def changed(rows: Sequence[Sample], at: int, **values: Any) -> list[Sample]:
    """Return the rows with one of them changed."""
    return [*rows[:at], replace(rows[at], **values), *rows[at:][1:]]


class Refusals(unittest.TestCase):
    """A refusal names file, line, value and rule."""

    def test_what_a_refusal_names(self) -> None:
        """A refused table is named by file, line and rule."""
        last = SAMPLES[-1]
        again = replace(last, position=last.position + 3, started_ns=last.started_ns + 10**9)
        at = {kind: [c.kind for c in CONTROLS].index(kind) for kind in ("replica", "probe")}
        late = [*SAMPLES[:2], SAMPLES[3], SAMPLES[2], *SAMPLES[4:]]
        for words, message in (
            (("raw.csv line 6", "float32", "float64"), refusal(changed(SAMPLES, 4, dtype="float32"))),
            (("raw.csv", "process 1 round 2", "5 of 6"), refusal(SAMPLES[:-1])),
            (
                ("raw.csv line", "checksum is other", "same work"),
                refusal(changed(SAMPLES, 4, checksum="other")),
            ),
            (("process 0 round 2", "2 processes of 2 rounds"), refusal(rounds=2)),
            (("in process 0 round 3", "6 of 8"), refusal(rounds=4)),
            ((f"raw.csv line {len(SAMPLES) + 2}", "times it once"), refusal([*SAMPLES, again])),
            (("position is 500", "from 0"), refusal(changed(SAMPLES, -1, position=500)[: len(SAMPLES)])),
            (
                ("raw.csv line 5", "all times are ns"),
                refusal(changed(SAMPLES, 3, elapsed_ns=SAMPLES[3].elapsed_ns // 1000)),
            ),
            (("raw.csv line 5", "in the order"), refusal(late)),
            (
                ("do not overlap", f"started at {SAMPLES[1].started_ns}"),
                refusal(changed(SAMPLES, 0, elapsed_ns=SAMPLES[0].elapsed_ns * 400)),
            ),
            (("controls.csv", "replica"), refusal(controls=_without(CONTROLS, at["replica"]))),
            (("controls.csv", "probe"), refusal(controls=_without(CONTROLS, at["probe"]))),
            (
                ("controls.csv line", "path is preallocated", "baseline dynamic"),
                refusal(controls=changed(CONTROLS, at["replica"], path="preallocated")),
            ),
        ):
            with self.subTest(words):
                for word in words:
                    self.assertIn(word, message)

    def test_each_number_of_threads_has_its_processes(self) -> None:
        """Rounds are counted per number of threads, each with processes of its own."""
        threads = timing_record(vary={"blas_threads": (1, 2)}, processes=2, rounds=3, warmups=0)
        rounds, samples = rounds_of(threads), samples_of(threads.samples)
        for (path, value), times in rounds.times.items():
            rows = [s for s in samples if (s.path, s.blas_threads) == (path, value)]
            self.assertEqual({row.process for row in rows}, {value - 1, value + 1})
            self.assertEqual(times.ravel().tolist(), [row.elapsed_ns for row in rows])
        self.assertEqual(rounds.replica.keys(), {1, 2})
        self.assertEqual(np.shape(rounds.probe), (4, 3))
        self.assertEqual([rounds.paired(1, other) for other in (1, 2)], [True, False])
        self.assertTrue(rounds_of(RECORD).paired(1, 2))

        lost = [sample for sample in samples if sample.process != 3]
        shared = [replace(s, blas_threads=1) if (s.process, s.round) == (1, 2) else s for s in samples]
        for rows, words in ((lost, "blas_threads 2: [1]"), (shared, "blas_threads 1: [0, 1, 2]")):
            with self.assertRaisesRegex(RecordError, re.escape(words)):
                rounds_of(replace(threads, samples=table_of(rows)))


class Arrays(unittest.TestCase):
    """Times by process and round."""

    def test_whatever_the_order_within_a_round(self) -> None:
        """Each time is under its process and round, whatever was timed in which order there."""
        rounds = rounds_of(RECORD)
        for sample in SAMPLES:
            times = rounds.times[sample.path, sample.batch_size]
            self.assertEqual(times[sample.process, sample.round], sample.elapsed_ns)
            self.assertEqual(rounds.cells[sample.path, sample.batch_size], sample.cell)

    def test_positions_per_second(self) -> None:
        """A call makes all T positions, or `decode_steps` behind a cache."""
        for fixed, positions in (({}, 128), ({"decode_steps": 8}, 8)):
            rounds = rounds_of(timing_record(rounds=1, processes=1, fixed=fixed))
            seconds = rounds.times["dynamic", 4][0, 0] / 1e9
            rate = rounds.metric("positions_per_s", "dynamic", 4)[0, 0]
            self.assertAlmostEqual(rate, 4 * positions / seconds)


def _without(rows: Sequence[Sample], at: int) -> list[Sample]:
    return [*rows[:at], *rows[at + 1 :]]

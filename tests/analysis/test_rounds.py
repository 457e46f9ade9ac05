"""Rows that are not the whole, unmixed measurement their manifest declares are refused."""

import re
import tempfile
import unittest
from collections.abc import Sequence
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


@st.composite
def faulty(draw: Any) -> list[str]:
    """The lines with some gone, one doubled, two swapped, or one value that says something else."""
    lines, row, at = list(LINES), draw(ROWS), draw(ROWS)
    match draw(st.sampled_from(("removed", "doubled", "swapped", "altered"))):
        case "removed":
            gone = draw(st.sets(ROWS, min_size=1, max_size=len(LINES) - 1))
            return [line for number, line in enumerate(lines) if number not in gone]
        case "doubled":
            return [*lines[:at], lines[row], *lines[at:]]
        case "swapped":
            other = draw(ROWS.filter(row.__ne__))
            lines[row], lines[other] = lines[other], lines[row]
        case _:
            lines[row] = draw(altered(lines[row].split(",")))
    return lines


@st.composite
def altered(draw: Any, values: list[str]) -> str:
    """The line with another value in one column; a time is in µs or ms instead of ns."""
    column = draw(st.integers(0, len(TIMING_COLUMNS) - 1))
    value, others = values[column], ["", "float32", "no_cache", "dynamic", "preallocated"]
    if TIMING_COLUMNS[column] == "elapsed_ns":
        others = [str(n) for n in (int(value) // 1000, int(value) * 1000, int(value) // 10**6, -1)]
    elif TIMING_COLUMNS[column] == "started_ns":
        others = [line.split(",")[column] for line in LINES]
    elif value.isdecimal():
        others = [str(n) for n in range(-1, 1001)]
    values[column] = draw(st.sampled_from(others).filter(value.__ne__))
    return ",".join(values)


class CorruptedRows(unittest.TestCase):
    """Faults in a raw.csv, found without knowing its digest."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.raw = Path(self.enterContext(tempfile.TemporaryDirectory()), "raw.csv")

    def read(self, lines: Sequence[str], cut: int = 0) -> None:
        """Reads the lines as the record's raw.csv, the last `cut` characters of it lost, up to the arrays."""
        text = "\n".join([",".join(TIMING_COLUMNS), *lines]) + "\n"
        self.raw.write_text(text[: len(text) - cut], encoding="utf-8")
        rounds_of(Record("m1", RECORD.manifest, read_samples(self.raw), RECORD.controls))

    def test_the_rows_as_they_are_pass(self) -> None:
        """Without a fault the same file is accepted, so the refusals below are of the faults."""
        self.read(LINES)

    @given(faulty())
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_every_faulty_table_is_refused(self, lines: list[str]) -> None:
        """Rows removed, doubled, reordered or altered are refused, every time, in one line with a way out."""
        with self.assertRaisesRegex(RecordError, "^[^\n]*measure again[^\n]*$"):
            self.read(lines)

    @given(st.integers(1, len("\n".join(LINES))))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_every_truncated_file_is_refused(self, cut: int) -> None:
        """A file that ends early is refused wherever it ends, also at the end of a line."""
        with self.assertRaises(RecordError):
            self.read(LINES, cut)


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


def changed(at: int, rows: Sequence[Sample] = SAMPLES, **values: Any) -> list[Sample]:
    """Return the rows with one of them changed."""
    rows = list(rows)
    rows[at] = replace(rows[at], **values)
    return rows


class Refusals(unittest.TestCase):
    """A refusal names file, line, value and rule."""

    def test_what_a_refusal_names(self) -> None:
        """A refused table is named by file, line and rule."""
        last, kinds = SAMPLES[-1], [control.kind for control in CONTROLS]
        again = replace(last, position=last.position + 3, started_ns=last.started_ns + 10**9)
        late = [*SAMPLES[:2], SAMPLES[3], SAMPLES[2], *SAMPLES[4:]]
        replica, probe = kinds.index("replica"), kinds.index("probe")
        in_us, long = SAMPLES[3].elapsed_ns // 1000, SAMPLES[0].elapsed_ns * 400
        for message, *words in (
            (refusal(changed(4, dtype="float32")), "raw.csv line 6", "float32", "float64"),
            (refusal(SAMPLES[:-1]), "raw.csv", "process 1 round 2", "5 of 6"),
            (refusal(changed(4, checksum="other")), "raw.csv line", "checksum is other", "same work"),
            (refusal(rounds=2), "process 0 round 2", "2 processes of 2 rounds"),
            (refusal(rounds=4), "in process 0 round 3", "6 of 8"),
            (refusal([*SAMPLES, again]), f"raw.csv line {len(SAMPLES) + 2}", "times it once"),
            (refusal(changed(-1, position=500)), "position is 500", "from 0"),
            (refusal(changed(3, elapsed_ns=in_us)), "raw.csv line 5", "all times are ns"),
            (refusal(late), "raw.csv line 5", "in the order"),
            (refusal(changed(0, elapsed_ns=long)), "do not overlap", f"started at {SAMPLES[1].started_ns}"),
            (refusal(controls=CONTROLS[:replica] + CONTROLS[replica + 1 :]), "controls.csv", "replica"),
            (refusal(controls=CONTROLS[:probe] + CONTROLS[probe + 1 :]), "controls.csv", "probe"),
            (
                refusal(controls=changed(replica, CONTROLS, path="preallocated")),
                *("controls.csv line", "path is preallocated", "baseline dynamic"),
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

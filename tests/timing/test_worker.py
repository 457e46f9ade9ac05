"""Measuring in fresh processes: what is started, what comes back, and what makes a measurement refuse."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.record import Measurement
from inference_lab.records.samples import read_samples
from inference_lab.timing import machine, worker
from inference_lab.timing.worker import check_rows, measure, threads_of_processes
from tests import checkout
from tests.checkout import section
from tests.synthetic import samples_of

FIXED = {"sequence_length": 3, "d_model": 2, "dtype": "float32", "seed": 42}
DECODE = {"fixed": FIXED, "paths": ["dynamic", "preallocated"], "replica": True, "processes": 2, "warmups": 1}
SECTION = section(**DECODE)
THREADS = {
    "by": "threads",
    "vary": {"blas_threads": [1, 2, 4]},
    "fixed": {**FIXED, "batch_size": 1},
    "paths": ["dynamic"],
}
READY = {"oracle": [], "data_sha256": "", "blas": {}, "thread_variables": {}, "facts": {}}


class DeclaredTest(unittest.TestCase):
    """What a section declares, and what was timed."""

    def test_whole_or_refused(self) -> None:
        """All rows pass, whatever controls lie among them; one too few or too many, another result do not."""
        rows = [
            checkout.sample(round_, B, process=process, path=path, checksum=f"{path}{B}")
            for process, round_, B, path in itertools.product((0, 1), (0, 1), (1, 2), DECODE["paths"])
        ]
        check_rows([*rows, *checkout.CONTROLS], SECTION)
        for wrong, message in (
            *((rows[:n] + rows[n + 1 :], "has 3 rows, 4 declared") for n in range(len(rows))),
            ([*rows, rows[0]], "has 5 rows, 4 declared"),
            ([row for row in rows if row.batch_size == 1], "2 cells were timed, 4 declared"),
            ([*rows, replace(rows[0], dtype="float64x")], "5 cells were timed"),
            ([], "0 cells were timed"),
            ([replace(rows[0], checksum="other"), *rows[1:]], "state was carried from one repeat"),
        ):
            with self.assertRaisesRegex(MeasurementRefused, message) as raised:
                check_rows(wrong, SECTION)
            self.assertNotIn("\n", str(raised.exception))

    def test_threads_take_turns_in_shuffled_order(self) -> None:
        """Each number has `processes` processes, one of each before the next of any, in no fixed order."""
        self.assertEqual(threads_of_processes(section(processes=3)), [1, 1, 1])
        varied = section(**THREADS | {"processes": 40})
        found = threads_of_processes(varied)
        blocks = [tuple(found[at : at + 3]) for at in range(0, len(found), 3)]
        self.assertEqual({tuple(sorted(block)) for block in blocks}, {(1, 2, 4)})
        self.assertEqual(len(set(blocks)), 6)
        self.assertEqual(threads_of_processes(varied), found)


class MeasureTest(unittest.TestCase):
    """A measurement by processes of its own."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.enterContext(contextlib.chdir(checkout.ROOT))
        names = dict.fromkeys(machine.THREAD_VARIABLES, "1")
        self.enterContext(mock.patch.dict(os.environ, names))
        beside = {"PYTHONPATH": f"{checkout.ROOT / 'src'}{os.pathsep}{checkout.ROOT}"}  # `tests` is there
        child = {**installed.of_child(), **beside}
        self.enterContext(mock.patch.object(installed, "of_child", return_value=child))
        self.told: list[tuple[int, int]] = []

    def measure(self, module: str, conditions: Any, program: str = worker.PROGRAM) -> Measurement:
        """The measurement of a section; progress is noted."""
        with mock.patch.object(worker, "PROGRAM", program):
            return measure(module, conditions, lambda done, total: self.told.append((done, total)))

    def refused(self, script: Sequence[Sequence[object]], words: str) -> None:
        """Processes that do what the script says make the measurement refuse in these words."""
        with self.assertRaisesRegex(MeasurementRefused, words) as raised:
            self.measure(json.dumps(script), section(processes=len(script)), "tests.scripted_child")
        self.assertNotIn("\n", str(raised.exception))

    def test_two_real_processes(self) -> None:
        """Real decode paths in two fresh processes give a whole record that says what was asked for."""
        found = self.measure("inference_lab.experiments.decode_paths", SECTION)
        self.assertEqual(found.kind, "timing")
        self.assertEqual(found.rows["raw.csv"], 2 * 2 * 2 * 2)
        root = checkout.enter(self)
        for name, text in found.files.items():
            (root / name).write_text(text)
            rows = read_samples(root / name, controls=name == "controls.csv")
            self.assertEqual(len(rows), found.rows[name])
        samples = samples_of(read_samples(root / "raw.csv"))
        self.assertEqual(
            {(sample.process, sample.dtype) for sample in samples}, {(0, "float32"), (1, "float32")}
        )
        self.assertTrue(all(sample.elapsed_ns > 0 for sample in samples))
        controls = samples_of(read_samples(root / "controls.csv", controls=True))
        kinds = Counter(sample.kind for sample in controls)
        self.assertEqual(kinds, {"warmup": 8, "replica": 8, "probe": 4})
        checked = [(each["path"], each["batch_size"], each["passed"]) for each in found.facts["oracle"]]
        self.assertEqual(checked, [(path, B, True) for B in (1, 2) for path in DECODE["paths"]])
        self.assertEqual(found.environment["blas"]["threads"], 1)
        self.assertEqual(found.environment["thread_variables"]["OPENBLAS_NUM_THREADS"], "1")
        self.assertEqual(self.told, [(1, 4), (2, 4), (3, 4), (4, 4)])

    def test_processes_with_threads_of_their_own(self) -> None:
        """Each process is started with its number of threads and told it; the first of each is checked."""
        conditions = section(**THREADS | {"vary": {"blas_threads": [1, 2]}, "processes": 2, "rounds": 1})
        order = threads_of_processes(conditions)
        asked: list[tuple[int, int, bool, str]] = []

        def process(_: str, task: dict[str, Any], progress: Callable[[int], None]) -> Any:
            number, threads = task["process"], task["blas_threads"]
            variable = machine.with_threads(threads)["OPENBLAS_NUM_THREADS"]
            asked.append((number, threads, task["check"], variable))
            ready = {
                "oracle": [{"path": "dynamic", "threads": threads}] if task["check"] else [],
                "data_sha256": "same",
                "facts": {"number": number},
                "blas": {"name": "openblas", "threads": threads},
                "thread_variables": {"OMP_NUM_THREADS": str(threads), "MKL_CBWR": "AVX2"},
            }
            progress(1)
            return ready, [replace(checkout.sample(0, 1, process=number), blas_threads=threads)]

        with mock.patch.object(worker, "_one_process", process):
            found = measure("any", conditions, lambda *now: self.told.append(now), first_process=12)
        self.assertEqual(asked, [(12 + n, k, k not in order[:n], str(k)) for n, k in enumerate(order)])
        self.assertEqual(sorted(order), [1, 1, 2, 2])
        self.assertEqual([one["threads"] for one in found.facts["oracle"]], list(dict.fromkeys(order)))
        self.assertEqual(found.facts["processes"], [{"number": number} for number in (12, 13, 14, 15)])
        self.assertEqual(found.environment["blas"], {"name": "openblas", "threads": [1, 2]})
        variables = {"OMP_NUM_THREADS": ["1", "2"], "MKL_CBWR": "AVX2"}
        self.assertEqual(found.environment["thread_variables"], variables)
        self.assertEqual(self.told, [(1, 4), (2, 4), (3, 4), (4, 4)])

    def test_a_contradicting_shell_is_refused(self) -> None:
        """A thread variable of the shell with another number refuses before any process starts."""
        with mock.patch.dict(os.environ, {"MKL_NUM_THREADS": "2"}), mock.patch("subprocess.Popen") as started:
            with self.assertRaisesRegex(MeasurementRefused, "MKL_NUM_THREADS is '2' but .* declares"):
                self.measure("any", SECTION)
            started.assert_not_called()

    def test_what_a_process_does_not_finish_or_refuses(self) -> None:
        """A child that is killed, fails or stops within a word is named by its status, or by its reason."""
        ready = {"ready": READY}
        early = "measuring process 0 ended with status"
        for script, words in (
            ([ready, signal.SIGKILL.value], f"{early} -9 before it was done"),
            ([ready], f"{early} 0"),
            ([ready, "half a wor", signal.SIGKILL.value], f"{early} -9"),
            ([{"refused": "openblas has 2 threads, declared are 1"}], "^openblas has 2 threads"),
        ):
            with self.subTest(script):
                self.refused([script], words)

    def test_a_wrong_path_is_refused_before_it_is_timed(self) -> None:
        """A path that differs from its oracle ends the measurement as soon as the child says so."""
        finding = {
            "path": "dynamic",
            "batch_size": 2,
            "max_abs_error": 0.5,
            "tolerance": 1e-14,
            "passed": False,
        }
        ready = {**READY, "oracle": [finding]}
        words = "path dynamic at B=2 differs from its oracle by 0.5, tolerance 1e-14"
        self.refused([[{"ready": ready}, {"round": 1}, signal.SIGSTOP.value]], words)
        self.assertEqual(self.told, [])

    def test_rows_and_inputs_are_compared_over_processes(self) -> None:
        """Rows that are missing, or processes that made different inputs, record nothing."""
        rows = {"samples": [list(astuple(checkout.sample()))]}
        a, b = ([{"ready": {**READY, "data_sha256": data}}, rows] for data in "ab")
        self.refused([a, b], "made different inputs from one seed")
        self.refused([a, a], "1 cells were timed, 2 declared")

    def test_an_interrupt_ends_the_process(self) -> None:
        """Ctrl-C while a child measures kills the child: nothing measures on."""
        script = json.dumps([[{"ready": READY}, {"round": 1}, signal.SIGSTOP.value]])
        started: list[subprocess.Popen[str]] = []
        start = subprocess.Popen

        def noted(*args: Any, **kwargs: Any) -> "subprocess.Popen[str]":
            started.append(start(*args, **kwargs))
            self.addCleanup(started[0].wait)
            self.addCleanup(started[0].kill)
            return started[0]

        interrupt = mock.Mock(side_effect=KeyboardInterrupt)
        with (
            mock.patch("subprocess.Popen", noted),
            mock.patch.object(worker, "PROGRAM", "tests.scripted_child"),
            self.assertRaises(KeyboardInterrupt),
        ):
            measure(script, SECTION, interrupt)
        self.assertEqual(started[0].poll(), -signal.SIGKILL)
        interrupt.assert_called_once_with(1, 4)


if __name__ == "__main__":
    unittest.main()

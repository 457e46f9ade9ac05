"""How callables are timed: order, rows and garbage; and what makes a measurement refuse."""

import contextlib
import gc
import os
import signal
import subprocess
import unittest
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import astuple, replace
from itertools import groupby
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.samples import Sample, read_samples
from inference_lab.timing import machine, protocol
from inference_lab.timing.protocol import (
    Bench,
    Timed,
    check_rows,
    measure,
    threads_of_processes,
    time_calls,
    with_replica,
)
from tests import checkout

PATHS = ("dynamic", "preallocated", "no_cache")
SIZES = (1, 2, 4)
SECTION: dict[str, Any] = {
    "by": "decode_paths",
    "vary": {"batch_size": [1, 2]},
    "fixed": {"sequence_length": 3, "d_model": 2, "dtype": "float32", "seed": 42},
    "paths": ["dynamic", "preallocated"],
    "baseline": "dynamic",
    "replica": True,
    "blas_threads": 1,
    "processes": 2,
    "rounds": 2,
    "warmups": 1,
    "quiet_cores": 100,
    "quiet_wait_s": 0,
}


class Clock:
    """A clock that moves 5 ns with every look at it, and by what a call says it takes."""

    def __init__(self) -> None:
        self.now = 1000

    def __call__(self) -> int:
        """The time now."""
        self.now += 5
        return self.now

    def call(self, takes: int, returns: NDArray[Any]) -> Callable[[], NDArray[Any]]:
        """A call that takes this many ns of this clock."""

        def called() -> NDArray[Any]:
            self.now += takes
            return returns

        return called


def bench(clock: Clock, *, paths: Sequence[str] = PATHS, replica: bool = True) -> Bench:
    """Paths over batch sizes; a call of path p at B takes 100·B + p ns and returns B zeros."""
    groups: list[list[Timed]] = []
    for B in SIZES:
        group = [
            Timed(path, clock.call(100 * B + i, np.zeros(B, np.float32)), B, 8, 4)
            for i, path in enumerate(paths)
        ]
        groups.append(with_replica(group, paths[0]) if replica else group)
    return Bench(groups, check=list, data_sha256="0" * 64)


def timed(
    clock: Clock | None = None,
    *,
    made: Bench | None = None,
    process: int = 0,
    rounds: int = 5,
    warmups: int = 3,
    seed: int = 42,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """The samples of one process under the fake clock."""
    clock = clock or Clock()
    with mock.patch.object(protocol, "PROBE_LOOPS", 1), mock.patch("gc.collect"):  # both take ms
        return time_calls(
            made or bench(clock),
            process=process,
            rounds=rounds,
            warmups=warmups,
            seed=seed,
            blas_threads=1,
            clock=clock,
            progress=progress,
        )


def rounds_of(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """The samples of each round without the warm-ups, in the order they happened."""
    timed_rounds = [sample for sample in samples if sample.kind != "warmup"]
    return (list(rows) for _, rows in groupby(timed_rounds, lambda sample: sample.round))


def calls_of(samples: Sequence[Sample]) -> list[tuple[str, str, int]]:
    """What was called, in order: kind, path and batch size."""
    return [(sample.kind, sample.path, sample.batch_size) for sample in samples]


class TimeCallsTest(unittest.TestCase):
    """One process under a fake clock."""

    def test_every_call_is_a_row(self) -> None:
        """Nothing is lost or counted twice: rows are cells x rounds, warm-ups x cells, one probe a round."""
        for rounds, warmups in ((1, 0), (5, 3), (30, 1)):
            with self.subTest(rounds=rounds, warmups=warmups):
                kinds = Counter(sample.kind for sample in timed(rounds=rounds, warmups=warmups))
                cells = len(PATHS) * len(SIZES)
                expected = {
                    "sample": cells * rounds,
                    "warmup": cells * warmups,
                    "replica": len(SIZES) * rounds,
                    "probe": rounds,
                }
                self.assertEqual(dict(kinds), {kind: n for kind, n in expected.items() if n})

    def test_a_round_holds_each_call_once(self) -> None:
        """Every round times every path at every size, the baseline once more, and the probe: once each."""
        once = Counter(
            [("sample", path, B) for path in PATHS for B in SIZES]
            + [("replica", PATHS[0], B) for B in SIZES]
            + [("probe", "probe", 1)]
        )
        for rows in rounds_of(timed()):
            self.assertEqual(Counter(calls_of(rows)), once)
            self.assertEqual([row.position for row in rows], list(range(len(rows))))

    def test_paths_of_one_size_stand_together(self) -> None:
        """What is compared is timed back to back: the calls of one size are adjacent in every round."""
        for rows in rounds_of(timed(rounds=20)):
            sizes = [size for size, _ in groupby(row.batch_size for row in rows if row.kind != "probe")]
            self.assertEqual(sorted(sizes), list(SIZES), sizes)

    def test_orders_are_shuffled(self) -> None:
        """Over the rounds every path comes first in its size, and every size and the probe open a round."""
        first_paths: set[str] = set()
        first_kinds: set[tuple[str, int]] = set()
        for rows in rounds_of(timed(rounds=60)):
            for _, group in groupby(rows, lambda row: row.batch_size if row.kind != "probe" else "probe"):
                first_paths.add(next(group).path)
            first_kinds.add((rows[0].path if rows[0].kind == "probe" else "size", rows[0].batch_size))
        self.assertEqual(first_paths, {*PATHS, "probe"})
        self.assertEqual(first_kinds, {("size", B) for B in SIZES} | {("probe", 1)})

    def test_one_seed_is_one_order(self) -> None:
        """The same seed and process give the same order; another of either gives another."""
        order = calls_of(timed())
        self.assertEqual(calls_of(timed()), order)
        self.assertNotEqual(calls_of(timed(seed=43)), order)
        self.assertNotEqual(calls_of(timed(process=1)), order)

    def test_the_order_does_not_depend_on_names(self) -> None:
        """Paths under other names are timed in the same places."""
        renamed = dict(zip(PATHS, ("a", "b", "c"), strict=True)) | {"probe": "probe"}
        clock = Clock()
        found = timed(clock, made=bench(clock, paths=("a", "b", "c")))
        self.assertEqual([row.path for row in found], [renamed[row.path] for row in timed()])

    def test_warm_ups_come_first(self) -> None:
        """Every path is called at every size before the first round; the replica needs no warm-up."""
        rows = timed(warmups=2)
        warm = len(PATHS) * len(SIZES) * 2
        self.assertEqual({row.kind for row in rows[:warm]}, {"warmup"})
        self.assertNotIn("warmup", {row.kind for row in rows[warm:]})
        self.assertEqual(
            Counter(calls_of(rows[:warm])), {("warmup", path, B): 2 for path in PATHS for B in SIZES}
        )

    def test_times_are_those_of_the_call(self) -> None:
        """A row holds what its call took, to the ns, and when it began, in the order of the clock."""
        rows = [row for row in timed() if row.kind != "probe"]
        for row in rows:
            self.assertEqual(row.elapsed_ns, 100 * row.batch_size + PATHS.index(row.path) + 5)
        starts = [row.started_ns for row in rows]
        self.assertEqual(starts, sorted(starts))

    def test_a_row_says_what_was_timed(self) -> None:
        """Cell, dtype and threads of a row are those of its call; the dtype is what the call returned."""
        clock = Clock()
        call = Timed("dynamic", clock.call(1, np.zeros(2, np.float32)), 2, 16, 8, 4, 2)
        row = timed(clock, made=Bench([[call]], list, ""), process=3, rounds=1, warmups=0)
        (sample,) = (row for row in row if row.kind == "sample")
        self.assertEqual(sample.cell, ("dynamic", 2, 16, 8, 4, 2, "float32", 1))
        self.assertEqual((sample.process, sample.round), (3, 0))

    def test_results_are_told_apart(self) -> None:
        """The checksum is that of what the call returned: shape, dtype and every bit count."""
        base = np.array([1.0, 2.0], np.float32)
        others = [base.reshape(1, 2), base.astype(np.float64), -base, np.nextafter(base, 9, dtype=np.float32)]
        clock = Clock()
        sums: list[str] = []
        for array in (base, base.copy(), base[::-1][::-1], *others):
            made = Bench([[Timed("dynamic", clock.call(1, array), 1, 1, 1)]], list, "")
            sums += {row.checksum for row in timed(clock, made=made, rounds=2) if row.kind == "sample"}
        self.assertEqual(len(set(sums[:3])), 1)
        self.assertEqual(len(set(sums)), 1 + len(others))

    def test_what_surrounds_a_call_is_not_timed(self) -> None:
        """`around` is entered before the clock is read and left after it, at warm-ups and failures too."""
        clock = Clock()
        seen: list[str] = []

        @contextlib.contextmanager
        def around() -> Generator[None]:
            seen.append("in")
            clock.now += 10_000
            try:
                yield
            finally:
                clock.now += 10_000
                seen.append("out")

        call = Timed("dynamic", clock.call(100, np.zeros(1)), 1, 1, 1, around=around)
        rows = timed(clock, made=Bench([[call]], list, ""), rounds=2, warmups=1)
        self.assertEqual([row.elapsed_ns for row in rows if row.kind != "probe"], [105] * 3)
        self.assertEqual(seen, ["in", "out"] * 3)
        with self.assertRaises(TypeError):
            timed(clock, made=Bench([[replace(call, call=mock.Mock(side_effect=TypeError))]], list, ""))
        self.assertEqual(seen[-1], "out")

    def test_garbage_waits_for_the_end_of_a_round(self) -> None:
        """No collection starts while a call is timed, one is asked for each round, and gc is given back."""
        seen: list[bool] = []
        clock = Clock()

        def watched() -> NDArray[Any]:
            seen.append(gc.isenabled())
            return np.zeros(1)

        made = Bench([[Timed("dynamic", watched, 1, 1, 1)]], list, "")
        for was in (True, False):
            with self.subTest(was_enabled=was), mock.patch("gc.collect") as collect:
                self.addCleanup(gc.enable)
                gc.enable() if was else gc.disable()
                time_calls(made, process=0, rounds=4, warmups=1, seed=1, blas_threads=1, clock=clock)
                self.assertEqual(gc.isenabled(), was)
                self.assertEqual(collect.call_count, 4)
        self.assertEqual(set(seen), {False})
        self.assertEqual(len(seen), 10)

    def test_gc_is_given_back_after_a_failure(self) -> None:
        """A call that raises ends the measurement with gc on again."""

        def fails() -> NDArray[Any]:
            raise ZeroDivisionError

        gc.enable()
        with self.assertRaises(ZeroDivisionError):
            timed(made=Bench([[Timed("dynamic", fails, 1, 1, 1)]], list, ""))
        self.assertTrue(gc.isenabled())

    def test_progress_is_told_between_rounds(self) -> None:
        """Each finished round is told once, in order."""
        told: list[int] = []
        timed(rounds=4, progress=told.append)
        self.assertEqual(told, [1, 2, 3, 4])

    def test_a_replica_needs_its_baseline(self) -> None:
        """A baseline that is not among the paths is refused, with the paths there are."""
        group = [Timed("dynamic", lambda: np.zeros(1), 1, 1, 1)]
        self.assertEqual([call.kind for call in with_replica(group, "dynamic")], ["sample", "replica"])
        with self.assertRaisesRegex(MeasurementRefused, "'no_cache' is not one of the paths dynamic"):
            with_replica(group, "no_cache")


class CheckRowsTest(unittest.TestCase):
    """Whether a measurement is complete."""

    def setUp(self) -> None:
        """All rows of a section of 2 x 2 cells, 2 processes and 2 rounds."""
        self.rows = [
            checkout.sample(round_, B, process=process, path=path, checksum=f"{path}{B}")
            for process in (0, 1)
            for round_ in (0, 1)
            for B in (1, 2)
            for path in ("dynamic", "preallocated")
        ]

    def refused(self, rows: Sequence[Sample], words: str) -> None:
        """These rows are refused in these words, and in one line."""
        with self.assertRaisesRegex(MeasurementRefused, words) as raised:
            check_rows(rows, SECTION)
        self.assertNotIn("\n", str(raised.exception))

    def test_all_rows_pass(self) -> None:
        """Every cell with processes x rounds rows passes, whatever controls lie among them."""
        check_rows([*self.rows, *checkout.CONTROLS], SECTION)

    def test_a_lost_row_is_refused(self) -> None:
        """One row too few or too many, a cell too few or too many: nothing is recorded."""
        for number in range(len(self.rows)):
            self.refused(self.rows[:number] + self.rows[number + 1 :], "has 3 rows, declared are 4")
        self.refused([*self.rows, self.rows[0]], "has 5 rows, declared are 4")
        self.refused([row for row in self.rows if row.batch_size == 1], "2 cells were timed, 4 are declared")
        self.refused([*self.rows, replace(self.rows[0], dtype="float32")], "5 cells were timed")
        self.refused([], "0 cells were timed")

    def test_a_result_that_changes_is_refused(self) -> None:
        """A cell whose repeats return different results carries state: nothing is recorded."""
        self.refused([replace(self.rows[0], checksum="other"), *self.rows[1:]], "state was carried from one")


class ThreadsOfProcessesTest(unittest.TestCase):
    """How many BLAS threads each process gets."""

    def test_one_number(self) -> None:
        """Where threads are not varied, every process has the declared number."""
        self.assertEqual(threads_of_processes({**SECTION, "processes": 3}), [1, 1, 1])

    def test_numbers_take_turns_in_shuffled_order(self) -> None:
        """Each number has `processes` processes, one of each before the next of any, in no fixed order."""
        section = {**SECTION, "vary": {"blas_threads": [1, 2, 4]}, "processes": 40}
        found = threads_of_processes(section)
        blocks = [tuple(found[at : at + 3]) for at in range(0, len(found), 3)]
        self.assertEqual({tuple(sorted(block)) for block in blocks}, {(1, 2, 4)})
        self.assertEqual(len(set(blocks)), 6)
        self.assertEqual(threads_of_processes(section), found)


class MeasureTest(unittest.TestCase):
    """A measurement by processes of its own."""

    def setUp(self) -> None:
        """No thread variable of this shell contradicts the section."""
        self.enterContext(contextlib.chdir(checkout.ROOT))
        names = dict.fromkeys(machine.THREAD_VARIABLES, "1")
        self.enterContext(mock.patch.dict(os.environ, names))
        beside = {"PYTHONPATH": f"{checkout.ROOT / 'src'}{os.pathsep}{checkout.ROOT}"}  # `tests` is there
        child = {**installed.of_child(), **beside}
        self.enterContext(mock.patch.object(installed, "of_child", return_value=child))
        self.told: list[tuple[int, int]] = []

    def measure(self, module: str, section: dict[str, Any]) -> protocol.Measurement:
        """The measurement of a section; progress is noted."""
        return measure(module, section, lambda done, total: self.told.append((done, total)))

    def refused(self, script: Sequence[Sequence[object]], words: str) -> None:
        """Processes that do what the script says make the measurement refuse in these words."""
        section = {**SECTION, "script": script, "processes": len(script)}
        with self.assertRaisesRegex(MeasurementRefused, words) as raised:
            self.measure("tests.scripted_child", section)
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
        samples = read_samples(root / "raw.csv")
        self.assertEqual({sample.process for sample in samples}, {0, 1})
        self.assertEqual({sample.dtype for sample in samples}, {"float32"})
        self.assertTrue(all(sample.elapsed_ns > 0 for sample in samples))
        controls = Counter(sample.kind for sample in read_samples(root / "controls.csv", controls=True))
        self.assertEqual(controls, {"warmup": 8, "replica": 8, "probe": 4})
        self.assertEqual(
            [
                (finding["path"], finding["batch_size"], finding["passed"])
                for finding in found.facts["oracle"]
            ],
            [(path, B, True) for B in (1, 2) for path in ("dynamic", "preallocated")],
        )
        self.assertEqual(found.environment["blas"]["threads"], 1)
        self.assertLessEqual(
            {"OPENBLAS_NUM_THREADS": "1"}.items(), found.environment["thread_variables"].items()
        )
        self.assertEqual(self.told, [(1, 4), (2, 4), (3, 4), (4, 4)])

    def test_processes_with_threads_of_their_own(self) -> None:
        """Each process is started with its number of threads and told it; the first of each is checked."""
        section = {**SECTION, "vary": {"blas_threads": [1, 2]}, "paths": ["dynamic"], "rounds": 1}
        del section["blas_threads"]
        order = threads_of_processes(section)
        asked: list[tuple[int, int, bool, str]] = []

        def process(_: str, task: dict[str, Any], progress: Callable[[int], None]) -> Any:
            number, threads = task["process"], task["section"]["blas_threads"]
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

        with mock.patch.object(protocol, "_one_process", process):
            found = measure(
                "any", section, lambda done, total: self.told.append((done, total)), first_process=12
            )
        self.assertEqual(asked, [(12 + n, k, k not in order[:n], str(k)) for n, k in enumerate(order)])
        self.assertEqual(sorted(order), [1, 1, 2, 2])
        self.assertEqual([one["threads"] for one in found.facts["oracle"]], list(dict.fromkeys(order)))
        self.assertEqual(found.facts["processes"], [{"number": number} for number in (12, 13, 14, 15)])
        self.assertEqual(found.environment["blas"], {"name": "openblas", "threads": [1, 2]})
        self.assertEqual(
            found.environment["thread_variables"], {"OMP_NUM_THREADS": ["1", "2"], "MKL_CBWR": "AVX2"}
        )
        self.assertEqual(self.told, [(1, 4), (2, 4), (3, 4), (4, 4)])

    def test_a_contradicting_shell_is_refused(self) -> None:
        """A thread variable of the shell with another number refuses before any process starts."""
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            shell = mock.patch.dict(os.environ, {name: "2"})
            words = f"{name} is '2' but this measurement declares blas_threads: 1; set {name}=1 or unset it"
            with self.subTest(name), shell, mock.patch("subprocess.Popen") as started:
                with self.assertRaisesRegex(MeasurementRefused, words):
                    self.measure("tests.scripted_child", SECTION)
                started.assert_not_called()

    def test_a_process_that_ends_early_is_refused(self) -> None:
        """A child that is killed, fails or stops within a word records nothing and is told by its status."""
        ready = {"ready": {"oracle": [], "data_sha256": "", "blas": {}, "thread_variables": {}}}
        early = "measuring process 0 ended with status"
        for script, words in {
            (signal.SIGKILL.value,): f"{early} -9 before it was done",
            (): f"{early} 0",
            ("half a wor", signal.SIGKILL.value): f"{early} -9",
        }.items():
            with self.subTest(script):
                self.refused([[ready, *script]], words)

    def test_a_process_that_never_listened_is_refused(self) -> None:
        """A child that ends before it reads its task is told by its status, not by a broken pipe."""
        section = {**SECTION, "script": ["much to read" * 10_000]}
        with self.assertRaisesRegex(MeasurementRefused, "measuring process 0 ended with status 0"):
            self.measure("keyword", section)  # a module that has nothing to say

    def test_what_a_process_refuses_is_refused(self) -> None:
        """The reason a child gives for not measuring is the reason of the measurement."""
        self.refused([[{"refused": "openblas has 2 threads, declared are 1"}]], "^openblas has 2 threads")

    def test_a_wrong_path_is_refused_before_it_is_timed(self) -> None:
        """A path that differs from its oracle ends the measurement as soon as the child says so."""
        finding = {
            "path": "dynamic",
            "batch_size": 2,
            "max_abs_error": 0.5,
            "tolerance": 1e-14,
            "passed": False,
        }
        ready = {"oracle": [finding], "data_sha256": "", "blas": {}, "thread_variables": {}}
        words = "path dynamic at B=2 differs from its oracle by 0.5, tolerance 1e-14"
        self.refused([[{"ready": ready}, {"round": 1}, signal.SIGSTOP.value]], words)
        self.assertEqual(self.told, [])

    def test_rows_and_inputs_are_compared_over_processes(self) -> None:
        """Rows that are missing, or processes that made different inputs, record nothing."""
        rows = [list(astuple(sample)) for sample in timed(made=bench(Clock(), replica=False))]

        def says(data: str, rows: Sequence[object]) -> list[object]:
            ready = {"oracle": [], "data_sha256": data, "blas": {}, "thread_variables": {}}
            return [{"ready": ready}, {"samples": rows}]

        self.refused([says("a", rows), says("b", rows)], "made different inputs from one seed")
        self.refused([says("a", rows), says("a", rows)], "cells were timed, 4 are declared")

    def test_an_interrupt_ends_the_process(self) -> None:
        """Ctrl-C while a child measures kills the child: nothing measures on."""
        ready = {"oracle": [], "data_sha256": "", "blas": {}, "thread_variables": {}}
        section = {**SECTION, "script": [[{"ready": ready}, {"round": 1}, signal.SIGSTOP.value]]}
        started: list[subprocess.Popen[str]] = []
        start = subprocess.Popen

        def noted(*args: Any, **kwargs: Any) -> "subprocess.Popen[str]":
            started.append(start(*args, **kwargs))
            self.addCleanup(started[0].wait)
            self.addCleanup(started[0].kill)
            return started[0]

        interrupt = mock.Mock(side_effect=KeyboardInterrupt)
        with mock.patch("subprocess.Popen", noted), self.assertRaises(KeyboardInterrupt):
            measure("tests.scripted_child", section, interrupt)
        self.assertEqual(started[0].poll(), -signal.SIGKILL)
        interrupt.assert_called_once_with(1, 4)


if __name__ == "__main__":
    unittest.main()

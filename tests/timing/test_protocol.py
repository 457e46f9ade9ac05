"""How callables are timed: order, rows, garbage."""

import contextlib
import gc
import unittest
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from inference_lab.records.samples import Sample
from inference_lab.timing import protocol
from inference_lab.timing.protocol import Bench, Timed, finding, group_of, time_calls
from tests.checkout import section

PATHS = ("dynamic", "preallocated", "no_cache")
SIZES = (1, 2, 4)


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
        groups.append(group_of(section(paths=[*paths], baseline=paths[0], replica=replica), group))
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
        fixed = {"sequence_length": 8, "d_model": 4, "dtype": "float32", "seed": seed}
        asked = section(fixed=fixed, rounds=rounds, warmups=warmups)
        return time_calls(made or bench(clock), asked, process, 1, clock=clock, progress=progress)


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
        """Every round times every path at every size, the baseline once more, and the probe: once each.

        Before the rounds come the warm-ups of every path at every size; the replica needs none.
        """
        cells = [(path, B) for path in PATHS for B in SIZES]
        once = [("sample", *cell) for cell in cells] + [("replica", PATHS[0], B) for B in SIZES]
        for rounds, warmups in ((1, 0), (5, 3), (30, 1)):
            with self.subTest(rounds=rounds, warmups=warmups):
                rows = timed(rounds=rounds, warmups=warmups)
                warm = Counter(calls_of(rows[: len(cells) * warmups]))
                self.assertEqual(warm, {("warmup", *cell): warmups for cell in cells if warmups})
                every = list(rounds_of(rows))
                self.assertEqual(len(every), rounds)
                for of_round in every:
                    self.assertEqual(Counter(calls_of(of_round)), Counter([*once, ("probe", "probe", 1)]))
                    self.assertEqual([row.position for row in of_round], list(range(len(of_round))))

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
        """Seed and process decide the order, and names of paths do not."""
        order = calls_of(timed())
        self.assertEqual(calls_of(timed()), order)
        self.assertNotEqual(calls_of(timed(seed=43)), order)
        self.assertNotEqual(calls_of(timed(process=1)), order)
        others = ("no_cache", "dynamic", "preallocated")
        renamed, clock = dict(zip(PATHS, others, strict=True)) | {"probe": "probe"}, Clock()
        found = timed(clock, made=bench(clock, paths=others))
        self.assertEqual([row.path for row in found], [renamed[path] for _, path, _ in order])

    def test_a_row_says_what_was_timed(self) -> None:
        """Time to the ns, starts in order; cell and threads are the call's, the dtype is its result's."""
        rows = [row for row in timed() if row.kind != "probe"]
        for row in rows:
            self.assertEqual(row.elapsed_ns, 100 * row.batch_size + PATHS.index(row.path) + 5)
        starts = [row.started_ns for row in rows]
        self.assertEqual(starts, sorted(starts))
        clock = Clock()
        call = Timed("dynamic", clock.call(1, np.zeros(2, np.float32)), 2, 16, 8, 4, 2)
        found = timed(clock, made=Bench([[call]], list, ""), process=3, rounds=1, warmups=0)
        (sample,) = (row for row in found if row.kind == "sample")
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
        told: list[int] = []

        def watched() -> NDArray[Any]:
            seen.append(gc.isenabled())
            return np.zeros(1)

        made = Bench([[Timed("dynamic", watched, 1, 1, 1)]], list, "")
        fails = Bench([[Timed("dynamic", mock.Mock(side_effect=ZeroDivisionError), 1, 1, 1)]], list, "")
        self.addCleanup(gc.enable)
        for was in (True, False):
            with self.subTest(was_enabled=was), mock.patch("gc.collect") as collect:
                gc.enable() if was else gc.disable()
                time_calls(made, section(rounds=4, warmups=1), 0, 1, clock=Clock(), progress=told.append)
                self.assertEqual((gc.isenabled(), collect.call_count), (was, 4))
                with self.assertRaises(ZeroDivisionError):
                    timed(made=fails)
                self.assertEqual(gc.isenabled(), was)
        self.assertEqual(seen, [False] * 10)
        self.assertEqual(told, [1, 2, 3, 4] * 2)

    def test_a_replica_is_the_baselines_call_again(self) -> None:
        """Where the section asks for one; its path is the baseline's, its kind is not."""
        calls = [Timed(path, lambda: np.zeros(1), 1, 1, 1) for path in PATHS]
        for replica, kinds in ((True, ["sample"] * 3 + ["replica"]), (False, ["sample"] * 3)):
            group = group_of(section(paths=[*PATHS], replica=replica), calls)
            self.assertEqual([call.kind for call in group], kinds)
            self.assertEqual(group[:3], calls)
            self.assertEqual(group[3:], [replace(calls[0], kind="replica")] * replica)


class FindingTest(unittest.TestCase):
    """A path against its oracle."""

    def test_the_largest_error_decides(self) -> None:
        """At the tolerance it passes, above it and where something is no number it does not."""
        right = np.zeros((2, 3))
        for error, passed in ((0.0, True), (-0.5, True), (0.501, False), (np.nan, False), (np.inf, False)):
            output = right.copy()
            output[1, 2] = error
            found = finding("dynamic", output, "oracle", right, 0.5, (2, 3))
            self.assertIs(found.passed, passed)
            self.assertEqual((found.batch_size, found.against), (2, "oracle"))


if __name__ == "__main__":
    unittest.main()

"""How near a kernel comes to its limit, on times that a fake clock makes exact."""

import csv
import io
import unittest
from collections.abc import Mapping
from typing import Any

from inference_lab.analysis import peers, timing
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.synthetic import Call, Machine, timing_record

PATHS = ("numpy", "torch", "read", "gemm", "calls")


def cost(path: str, cell: Mapping[str, Any]) -> float:
    """ns of a call; multiplying alone grows with the batch, from below reading to above it."""
    ms = {"numpy": 5, "torch": 10, "read": 2, "gemm": cell["batch_size"], "calls": 0.5}
    return ms[path] * 1e6


def record(machine: Machine = lambda _: 1.0, paths: tuple[str, ...] = PATHS) -> Record:
    """A record of two cells, with torch as baseline."""
    return timing_record(
        paths=paths, vary={"batch_size": (1, 4)}, baseline="torch", cost=cost, machine=machine
    )


def reached(made: Record) -> dict[tuple[str, str], str]:
    """The column of_limit by path and batch size."""
    rows = csv.DictReader(io.StringIO(peers.summarise(made, judge_of())))
    return {(row["path"], row["batch_size"]): row["of_limit"] for row in rows}


class OfLimitTest(unittest.TestCase):
    """limit / time, where the limit is the longest of reading, multiplying and the calls."""

    def test_known_limits(self) -> None:
        """Reading limits the small batch, 2 ms, and multiplying the large one, 4 ms."""
        found = reached(record())
        self.assertEqual((found["numpy", "1"], found["numpy", "4"]), ("0.4", "0.8"))
        self.assertEqual((found["torch", "1"], found["torch", "4"]), ("0.2", "0.4"))

    def test_limits_have_none(self) -> None:
        """The paths that are limits leave the column empty."""
        found = reached(record())
        self.assertEqual({found[path, size] for path in PATHS[2:] for size in ("1", "4")}, {""})

    def test_the_longer_of_each_round(self) -> None:
        """The limit is taken round by round: 10 of 20 ms, whichever of two limits was long."""

        def machine(call: Call) -> float:
            odd = call.round % 2
            return {"numpy": 4.0, "read": 5.0 if odd else 1.0, "gemm": 1.0 if odd else 10.0}.get(call.path, 1)

        self.assertEqual(reached(record(machine))["numpy", "1"], "0.5")

    def test_a_slow_round_cancels(self) -> None:
        """A round in which everything takes three times as long leaves both bounds at the ratio."""
        text = peers.summarise(record(lambda call: 3.0 if call.round % 2 else 1.0), judge_of())
        row = next(row for row in csv.DictReader(io.StringIO(text)) if row["path"] == "numpy")
        self.assertEqual([float(row[column]) for column in peers.COLUMNS[-3:]], [0.4, 0.4, 0.4])

    def test_a_limit_that_was_not_measured(self) -> None:
        """A record without one of the limits is refused by its name."""
        with self.assertRaisesRegex(RecordError, "no path calls; the peers' summary needs all limits"):
            peers.summarise(record(paths=PATHS[:-1]), judge_of())

    def test_timing_is_unchanged(self) -> None:
        """The other columns are those of a timing summary, row by row."""
        made = record()
        ours = list(csv.DictReader(io.StringIO(peers.summarise(made, judge_of()))))
        theirs = list(csv.DictReader(io.StringIO(timing.summarise(made, judge_of()))))
        kept = [{column: row[column] for column in timing.COLUMNS} for row in ours]
        self.assertEqual(kept, theirs)

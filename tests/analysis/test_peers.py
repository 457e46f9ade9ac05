"""How near a kernel comes to its limit, on times that a fake clock makes exact."""

import csv
import io
import unittest
from collections.abc import Mapping
from typing import Any

from inference_lab.analysis import peers
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from tests.analysis.views import table
from tests.checkout import judge_of
from tests.synthetic import Call, Machine, timing_record

PATHS = ("numpy", "torch", "read", "gemm", "calls")


def cost(path: str, cell: Mapping[str, Any]) -> float:
    """ns of a call; multiplying alone grows with the batch, from below reading to above it."""
    ms = {"numpy": 5, "torch": 10, "read": 2, "gemm": cell["batch_size"], "calls": 0.5}
    return ms[path] * 1e6


def record(machine: Machine = lambda _: 1.0, paths: tuple[str, ...] = PATHS) -> Record:
    """A record of two cells, with torch as baseline."""
    vary = {"batch_size": (1, 4)}
    return timing_record(paths=paths, vary=vary, baseline="torch", cost=cost, machine=machine)


def rows(made: Record) -> dict[tuple[str, str], dict[str, str]]:
    """The rows of the summary by path and batch size."""
    found = csv.DictReader(io.StringIO(peers.summarise(made, judge_of())))
    return {(row["path"], row["batch_size"]): row for row in found}


class OfLimitTest(unittest.TestCase):
    """limit / time, where the limit is the longest of reading, multiplying and the calls."""

    def test_known_limits(self) -> None:
        """Reading limits the small batch, 2 ms, multiplying the large one, 4 ms; the rest is timing's."""
        made = record()
        found = rows(made)
        expected = {
            ("numpy", "1"): "0.4",
            ("numpy", "4"): "0.8",
            ("torch", "1"): "0.2",
            ("torch", "4"): "0.4",
        }
        expected |= {(path, size): "" for path in PATHS[2:] for size in ("1", "4")}
        self.assertEqual({cell: row["of_limit"] for cell, row in found.items()}, expected)
        theirs = table(made)
        self.assertEqual([{c: row[c] for c in theirs[0]} for row in found.values()], theirs)

    def test_round_by_round(self) -> None:
        """The limit is the longest of each round, 10 of 20 ms; a round in which all is slow cancels."""

        def machine(call: Call) -> float:
            odd = call.round % 2
            return {"numpy": 4.0, "read": 5.0 if odd else 1.0, "gemm": 1.0 if odd else 10.0}.get(call.path, 1)

        self.assertEqual(rows(record(machine))["numpy", "1"]["of_limit"], "0.5")
        row = rows(record(lambda call: 3.0 if call.round % 2 else 1.0))["numpy", "1"]
        self.assertEqual([row[column] for column in peers.COLUMNS[-3:]], ["0.4"] * 3)

    def test_a_limit_that_was_not_measured(self) -> None:
        """A record without one of the limits is refused by its name."""
        with self.assertRaisesRegex(RecordError, "no path calls; the peers' summary needs all limits"):
            rows(record(paths=PATHS[:-1]))

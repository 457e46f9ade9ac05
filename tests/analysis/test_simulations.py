"""The whole analysis on fake machines whose truth is known: what it claims, what it flags."""

import csv
import io
import unittest
from collections.abc import Mapping
from typing import Any

from pandas import DataFrame

from inference_lab.analysis.timing import summarise
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.synthetic import (
    Machine,
    cold,
    drifting,
    first_pays,
    heavy_tail,
    process_offsets,
    steady,
    timing_record,
    together,
    two_states,
)


def table(record: Record, **judge: Any) -> list[dict[str, str]]:
    """The rows of the record's summary."""
    return list(csv.DictReader(io.StringIO(summarise(record, judge_of(**judge)))))


def same_cost(_: str, cell: Mapping[str, Any]) -> float:
    """Every path costs the same."""
    return 1e6 * cell["batch_size"]


def null(machine: Machine, **how: Any) -> Record:
    """A record in which no path differs from another."""
    return timing_record(machine=machine, cost=same_cost, **how)


def claimed(rows: list[dict[str, str]]) -> int:
    """How many cells claim a difference."""
    return sum(row["ratio_claimed"] == "yes" for row in rows)


def flags(rows: list[dict[str, str]]) -> set[str]:
    """Every flag of the table."""
    return {flag for row in rows for flag in row["flags"].split()}


class Nulls(unittest.TestCase):
    """Machines that fake a difference where there is none."""

    def test_166_cells_of_one_record(self) -> None:
        """166 equal cells compared to one baseline in one record: none is claimed."""
        paths = [f"path{number}" for number in range(84)]
        rows = table(null(steady(0.02), paths=paths, vary={"batch_size": (1, 2)}, processes=2))
        self.assertEqual((len(rows) - 2, claimed(rows)), (166, 0))

    def test_drift_of_one_percent_a_sample(self) -> None:
        """A clock that slows by 1% a call shows no difference (asv#595), and is flagged."""
        rows = table(null(together(drifting(0.01), steady(0.005))))
        self.assertEqual(claimed(rows), 0)
        self.assertNotIn("aa", flags(rows))
        self.assertIn("drift", flags(rows))

    def test_compounding_drift_in_one_process(self) -> None:
        """1% on 1%, one process of 30 rounds: no difference is claimed (hyperfine#21)."""
        record = null(lambda call: 1.01**call.number, vary={"batch_size": (1,)}, processes=1, rounds=30)
        self.assertEqual(claimed(table(record)), 0)

    def test_first_in_pair_pays(self) -> None:
        """5% charged to whatever runs first: shuffled, A/A stays within 0.5% (ifc-lite#4288)."""
        for seed in range(3):
            rows = table(null(together(first_pays(0.05), steady(0.002, seed=seed)), seed=seed))
            self.assertEqual(claimed(rows), 0)
            for row in rows:
                self.assertAlmostEqual(float(row["aa_ratio"]), 1, delta=0.005)

    def test_fixed_order_is_found_out(self) -> None:
        """The same charge in a fixed order: the baseline differs from itself, flagged aa, no claim."""
        rows = table(null(together(first_pays(0.05), steady(0.002)), shuffle=False))
        self.assertEqual(claimed(rows), 0)
        self.assertTrue(all("aa" in row["flags"].split() for row in rows))

    def test_states_of_the_machine(self) -> None:
        """A machine half as fast again for stretches of rounds hits both of a pair: nothing is claimed."""
        for seed in range(5):
            rows = table(null(together(two_states(1.0, 12, seed=seed), steady(0.02, seed=seed)), seed=seed))
            self.assertEqual(claimed(rows), 0)

    def test_states_of_one_path(self) -> None:
        """A path slower in some stretches only: flagged in at least 90% of cells instead of claimed."""
        cells = flagged = claims = 0
        for seed in range(12):
            machine = together(two_states(0.4, 8, path="preallocated", seed=seed), steady(0.01, seed=seed))
            rows = [row for row in table(null(machine, seed=seed)) if row["path"] == "preallocated"]
            cells += len(rows)
            flagged += sum("regime" in row["flags"].split() for row in rows)
            claims += claimed(rows)
        self.assertGreaterEqual(flagged / cells, 0.9)
        self.assertLessEqual(claims / cells, 0.1)

    def test_offsets_of_processes(self) -> None:
        """A path faster or slower by chance in each process: at most 2% claimed."""
        cells = claims = 0
        for seed in range(12):
            machine = together(process_offsets(0.08, path="preallocated", seed=seed), steady(0.01, seed=seed))
            rows = table(null(machine, seed=seed))
            cells += len(rows) // 2
            claims += claimed(rows)
        self.assertLessEqual(claims / cells, 0.02)


class Effects(unittest.TestCase):
    """Differences that are there."""

    def test_power(self) -> None:
        """+10% is claimed in at least 95% of cells, +5% in at least 85%, at 6 x 20 and 2% noise."""
        for effect, least in ((0.10, 0.95), (0.05, 0.85)):
            cells = claims = 0
            for seed in range(4):
                record = timing_record(
                    machine=together(steady(0.02, seed=seed), two_states(0.6, 25, seed=seed)),
                    cost=lambda path, cell, e=effect: (
                        same_cost(path, cell) * (1 + e * (path == "preallocated"))
                    ),
                    seed=seed,
                )
                rows = table(record)
                cells += len(rows) // 2
                claims += claimed(rows)
            self.assertGreaterEqual(claims / cells, least, f"+{effect:.0%}")

    def test_heavy_tail(self) -> None:
        """10% of calls 5 times slower: P95 near 5 times P50, no row lost (BenchmarkDotNet#1256)."""
        for row in table(null(together(heavy_tail(0.1, 5), steady(0.01)))):
            self.assertEqual(row["n"], "120")
            self.assertAlmostEqual(float(row["p95_ms"]) / float(row["p50_ms"]), 5, delta=0.5)

    def test_thirty_rows_in_every_order(self) -> None:
        """Asked for 30, every cell has 30, in order or shuffled (google/benchmark#1051)."""
        for shuffle in (True, False):
            for seed in range(3):
                rows = table(null(steady(), processes=1, rounds=30, shuffle=shuffle, seed=seed))
                self.assertEqual({row["n"] for row in rows}, {"30"})

    def test_cold_calls_in_the_warm_up(self) -> None:
        """The first 8 calls 10 times slower fall into 8 warm-ups: the summary is as if they were not."""
        self.assertEqual(
            summarise(null(together(cold(8), steady())), judge_of()), summarise(null(steady()), judge_of())
        )

    def test_lost_warm_up(self) -> None:
        """The same without warm-ups: every cell is flagged, none claims (asv#677)."""
        rows = table(null(together(cold(8), steady()), warmups=0))
        self.assertTrue(all("warmup-residual" in row["flags"].split() for row in rows))
        self.assertEqual(claimed(rows), 0)

    def test_renamed_paths(self) -> None:
        """Other names, the same summary (divan#73)."""
        names = {"dynamic": "zebra", "preallocated": "aardvark"}

        def rows(*paths: str) -> list[dict[str, str]]:
            return table(null(together(steady(0.02), two_states(path=None)), paths=paths))

        renamed = [
            {**row, "path": names[row["path"]], "baseline": names[row["baseline"]]}
            for row in rows("dynamic", "preallocated")
        ]
        self.assertEqual(rows("zebra", "aardvark"), renamed)

    def test_a_clock_in_other_units(self) -> None:
        """Every time 1000 times larger: ratios and flags stay, times scale (neqo#3787)."""
        record = null(together(steady(0.02), heavy_tail()))
        scaled = Record(
            record.experiment,
            record.manifest,
            *(_scaled(rows, 1000) for rows in (record.samples, record.controls)),
        )
        for row, large in zip(table(record), table(scaled), strict=True):
            for column in ("ratio", "ratio_lo", "ratio_hi", "ratio_claimed", "aa_ratio", "flags", "advice"):
                self.assertEqual(row[column], large[column])
            self.assertAlmostEqual(float(large["p95_ms"]) / float(row["p95_ms"]), 1000, places=4)


def _scaled(rows: DataFrame, times: int) -> DataFrame:
    return rows.assign(elapsed_ns=rows["elapsed_ns"] * times, started_ns=rows["started_ns"] * times)

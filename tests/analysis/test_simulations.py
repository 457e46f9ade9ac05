"""The whole analysis on fake machines whose truth is known: what it claims, what it flags."""

import unittest
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from inference_lab.analysis.timing import summarise
from inference_lab.records.record import Record
from tests.analysis.views import table
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


def same_cost(_: str, cell: Mapping[str, Any]) -> float:
    """Every path costs the same."""
    return 1e6 * cell["batch_size"]


def null(*machines: Machine, **how: Any) -> Record:
    """A record in which no path differs from another."""
    return timing_record(**{"machine": together(*machines), "cost": same_cost, **how})


def claimed(rows: Iterable[Mapping[str, str]]) -> int:
    """How many cells claim a difference."""
    return sum(row["ratio_claimed"] == "yes" for row in rows)


def flagged(rows: Iterable[Mapping[str, str]], code: str) -> int:
    """How many cells have this flag."""
    return sum(code in row["flags"].split() for row in rows)


class Nulls(unittest.TestCase):
    """Machines that fake a difference where there is none."""

    def test_166_cells_of_one_record(self) -> None:
        """166 equal cells compared to one baseline in one record: none is claimed."""
        paths = [f"path{number}" for number in range(84)]
        rows = table(null(steady(0.02), paths=paths, vary={"batch_size": (1, 2)}, processes=2, warmups=0))
        self.assertEqual((len(rows) - 2, claimed(rows)), (166, 0))

    def test_drift(self) -> None:
        """A clock that slows by 1% a call (asv#595) or 1% of itself (hyperfine#21): nothing is claimed."""
        rows = table(null(drifting(0.01), steady(0.005)))
        self.assertEqual((claimed(rows), flagged(rows, "aa")), (0, 0))
        self.assertTrue(flagged(rows, "drift"))
        compounding = null(lambda call: 1.01**call.number, vary={"batch_size": (1,)}, processes=1, rounds=30)
        self.assertEqual(claimed(table(compounding)), 0)

    def test_first_in_pair_pays(self) -> None:
        """5% charged to whatever runs first: shuffled, A/A stays within 0.5% (ifc-lite#4288)."""
        for seed in range(3):
            rows = table(null(first_pays(0.05), steady(0.002, seed=seed), seed=seed))
            self.assertEqual(claimed(rows), 0)
            for row in rows:
                self.assertAlmostEqual(float(row["aa_ratio"]), 1, delta=0.005)

    def test_fixed_order_is_found_out(self) -> None:
        """The same charge in a fixed order: the baseline differs from itself, flagged aa, no claim."""
        rows = table(null(first_pays(0.05), steady(0.002), shuffle=False))
        self.assertEqual((claimed(rows), flagged(rows, "aa")), (0, len(rows)))

    def test_states_of_the_machine(self) -> None:
        """A machine half as fast again for stretches of rounds hits both of a pair: nothing is claimed."""
        for seed in range(5):
            rows = table(null(two_states(1.0, 12, seed=seed), steady(0.02, seed=seed), seed=seed))
            self.assertEqual(claimed(rows), 0)

    def of_one_path(self, fault: Any) -> list[dict[str, str]]:
        """The rows of the faulty path in 12 records; warm-ups are left out, as nothing here looks at them."""
        return [
            row
            for seed in range(12)
            for row in table(null(fault(seed), steady(0.01, seed=seed), seed=seed, warmups=0))
            if row["path"] == "preallocated"
        ]

    def test_states_of_one_path(self) -> None:
        """A path slower in some stretches only: flagged in at least 90% of cells instead of claimed."""
        rows = self.of_one_path(lambda seed: two_states(0.4, 8, path="preallocated", seed=seed))
        self.assertGreaterEqual(flagged(rows, "regime") / len(rows), 0.9)
        self.assertLessEqual(claimed(rows) / len(rows), 0.1)

    def test_offsets_of_processes(self) -> None:
        """A path faster or slower by chance in each process: at most 2% claimed."""
        rows = self.of_one_path(lambda seed: process_offsets(0.08, path="preallocated", seed=seed))
        self.assertLessEqual(claimed(rows) / len(rows), 0.02)


class Effects(unittest.TestCase):
    """Differences that are there."""

    def test_power(self) -> None:
        """+10% is claimed in at least 95% of cells, +5% in at least 85%, at 6 x 20 and 2% noise."""
        for effect, least in ((0.10, 0.95), (0.05, 0.85)):

            def cost(path: str, cell: Mapping[str, Any], effect: float = effect) -> float:
                return same_cost(path, cell) * (1 + effect * (path == "preallocated"))

            cells = claims = 0
            for seed in range(4):
                rows = table(
                    null(steady(0.02, seed=seed), two_states(0.6, 25, seed=seed), cost=cost, seed=seed)
                )
                cells += len(rows) // 2
                claims += claimed(rows)
            self.assertGreaterEqual(claims / cells, least, f"+{effect:.0%}")

    def test_heavy_tail(self) -> None:
        """10% of calls 5 times slower: P95 near 5 times P50, no row lost (BenchmarkDotNet#1256)."""
        for row in table(null(heavy_tail(0.1, 5), steady(0.01))):
            self.assertEqual(row["n"], "120")
            self.assertAlmostEqual(float(row["p95_ms"]) / float(row["p50_ms"]), 5, delta=0.5)

    def test_thirty_rows_in_every_order(self) -> None:
        """Asked for 30, every cell has 30, in order or shuffled (google/benchmark#1051)."""
        for shuffle, seed in ((shuffle, seed) for shuffle in (True, False) for seed in range(3)):
            rows = table(null(steady(), processes=1, rounds=30, shuffle=shuffle, seed=seed))
            self.assertEqual({row["n"] for row in rows}, {"30"})

    def test_cold_calls(self) -> None:
        """8 calls 10 times slower fall into 8 warm-ups; without those every cell is flagged (asv#677)."""
        warmed, warm = (summarise(null(*m, steady()), judge_of()) for m in ((cold(8),), ()))
        self.assertEqual(warmed, warm)
        rows = table(null(cold(8), steady(), warmups=0))
        self.assertEqual((flagged(rows, "warmup-residual"), claimed(rows)), (len(rows), 0))

    def test_renamed_paths(self) -> None:
        """Other names, the same summary (divan#73)."""
        names = {"dynamic": "zebra", "preallocated": "aardvark"}
        both = (tuple(names), tuple(names.values()))
        first, second = (table(null(steady(0.02), two_states(), paths=paths)) for paths in both)
        renamed = [{**row, **{c: names[row[c]] for c in ("path", "baseline")}} for row in first]
        self.assertEqual(second, renamed)

    def test_a_clock_in_other_units(self) -> None:
        """Every time 1000 times larger: ratios and flags stay, times scale (neqo#3787)."""
        record = null(steady(0.02), heavy_tail())

        def scaled(rows: Any) -> Any:
            return rows.assign(elapsed_ns=rows["elapsed_ns"] * 1000, started_ns=rows["started_ns"] * 1000)

        large = table(replace(record, samples=scaled(record.samples), controls=scaled(record.controls)))
        kept = ("ratio", "ratio_lo", "ratio_hi", "ratio_claimed", "aa_ratio", "flags", "advice")
        for row, other in zip(table(record), large, strict=True):
            self.assertEqual([row[column] for column in kept], [other[column] for column in kept])
            self.assertAlmostEqual(float(other["p95_ms"]) / float(row["p95_ms"]), 1000, places=4)

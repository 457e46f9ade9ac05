"""summary.csv: every number recomputed in plain Python, flags with their causes, the same bytes."""

import csv
import hashlib
import io
import math
import os
import statistics
import subprocess
import sys
import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference_lab.analysis.timing import summarise
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS
from tests.checkout import judge_of
from tests.synthetic import Call, first_pays, heavy_tail, samples_of, steady, timing_record, together

CONTRACT = (
    "path,batch_size,sequence_length,d_model,num_heads,num_kv_heads,dtype,blas_threads,n,"
    "p50_ms,p50_lo_ms,p50_hi_ms,p95_ms,p95_lo_ms,p95_hi_ms,min_ms,max_ms,"
    "per_sequence_ms,per_sequence_lo_ms,per_sequence_hi_ms,per_step_us,per_step_lo_us,per_step_hi_us,"
    "positions_per_s,positions_per_s_lo,positions_per_s_hi,"
    "baseline,ratio,ratio_lo,ratio_hi,ratio_claimed,smallest_effect,aa_ratio,aa_lo,aa_hi,flags,advice"
)


def table(record: Record, **judge: Any) -> list[dict[str, str]]:
    """The rows of the record's summary."""
    return list(csv.DictReader(io.StringIO(summarise(record, judge_of(**judge)))))


def changed(record: Record, **fields: Any) -> Record:
    """The record with other fields in its manifest."""
    return replace(record, manifest={**record.manifest, **fields})


def percentile(ordered: list[int], share: float) -> float:
    """Linear interpolation between order statistics, in plain Python."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Numbers(unittest.TestCase):
    """The columns of a sound record."""

    def test_columns_and_order(self) -> None:
        """The columns of the contract, one row a cell, in the order of paths and varied values."""
        text = summarise(timing_record(rounds=3), judge_of())
        self.assertEqual(text.splitlines()[0], CONTRACT)
        rows = list(csv.DictReader(io.StringIO(text)))
        cells = [(row["path"], row["batch_size"]) for row in rows]
        self.assertEqual(
            cells, [(path, b) for path in ("dynamic", "preallocated") for b in ("1", "2", "4", "8")]
        )

    def test_every_number_follows_from_raw(self) -> None:
        """Recomputed from the samples in plain Python, every number is the one that stands there."""
        record = timing_record(machine=together(steady(0.03), heavy_tail()))
        for row in table(record):
            cell = [
                s
                for s in samples_of(record.samples)
                if all(str(getattr(s, c)) == row[c] for c in CELL_COLUMNS)
            ]
            base = {
                (s.process, s.round): s.elapsed_ns
                for s in samples_of(record.samples)
                if s.path == "dynamic" and s.batch_size == cell[0].batch_size
            }
            ns = sorted(s.elapsed_ns for s in cell)
            B, T, p50 = cell[0].batch_size, cell[0].sequence_length, percentile(ns, 0.5)
            expected = {
                "n": 120,
                "p50_ms": p50 / 1e6,
                "p50_lo_ms": ns[48] / 1e6,
                "p50_hi_ms": ns[71] / 1e6,
                "p95_ms": percentile(ns, 0.95) / 1e6,
                "p95_lo_ms": ns[108] / 1e6,
                "p95_hi_ms": ns[118] / 1e6,
                "min_ms": ns[0] / 1e6,
                "max_ms": ns[-1] / 1e6,
                "per_sequence_ms": p50 / B / 1e6,
                "per_step_us": p50 / T / 1e3,
                "per_step_lo_us": ns[48] / T / 1e3,
                "per_step_hi_us": ns[71] / T / 1e3,
                "positions_per_s": B * T * 1e9 / p50,
                "positions_per_s_lo": B * T * 1e9 / ns[71],
                "positions_per_s_hi": B * T * 1e9 / ns[48],
            }
            if row["path"] != "dynamic":
                ratios = sorted(s.elapsed_ns / base[s.process, s.round] for s in cell)
                expected |= {
                    "ratio": statistics.median(ratios),
                    "ratio_lo": ratios[48],
                    "ratio_hi": ratios[71],
                }
            for column, number in expected.items():
                self.assertEqual(row[column], f"{number:.9g}", column)

    def test_the_baseline_has_no_ratio(self) -> None:
        """ratio and ratio_claimed are empty for the baseline, yes or no elsewhere."""
        for row in table(timing_record()):
            is_baseline = row["path"] == "dynamic"
            self.assertEqual([row["ratio"] == "", row["ratio_claimed"] == ""], [is_baseline] * 2)
        self.assertEqual(
            {row["ratio_claimed"] for row in table(timing_record(cost=lambda *_: 1e6))}, {"", "no"}
        )

    def test_open_bounds_are_empty(self) -> None:
        """At n=71 the upper bound of P95 is empty, at 72 it is there; at n=5 P50 has no bound."""
        for rounds, processes, is_open in ((71, 1, True), (12, 6, False)):
            rows = table(timing_record(rounds=rounds, processes=processes, vary={"batch_size": (1,)}))
            self.assertEqual({row["p95_hi_ms"] == "" for row in rows}, {is_open}, f"n={rows[0]['n']}")
        row = table(timing_record(rounds=5, processes=1))[-1]
        self.assertEqual({row[c] for c in ("p50_lo_ms", "p50_hi_ms", "ratio_lo", "ratio_hi")}, {""})
        self.assertNotEqual(row["p95_ms"], "")

    def test_without_replica(self) -> None:
        """A/A not measured is empty and "not assessed", and stops no claim."""
        for row in table(timing_record(replica=False)):
            self.assertEqual((row["aa_ratio"], row["flags"]), ("", ""))
            self.assertIn("A/A not assessed", row["advice"])
        self.assertEqual(table(timing_record(replica=False))[-1]["ratio_claimed"], "yes")

    def test_any_varied_axis(self) -> None:
        """T, G or threads may be varied as well as B; fixed columns hold what was fixed."""
        for axis in ("sequence_length", "num_kv_heads", "blas_threads"):
            record = timing_record(vary={axis: (1, 2)}, rounds=6, processes=1, fixed={"num_heads": 4})
            record = changed(
                record, environment={**record.manifest["environment"], "blas": {"threads": [1, 2]}}
            )
            with self.subTest(axis):
                self.assertEqual([row[axis] for row in table(record)], ["1", "2"] * 2)

    def test_the_same_bytes_on_another_processor(self) -> None:
        """NumPy without its vector code and another OpenBLAS core give the same text."""
        from numpy._core._multiarray_umath import __cpu_dispatch__

        program = (
            "from tests.synthetic import *; from tests.checkout import judge_of;"
            "from inference_lab.analysis.timing import summarise;"
            "import hashlib;"
            "record = timing_record(machine=together(steady(0.03), heavy_tail()));"
            "print(hashlib.sha256(summarise(record, judge_of()).encode()).hexdigest())"
        )
        plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__), "OPENBLAS_CORETYPE": "Nehalem"}
        other = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, **plain},
            capture_output=True,
            text=True,
            check=True,
        )
        here = summarise(timing_record(machine=together(steady(0.03), heavy_tail())), judge_of())
        self.assertEqual(other.stdout.strip(), hashlib.sha256(here.encode()).hexdigest())


class Flags(unittest.TestCase):
    """Which cells are flagged, with what advice."""

    def assert_flagged(self, record: Record, code: str, *words: str, **judge: Any) -> None:
        """Every cell carries the code, says why, and claims nothing."""
        for row in table(record, **judge):
            self.assertIn(code, row["flags"].split())
            self.assertNotEqual(row["ratio_claimed"], "yes")
            for word in words:
                self.assertIn(word, row["advice"])

    def test_a_sound_record_has_no_flag(self) -> None:
        """On a quiet machine nothing is flagged and nothing advised."""
        self.assertEqual({(row["flags"], row["advice"]) for row in table(timing_record())}, {("", "")})

    def test_others_on_the_cores(self) -> None:
        """Two threads and a spinner on the other core: invalid throughout (OpenBLAS#731)."""
        record = timing_record(
            blas_threads=2, environment={"others_used_cores": {"median": 0.98, "max": 1.0}}
        )
        self.assert_flagged(record, "busy", "0.98 cores", "quiet machine")
        self.assertEqual(table(record, max_others_cpu=2)[0]["flags"], "")

    def test_more_threads_than_cores(self) -> None:
        """A cell with more threads than cores is flagged and claims nothing."""
        self.assert_flagged(
            timing_record(blas_threads=2, environment={"affinity": [0]}), "threads", "1 cores"
        )

    def test_a_neighbour_the_experiment_made(self) -> None:
        """Two threads and a busy neighbour on two cores: that cell is flagged, the others are not."""
        record = timing_record(paths=("alone", "beside_busy"), vary={"blas_threads": (1, 2)}, rounds=6)
        environment = {**record.manifest["environment"], "blas": {"threads": [1, 2]}}
        record = changed(record, environment=environment, neighbours={"beside_busy": 1})
        flagged = [(row["path"], row["blas_threads"]) for row in table(record) if row["flags"] == "threads"]
        self.assertEqual(flagged, [("beside_busy", "2")])

    def test_unknown_is_not_assessed(self) -> None:
        """A record that knows nothing of its machine is summarised, with what was not assessed in words."""
        record = changed(timing_record(probe=False, replica=False), environment={}, oracle=[])
        for row in table(record):
            self.assertEqual(row["flags"], "")
            for what in ("load of others", "drift", "A/A"):
                self.assertIn(f"{what} not assessed", row["advice"])

    def test_drift_from_process_to_process(self) -> None:
        """A machine that slows from each process to the next is flagged, by the bound of `judge`."""
        record = timing_record(machine=lambda call: 1 + 0.04 * call.process)
        self.assert_flagged(record, "drift", "from process to process", "1.2")
        self.assertEqual(table(record, max_probe_drift=0.3)[0]["flags"], "")

    def test_drift_within_processes(self) -> None:
        """A machine that slows within every process is flagged."""
        self.assert_flagged(timing_record(machine=lambda call: 1 + 0.02 * call.round), "drift", "first half")

    def test_aa_flags_its_own_value_alone(self) -> None:
        """A baseline that differs from itself at B=4 stops the claims of B=4 and of nothing else."""

        def machine(call: Call) -> float:
            return 1.2 if call.kind == "replica" and call.value == 4 else 1.0

        for row in table(timing_record(machine=together(machine, steady()))):
            is_there = row["batch_size"] == "4"
            self.assertEqual(row["flags"], "aa" if is_there else "")
            self.assertEqual(row["ratio_claimed"] == "no", is_there and row["path"] != "dynamic")

    def test_a_flag_on_the_baseline_stops_the_claim(self) -> None:
        """A ratio is in doubt when either of its sides is."""

        def machine(call: Call) -> float:
            return 5.0 if call.path == "dynamic" and call.kind == "sample" and call.round < 2 else 1.0

        rows = table(timing_record(machine=together(machine, steady()), vary={"batch_size": (1,)}))
        self.assertEqual([row["flags"] for row in rows], ["warmup-residual", ""])
        self.assertEqual(rows[1]["ratio_claimed"], "no")

    def test_aa_widens_the_smallest_effect(self) -> None:
        """Where A/A is as wide as 5%, an effect of 3% is no claim, however often it is seen."""

        def cost(path: str, cell: Mapping[str, Any]) -> float:
            return 1e6 * (1.03 if path == "preallocated" else 1)

        quiet = timing_record(cost=cost, machine=steady(0.002))
        shaky = timing_record(cost=cost, machine=together(steady(0.002), first_pays(0.12)))
        self.assertEqual(table(quiet)[-1]["ratio_claimed"], "yes")
        self.assertEqual(table(shaky)[-1]["ratio_claimed"], "no")

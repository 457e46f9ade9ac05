"""summary.csv: every number recomputed in plain Python, flags with their causes, the same bytes."""

import hashlib
import math
import os
import statistics
import subprocess
import sys
import unittest
from collections.abc import Mapping
from typing import Any

from inference_lab.analysis.timing import summarise
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS
from tests.analysis.views import changed, table
from tests.checkout import judge_of
from tests.synthetic import Call, first_pays, heavy_tail, samples_of, steady, timing_record, together

CONTRACT = (
    "path,batch_size,sequence_length,d_model,num_heads,num_kv_heads,dtype,blas_threads,n,"
    "p50_ms,p50_lo_ms,p50_hi_ms,p95_ms,p95_lo_ms,p95_hi_ms,min_ms,max_ms,"
    "per_sequence_ms,per_sequence_lo_ms,per_sequence_hi_ms,per_step_us,per_step_lo_us,per_step_hi_us,"
    "positions_per_s,positions_per_s_lo,positions_per_s_hi,"
    "baseline,ratio,ratio_lo,ratio_hi,ratio_claimed,smallest_effect,aa_ratio,aa_lo,aa_hi,flags,advice"
)
SOUND = timing_record()
TAILED = timing_record(machine=together(steady(0.03), heavy_tail()))


def percentile(ordered: list[int], share: float) -> float:
    """Linear interpolation between order statistics, in plain Python."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Numbers(unittest.TestCase):
    """The columns of a sound record."""

    def test_a_sound_record(self) -> None:
        """The columns of the contract, a row a cell in declared order, no flag, no ratio of the baseline."""
        self.assertEqual(summarise(SOUND, judge_of()).splitlines()[0], CONTRACT)
        rows = table(SOUND)
        cells = [(path, size) for path in ("dynamic", "preallocated") for size in ("1", "2", "4", "8")]
        self.assertEqual([(row["path"], row["batch_size"]) for row in rows], cells)
        self.assertEqual({(row["flags"], row["advice"]) for row in rows}, {("", "")})
        for row in rows:
            is_baseline = row["path"] == "dynamic"
            self.assertEqual([row["ratio"] == "", row["ratio_claimed"] == ""], [is_baseline] * 2)
        equal = table(timing_record(rounds=6, cost=lambda *_: 1e6))
        self.assertEqual({row["ratio_claimed"] for row in equal}, {"", "no"})

    def test_every_number_follows_from_raw(self) -> None:
        """Recomputed from the samples in plain Python, every number is the one in the table."""
        samples = samples_of(TAILED.samples)
        for row in table(TAILED):
            cell = [s for s in samples if all(str(getattr(s, c)) == row[c] for c in CELL_COLUMNS)]
            B, T = cell[0].batch_size, cell[0].sequence_length
            own = [s for s in samples if (s.path, s.batch_size) == ("dynamic", B)]
            base = {(s.process, s.round): s.elapsed_ns for s in own}
            ns = sorted(s.elapsed_ns for s in cell)
            p50, low, high = percentile(ns, 0.5), ns[48], ns[71]
            expected = {
                **{"n": 120, "p50_ms": p50 / 1e6, "p50_lo_ms": low / 1e6, "p50_hi_ms": high / 1e6},
                **{"p95_ms": percentile(ns, 0.95) / 1e6, "p95_lo_ms": ns[108] / 1e6},
                **{"p95_hi_ms": ns[118] / 1e6, "min_ms": ns[0] / 1e6, "max_ms": ns[-1] / 1e6},
                **{"per_sequence_ms": p50 / B / 1e6, "per_step_us": p50 / T / 1e3},
                **{"per_step_lo_us": low / T / 1e3, "per_step_hi_us": high / T / 1e3},
                **{"positions_per_s": B * T * 1e9 / p50, "positions_per_s_lo": B * T * 1e9 / high},
                "positions_per_s_hi": B * T * 1e9 / low,
            }
            if row["path"] != "dynamic":
                ratios = sorted(s.elapsed_ns / base[s.process, s.round] for s in cell)
                expected |= {
                    "ratio": statistics.median(ratios),
                    "ratio_lo": ratios[48],
                    "ratio_hi": ratios[71],
                }
            self.assertLessEqual({c: f"{number:.9g}" for c, number in expected.items()}.items(), row.items())

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
        rows = table(timing_record(replica=False))
        for row in rows:
            self.assertEqual((row["aa_ratio"], row["flags"]), ("", ""))
            self.assertIn("A/A not assessed", row["advice"])
        self.assertEqual(rows[-1]["ratio_claimed"], "yes")

    def test_any_varied_axis(self) -> None:
        """T, G or threads may be varied as well as B; fixed columns hold what was fixed."""
        for axis in ("sequence_length", "num_kv_heads", "blas_threads"):
            record = timing_record(vary={axis: (1, 2)}, rounds=6, processes=1, fixed={"num_heads": 4})
            with self.subTest(axis):
                self.assertEqual([row[axis] for row in table(record)], ["1", "2"] * 2)

    def test_the_same_bytes_on_another_processor(self) -> None:
        """NumPy without its vector code and another OpenBLAS core give the same text."""
        from numpy._core._multiarray_umath import __cpu_dispatch__

        program = (
            "from tests.analysis.test_timing import *;"
            "print(hashlib.sha256(summarise(TAILED, judge_of()).encode()).hexdigest())"
        )
        plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__), "OPENBLAS_CORETYPE": "Nehalem"}
        other = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program],
            env={**os.environ, **plain},
            capture_output=True,
            text=True,
            check=True,
        )
        here = summarise(TAILED, judge_of())
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

    def test_what_the_machine_was(self) -> None:
        """Others on the cores (OpenBLAS#731) and more threads than cores flag every cell."""
        busy = {**SOUND.manifest["environment"], "others_used_cores": {"median": 0.98, "max": 1.0}}
        self.assert_flagged(changed(SOUND, environment=busy), "busy", "0.98 cores", "quiet machine")
        self.assertEqual(table(changed(SOUND, environment=busy), max_others_cpu=2)[0]["flags"], "")
        crowded = timing_record(blas_threads=2, rounds=6, environment={"affinity": [0]})
        self.assert_flagged(crowded, "threads", "1 cores")

    def test_a_neighbour_the_experiment_made(self) -> None:
        """Two threads and a busy core beside, on two cores: that cell is flagged, the others are not."""
        record = timing_record(paths=("alone", "beside_busy"), vary={"blas_threads": (1, 2)}, rounds=6)
        rows = table(changed(record, neighbours={"beside_busy": 1}))
        flagged = [(row["path"], row["blas_threads"]) for row in rows if row["flags"] == "threads"]
        self.assertEqual(flagged, [("beside_busy", "2")])

    def test_unknown_is_not_assessed(self) -> None:
        """A record that knows nothing of its machine is summarised, with what was not assessed in words."""
        record = timing_record(probe=False, replica=False, rounds=6)
        for row in table(changed(record, environment={}, oracle=[])):
            self.assertEqual(row["flags"], "")
            for what in ("load of others", "drift", "A/A"):
                self.assertIn(f"{what} not assessed", row["advice"])

    def test_drift(self) -> None:
        """A machine that slows from process to process or within each is flagged, by the bound of `judge`."""
        record = timing_record(machine=lambda call: 1 + 0.04 * call.process)
        self.assert_flagged(record, "drift", "from process to process", "1.2")
        self.assertEqual(table(record, max_probe_drift=0.3)[0]["flags"], "")
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

        for faults, claimed in ((), "yes"), ((first_pays(0.12),), "no"):
            machine = together(steady(0.002), *faults)
            self.assertEqual(table(timing_record(cost=cost, machine=machine))[-1]["ratio_claimed"], claimed)

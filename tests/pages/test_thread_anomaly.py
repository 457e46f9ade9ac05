"""The page that looks for the cause of a factor: what it blames on machines whose fault is known."""

import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference_lab.analysis.summary_table import View
from inference_lab.analysis.verdicts import evaluate
from inference_lab.config.prediction import load_prediction
from inference_lab.errors import ConfigError
from inference_lab.pages.thread_anomaly import draw
from tests.analysis.views import view_of
from tests.checkout import ROOT
from tests.synthetic import Call, Machine, steady, timing_record, together

PATHS = ("preallocated", "no_cache", "preallocated_beside_busy", "no_cache_beside_busy")
ODD = "2 threads, busy core beside"


def cost(path: str, _: Mapping[str, Any]) -> float:
    """no_cache takes 5 times as long as preallocated."""
    return 1e6 if path.startswith("preallocated") else 5e6


def waits(call: Call) -> float:
    """A product that is split over two threads beside a busy core takes 18 times as long."""
    return 18.0 if (call.path, call.value) == ("no_cache_beside_busy", 2) else 1.0


def view(*machines: Machine, paths: tuple[str, ...] = PATHS, **how: Any) -> View:
    """A record of this machine in which the paths named so ran beside a busy core."""
    how = {"vary": {"blas_threads": (1, 2)}, "processes": 3, "rounds": 6, "warmups": 2, **how}
    record = timing_record(paths=paths, cost=cost, machine=together(steady(0.02), *machines), **how)
    environment = {**record.manifest["environment"], "blas": {"threads": [1, 2]}}
    neighbours = {path: int(path.endswith("busy")) for path in paths}
    return view_of(
        replace(record, manifest={**record.manifest, "environment": environment, "neighbours": neighbours})
    )


def answer(text: str) -> str:
    """The page's first words."""
    return text.partition("## Answer\n\n")[2].partition("## Every")[0]


class AnomalyPageTest(unittest.TestCase):
    """cause.md."""

    def test_threads_that_wait_for_a_core(self) -> None:
        """A factor of 90 for three threads on two cores: everything else is cleared (OpenBLAS#731)."""
        found = view(waits)
        text = draw(found)
        self.assertIn("# Where a factor of 9", text)
        for words in (
            f"that of {ODD}.",
            "do not explain it: warm-up, order, one process, the threads alone, the busy core alone",
            "3 threads that want to run on 2 cores",
            "how long `no_cache` waited",
        ):
            self.assertIn(words, answer(text))
        flagged = {(row["path"], row["blas_threads"]) for row in found.summary if row["flags"]}
        self.assertEqual(flagged, {(path, "2") for path in PATHS if path.endswith("busy")})

    def test_every_sample_counts(self) -> None:
        """The table of all samples holds the least and the most of the factors, round by round."""

        def once(call: Call) -> float:
            hit = (call.path, call.value, call.process, call.round, call.kind)
            return 1000.0 if hit == ("no_cache", 1, 0, 3, "sample") else 1.0

        row = next(line for line in draw(view(once)).splitlines() if line.startswith("| 1 thread, idle"))
        self.assertGreater(float(row.split(" | ")[3].replace(",", "")), 4500)
        self.assertLess(float(row.split(" | ")[1].split()[0]), 6)

    def test_another_fault_is_not_blamed_on_cores(self) -> None:
        """Cold first rounds, a charge on the first, one odd process, the busy core alone: no such cause."""
        faults: dict[str, Machine] = {
            "warm-up": lambda call: waits(call) if call.round < 4 else 1.0,
            "order": lambda call: waits(call) if call.place == 0 else 1.0,
            "one process": lambda call: waits(call) if call.process < 4 else 1.0,
            "the busy core alone": lambda call: 18.0 if call.path == "no_cache_beside_busy" else 1.0,
            "the threads alone": lambda call: 18.0 if call.path.startswith("no") and call.value == 2 else 1.0,
        }
        for name, fault in faults.items():
            with self.subTest(name):
                left = answer(draw(view(fault)))
                self.assertNotIn("both at once", left)
                if "explain it" in left:
                    self.assertNotIn(name, left.partition("explain it: ")[2])
        self.assertRegex(
            answer(draw(view())), r"^Nothing is odd: the factors lie between 4\.\d+ and 5\.?\d* in "
        )

    def test_the_committed_prediction_can_be_judged(self) -> None:
        """Every claim finds its cells; those of flagged cells, the famous factor too, are Inconclusive."""
        prediction = load_prediction(ROOT / "predictions/m1_threads.yaml")
        found = evaluate(prediction, view(waits), prediction_changed=False)
        verdicts = {row["id"]: row["verdict"] for row in found}
        for name in ("famous", "neighbour-of-two-threads"):
            self.assertEqual(verdicts.pop(name), "Inconclusive")
        self.assertEqual(set(verdicts.values()), {"Supported"})

    def test_another_experiment_is_refused(self) -> None:
        """A record without thread counts or without both situations is no such page."""
        for found in (view(paths=PATHS[:2]), view(paths=PATHS[:3]), view(vary={"batch_size": (1, 2)})):
            with self.assertRaisesRegex(ConfigError, "needs vary: blas_threads and two paths, each beside"):
                draw(found)

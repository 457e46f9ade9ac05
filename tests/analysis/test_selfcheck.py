"""A selfcheck judged: each run and path as a record of its own, shares with runs as clusters."""

import random
import unittest
from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from inference_lab.analysis.claim_rule import claims, smallest_effect
from inference_lab.analysis.selfcheck import COLUMNS, NARROW, share, trials
from inference_lab.analysis.statistics import compare
from inference_lab.analysis.verdicts import evaluate
from inference_lab.config.prediction import load_prediction
from inference_lab.pages.analysis import pages
from tests.analysis.selfchecks import PROCESSES, rows, selfcheck_record, selfcheck_view
from tests.checkout import ROOT, judge_of
from tests.synthetic import Call, Machine, samples_of, steady, together


def slower(run: int, times: float, noise: float = 0.01) -> Machine:
    """The null path of one run takes longer."""

    def machine(call: Call) -> float:
        hit = call.path == "null_1" and call.kind == "sample" and call.process // PROCESSES == run
        return times if hit else 1.0

    return together(machine, steady(noise))


QUIET = selfcheck_record()


def bounded(runs: Sequence[Sequence[bool]]) -> tuple[float, float, float]:
    """The share of hits and its bounds, which must be there and hold it."""
    value, low, high = share(runs).bounds
    if low is None or high is None or not low <= value <= high:
        raise AssertionError(f"{value} is not bounded by {low} and {high}")
    return value, low, high


class Shares(unittest.TestCase):
    """The share of hits and its interval."""

    def test_independent_runs(self) -> None:
        """No hit or every hit: Clopper & Pearson's bound, at a number reduced for the few runs there are."""
        for hit in (False, True):
            value, low, high = bounded([[hit] * 16] * 22)
            self.assertEqual(value, float(hit))
            exact, few = (binomtest(n * hit, n).proportion_ci() for n in (352, 310))
            self.assertTrue(few.low <= low <= exact.low and exact.high <= high <= few.high)

    def test_alike_within_a_run(self) -> None:
        """The same hits heaped in few runs say less than spread over all: the interval is wider."""
        spread, low, high = bounded([[True] * 4 + [False] * 12] * 20)
        heaped, lowest, highest = bounded([[True] * 16] * 5 + [[False] * 16] * 15)
        exact = binomtest(80, 320).proportion_ci()
        self.assertEqual((spread, heaped), (0.25, 0.25))
        self.assertTrue(lowest < low <= exact.low + 1e-12 and exact.high - 1e-12 <= high < highest)
        self.assertGreater(highest - lowest, 2 * (exact.high - exact.low))

    def test_one_run_bounds_nothing(self) -> None:
        """Comparisons of one run say nothing of another: open on both sides, never invented."""
        self.assertEqual(share([[True, False]]).bounds, (0.5, None, None))

    def test_coverage(self) -> None:
        """Where runs differ, the truth lies in the interval at least 93 times of 100."""
        rng = random.Random(1)
        held = 0
        for _ in range(400):
            chances = [rng.betavariate(0.95 * 12, 0.05 * 12) for _ in range(22)]
            _, low, high = bounded([[rng.random() < chance for _ in range(16)] for chance in chances])
            held += low <= 0.95 <= high
        self.assertGreaterEqual(held / 400, 0.93)


class Trials(unittest.TestCase):
    """Every comparison."""

    def test_each_run_and_path_is_judged_alone(self) -> None:
        """Ratio, claim and least effect are those of the one run's rounds and the one path's cells."""
        record = selfcheck_record(runs=3)
        found = trials(record, judge_of())
        cells = [(path, T) for path in ("null_1", "plus_10") for T in (96, 128)]
        self.assertEqual(
            [(t.run, t.path, t.value) for t in found], [(r, *c) for r in range(3) for c in cells]
        )
        self.assertEqual({(t.path, t.percent) for t in found}, {("null_1", 0), ("plus_10", 10)})
        samples = [*samples_of(record.samples), *samples_of(record.controls)]

        def times(path: str, run: int, kind: str = "sample") -> dict[int, np.ndarray]:
            some = [s for s in samples if (s.kind, s.path, s.process // PROCESSES) == (kind, path, run)]
            ns = {T: [s.elapsed_ns for s in some if s.sequence_length == T] for T in (96, 128)}
            return {T: np.array(of).reshape(PROCESSES, -1) for T, of in ns.items()}

        for run in range(3):
            base, again = times("preallocated", run), times("preallocated", run, "replica")
            least = smallest_effect([compare(again[T] / base[T]) for T in base])
            for path in ("null_1", "plus_10"):
                alone = [compare(ns / base[T]) for T, ns in times(path, run).items()]
                here = [t for t in found if (t.run, t.path) == (run, path)]
                self.assertEqual([t.comparison for t in here], alone)
                self.assertEqual({t.least for t in here}, {least})
                for t, claim in zip(here, claims(alone, least), strict=True):
                    self.assertEqual(t.claimed, claim and not t.flags)


class Summaries(unittest.TestCase):
    """summary.csv."""

    def test_a_quiet_machine(self) -> None:
        """Nothing is claimed of nulls, all of +10%; the ratio is what was put in; nothing is left out."""
        found = rows(QUIET)
        among = ("all", "aa_within_2_percent")
        self.assertEqual(list(found), [(some, percent) for some in among for percent in ("0", "10")])
        null, ten = found["all", "0"], found["all", "10"]
        self.assertEqual(tuple(null), COLUMNS)
        common = {"runs": "4", "runs_left_out": "0", "n": "8"}
        shares = {
            "claimed_share": "1",
            "unclaimed_share": "0",
            "covers_one_share": "",
            "covers_as_stated": "",
        }
        self.assertLessEqual({**common, **shares}.items(), ten.items())
        self.assertLessEqual({**common, "claimed_share": "0", "unclaimed_share": "1"}.items(), null.items())
        self.assertAlmostEqual(float(null["ratio"]), 1.0, delta=0.01)
        self.assertAlmostEqual(float(ten["ratio"]), 1.1, delta=0.01)
        self.assertLess(float(null["claimed_share_lo"]), float(null["claimed_share_hi"]))

    def test_a_false_claim_counts_where_its_run_does(self) -> None:
        """A null slower in one run is a false claim, named; a run when others were busy counts nowhere."""
        for busy, named, share_, *counts in (
            ((), "claimed although equal: run 2 null_1 at 96: 1.3", "0.25", "4", "0", "8"),
            ((2,), "run 2 is left out: others used 0.9 cores", "0", "3", "1", "6"),
        ):
            found = rows(selfcheck_record(slower(2, 1.3), busy=busy))["all", "0"]
            self.assertEqual([found[name] for name in ("runs", "runs_left_out", "n")], counts)
            self.assertEqual(found["claimed_share"], share_)
            self.assertIn(named, found["advice"])
            self.assertLessEqual(float(found["covers_one_share"]), 1 if busy else 0.75)

    def test_every_run_busy(self) -> None:
        """Without a valid run nothing is known: shares are empty, claims about them Inconclusive."""
        view = selfcheck_view(selfcheck_record(busy=(0, 1, 2, 3)))
        for row in view.summary:
            self.assertEqual((row["n"], row["claimed_share"], row["flags"]), ("0", "", "busy"))
        prediction = load_prediction(ROOT / "predictions/selfcheck.yaml")
        verdicts = {row["verdict"] for row in evaluate(prediction, view, prediction_changed=False)}
        self.assertEqual(verdicts, {"Inconclusive"})

    def test_runs_with_a_narrow_aa(self) -> None:
        """A run counts among those of narrow A/A exactly when its widest A/A half-width is within 2%."""

        def machine(call: Call) -> float:
            return 1 + (0.2 if call.process < PROCESSES else 0.01) * (call.number % 7) / 7

        record = selfcheck_record(machine)
        narrow = {t.run for t in trials(record, judge_of()) if t.aa_half_width <= NARROW}
        self.assertEqual(narrow, {1, 2, 3})
        self.assertEqual(rows(record)["aa_within_2_percent", "10"]["runs"], "3")
        self.assertEqual(rows(record)["all", "10"]["runs"], "4")


class Pages(unittest.TestCase):
    """Beside the committed prediction."""

    def test_the_committed_prediction_can_be_judged(self) -> None:
        """Every claim names columns and rows that are there; false claims and causes stand on the page."""
        paths = ("preallocated", "null_1", "plus_3", "plus_5", "plus_10")
        view = selfcheck_view(selfcheck_record(slower(0, 1.3, noise=0.002), paths=paths))
        file = ROOT / "predictions/selfcheck.yaml"
        verdicts, text = pages(view, file)
        self.assertNotIn("no cell", verdicts)
        self.assertIn("claimed although equal: run 0 null_1 at 96", text)
        for row in evaluate(load_prediction(file), view, prediction_changed=False):
            if row["id"].startswith("injected"):
                self.assertAlmostEqual(float(row["value"]), 1 + int(row["id"][9:]) / 100, delta=0.002)

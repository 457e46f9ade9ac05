"""The claim rule: each of its conditions, its one family, and what nothing pairs."""

import unittest
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.analysis.claim_rule import ClaimRule, apart, claims, objections, smallest_effect
from inference_lab.analysis.rounds import METRICS, rounds_of
from inference_lab.analysis.statistics import Comparison, Estimate, compare, excludes_one, sign_test, states
from inference_lab.analysis.summary_table import View
from inference_lab.analysis.verdicts import evaluate
from inference_lab.config.prediction import read_prediction
from inference_lab.records.record import Record
from tests.analysis.views import view_of
from tests.synthetic import steady, timing_record


def comparison(value: float, lo: float | None, hi: float | None, p: float = 1e-9) -> Comparison:
    """A comparison whose processes and states agree with its interval."""
    return Comparison(Estimate(value, lo, hi, 120), p, None, None)


class Conditions(unittest.TestCase):
    """Conditions 1 to 3."""

    def test_each_condition_alone_stops_a_claim(self) -> None:
        """A small p, an interval without 1 and an effect of 2% are each needed; Holm counts every cell."""
        edge, same = comparison(1.05, 1.04, 1.06, p=0.02), comparison(1.0, 0.99, 1.01, p=0.9)
        for case, family, expected in (
            ("all hold", [comparison(1.05, 1.04, 1.06)], True),
            ("p too large", [comparison(1.05, 1.04, 1.06, p=0.2)], False),
            ("interval straddles", [comparison(1.05, 0.99, 1.1)], False),
            ("interval open", [comparison(1.05, None, None)], False),
            ("effect too small", [comparison(1.01, 1.005, 1.015)], False),
            ("small enough a p alone", [edge], True),
            ("not among ten cells", [edge, *[same] * 9], False),
        ):
            with self.subTest(case):
                self.assertIs(claims(family, 0.02)[0], expected)

    @given(st.lists(st.floats(0.5, 2.0), min_size=6, max_size=60))
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_a_straddling_interval_is_never_a_claim(self, ratios: list[float]) -> None:
        """Whatever the ratios: when their interval holds 1, nothing is claimed (rustbgpd#566)."""
        found = compare(np.array([ratios]))
        if not excludes_one(found.ratio.bounds[1:]):
            self.assertEqual(claims([found], 0.0), [False])

    def test_effect_is_the_same_both_ways(self) -> None:
        """Naming the other path the baseline changes neither effect nor claim."""
        slower, faster = comparison(1.25, 1.2, 1.3), comparison(0.8, 1 / 1.3, 1 / 1.2)
        self.assertAlmostEqual(slower.effect, faster.effect)
        self.assertEqual(claims([slower, faster], 0.2), [True, True])

    def test_smallest_effect(self) -> None:
        """2%, or twice the widest half-width of A/A; open intervals and no A/A give 2%."""
        self.assertEqual(smallest_effect([]), 0.02)
        self.assertEqual(smallest_effect([comparison(1, None, None)]), 0.02)
        wide = smallest_effect([comparison(1, 0.999, 1.001), comparison(1, 0.97, 1.03)])
        self.assertAlmostEqual(wide, 0.06)


class Doubts(unittest.TestCase):
    """The checks beside the claim rule."""

    def test_disagreeing_processes_are_doubted(self) -> None:
        """Two processes far above 1 and four just above it: the rounds claim, the processes do not agree."""
        ratios = np.repeat([[1.3], [1.25], [0.9], [0.91], [1.2], [1.22]], 20, axis=1)
        self.assertIn("processes", objections(compare(ratios), 0.02))

    def test_two_states_are_found(self) -> None:
        """A ratio of 1 in some stretches and 1.5 in others is told as two states, and doubted."""
        ratios = np.array([[1.0, 1.01] * 5 + [1.5, 1.51] * 5] * 6)
        low, high = states(ratios) or (0, 0)
        self.assertAlmostEqual(low, 1.0, delta=0.02)
        self.assertAlmostEqual(high, 1.5, delta=0.02)
        self.assertIn("regime", objections(compare(ratios), 0.02))

    def test_states_that_agree_are_no_doubt(self) -> None:
        """A ratio of 3.0 that moves to 3.2 says "slower" in both states: named, not doubted."""
        found = compare(np.array([[3.0, 3.01] * 5 + [3.2, 3.21] * 5] * 6))
        self.assertIsNotNone(found.states)
        self.assertEqual(objections(found, 0.02), [])


def near_the_edge(seed: int) -> Record:
    """Three paths of which two differ by 2.6%: near the edge of what is claimed."""
    costs = {"no_cache": 1.0, "dynamic": 1.026, "preallocated": 1.0}
    machine = steady(0.05, seed=seed)
    return timing_record(paths=tuple(costs), cost=lambda path, _: 1e7 * costs[path], machine=machine)


class OneFamily(unittest.TestCase):
    """Summary and verdicts ask one rule over one family."""

    def verdict(self, view: View, cell: Mapping[str, object], baseline: str) -> str:
        """What a prediction says of a cell that it calls less than the baseline."""
        claim = {"id": "x", "says": "x", "kind": "less_than", "of": "p50_ms"}
        claim |= {"at": cell, "over": {**cell, "path": baseline}}
        prediction = read_prediction({"question": "?", "prediction": "!", "claims": [claim]}, "p")
        return evaluate(prediction, view, prediction_changed=False)[0]["verdict"]

    def test_a_verdict_is_the_summary_s_claim(self) -> None:
        """Whatever a prediction says is less, and however few: its verdict is what the summary claims."""
        seen = set[bool]()
        for seed in range(8):
            view = view_of(near_the_edge(seed))
            flagged = {(row["path"], row["batch_size"]) for row in view.summary if row["flags"]}
            for row in view.summary:
                path, size, baseline = row["path"], row["batch_size"], row["baseline"]
                if path == baseline or {(path, size), (baseline, size)} & flagged:
                    continue
                verdict = self.verdict(view, {"path": path, "batch_size": int(size)}, baseline)
                claimed = row["ratio_claimed"] == "yes"
                self.assertEqual(verdict != "Inconclusive", claimed, f"seed {seed} {row}")
                seen.add(claimed)
        self.assertEqual(seen, {True, False}, "both answers were met")

    def test_questions_of_the_family(self) -> None:
        """A pair is judged among all pairs; its p is never below its own; either side may come first."""
        rule = ClaimRule(rounds_of(near_the_edge(1)))
        cells = list(rule.rounds.times)
        own = sign_test(rule.rounds.times[cells[0]] / rule.rounds.times[cells[4]])
        adjusted = rule._adjusted["p50_ms", cells[0], cells[4]]  # pyright: ignore[reportPrivateUsage]
        self.assertGreater(adjusted, own)
        for a, b in pairwise(cells):
            self.assertEqual(rule.claims("p50_ms", a, b), rule.claims("p50_ms", b, a))

    def test_metrics_that_ask_the_same_get_the_same_answer(self) -> None:
        """At one batch size every metric is time; across batch sizes positions/s is another question."""
        rule = ClaimRule(rounds_of(near_the_edge(2)))
        small, large = rule.rounds.values[:2]
        same = ("dynamic", small), ("preallocated", small)
        self.assertEqual(len({rule.claims(of, *same) for of in METRICS}), 1)
        rule = ClaimRule(rounds_of(timing_record(cost=lambda _, cell: 1e7 * cell["batch_size"], rounds=8)))
        across = ("dynamic", large), ("dynamic", small)  # time doubles with B, positions/s stay
        self.assertTrue(rule.claims("p50_ms", *across))
        self.assertFalse(rule.claims("positions_per_s", *across))


class WithoutPairs(unittest.TestCase):
    """Cells that no round pairs."""

    def test_intervals_must_lie_apart_by_the_smallest_effect(self) -> None:
        """Below, above, and everything between, where nothing may be claimed."""
        self.assertIs(apart([(0.8, 0.97)], exact=False), True)
        self.assertIs(apart([(1.03, 1.2)], exact=False), False)
        for straddles in ((0.8, 0.99), (0.9, 1.1), (1.01, 1.5), (None, 1.5), (0.5, None)):
            self.assertIsNone(apart([straddles], exact=False), straddles)

    def test_counts_differ_when_they_differ(self) -> None:
        """A count has no interval: one less is less, equal is not."""
        self.assertIs(apart([(0.999, 0.999)], exact=True), True)
        self.assertIs(apart([(1.0, 1.0)], exact=True), False)

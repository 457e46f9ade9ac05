"""Order statistics against scipy, known vectors and simulated truth."""

import math
import unittest

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, quantile_test

from inference_lab.analysis.statistics import bootstrap, estimate, holm, ranks, sign_test, states, within

TIMES = st.lists(st.integers(1, 10**9), min_size=1, max_size=150)


class QuantileIntervals(unittest.TestCase):
    """`ranks` and `estimate`."""

    def test_ranks_are_those_of_scipy(self) -> None:
        """The ranks are the ones scipy.stats.quantile_test finds, around every place where a bound opens."""
        for quantile in (0.5, 0.95):
            for n in (1, 2, 5, 6, 7, 30, 59, 71, 72, 73, 119, 120, 121, 600):
                found = quantile_test(np.arange(1, n + 1), q=0, p=quantile).confidence_interval(0.95)
                expected = tuple(None if math.isnan(bound) else int(bound) for bound in found)
                self.assertEqual(ranks(n, quantile), expected, f"n={n} quantile={quantile}")

    def test_known_vectors(self) -> None:
        """P50 and P95 by linear interpolation; no bounds below n=6, none above a P95 below n=72."""
        for values, p50, p95 in (
            ([7], 7, 7),
            ([1, 2], 1.5, 1.95),
            ([3, 1, 2], 2, 2.9),
            ([4, 1, 3, 2], 2.5, 3.85),
            ([10, 20, 30, 40, 50], 30, 48),
        ):
            with self.subTest(values=values):
                self.assertEqual(estimate(np.array(values), 0.5).bounds, (p50, None, None))
                self.assertAlmostEqual(estimate(np.array(values), 0.95).value, p95)
        self.assertEqual(estimate(np.array([6, 5, 4, 3, 2, 1]), 0.5).bounds, (3.5, 1, 6))
        self.assertEqual(ranks(120, 0.95), (109, 119))
        self.assertEqual([estimate(np.arange(1, n), 0.95).hi is None for n in (72, 73)], [True, False])

    @given(TIMES)
    @settings(max_examples=60, deadline=None, derandomize=True)
    def test_quantiles_are_ordered(self, values: list[int]) -> None:
        """min <= P50 <= P95 <= max, and each value lies inside its own interval."""
        times = np.array(values)
        p50, p95 = estimate(times, 0.5), estimate(times, 0.95)
        self.assertTrue(times.min() <= p50.value <= p95.value <= times.max())
        for found in (p50, p95):
            self.assertLessEqual(found.lo or 0, found.value)
            self.assertGreaterEqual(found.hi or math.inf, found.value)

    def test_simulated_coverage(self) -> None:
        """At n=120 the intervals of P50 and P95 hold the truth in at least 93% of skewed samples."""
        rng = np.random.default_rng(5)
        samples = rng.exponential(size=(1500, 120))
        for quantile in (0.5, 0.95):
            truth = -math.log(1 - quantile)
            found = [estimate(row, quantile) for row in samples]
            held = [e for e in found if e.lo is not None and e.hi is not None and e.lo <= truth <= e.hi]
            self.assertGreaterEqual(len(held) / len(found), 0.93, f"quantile {quantile}")


class Signs(unittest.TestCase):
    """The sign test and Holm's adjustment."""

    def test_sign_test_is_that_of_scipy(self) -> None:
        """The p value is binomtest's, ties left out, 1 when everything is tied."""
        for above, below, ties in ((0, 6, 0), (70, 50, 0), (3, 3, 9), (119, 1, 0), (12, 8, 4)):
            ratios = np.array([2.0] * above + [0.5] * below + [1.0] * ties)
            self.assertAlmostEqual(sign_test(ratios), float(binomtest(above, above + below).pvalue))
        self.assertEqual(sign_test(np.ones(20)), 1.0)

    def test_holm_known_vectors(self) -> None:
        """The step-down adjustment of known vectors, in the order they were given, capped at 1."""
        for given_, expected in (
            ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
            ([0.9, 0.8], [1.0, 1.0]),
            ([], []),
        ):
            np.testing.assert_allclose(holm(given_), expected)


class OtherLooks(unittest.TestCase):
    """Processes drawn again, and states of the run."""

    def test_bootstrap_needs_processes(self) -> None:
        """Fewer than three processes cannot be drawn from; equal ones give the interval of their median."""
        self.assertIsNone(bootstrap(np.ones((2, 20))))
        self.assertEqual(bootstrap(np.full((6, 20), 1.1)), (1.1, 1.1))

    def test_independent_rounds_have_no_states(self) -> None:
        """Independent noise around one ratio gives states by chance in about one record of twenty."""
        rng = np.random.default_rng(2)
        found = [states(1 + rng.normal(0, 0.05, (6, 20))) for _ in range(200)]
        self.assertLessEqual(sum(state is not None for state in found), 20)


class WithinAPrediction(unittest.TestCase):
    """`within`: where intervals lie, open ends included."""

    def test_inside_outside_astride(self) -> None:
        """True only when every interval is inside, False only when every one is outside."""
        for intervals, expected in (
            *(([(2, 3)], True), ([(1, 4)], True)),
            *(([(0.5, 0.9)], False), ([(5, None)], False), ([(None, 0.5)], False)),
            *(([(0.9, 2)], None), ([(2, None)], None), ([(None, None)], None)),
            *(([(2, 3), (0.5, 0.9)], None), ([(2, 3), (3, 5)], None)),
        ):
            self.assertEqual(within(intervals, 1, 4), expected, intervals)
        self.assertIs(within([(None, 3)], -math.inf, 4), True)

"""False claims over many comparisons of equal paths: slower than a unit test may be."""

import unittest

from tests.analysis.test_simulations import claimed, heavy_tail, null, steady, table, together, two_states


class NullsTest(unittest.TestCase):
    """Machines that fake a difference where there is none."""

    def test_three_hundred_null_comparisons(self) -> None:
        """At most 2% of 312 comparisons of equal paths are claimed, with noise, states and tails."""
        paths = [f"path{number}" for number in range(14)]
        claims = comparisons = 0
        for seed in range(6):
            machine = together(
                steady(0.03, seed=seed),
                two_states(0.6, 25, seed=seed),
                heavy_tail(0.03, 4, seed=seed),
            )
            rows = table(null(machine, paths=paths, seed=seed))
            claims += claimed(rows)
            comparisons += len(rows) - 4
        self.assertEqual(comparisons, 312)
        self.assertLessEqual(claims, 6)

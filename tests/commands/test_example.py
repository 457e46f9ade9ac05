"""The example a newcomer runs first."""

import re
import unittest
from unittest import mock

import numpy as np

from inference_lab.commands.example import TOKENS, example
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array

ROW = re.compile(r" *(\d+) +(\d+) -> (\d+) +(\S+)  (.+)")


def table(text: str) -> list[tuple[int, int, int, float, list[float]]]:
    """Step, cache length before and after, difference, weights: one a step."""
    found = [ROW.fullmatch(line) for line in text.splitlines()]
    return [
        (int(m[1]), int(m[2]), int(m[3]), float(m[4]), [float(w) for w in m[5].split()]) for m in found if m
    ]


class ExampleTest(unittest.TestCase):
    """What the table says is what happened."""

    def test_the_cache_grows_by_one_token_a_step(self) -> None:
        """Lengths go 0 -> 1 -> ... -> T, each step shows one weight a cached token, and they sum to 1."""
        steps = table(example())
        self.assertEqual([row[:3] for row in steps], [(t, t, t + 1) for t in range(TOKENS)])
        for _, _, length, _, weights in steps:
            self.assertEqual(len(weights), length)
            self.assertAlmostEqual(sum(weights), 1, delta=0.0005 * length)

    def test_cached_equals_full(self) -> None:
        """Every difference is a rounding error, and the last line names the largest."""
        text = example()
        differences = [row[3] for row in table(text)]
        self.assertLess(max(differences), 1e-14)
        self.assertIn(f"Largest difference: {max(differences):.1e}.", text)

    def test_a_wrong_step_shows(self) -> None:
        """The differences are computed: a cached step that is off by 0.5 at step 2 is shown there alone."""
        step = attention.decode_step

        def wrong(token: Array, wq: Array, wk: Array, wv: Array, cache: attention.KVCache) -> object:
            output, *rest = step(token, wq, wk, wv, cache)
            return output + 0.5 * (cache.length == 3), *rest

        with mock.patch.object(attention, "decode_step", wrong):
            differences = [row[3] for row in table(example())]
        np.testing.assert_allclose(differences, [0, 0, 0.5, 0], atol=1e-14)

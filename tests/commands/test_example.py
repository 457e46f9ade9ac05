"""The example a newcomer runs first."""

import re
import unittest
from unittest import mock

import numpy as np

from inference_lab.commands.example import TOKENS, example
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array

ROW = re.compile(r"^ *(\d+) +(\d+) -> (\d+) +(\S+)  (.+)$", re.MULTILINE)


class ExampleTest(unittest.TestCase):
    """What the table says is what happened."""

    def test_the_table(self) -> None:
        """The cache grows by one token a step, weights sum to 1, cached equals full but for rounding."""
        steps = ROW.findall(text := example())
        self.assertEqual([(*map(int, row[:3]),) for row in steps], [(t, t, t + 1) for t in range(TOKENS)])
        for _, _, length, _, weights in steps:
            self.assertEqual(len(weights.split()), int(length))
            self.assertAlmostEqual(sum(map(float, weights.split())), 1, delta=0.0005 * int(length))
        largest = max(float(row[3]) for row in steps)
        self.assertLess(largest, 1e-14)
        self.assertIn(f"Largest difference: {largest:.1e}.", text)

    def test_a_wrong_step_shows(self) -> None:
        """The differences are computed: a cached step that is off by 0.5 at step 2 is shown there alone."""
        step = attention.decode_step

        def wrong(token: Array, wq: Array, wk: Array, wv: Array, cache: attention.KVCache) -> object:
            output, *rest = step(token, wq, wk, wv, cache)
            return output + 0.5 * (cache.length == 3), *rest

        with mock.patch.object(attention, "decode_step", wrong):
            differences = [float(row[3]) for row in ROW.findall(example())]
        np.testing.assert_allclose(differences, [0, 0, 0.5, 0], atol=1e-14)

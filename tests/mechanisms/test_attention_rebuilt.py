"""The two functions of single-head attention that a reader rebuilds from blank (docs/checkoffs).

Their whole proof stands in test_attention_oracle; this is what another implementation must meet too.
"""

import unittest

import numpy as np

from inference_lab.mechanisms import attention
from tests import scalar_oracle, subject
from tests.scalar_oracle import inputs

tried = subject.of(attention)


class RebuiltTest(unittest.TestCase):
    """decode_without_cache and cached_attention against scalar loops."""

    def test_every_position_without_a_cache(self) -> None:
        """decode_without_cache equals the oracle at every position of every sequence, in both dtypes."""
        for B in (1, 2, 4):
            for dtype in (np.float64, np.float32):
                arrays = inputs(B, 7, dtype=dtype, seed=B)
                expected = scalar_oracle.decode_batch(*arrays)
                output = tried.decode_without_cache(*arrays)
                self.assertEqual((output.shape, output.dtype), ((B, 7, 5), dtype))
                for b, t in np.ndindex(B, 7):
                    error = np.abs(output[b, t] - expected[b].output[t]).max()
                    self.assertLessEqual(error, scalar_oracle.tolerance(expected, dtype), (b, t))

    def test_every_position_and_slot_with_a_cache(self) -> None:
        """cached_attention equals the oracle, and its caches hold the key and value of every token."""
        for B in (1, 2, 4):
            arrays = inputs(B, 7, seed=B)
            expected = scalar_oracle.decode_batch(*arrays)
            output, k_cache, v_cache = tried.cached_attention(*arrays)
            np.testing.assert_allclose(output, tried.decode_without_cache(*arrays), rtol=1e-7, atol=1e-8)
            for b in range(B):
                np.testing.assert_allclose(output[b], expected[b].output, rtol=0, atol=1e-13)
                np.testing.assert_allclose(k_cache[b], expected[b].keys, rtol=0, atol=1e-13)
                np.testing.assert_allclose(v_cache[b], expected[b].values, rtol=0, atol=1e-13)

    def test_the_future_is_invisible(self) -> None:
        """Other tokens after t leave the outputs up to t bit for bit as they were."""
        x, *weights = inputs(2, 6)
        for name in ("decode_without_cache", "cached_attention"):
            decode = getattr(tried, name)
            before, after = (self._output(decode(tokens, *weights)) for tokens in (x, self._changed(x)))
            np.testing.assert_array_equal(after[:, :4], before[:, :4], name)
            self.assertFalse(np.array_equal(after[:, 4], before[:, 4]), name)

    @staticmethod
    def _changed(x: np.ndarray) -> np.ndarray:
        other = x.copy()
        other[:, 4:] += 10.0
        return other

    @staticmethod
    def _output(result: object) -> np.ndarray:
        return result[0] if isinstance(result, tuple) else result


if __name__ == "__main__":
    unittest.main()

"""Every decode path against scalar loops, against itself on one sequence, and against exact answers."""

import itertools
import math
import unittest
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.mechanisms.kv_cache import CACHES
from tests import scalar_oracle, subject
from tests.scalar_oracle import inputs, read_only

BATCH_SIZES = (1, 2, 4, 8)
FIELDS = ("output", "keys", "values")
WHOLE = {**attention.DECODE_PATHS, "causal_attention": attention.causal_attention}
tried = subject.of(attention)


def expected(arrays: tuple[Array, ...]) -> tuple[dict[str, Array], float]:
    """What the scalar loops give for all sequences, and the largest error allowed in it."""
    sequences = scalar_oracle.decode_batch(*arrays)
    every = {name: np.array([getattr(one, name) for one in sequences]) for name in FIELDS}
    return every, scalar_oracle.tolerance(sequences, arrays[0].dtype)


class OracleTest(unittest.TestCase):
    """The oracle itself, against a sum done by hand."""

    def test_two_tokens_by_hand(self) -> None:
        """With all weights 1, tokens 1 and 2: scores 2 and 4, so weights 1/(1+e²) and e²/(1+e²)."""
        found = scalar_oracle.decode([[1.0], [2.0]], [[1.0]], [[1.0]], [[10.0]])
        heavy = math.exp(2) / (1 + math.exp(2))
        self.assertEqual(found.weights[0], [1.0])
        np.testing.assert_allclose(found.weights[1], [1 - heavy, heavy], rtol=1e-15)
        np.testing.assert_allclose(found.output, [[10.0], [10 + 10 * heavy]], rtol=1e-15)
        self.assertEqual(found.largest_score, 4.0)

    def test_scores_shrink_with_the_square_root_of_the_width(self) -> None:
        """Four equal columns in place of one quadruple a dot product and, over √4, double a score."""
        found = scalar_oracle.decode([[1.0], [2.0]], [[1.0] * 4], [[1.0] * 4], [[1.0]])
        self.assertEqual(found.largest_score, 8.0)


class RebuiltTest(unittest.TestCase):
    """The two functions that a reader rebuilds from blank (docs/checkoffs), against scalar loops."""

    def test_every_position(self) -> None:
        """Outputs equal the oracle at every position of every sequence, in both dtypes."""
        for B, dtype in itertools.product(BATCH_SIZES, (np.float64, np.float32)):
            arrays = inputs(B, 7, dtype=dtype, seed=B)
            desired, allowed = expected(arrays)
            for name, result in (
                ("decode_without_cache", tried.decode_without_cache(*arrays)),
                ("cached_attention", tried.cached_attention(*arrays)[0]),
            ):
                with self.subTest(name, B=B, dtype=dtype.__name__):
                    self.assertEqual((result.shape, result.dtype), ((B, 7, 5), dtype))
                    np.testing.assert_allclose(result, desired["output"], rtol=0, atol=allowed)

    def test_every_slot_of_the_caches(self) -> None:
        """The caches returned hold the key and value of every token, in order."""
        arrays = inputs(4, 7)
        desired, allowed = expected(arrays)
        _, *caches = tried.cached_attention(*arrays)
        for name, cache in zip(("keys", "values"), caches, strict=True):
            np.testing.assert_allclose(cache, desired[name], rtol=0, atol=allowed)

    def test_the_future_is_invisible(self) -> None:
        """Other tokens after t leave the outputs up to t bit for bit as they were."""
        x, *weights = inputs(2, 6)
        other = np.concatenate((x[:, :4], x[:, 4:] + 10.0), axis=1)
        for decode in (tried.decode_without_cache, lambda *arrays: tried.cached_attention(*arrays)[0]):
            before, after = decode(x, *weights), decode(other, *weights)
            np.testing.assert_array_equal(after[:, :4], before[:, :4])
            self.assertFalse(np.array_equal(after[:, 4], before[:, 4]))


class EveryPathMeetsTheOracleTest(unittest.TestCase):
    """Each path equals the scalar loops at every position of every sequence."""

    def test_every_step_returns_weights_and_caches(self) -> None:
        """Each decode_step, with either cache, gives the oracle's output, weights, keys and values."""
        arrays = x, *weights = inputs(2, 7)
        sequences, (_, allowed) = scalar_oracle.decode_batch(*arrays), expected(arrays)
        caches = {name: kind((2, 7), 3, 5, x.dtype) for name, kind in CACHES.items()}
        for (name, cache), t in itertools.product(caches.items(), range(7)):
            found = attention.decode_step(read_only(x[:, t]), *weights, cache)
            for b, one in enumerate(sequences):
                whole = (one.output[t], one.weights[t], one.keys[: t + 1], one.values[: t + 1])
                for actual, desired in zip(found, whole, strict=True):
                    with self.subTest(cache=name, t=t, b=b):
                        np.testing.assert_allclose(actual[b], desired, rtol=0, atol=allowed)

    def test_the_seeds_own_assertion(self) -> None:
        """Cached and uncached outputs agree to rtol 1e-7, atol 1e-8 in float64 at the measured size."""
        arrays = inputs(2, 128, C=64, D=64, E=64)
        for name, path in WHOLE.items():
            with self.subTest(name):
                desired = attention.decode_without_cache(*arrays)
                np.testing.assert_allclose(path(*arrays), desired, rtol=1e-7, atol=1e-8)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        sizes=st.tuples(st.sampled_from((*BATCH_SIZES, 3)), st.integers(1, 7), *[st.integers(1, 4)] * 3),
        dtype=st.sampled_from((np.float32, np.float64)),
        layouts=st.tuples(*[st.sampled_from(("C", "F", "reversed", "strided", "unaligned"))] * 4),
        seed=st.integers(0, 99),
    )
    def test_any_shape_dtype_and_memory_layout(
        self, sizes: tuple[int, ...], dtype: type, layouts: tuple[str, ...], seed: int
    ) -> None:
        """All paths and both caches equal the oracle whatever the sizes, the dtype and the strides."""
        arrays = inputs(*sizes, dtype=dtype, seed=seed)
        desired, allowed = expected(arrays)
        x, *weights = (laid_out(a, layout) for a, layout in zip(arrays, layouts, strict=True))
        attention.check_inputs(x, *weights)
        for name, path in WHOLE.items():
            output = path(x, *weights)
            self.assertEqual(output.dtype, dtype, name)
            np.testing.assert_allclose(output, desired["output"], rtol=0, atol=allowed, err_msg=name)
        for name in CACHES:
            _, k_cache, v_cache = attention.cached_attention(x, *weights, cache=name)
            np.testing.assert_allclose(k_cache, desired["keys"], rtol=0, atol=allowed, err_msg=name)
            np.testing.assert_allclose(v_cache, desired["values"], rtol=0, atol=allowed, err_msg=name)


class BatchTest(unittest.TestCase):
    """A batch is its sequences: none changes another, and one alone gives the same."""

    def test_a_batch_row_equals_the_sequence_alone(self) -> None:
        """Row b of a batch equals x[b] decoded as (T, C) and as (1, T, C), for each path and B."""
        for B, (name, path) in itertools.product(BATCH_SIZES, WHOLE.items()):
            x, *weights = inputs(B, 7, seed=B)
            batched = path(x, *weights)
            for b in range(B):
                with self.subTest(path=name, B=B, b=b):
                    alone = path(x[b], *weights)
                    self.assertEqual(alone.shape, (7, 5))
                    np.testing.assert_allclose(batched[b], alone, rtol=0, atol=1e-14)
                    np.testing.assert_allclose(path(x[b : b + 1], *weights)[0], alone, rtol=0, atol=1e-14)

    def test_no_sequence_sees_another(self) -> None:
        """Changing one sequence leaves every other sequence's output and caches bit-identical."""
        x, *weights = inputs(4, 7)
        changed = x.copy()
        changed[1] = -3 * x[1] + 1
        cached = {name: partial(attention.cached_attention, cache=name) for name in CACHES}
        for name, path in {**WHOLE, **cached}.items():
            before, after = path(x, *weights), path(changed, *weights)
            pairs = zip(before, after, strict=True) if name in cached else [(before, after)]
            for one, other in pairs:
                with self.subTest(name):
                    np.testing.assert_array_equal(one[[0, 2, 3]], other[[0, 2, 3]])
                    self.assertGreater(np.abs(one[1] - other[1]).min(axis=-1).min(), 0)

    def test_no_token_sees_a_later_one(self) -> None:
        """Changing the tokens after t leaves outputs up to t bit-identical, and changes those after."""
        x, *weights = inputs(2, 7)
        for (name, path), t in itertools.product(WHOLE.items(), range(6)):
            changed = x.copy()
            changed[:, t + 1 :] = 5 - x[:, t + 1 :]
            before, after = path(x, *weights), path(changed, *weights)
            with self.subTest(path=name, t=t):
                np.testing.assert_array_equal(before[:, : t + 1], after[:, : t + 1])
                self.assertTrue((before[:, t + 1 :] != after[:, t + 1 :]).any(axis=-1).all())


class KnownAnswerTest(unittest.TestCase):
    """Cases whose answer needs no attention code at all."""

    def test_equal_scores_average_the_values_so_far(self) -> None:
        """With wq = 0 every score is 0 and output t is the mean of the first t + 1 values."""
        x, wq, wk, wv = inputs(2, 7)
        values = x @ wv
        means = np.stack([values[:, : t + 1].mean(axis=1) for t in range(7)], axis=1)
        for name, path in WHOLE.items():
            with self.subTest(name):
                output = path(x, np.zeros_like(wq), wk, wv)
                np.testing.assert_allclose(output, means, rtol=0, atol=1e-14)

    def test_a_spike_is_found_in_its_slot(self) -> None:
        """A key whose logit stands 20 above the rest gives its value to every later token, T = 40.

        A mean over many tokens is small and hides a wrong slot; a spike does not.
        """
        T = 40
        for dtype, slot in itertools.product((np.float64, np.float32), (0, 1, 20, T - 1)):
            x = np.zeros((2, T, 3), dtype)
            x[..., 0] = 1  # the query of every token
            x[:, slot, 1] = 20  # the key of one
            x[..., 2] = np.arange(2 * T).reshape(2, T)  # the value says which token it is
            wq, wk, wv = (np.eye(3, dtype=dtype)[:, [column]] for column in range(3))
            # T others weigh e⁻²⁰ each and differ by at most T from the spike's value.
            allowed = T * T * math.exp(-20) + 40 * np.finfo(dtype).eps * 2 * T
            for name, path in WHOLE.items():
                with self.subTest(path=name, slot=slot, dtype=dtype.__name__):
                    spike = path(x, wq, wk, wv)[:, slot:, 0]
                    desired = np.broadcast_to(x[:, slot, 2:], spike.shape)
                    np.testing.assert_allclose(spike, desired, rtol=0, atol=allowed)

    def test_large_scores_do_not_overflow(self) -> None:
        """Scores where exp alone overflows (above 88.7 in float32, 709 in float64) stay finite and right.

        The scores of the two sequences lie far apart, so a maximum over the batch would leave 0/0.
        """
        for dtype, size in ((np.float32, 16.0), (np.float64, 40.0)):
            x, *weights = inputs(2, 6, dtype=dtype)
            x = x * np.array([size, 1], dtype)[:, None, None]
            large, small = scalar_oracle.decode_batch(x, *weights)
            self.assertGreater(large.largest_score, math.log(np.finfo(dtype).max))
            self.assertLess(small.largest_score, 5)
            desired, allowed = expected((x, *weights))
            for name, path in WHOLE.items():
                with self.subTest(path=name, dtype=dtype.__name__), np.errstate(all="raise", under="ignore"):
                    np.testing.assert_allclose(path(x, *weights), desired["output"], rtol=0, atol=allowed)

    def test_scores_far_below_zero_do_not_underflow(self) -> None:
        """Where every score of a row is -800, its softmax is still uniform, not 0/0."""
        x = np.ones((2, 5, 1))
        x[1] = 0.5
        wq, wk, wv = np.array([[-800.0]]), np.array([[1.0]]), np.array([[3.0]])
        for name, path in WHOLE.items():
            with self.subTest(name):
                np.testing.assert_allclose(path(x, wq, wk, wv), 3 * x, rtol=1e-14)


class SoftmaxTest(unittest.TestCase):
    """softmax along any axis."""

    def test_known_values(self) -> None:
        """exp(ln 1), exp(ln 2), exp(ln 5) weigh 1/8, 2/8, 5/8."""
        row = np.log(np.array([1.0, 2.0, 5.0]))
        np.testing.assert_allclose(attention.softmax(row, 0), [0.125, 0.25, 0.625], rtol=1e-15)

    def test_each_axis_sums_to_one_and_only_it(self) -> None:
        """Sums along the named axis are 1, sums along another are not; the dtype stays."""
        for dtype in (np.float32, np.float64):
            x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(dtype)
            for axis in (0, 1, 2, -1):
                with self.subTest(axis=axis, dtype=dtype.__name__):
                    weights = attention.softmax(read_only(x), axis)
                    self.assertEqual(weights.dtype, dtype)
                    np.testing.assert_allclose(weights.sum(axis), 1, rtol=1e-6)
                    self.assertGreater(np.abs(weights.sum((axis + 1) % 3) - 1).max(), 0.1)

    def test_rows_far_apart(self) -> None:
        """A shift of a whole row changes nothing, however large: each row has its own maximum."""
        x = np.array([[0.0, 1.0], [1000.0, 1001.0], [-1000.0, -999.0]])
        weights = attention.softmax(x, -1)
        np.testing.assert_allclose(weights, np.broadcast_to(weights[0], (3, 2)), rtol=1e-12)

    def test_minus_infinity_weighs_nothing(self) -> None:
        """A score of -inf gets the weight 0 exactly."""
        weights = attention.softmax(np.array([0.0, -np.inf, 0.0]), 0)
        np.testing.assert_array_equal(weights, [0.5, 0.0, 0.5])


class ScaledDotProductAttentionTest(unittest.TestCase):
    """Attention of any queries over any keys, with and without a mask."""

    def setUp(self) -> None:
        """Two sequences of 4 queries over 6 keys; all axes differ."""
        rng = np.random.default_rng(3)
        shapes = ((2, 4, 3), (2, 6, 3), (2, 6, 5))
        self.q, self.k, self.v = (read_only(rng.standard_normal(shape)) for shape in shapes)

    def test_equals_the_formula_in_scalars(self) -> None:
        """Weights are exp(q·k/√D) over their sum, output their mean of the values, query by query."""
        output, weights = attention.scaled_dot_product_attention(self.q, self.k, self.v)
        self.assertEqual((output.shape, weights.shape), ((2, 4, 5), (2, 4, 6)))
        for b, t in np.ndindex(2, 4):
            scores = [math.fsum(self.q[b, t] * self.k[b, s]) / math.sqrt(3) for s in range(6)]
            exponentials = [math.exp(score) for score in scores]
            desired = [e / math.fsum(exponentials) for e in exponentials]
            mean = [math.fsum(desired * self.v[b, :, e]) for e in range(5)]
            np.testing.assert_allclose(weights[b, t], desired, rtol=0, atol=1e-14)
            np.testing.assert_allclose(output[b, t], mean, rtol=0, atol=3e-14)

    def test_weights_sum_to_one_and_a_hidden_key_weighs_zero(self) -> None:
        """Weights are ≥ 0 and sum to 1; where the mask is False they are exactly 0, elsewhere not."""
        mask = np.random.default_rng(4).random((2, 4, 6)) < 0.5
        mask[..., 0] = True
        _, weights = attention.scaled_dot_product_attention(self.q, self.k, self.v, mask)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-14)
        np.testing.assert_array_equal(weights > 0, mask)

    def test_a_hidden_key_may_hold_anything(self) -> None:
        """A huge finite key and value behind the mask change no bit of the output."""
        mask = np.arange(6) < 5
        k, v = self.k.copy(), self.v.copy()
        k[:, 5], v[:, 5] = 1e150, -1e150
        before, _ = attention.scaled_dot_product_attention(self.q, self.k, self.v, mask)
        after, _ = attention.scaled_dot_product_attention(self.q, k, v, mask)
        np.testing.assert_array_equal(before, after)

    def test_a_mask_broadcasts(self) -> None:
        """A mask (T, S) serves every sequence as the same mask (B, T, S) does; (T, C) inputs work too."""
        mask = np.tri(4, 6, 2, dtype=bool)
        small, _ = attention.scaled_dot_product_attention(self.q, self.k, self.v, mask)
        full = np.broadcast_to(mask, (2, 4, 6))
        large, _ = attention.scaled_dot_product_attention(self.q, self.k, self.v, full)
        np.testing.assert_array_equal(small, large)
        alone, _ = attention.scaled_dot_product_attention(self.q[0], self.k[0], self.v[0], mask)
        np.testing.assert_allclose(alone, small[0], rtol=0, atol=1e-14)

    def test_float32_stays(self) -> None:
        """Scale and mask leave float32 float32: np.sqrt or a float64 -inf would widen it."""
        q, k, v = (a.astype(np.float32) for a in (self.q, self.k, self.v))
        for mask in (None, np.ones((4, 6), bool)):
            output, weights = attention.scaled_dot_product_attention(q, k, v, mask)
            self.assertEqual((output.dtype, weights.dtype), (np.float32, np.float32))


def laid_out(array: Array, layout: str) -> Array:
    """The same values, read-only, in another memory layout."""
    if layout == "F":
        found = np.asfortranarray(array)
    elif layout == "reversed":  # negative strides
        found = np.flip(np.flip(array).copy())
    elif layout == "strided":
        found = np.repeat(array, 2, axis=-1)[..., ::2]
    elif layout == "unaligned":
        found = np.ndarray(array.shape, array.dtype, bytearray(array.nbytes + 1), offset=1)
        found[...] = array
    else:
        found = array.copy()
    return read_only(found)

"""Cached multi-head attention: every step, every cached number, both caches, and what a cache refuses."""

import unittest
from itertools import product
from typing import Any
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import InputError
from inference_lab.mechanisms import multi_head
from inference_lab.mechanisms.arrays import Array
from tests import subject
from tests.scalar_multi_head_oracle import decode_heads, inputs
from tests.scalar_oracle import tolerance

tried = subject.of(multi_head)

CACHES = ("DynamicCache", "PreallocatedCache")
SHAPES = ((2, 7, 3, 3, 5), (2, 6, 6, 2, 3), (3, 5, 8, 2, 4), (2, 5, 4, 1, 3))  # (B, T, H, G, D)


def empty_cache(
    kind: str, B: int, T: int, G: int, D: int, dtype: Any = np.float64, *, columns: bool = False
) -> Any:
    """A new cache of this kind for T tokens."""
    layout = {"columns": True} if columns else {}  # a reader's cache need not know it
    return getattr(tried, kind)((B, G, T), D, D, dtype, **layout)


def allowed_error(expected: Any, dtype: Any) -> float:
    """The largest error allowed in any output of these sequences and heads."""
    return tolerance([head for sequence in expected for head in sequence], dtype)


class EveryStepTest(unittest.TestCase):
    """What one decode step computes and what the cache holds after it."""

    def test_output_and_weights_at_every_step(self) -> None:
        """Each step equals the scalar loops, and the last position of a full recompute of its prefix."""
        for kind, (B, T, H, G, D), dtype in product(CACHES, SHAPES, (np.float64, np.float32)):
            x, *weights = inputs(B, T, H, G, D, dtype=dtype)
            expected = decode_heads(x, *weights, H, G)
            allowed = allowed_error(expected, dtype)
            cache = empty_cache(kind, B, T, G, D, dtype)
            for t in range(T):
                step = tried.cached_step(x[:, t : t + 1], *weights, H, G, cache)
                full, _ = multi_head.multi_head_attention(x[:, : t + 1], *weights, H, G)
                shapes = (B, H, 1, D), (B, G, 1, D), (B, G, 1, D), (B, H, 1, D), (B, H, 1, t + 1)
                self.assertEqual(tuple(array.shape for array in step), shapes)
                self.assertEqual(step.output.dtype, dtype)
                with self.subTest(cache=kind, B=B, H=H, G=G, D=D, dtype=dtype.__name__, t=t):
                    self.assertLessEqual(np.abs(step.output - full[:, :, -1:]).max(), allowed)
                    for b, h in np.ndindex(B, H):
                        one = expected[b][h]
                        self.assertLessEqual(np.abs(step.output[b, h, 0] - one.output[t]).max(), allowed)
                        self.assertLessEqual(np.abs(step.weights[b, h, 0] - one.weights[t]).max(), allowed)

    def test_every_slot_of_the_cache_at_every_step(self) -> None:
        """After step t slot s holds the key and value of token s, for every s up to t, head and sequence."""
        for kind, (B, T, H, G, D) in product(CACHES, SHAPES):
            x, *weights = inputs(B, T, H, G, D)
            expected = decode_heads(x, *weights, H, G)
            cache = empty_cache(kind, B, T, G, D)
            for t in range(T):
                tried.cached_step(x[:, t : t + 1], *weights, H, G, cache)
                self.assertEqual((cache.length, cache.keys.shape), (t + 1, (B, G, t + 1, D)))
                for b, g in np.ndindex(B, G):
                    with self.subTest(cache=kind, B=B, H=H, G=G, D=D, t=t, b=b, g=g):
                        one = expected[b][g * (H // G)]
                        np.testing.assert_allclose(cache.keys[b, g], one.keys[: t + 1], atol=1e-13)
                        np.testing.assert_allclose(cache.values[b, g], one.values[: t + 1], atol=1e-13)


class WholeSequenceTest(unittest.TestCase):
    """Prefill and decode of a whole sequence against the computation without a cache."""

    def test_prefill_of_any_length_then_decode(self) -> None:
        """A prompt of 1 to T tokens, then single tokens: the outputs and the cache are always the same."""
        B, T, H, G, D = 2, 6, 6, 2, 3
        arrays = inputs(B, T, H, G, D)
        expected, _ = multi_head.multi_head_attention(*arrays, H, G)
        _, k, v = multi_head.project(*arrays, H, G)
        allowed = allowed_error(decode_heads(*arrays, H, G), np.float64)
        for kind, n in product(CACHES, range(1, T + 1)):
            cache = empty_cache(kind, B, T, G, D)
            output = tried.cached_multi_head_attention(*arrays, H, G, cache=cache, prompt_length=n)
            with self.subTest(cache=kind, prompt_length=n):
                self.assertEqual(output.shape, (B, H, T, D))
                self.assertLessEqual(np.abs(output - expected).max(), allowed)
                np.testing.assert_allclose(cache.keys, k, rtol=0, atol=1e-14)
                np.testing.assert_allclose(cache.values, v, rtol=0, atol=1e-14)

    def test_a_prompt_behind_cached_tokens(self) -> None:
        """A prefill that starts behind cached tokens sees all of those and none of its own future."""
        B, T, H, G, D = 2, 7, 6, 3, 2
        x, *weights = inputs(B, T, H, G, D)
        expected, _ = multi_head.multi_head_attention(x, *weights, H, G)

        def fast(start: int, end: int, cache: Any) -> Array:
            prompt = 1 if start == 5 else end - start
            return tried.cached_multi_head_attention(
                x[:, start:end], *weights, H, G, cache=cache, prompt_length=prompt
            )

        def textbook(start: int, end: int, cache: Any) -> Array:
            return tried.cached_step(x[:, start:end], *weights, H, G, cache).output

        for kind, form in product(CACHES, (fast, textbook)):
            cache = empty_cache(kind, B, T, G, D)
            pieces = [form(start, end, cache) for start, end in ((0, 2), (2, 5), (5, 7))]
            with self.subTest(cache=kind, form=form.__name__):
                np.testing.assert_allclose(np.concatenate(pieces, axis=2), expected, rtol=1e-7, atol=1e-8)

    def decoded(self, kind: str, *arrays: Array) -> tuple[Array, Array, Array]:
        """Output, keys and values of a decode with 6 heads over 2."""
        cache = empty_cache(kind, arrays[0].shape[0], 5, 2, 3)
        return tried.cached_multi_head_attention(*arrays, 6, 2, cache=cache), cache.keys, cache.values

    def test_sequences_do_not_share_a_cache(self) -> None:
        """One sequence changed: its outputs and cached rows change, the others' stay bit for bit."""
        x, *weights = inputs(3, 5, 6, 2, 3)
        for kind, b in product(CACHES, range(3)):
            other = x.copy()
            other[b] += 1.0
            pairs = zip(self.decoded(kind, other, *weights), self.decoded(kind, x, *weights), strict=True)
            for now, then in pairs:
                changed = [i for i in range(3) if not np.array_equal(now[i], then[i])]
                self.assertEqual(changed, [b], kind)

    def test_heads_do_not_share_a_cache(self) -> None:
        """Columns of one key/value head changed: only the query heads of its group change, at every step."""
        x, wq, wk, wv = inputs(2, 5, 6, 2, 3)
        for kind, g in product(CACHES, range(2)):
            other = wv.copy()
            other[:, g * 3 : (g + 1) * 3] += 1.0
            (before, *_), (after, *_) = (
                self.decoded(kind, x, wq, wk, wv),
                self.decoded(kind, x, wq, wk, other),
            )
            for t in range(5):
                changed = [h for h in range(6) if not np.array_equal(after[:, h, t], before[:, h, t])]
                self.assertEqual(changed, list(range(g * 3, g * 3 + 3)), f"{kind}: position {t}")

    @settings(max_examples=50, deadline=None, derandomize=True)
    @given(st.data())
    def test_any_shape_order_and_prompt(self, data: st.DataObject) -> None:
        """Over B, T, H, G, D, dtype, memory order and prompt length: cached = uncached = scalar loops."""
        B, T, G, group, D = (
            data.draw(st.integers(1, most), label=name)
            for name, most in (("B", 3), ("T", 6), ("G", 3), ("H//G", 3), ("D", 4))
        )
        H = G * group
        dtype = data.draw(st.sampled_from((np.float32, np.float64)), label="dtype")
        arrays = inputs(B, T, H, G, D, dtype=dtype, seed=data.draw(st.integers(0, 99), label="seed"))
        orders = data.draw(st.tuples(*[st.sampled_from(tuple(ORDERS))] * 4), label="memory orders")
        arrays = [ORDERS[order](array) for order, array in zip(orders, arrays, strict=True)]
        kind = data.draw(st.sampled_from(CACHES), label="cache")
        prompt_length = data.draw(st.integers(1, T), label="prompt_length")
        cache = empty_cache(kind, B, T, G, D, dtype, columns=data.draw(st.booleans(), label="columns"))
        cached = tried.cached_multi_head_attention(*arrays, H, G, cache=cache, prompt_length=prompt_length)
        full, _ = multi_head.multi_head_attention(*arrays, H, G)
        expected = decode_heads(*arrays, H, G)
        scalar = np.array([[head.output for head in sequence] for sequence in expected])
        allowed = allowed_error(expected, dtype)
        self.assertEqual(cached.dtype, dtype)
        self.assertLessEqual(np.abs(cached - scalar).max(), allowed)
        self.assertLessEqual(np.abs(full - scalar).max(), allowed)


def _strided(array: Array) -> Array:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


ORDERS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": _strided,
    "reversed": lambda array: np.ascontiguousarray(array[::-1])[::-1],
}


class CacheTest(unittest.TestCase):
    """The caches by themselves: reuse, views, memory, refusals."""

    def test_nothing_old_is_seen_after_a_reset(self) -> None:
        """A cache used for huge values, reset and used again gives bit for bit what a new one gives."""
        B, T, H, G, D = 2, 6, 6, 2, 3
        x, *weights = inputs(B, T, H, G, D)
        for kind in CACHES:
            used, new = (empty_cache(kind, B, T, G, D) for _ in range(2))
            tried.cached_multi_head_attention(1e3 * x, *weights, H, G, cache=used)
            used.reset()
            self.assertEqual((used.length, used.keys.shape, used.values.shape), (0, *[(B, G, 0, D)] * 2))
            for t in range(T):
                old, fresh = (
                    (
                        tried.cached_step(x[:, t : t + 1], *weights, H, G, cache).output,
                        cache.keys,
                        cache.values,
                    )
                    for cache in (used, new)
                )
                for one, other in zip(old, fresh, strict=True):
                    np.testing.assert_array_equal(one, other, kind)

    def test_free_slots_are_never_read(self) -> None:
        """With every new array full of NaN, outputs are finite: 0 · NaN of a free slot would show."""
        B, T, H, G, D = 2, 5, 6, 2, 3
        x, *weights = inputs(B, T, H, G, D)
        with mock.patch("numpy.empty", side_effect=lambda shape, dtype: np.full(shape, np.nan, dtype)):
            cache = empty_cache("PreallocatedCache", B, 3 * T, G, D)
        output = tried.cached_multi_head_attention(x, *weights, H, G, cache=cache, prompt_length=2)
        self.assertTrue(np.isfinite(output).all())

    def test_the_checked_function_refuses_a_cache_that_does_not_fit(self) -> None:
        """A cache of another batch or dtype, and a prompt of no or too many tokens, are refused untouched."""
        B, T, H, G, D = 2, 5, 6, 2, 3
        arrays = inputs(B, T, H, G, D)
        for kind in CACHES:
            for cache, n, message in (
                (empty_cache(kind, B + 1, T, G, D), 1, r"must be float64 \(3, 2, T, 3\)"),
                (empty_cache(kind, B, T, G, D, np.float32), 1, "k is float64 .* must be float32"),
                (empty_cache(kind, B, T, G, D), 0, "prompt_length is 0"),
                (empty_cache(kind, B, T, G, D), T + 1, "prompt_length is 6, must be at most the 5 tokens"),
            ):
                with self.subTest(cache=kind, message=message), self.assertRaisesRegex(InputError, message):
                    tried.cached_multi_head_attention(*arrays, H, G, cache=cache, prompt_length=n)
                self.assertEqual(cache.length, 0)


if __name__ == "__main__":
    unittest.main()

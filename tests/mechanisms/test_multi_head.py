"""Heads, their attention without a cache, and key/value heads shared by query heads."""

import itertools
import math
import tracemalloc
import unittest
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.errors import InputError
from inference_lab.mechanisms import attention, multi_head
from inference_lab.mechanisms.arrays import Array
from tests import subject
from tests.scalar_multi_head_oracle import decode_heads, inputs
from tests.scalar_oracle import tolerance

tried = subject.of(multi_head)
SCORES = (1, 2**19)  # in work at once: one head at a time, all of them

# (B, T, H, G, D): B, H//G and G at least 2 somewhere, H//G unlike G, no two sizes alike, and the small ones.
SHAPES = (
    (2, 7, 3, 3, 5),
    (2, 5, 6, 2, 3),
    (3, 4, 8, 2, 5),
    (2, 5, 8, 1, 3),
    (1, 6, 4, 2, 1),
    (2, 1, 6, 3, 4),
)


class SplitAndMergeHeadsTest(unittest.TestCase):
    """Where each number of a projection goes, and back."""

    def test_every_coordinate_of_a_split(self) -> None:
        """split_heads puts projected[b, t, h·D + d] at [b, h, t, d], for every b, h, t, d."""
        B, T, H, D = 2, 4, 3, 5
        projected = np.arange(B * T * H * D, dtype=np.float64).reshape(B, T, H * D)
        split = tried.split_heads(projected, H)
        self.assertEqual(split.shape, (B, H, T, D))
        for b, h, t, d in np.ndindex(B, H, T, D):
            self.assertEqual(split[b, h, t, d], projected[b, t, h * D + d], (b, h, t, d))

    def test_every_coordinate_of_a_merge(self) -> None:
        """Head h and column d of a token land at h * D + d."""
        B, H, T, D = 2, 3, 4, 5
        heads = np.arange(B * H * T * D, dtype=np.float32).reshape(B, H, T, D)
        merged = tried.merge_heads(heads)
        self.assertEqual((merged.shape, merged.dtype), ((B, T, H * D), np.float32))
        for b, h, t, d in np.ndindex(B, H, T, D):
            self.assertEqual(merged[b, t, h * D + d], heads[b, h, t, d], (b, h, t, d))

    def test_views_and_copies(self) -> None:
        """A split is a view in any memory order; a merge is one of a split and of one token, else a copy."""
        for projected in (
            np.zeros((2, 4, 15)),
            np.zeros((2, 8, 15))[:, ::2],
            np.zeros((2, 4, 30))[..., ::2],
            np.zeros((15, 4, 2)).T,
        ):
            with self.subTest(strides=projected.strides):
                tried.split_heads(projected, 3)[1, 2, 3, 4] = 7.0
                self.assertEqual(projected[1, 3, 14], 7.0)
        split = np.zeros((2, 4, 3, 5)).swapaxes(1, 2)
        for heads, shares in ((split, True), (np.zeros((2, 3, 4, 5)), False), (np.zeros((2, 3, 1, 5)), True)):
            self.assertEqual(np.shares_memory(tried.merge_heads(heads), heads), shares)


class ProjectTest(unittest.TestCase):
    """Queries, keys and values of every head."""

    def test_every_head_gets_its_own_columns(self) -> None:
        """q, k and v of each head are the scalar sums over that head's columns of the weights."""
        for B, T, H, G, D in SHAPES:
            x, wq, wk, wv = arrays = inputs(B, T, H, G, D)
            found = tried.project(*arrays, H, G)
            for w, heads, projected in zip((wq, wk, wv), (H, G, G), found, strict=True):
                self.assertEqual(projected.shape, (B, heads, T, D))
                for b, head, t, d in np.ndindex(B, heads, T, D):
                    terms = [x[b, t, c] * w[c, head * D + d] for c in range(x.shape[2])]
                    self.assertAlmostEqual(projected[b, head, t, d], math.fsum(terms), delta=1e-13)


class MultiHeadAttentionTest(unittest.TestCase):
    """Causal attention of every head without a cache."""

    def test_meets_the_scalar_oracle(self) -> None:
        """Every output and weight equals scalar loops, in float64 and float32, over all SHAPES."""
        for (B, T, H, G, D), dtype in itertools.product(SHAPES, (np.float64, np.float32)):
            arrays = inputs(B, T, H, G, D, dtype=dtype)
            output, weights = tried.multi_head_attention(*arrays, H, G)
            self.assertEqual((output.shape, output.dtype), ((B, H, T, D), dtype))
            self.assertEqual((weights.shape, weights.dtype), ((B, H, T, T), dtype))
            expected = decode_heads(*arrays, H, G)
            allowed = tolerance([head for sequence in expected for head in sequence], dtype)
            for b, h, t in np.ndindex(B, H, T):
                with self.subTest(B=B, T=T, H=H, G=G, D=D, dtype=dtype.__name__, b=b, h=h, t=t):
                    one = expected[b][h]
                    self.assertLessEqual(np.abs(output[b, h, t] - one.output[t]).max(), allowed)
                    self.assertLessEqual(np.abs(weights[b, h, t, : t + 1] - one.weights[t]).max(), allowed)

    def test_one_head_is_single_head_attention(self) -> None:
        """With H = 1 the output is attention.causal_attention's, to the tolerance first used here."""
        arrays = inputs(2, 6, 1, 1, 5)
        output, _ = tried.multi_head_attention(*arrays, 1)
        expected = attention.causal_attention(*arrays)
        np.testing.assert_allclose(output[:, 0], expected, rtol=1e-7, atol=1e-8)

    def test_weights_sum_to_one_and_never_look_ahead(self) -> None:
        """Each row of weights sums to 1 over the positions up to its own and is exactly 0 after it."""
        B, T, H, G, D = 2, 7, 6, 2, 3
        _, weights = tried.multi_head_attention(*inputs(B, T, H, G, D), H, G)
        np.testing.assert_allclose(weights.sum(axis=-1), 1.0, rtol=1e-14)
        for t in range(T):
            self.assertFalse(weights[:, :, t, t + 1 :].any(), f"position {t} looks ahead")
            self.assertTrue((weights[:, :, t, : t + 1] > 0).all(), f"position {t} misses something before")

    def test_future_tokens_are_invisible(self) -> None:
        """Other tokens after t leave every output up to t bit for bit as it was, for every t."""
        B, T, H, G, D = 2, 6, 6, 2, 3
        x, *weights = inputs(B, T, H, G, D)
        before, _ = tried.multi_head_attention(x, *weights, H, G)
        for t in range(T - 1):
            other = x.copy()
            other[:, t + 1 :] += 100.0
            after, _ = tried.multi_head_attention(other, *weights, H, G)
            np.testing.assert_array_equal(after[:, :, : t + 1], before[:, :, : t + 1], f"position {t}")
            self.assertFalse(np.array_equal(after[:, :, t + 1], before[:, :, t + 1]))

    def test_sequences_and_heads_do_not_see_each_other(self) -> None:
        """A changed sequence changes itself alone, a query head's columns its head, a key head's a group."""
        B, H, G, D = 3, 6, 2, 3
        arrays = inputs(B, 5, H, G, D)
        before, _ = tried.multi_head_attention(*arrays, H, G)

        def changed(which: int, place: Any, axis: int) -> list[int]:
            other = [array.copy() for array in arrays]
            other[which][place] += 1.0
            after, _ = tried.multi_head_attention(*other, H, G)
            pairs = zip(np.moveaxis(after, axis, 0), np.moveaxis(before, axis, 0), strict=True)
            return [i for i, (now, then) in enumerate(pairs) if not np.array_equal(now, then)]

        for b in range(B):
            self.assertEqual(changed(0, b, 0), [b])
        for which, heads in ((1, H), (2, G), (3, G)):
            size = H // heads
            for head in range(heads):
                columns = (slice(None), slice(head * D, (head + 1) * D))
                self.assertEqual(changed(which, columns, 1), list(range(head * size, (head + 1) * size)))

    def test_a_spike_is_read_by_its_own_group_alone(self) -> None:
        """A key 20 above all others in one key/value head draws its value to that group's query heads."""
        B, T, H, G, D = 2, 5, 6, 2, 4
        rng = np.random.default_rng(5)
        q = np.ones((B, H, T, D))
        k = np.zeros((B, G, T, D))
        v = rng.standard_normal((B, G, T, D))
        for g, spiked in enumerate((1, 3)):
            k[:, g, spiked] = 20 * math.sqrt(D) / D  # q·k/√D is 20 there and 0 elsewhere
        output, _ = tried.grouped_attention(q, k, v)
        for h in range(H):
            g, spiked = (0, 1) if h < H // G else (1, 3)
            np.testing.assert_allclose(output[:, h, -1], v[:, g, spiked], atol=1e-7, err_msg=f"head {h}")

    def test_large_scores_stay_finite(self) -> None:
        """Rows whose scores differ by thousands stay finite: each row has a maximum of its own."""
        for dtype in (np.float64, np.float32):
            x, *weights = inputs(2, 6, 6, 2, 3, dtype=dtype)
            scale = np.array([1, 100, 1, 100, 1, 100], dtype)[:, None]
            output, rows = tried.multi_head_attention(x * scale, *weights, 6, 2)
            self.assertTrue(np.isfinite(output).all(), dtype.__name__)
            np.testing.assert_allclose(rows.sum(axis=-1), 1.0, rtol=1e-6)

    def test_arguments_are_left_alone(self) -> None:
        """Read-only arguments are accepted, and no result shares memory with any of them."""
        arrays = inputs(2, 5, 6, 2, 3)
        copies = [array.copy() for array in arrays]
        for result in tried.multi_head_attention(*arrays, 6, 2):
            for array, copy in zip(arrays, copies, strict=True):
                self.assertFalse(np.shares_memory(result, array))
                np.testing.assert_array_equal(array, copy)


class GroupedQueryAttentionTest(unittest.TestCase):
    """G key/value heads read by H query heads, without copies of them."""

    def test_every_divisor_equals_repeated_heads(self) -> None:
        """For H in 6 and 8 and every G that divides it, GQA equals MHA with each K, V head repeated."""
        B, T, D, C = 2, 5, 3, 7
        for H, G in ((6, 1), (6, 2), (6, 3), (6, 6), (8, 1), (8, 2), (8, 4), (8, 8)):
            x, wq, *kv = inputs(B, T, H, G, D, C)
            every = [np.repeat(w.reshape(C, G, D), H // G, axis=1).reshape(C, H * D) for w in kv]
            found = tried.multi_head_attention(x, wq, *kv, H, G)
            for one, other in zip(found, tried.multi_head_attention(x, wq, *every, H), strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=1e-14, err_msg=f"H={H} G={G}")

    def test_keys_and_values_are_not_repeated_in_memory(self) -> None:
        """A decode step and a short prefill allocate less than one K of H heads would take."""
        B, H, G, S, D = 2, 8, 2, 512, 64
        k, v = (np.ones((B, G, S, D), np.float32) for _ in range(2))
        one_repeated_k = B * H * S * D * 4
        for T in (1, 3):
            q = np.ones((B, H, T, D), np.float32)
            with self.subTest(T=T):
                self.assertLess(_peak_bytes(lambda q=q: tried.grouped_attention(q, k, v)), one_repeated_k)
        self.assertGreaterEqual(_peak_bytes(lambda: np.repeat(k, H // G, axis=1)), one_repeated_k)


class FastFormTest(unittest.TestCase):
    """What `prefill` and `decode` compute with, against the textbook form in float64."""

    def assert_equal(self, found: Array, q: Array, k: Array, v: Array, at: Any = slice(None)) -> None:
        """`found` is the float64 output of grouped_attention, at these positions, within the tolerance.

        As in scalar_oracle: roundings · max|V| · max(1, max|score|).
        """
        q64, k64, v64 = (array.astype(np.float64) for array in (q, k, v))
        S, T = k.shape[2], q.shape[2]
        roundings = 1e-6 if found.dtype == np.float32 else 1e-14
        for t in range(T)[at]:
            seen = S - T + t + 1
            expected, _ = multi_head.grouped_attention(
                q64[:, :, t : t + 1], k64[:, :, :seen], v64[:, :, :seen]
            )
            every_k = np.repeat(k64[:, :, :seen], q.shape[1] // k.shape[1], axis=1)
            score = float(np.abs(q64[:, :, t : t + 1] @ every_k.swapaxes(2, 3)).max()) / math.sqrt(q.shape[3])
            allowed = roundings * float(np.abs(v64).max()) * max(1.0, score)
            self.assertLessEqual(np.abs(found[:, :, t] - expected[:, :, 0]).max(), allowed, f"position {t}")

    def test_blocks_of_queries_equal_the_textbook(self) -> None:
        """Around every edge of a block, behind 0 or 5 cached positions, all at once or one head at a time."""
        cases = itertools.product((np.float32, np.float64), (1, 2, 63, 64, 65, 130), (0, 5), SCORES)
        for dtype, T, cached, scores in cases:
            q, k, v = heads(2, T, T + cached, 6, 3, 5, dtype)
            with self.subTest(T=T, cached=cached, scores=scores, dtype=dtype.__name__):
                with mock.patch.object(multi_head, "_SCORES", scores):
                    found = multi_head.causal_blocks(q / math.sqrt(5), k, v)
                self.assertEqual(found.dtype, dtype)
                self.assert_equal(found, q, k, v)

    def test_blocks_of_positions_equal_the_textbook(self) -> None:
        """8192 positions and one less in a longer cache, every G of 8 heads, two sequences, both dtypes."""
        B, H, D = 2, 8, 8
        for dtype, S, G in itertools.product((np.float32, np.float64), (8191, 8192), (1, 2, 4, 8)):
            q, k, v = heads(B, 1, S, H, G, D, dtype)
            columns = np.full((B, G, D, 8200), np.nan, dtype)
            columns[..., :S] = k.swapaxes(2, 3)
            output = np.empty((B, G, H // G, D), dtype)
            grouped = (q / math.sqrt(D)).reshape(output.shape)
            with mock.patch.object(multi_head, "_MULTIPLY_ADDS", 2**15):
                multi_head.newest_blocks(grouped, columns[..., :S], v, output)
            with self.subTest(G=G, S=S, dtype=dtype.__name__):
                self.assert_equal(output.reshape(B, H, 1, D), q, k, v)

    def test_a_product_stays_below_what_blas_copies(self) -> None:
        """With 4 queries a head and D = 64 no product with 8192 positions has a million multiply-adds."""
        sizes: list[int] = []
        q, k, v = heads(1, 1, 8192, 8, 2, 64, np.float32)

        def counted(a: Array, b: Array, out: Array) -> Array:
            sizes.append(a.shape[-2] * a.shape[-1] * b.shape[-1])
            out[...] = a @ b
            return out

        output = np.empty((1, 2, 4, 64), np.float32)
        with mock.patch("numpy.matmul", side_effect=counted):
            multi_head.newest_blocks(q.reshape(1, 2, 4, 64), k.swapaxes(2, 3), v, output)
        self.assertGreater(len(sizes), 2)
        self.assertLess(max(sizes), 10**6)

    def test_a_prompt_of_8192(self) -> None:
        """Every 500th position of a prefill of 8192 and the last one equal the textbook form."""
        q, k, v = heads(1, 8192, 8192, 2, 1, 8, np.float32)
        found = multi_head.causal_blocks(q / math.sqrt(8), k, v)
        self.assert_equal(found, q, k, v, slice(8191, None, -500))

    def test_logits_of_ten_thousand(self) -> None:
        """Scores up to 1e4 of both signs: finite, and equal to the textbook form in float64."""
        for dtype in (np.float32, np.float64):
            q, k, v = heads(2, 70, 70, 6, 2, 5, dtype)
            q *= 1e4 / np.abs(q).max() / np.abs(k).max()
            with self.subTest(dtype.__name__):
                self.assert_equal(multi_head.causal_blocks(q / math.sqrt(5), k, v), q, k, v)
                output = np.empty((2, 2, 3, 5), dtype)
                last = np.ascontiguousarray(q[:, :, -1:])
                grouped = (last / math.sqrt(5)).reshape(output.shape)
                multi_head.newest_blocks(grouped, k.swapaxes(2, 3), v, output)
                self.assert_equal(output.reshape(2, 6, 1, 5), last, k, v)


def heads(B: int, T: int, S: int, H: int, G: int, D: int, dtype: Any) -> tuple[Array, Array, Array]:
    """Unit normal q (B, H, T, D), k and v (B, G, S, D)."""
    rng = np.random.default_rng(7)
    shapes = ((B, H, T, D), (B, G, S, D), (B, G, S, D))
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return q, k, v


class InputContractTest(unittest.TestCase):
    """What is refused before any arithmetic, each in its own words (a reader's functions need not)."""

    def refused(self, message: str, call: Any) -> str:
        """The call raises InputError, a ValueError, of one line that says so; returns it."""
        with self.subTest(message), self.assertRaisesRegex(InputError, message) as caught:
            call()
        self.assertIsInstance(caught.exception, ValueError)
        self.assertNotIn("\n", str(caught.exception))
        return str(caught.exception)

    def test_impossible_sizes(self) -> None:
        """Heads that do not split or divide, unlike widths, more queries than keys: no cache changes."""
        m, eight = multi_head, np.ones((2, 4, 8))
        x, wq, wk, wv = inputs(2, 5, 6, 2, 3)
        q, k, v = m.project(x, wq, wk, wv, 6, 2)
        weights = m.fuse(wq, wk, wv, 6, 2)
        cache = m.PreallocatedCache((2, 2, 5), 3, 3, np.float64)
        for call, message in (
            *((lambda n=n: m.split_heads(eight, n), f"num_heads is {n!r}")
              for n in (0, -4, True, 2.0, "2", None)),
            (lambda: m.split_heads(eight, 3), "projected is 8 wide, must .* its 3 heads"),
            (lambda: m.split_heads(eight[0], 2), r"projected has shape \(4, 8\)"),
            (lambda: m.split_heads([[[1.0]]], 1), "projected is a list"),  # pyright: ignore
            (lambda: m.merge_heads(eight), r"per_head has shape \(2, 4, 8\)"),
            (lambda: m.project(x, wq, wk, wv, 6, 4), "num_heads 6 is not a multiple of num_kv_heads 4"),
            (lambda: m.project(x[..., 1:], wq, wk, wv, 6, 2), "wq has shape .*C is 7, must be 6 as in x"),
            (lambda: m.fuse(wq, wk, wv, 0, 2), "num_heads is 0"),
            (lambda: m.fuse(wq, wk[:, 1:], wv, 6, 2), "wk is 5 wide"),
            (lambda: m.cached_step(x, wq, wk, wv, 6, 5, cache), "not a multiple of num_kv_heads 5"),
            (lambda: m.prefill(x[..., 1:], weights, cache), "C is 7, must be 6"),
            (lambda: m.decode(x[0], weights, cache), r"x has shape \(5, 7\)"),
            (lambda: m.prefill(x[:1], weights, cache), r"must be float64 \(2, 2, T, 3\)"),
            *((lambda form=form: form(x.astype("f4"), weights, cache), "x is float32, must be float64")
              for form in (m.prefill, m.decode)),
            *((lambda form=form: form(q[:, 1:], k, v), "num_heads 5 is not a multiple")
              for form in (m.grouped_attention, m.causal_blocks)),
            *((lambda form=form: form(q, k[:, :, 1:], v[:, :, 1:]), "q has 5 positions, .* at most the 4")
              for form in (m.grouped_attention, m.causal_blocks)),
            (lambda: m.grouped_attention(q, k, v[:1]), r"v has shape .*B is 1, must be 2 as in q"),
            (lambda: m.grouped_attention(q[..., :0], k[..., :0], v[..., :0]), "no axis of size 0"),
        ):  # fmt: skip
            self.refused(message, call)
            self.assertEqual(cache.length, 0)

    def test_each_violation_has_its_own_message(self) -> None:
        """Every broken rule of the checked function names the argument and the rule."""
        x, wq, wk, wv = inputs(2, 5, 6, 2, 3)
        good: dict[str, Any] = {"x": x, "wq": wq, "wk": wk, "wv": wv, "num_heads": 6, "num_kv_heads": 2}
        nan, infinite = x.copy(), wk.copy()
        nan[1, 2, 3], infinite[0, 0] = math.nan, math.inf
        cases: tuple[tuple[dict[str, Any], str], ...] = (
            ({"x": x[0]}, r"x has shape \(5, 7\).*\(B, T, C\)"),
            ({"wq": wq[None]}, r"wq has shape \(1, 7, 18\)"),
            ({"x": x[:, :0]}, r"x has shape \(2, 0, 7\).*size 0"),
            ({"x": x[:0]}, r"x has shape \(0, 5, 7\).*size 0"),
            ({"x": x.tolist()}, "x is a list"),
            ({"wk": wk[:-1]}, r"wk has shape \(6, 6\).*C is 6, must be 7"),
            ({"x": x.astype(np.int64)}, "x is int64, must be float32 or float64"),
            ({"x": x.astype(np.float16)}, "x is float16, must be float32 or float64"),
            ({"wv": wv.astype(np.float32)}, "wv is float32, must be float64"),
            ({"x": nan}, r"x holds nan at \(1, 2, 3\)"),
            ({"wk": infinite}, r"wk holds inf at \(0, 0\)"),
            ({"num_heads": 0}, "num_heads is 0"),
            ({"num_heads": True}, "num_heads is True"),
            ({"num_heads": 6.0}, r"num_heads is 6\.0"),
            ({"num_kv_heads": -1}, "num_kv_heads is -1"),
            ({"num_kv_heads": 4}, "num_heads 6 is not a multiple of num_kv_heads 4"),
            ({"num_heads": 2, "num_kv_heads": 4}, "num_heads 2 is not a multiple of num_kv_heads 4"),
            ({"num_heads": 4}, "wq is 18 wide, must be a multiple of its 4 heads"),
            ({"wk": wk[:, :5]}, "wk is 5 wide, must be a multiple of its 2 heads"),
            ({"wk": wk[:, :4]}, "wk has 2 heads of width 2, must be 3 wide as in wq"),
            ({"wv": wv[:, :4]}, "wv has 2 heads of width 2, must be 3 wide as in wq"),
            ({"num_kv_heads": 1}, "wk has 1 heads of width 6, must be 3 wide as in wq"),
        )
        attend = multi_head.multi_head_attention
        messages = {self.refused(message, partial(attend, **{**good, **change})) for change, message in cases}
        self.assertEqual(len(messages), len(cases))
        attend(**good)


def _peak_bytes(call: Any) -> int:
    """The most memory that is allocated at one time while `call` runs, NumPy's arrays included."""
    call()
    tracemalloc.start()
    try:
        result = call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    del result
    return peak


if __name__ == "__main__":
    unittest.main()

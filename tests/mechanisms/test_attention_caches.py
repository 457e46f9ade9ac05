"""Decoding with a cache: who shares memory, what is read, and what a step costs."""

import contextlib
import itertools
import unittest
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.mechanisms.kv_cache import CACHES, KVCache, PreallocatedCache
from tests.scalar_oracle import inputs, read_only

PATHS = attention.DECODE_PATHS


class CacheTest(unittest.TestCase):
    """What a decode hands out, and what it sees of slots."""

    def test_returned_caches_share_nothing(self) -> None:
        """Output and caches share no memory with an argument or another decode, identity weights or not."""
        for T, cache in itertools.product((1, 6), CACHES):
            arrays = [np.random.default_rng(0).standard_normal((2, T, 3)), *(np.eye(3) for _ in range(3))]
            found = attention.cached_attention(*arrays, cache=cache)
            kept = [result.copy() for result in found]
            others = attention.cached_attention(2 * arrays[0], *arrays[1:], cache=cache)
            arrays[0][...] = np.nan
            for result, before in zip(found, kept, strict=True):
                with self.subTest(cache=cache, T=T):
                    self.assertFalse(any(np.shares_memory(result, other) for other in (*arrays, *others)))
                    np.testing.assert_array_equal(result, before)

    def test_a_stale_slot_is_overwritten(self) -> None:
        """Slots used again for other tokens hold the new rows alone, and a decode with them is right."""
        x, *weights = inputs(2, 4)
        cache = PreallocatedCache((2, 4), 3, 5, np.float64)
        for sequences in (x, 7 - x, -x):
            cache.reset()
            for t in range(4):
                output, _, *slots = attention.decode_step(sequences[:, t], *weights, cache)
                expected, *caches = attention.cached_attention(sequences[:, : t + 1], *weights)
                for found, right in zip((output, *slots), (expected[:, -1], *caches), strict=True):
                    np.testing.assert_allclose(found, right, rtol=0, atol=1e-14)

    def test_an_unwritten_slot_is_never_read(self) -> None:
        """With fresh memory full of NaN the decode is unchanged: 0 · NaN would be NaN."""
        arrays = inputs(2, 6)
        expected = attention.preallocated(*arrays)
        with mock.patch.object(np, "empty", lambda shape, dtype=float: np.full(shape, np.nan, dtype)):
            for path in attention.DECODE_PATHS.values():
                np.testing.assert_allclose(path(*arrays), expected, rtol=0, atol=1e-14)


class EveryDecodeStartsEmptyTest(unittest.TestCase):
    """A repeat is a whole decode."""

    def test_length_is_zero_at_the_start_of_each_repeat(self) -> None:
        """Three repeats of a cached path append at lengths 0 to T-1 each time, one token a step."""
        arrays = inputs(2, 5)
        for name, kind in CACHES.items():
            lengths: list[int] = []
            append = kind.append

            def spy(cache: KVCache, k: Array, v: Array, append: Any = append, seen: Any = lengths) -> None:
                seen.append(cache.length)
                self.assertEqual((k.shape, v.shape), ((2, 1, 3), (2, 1, 5)))
                append(cache, k, v)

            with mock.patch.object(kind, "append", spy):
                outputs = [attention.DECODE_PATHS[name](*arrays) for _ in range(3)]
            with self.subTest(cache=name):
                self.assertEqual(lengths, [0, 1, 2, 3, 4] * 3)
                np.testing.assert_array_equal(outputs[0], outputs[1])
                np.testing.assert_array_equal(outputs[0], outputs[2])


class Counted(np.ndarray):
    """An array that writes down each matrix product it takes part in: its multiply-adds."""

    products: ClassVar[list[int]] = []

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = (), **options: Any) -> Any:
        """Do it with plain arrays, count products, and give a Counted array back."""
        plain = [np.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
        if out:
            options["out"] = tuple(np.asarray(a) for a in out)
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc in (np.matmul, np.matvec, np.vecmat):
            Counted.products.append(result.size * plain[0].shape[-1])
        return result.view(Counted)


class WorkTest(unittest.TestCase):
    """What a path computes, counted: outputs alone cannot tell the paths apart."""

    def products(self, path: attention.DecodePath, *arrays: Array) -> list[int]:
        """Multiply-adds of each matrix product of one decode."""
        empty = np.empty
        Counted.products.clear()
        with mock.patch.object(np, "empty", lambda *a, **o: empty(*a, **o).view(Counted)):
            path(*(a.view(Counted) for a in arrays))
        return list(Counted.products)

    def test_multiply_adds_are_those_of_the_glossary(self) -> None:
        """no_cache projects and attends for the whole prefix, last_query for one, a cache keeps K and V."""
        B, T, C, D, E = 2, 7, 6, 3, 5
        ns = range(1, T + 1)
        cached = sum(C * (2 * D + E) + n * (D + E) for n in ns)
        expected = {
            "no_cache": sum(n * C * (2 * D + E) + n * n * (D + E) for n in ns),
            "no_cache_last_query": sum(C * D + n * C * (D + E) + n * (D + E) for n in ns),
            "dynamic": cached,
            "preallocated": cached,
        }
        found = {name: self.products(path, *inputs(B, T, C, D, E)) for name, path in PATHS.items()}
        self.assertEqual(
            {name: sum(of) for name, of in found.items()}, {n: B * s for n, s in expected.items()}
        )
        for name in ("dynamic", "preallocated"):  # projecting ahead would be a prefill
            self.assertEqual(max(found[name]), B * C * (2 * D + E))

    def test_a_timed_path_checks_no_value_and_changes_no_input(self) -> None:
        """The timed half calls no function that looks at values, and a decode leaves its inputs alone."""
        arrays = inputs(2, 6)
        before = [a.tobytes() for a in arrays]
        with contextlib.ExitStack() as stack:
            for place, name in ((attention, "check_arrays"), (attention, "check_inputs"), (np, "isfinite")):
                stack.enter_context(mock.patch.object(place, name, side_effect=AssertionError("checked")))
            for path in PATHS.values():
                path(*arrays)
        attention.causal_attention(*arrays)
        step = PreallocatedCache((2, 6), 3, 5, np.float64)
        attention.decode_step(read_only(arrays[0][:, 0]), *arrays[1:], step)
        self.assertEqual([a.tobytes() for a in arrays], before)

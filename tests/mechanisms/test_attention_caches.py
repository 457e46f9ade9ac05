"""Decoding with a cache: who shares memory, what is read, and what a step costs."""

import unittest
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.mechanisms.kv_cache import CACHES, KVCache, PreallocatedCache
from tests.scalar_oracle import inputs, read_only


def new(kind: type[KVCache], T: int = 4) -> KVCache:
    """An empty cache for two sequences of T tokens, keys 3 and values 5 wide."""
    return kind((2, T), 3, 5, np.float64)


class CacheTest(unittest.TestCase):
    """What a decode hands out."""

    def test_returned_caches_share_nothing_with_the_inputs(self) -> None:
        """Output and caches share no memory with x or a weight, even with identity weights and T = 1."""
        for T in (1, 6):
            x = np.random.default_rng(0).standard_normal((2, T, 3))
            weights = [np.eye(3) for _ in range(3)]
            for cache in CACHES:
                found = attention.cached_attention(x, *weights, cache=cache)
                for result in found:
                    for argument in (x, *weights):
                        with self.subTest(cache=cache, T=T):
                            self.assertFalse(np.shares_memory(result, argument))
                kept = [result.copy() for result in found]
                x[...] = np.nan
                for result, before in zip(found, kept, strict=True):
                    np.testing.assert_array_equal(result, before)
                x[...] = 1

    def test_two_decodes_share_nothing(self) -> None:
        """A second decode is as if the first had never been."""
        x, *weights = inputs(2, 6)
        for cache in CACHES:
            first = attention.cached_attention(x, *weights, cache=cache)
            kept = [result.copy() for result in first]
            second = attention.cached_attention(2 * x, *weights, cache=cache)
            for result, before, other in zip(first, kept, second, strict=True):
                with self.subTest(cache=cache):
                    self.assertFalse(np.shares_memory(result, other))
                    np.testing.assert_array_equal(result, before)


class PreallocatedCacheTest(unittest.TestCase):
    """What a decode sees of slots."""

    def test_a_stale_slot_is_overwritten(self) -> None:
        """Slots used again for other tokens hold the new rows alone, and a decode with them is right."""
        x, *weights = inputs(2, 4)
        cache = new(PreallocatedCache)
        for sequences in (x, 7 - x, -x):
            cache.reset()
            for t in range(4):
                output, _, keys, values = attention.decode_step(sequences[:, t], *weights, cache)
                expected, k_cache, v_cache = attention.cached_attention(sequences[:, : t + 1], *weights)
                np.testing.assert_allclose(keys, k_cache, rtol=0, atol=1e-14)
                np.testing.assert_allclose(values, v_cache, rtol=0, atol=1e-14)
                np.testing.assert_allclose(output, expected[:, -1], rtol=0, atol=1e-14)

    def test_an_unwritten_slot_is_never_read(self) -> None:
        """With fresh memory full of NaN the decode is unchanged: 0 · NaN would be NaN."""
        arrays = inputs(2, 6)
        expected = attention.preallocated(*arrays)

        def poisoned(shape: Any, dtype: Any = float) -> Array:
            return np.full(shape, np.nan, dtype)

        with mock.patch.object(np, "empty", poisoned):
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

            def spy(
                cache: KVCache, k: Array, v: Array, append: Any = append, lengths: list[int] = lengths
            ) -> None:
                lengths.append(cache.length)
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
        expected = {
            "no_cache": sum(n * C * (2 * D + E) + n * n * (D + E) for n in ns),
            "no_cache_last_query": sum(C * D + n * C * (D + E) + n * (D + E) for n in ns),
            "dynamic": sum(C * (2 * D + E) + n * (D + E) for n in ns),
            "preallocated": sum(C * (2 * D + E) + n * (D + E) for n in ns),
        }
        arrays = inputs(B, T, C, D, E)
        self.assertEqual(set(expected), set(attention.DECODE_PATHS))
        for name, path in attention.DECODE_PATHS.items():
            with self.subTest(name):
                self.assertEqual(sum(self.products(path, *arrays)), B * expected[name])

    def test_a_cached_step_projects_its_own_token_alone(self) -> None:
        """No product is larger than one token's projection: projecting ahead would be a prefill."""
        B, T, C, D, E = 2, 7, 6, 3, 5
        arrays = inputs(B, T, C, D, E)
        for path in (attention.dynamic, attention.preallocated):
            self.assertEqual(max(self.products(path, *arrays)), B * C * (2 * D + E))

    def test_a_timed_path_holds_no_check(self) -> None:
        """The timed half calls no function that checks."""
        arrays = inputs(2, 4)
        refuse = AssertionError("checked")
        with (
            mock.patch.object(attention, "check_arrays", side_effect=refuse),
            mock.patch.object(attention, "check_inputs", side_effect=refuse),
            mock.patch.object(np, "isfinite", side_effect=refuse),
        ):
            for path in attention.DECODE_PATHS.values():
                path(*arrays)


class InputsAreLeftAloneTest(unittest.TestCase):
    """No function writes to what it is given."""

    def test_no_input_changes(self) -> None:
        """A decode leaves its inputs as they were."""
        arrays = inputs(2, 6)
        before = [a.tobytes() for a in arrays]
        for name, path in {**attention.DECODE_PATHS, "one pass": attention.causal_attention}.items():
            with self.subTest(name):
                path(*arrays)
                self.assertEqual([a.tobytes() for a in arrays], before)
        x, *weights = arrays
        attention.decode_step(read_only(x[:, 0]), *weights, new(PreallocatedCache))
        self.assertEqual([a.tobytes() for a in arrays], before)

"""The caches: where a token lies, who shares memory, what is refused."""

import itertools
import unittest
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import InputError
from inference_lab.mechanisms.arrays import Array
from inference_lab.mechanisms.kv_cache import CACHES, DynamicCache, KVCache, PreallocatedCache

LEADING = ((), (2,), (2, 3))
D, E = 3, 5


def tokens(leading: tuple[int, ...], T: int, seed: int = 0) -> tuple[Array, Array]:
    """Keys (..., T, D) and values (..., T, E), all different."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((*leading, T, D)), rng.standard_normal((*leading, T, E))


def every_cache(T: int = 4, leading: tuple[tuple[int, ...], ...] = LEADING) -> Iterator[KVCache]:
    """An empty cache of each kind, number of leading axes and memory order."""
    for kind, axes, columns in itertools.product(CACHES.values(), leading, (False, True)):
        yield kind((*axes, T), D, E, np.float64, columns=columns)


class KeepTest(unittest.TestCase):
    """What a cache holds after any history."""

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(
        kind=st.sampled_from(tuple(CACHES.values())),
        leading=st.sampled_from(LEADING),
        columns=st.booleans(),
        steps=st.lists(st.tuples(st.sampled_from(("append", "truncate", "reset")), st.integers(1, 4))),
    )
    def test_any_history(
        self, kind: type[KVCache], leading: tuple[int, ...], columns: bool, steps: list[tuple[str, int]]
    ) -> None:
        """Keys and values are those of the tokens appended and not forgotten, in order."""
        cache = kind((*leading, 100), D, E, np.float64, columns=columns)
        expected_k, expected_v = tokens(leading, 0)
        for number, (what, n) in enumerate(steps):
            if what == "append" and cache.length + n <= 100:
                k, v = tokens(leading, n, number)
                expected_k = np.concatenate((expected_k, k), axis=-2)
                expected_v = np.concatenate((expected_v, v), axis=-2)
                cache.append(k, v)
                k[...], v[...] = np.nan, np.nan  # a cache keeps a copy
            else:
                length = 0 if what == "reset" else max(0, cache.length - n)
                expected_k, expected_v = expected_k[..., :length, :], expected_v[..., :length, :]
                cache.reset() if what == "reset" else cache.truncate(length)
            self.assertEqual(cache.length, expected_k.shape[-2])
            np.testing.assert_array_equal(cache.keys, expected_k)
            np.testing.assert_array_equal(cache.values, expected_v)
            np.testing.assert_array_equal(cache.key_columns, expected_k.swapaxes(-1, -2))

    def test_columns_lie_in_memory_as_a_product_reads_them(self) -> None:
        """The positions of one column of keys are neighbours in memory, or its widths are."""
        for cache in every_cache():
            for _ in range(3):
                cache.append(*tokens(cache.keys.shape[:-2], 1))
            columns = cache.key_columns.strides[-1] == 8
            self.assertEqual(columns, cache._columns)  # pyright: ignore[reportPrivateUsage]
            self.assertNotEqual(columns, cache.keys.strides[-1] == 8)

    def test_what_was_handed_out(self) -> None:
        """It shows what a preallocated cache writes there later; a dynamic cache's never changes."""
        for cache in every_cache():
            leading = cache.keys.shape[:-2]
            first, other = tokens(leading, 2, 0), tokens(leading, 2, 1)
            cache.append(*first)
            handed_out = cache.keys, cache.values
            cache.append(*other)
            if isinstance(cache, PreallocatedCache):  # no append moves anything
                self.assertEqual(cache.keys.ctypes.data, handed_out[0].ctypes.data)
                self.assertEqual(cache.keys.strides, handed_out[0].strides)
            np.testing.assert_array_equal(handed_out[0], first[0])
            cache.reset()
            cache.append(*other)
            for seen, right in zip(handed_out, other if cache.grows is False else first, strict=True):
                np.testing.assert_array_equal(seen, right)

    def test_nobody_writes_through_what_was_handed_out(self) -> None:
        """Keys and values that a cache hands out are read-only."""
        for cache in every_cache():
            for T in (0, 2):
                if T:
                    cache.append(*tokens(cache.keys.shape[:-2], T))
                for array in (cache.keys, cache.key_columns, cache.values):
                    with self.assertRaisesRegex(ValueError, "read-only"):
                        array[...] = 5.0

    def test_bytes_held(self) -> None:
        """A preallocated cache holds all of its slots at once, a dynamic one those of its length."""
        fixed, grown = (kind((2, 3, 7), D, E, np.float32) for kind in (PreallocatedCache, DynamicCache))
        one = np.ones((2, 3, 1, D), np.float32), np.ones((2, 3, 1, E), np.float32)
        for length in (0, 1, 2):
            self.assertEqual((fixed.nbytes, grown.nbytes), tuple(6 * T * (D + E) * 4 for T in (7, length)))
            fixed.append(*one)
            grown.append(*one)


class RefuseTest(unittest.TestCase):
    """One line that says what is wrong, and a cache as it was."""

    def test_appends_that_do_not_fit(self) -> None:
        """Another shape, one that would be repeated, another dtype, an unlike pair, no token, no array."""
        k, v = tokens((2, 3), 1)
        cases: tuple[tuple[Any, Any, str], ...] = (
            (
                k[:1],
                v[:1],
                r"k is float64 \(1, 3, 1, 3\) .* must be float64 \(2, 3, T, 3\) and \(2, 3, T, 5\)",
            ),
            (k[:, :1], v[:, :1], r"k is float64 \(2, 1, 1, 3\)"),
            (k[..., :1], v[..., :1], r"k is float64 \(2, 3, 1, 1\)"),
            (k[0], v[0], r"k is float64 \(3, 1, 3\)"),
            (k, k, r"v is float64 \(2, 3, 1, 3\)"),
            (k, np.repeat(v, 2, axis=2), r"v is float64 \(2, 3, 2, 5\)"),
            (k[:, :, :0], v[:, :, :0], r"k is float64 \(2, 3, 0, 3\)"),
            (np.float64(1), v, r"k is float64 \(\)"),
            (k.astype(np.float32), v.astype(np.float32), "k is float32 .* must be float64"),
            (k, v.astype(np.float32), "v is float32 .* must be float64"),
            ([1], [1], "k and v must be NumPy arrays"),
        )
        for cache in every_cache(leading=((2, 3),)):
            cache.append(k, v)
            for wrong_k, wrong_v, message in cases:
                with self.subTest(cache=type(cache).__name__, message=message):
                    with self.assertRaisesRegex(InputError, message):
                        cache.append(wrong_k, wrong_v)
                    self.assertEqual(cache.length, 1)
                    np.testing.assert_array_equal(cache.keys, k)

    def test_no_room(self) -> None:
        """A full cache refuses a token, says how many slots it needs, and keeps what it holds."""
        cache = PreallocatedCache((2, 4), D, E, np.float64)
        kept, _ = tokens((2,), 4)
        for T, more, message in (
            (0, 5, "5 more tokens do not fit: 0 of 4 slots"),
            (3, 2, "2 more .* 3 of 4 slots are taken; .* 5 or more"),
            (4, 1, "1 more .* 4 of 4 slots are taken"),
        ):
            cache.reset()
            if T:
                cache.append(kept[:, :T], tokens((2,), T)[1])
            with self.subTest(message), self.assertRaisesRegex(InputError, message):
                cache.append(*tokens((2,), more, 1))
            np.testing.assert_array_equal(cache.keys, kept[:, :T])

    def test_caches_that_cannot_be(self) -> None:
        """Sizes and dtypes that no cache can have are refused with the value."""
        for kind in CACHES.values():
            for shape, D_, E_, dtype, message in (
                ((0, 3), 3, 5, "f8", r"shape\[0\] is 0"),
                ((2, -1), 3, 5, "f8", r"shape\[1\] is -1"),
                ((2, 2.0), 3, 5, "f8", r"shape\[1\] is 2\.0"),
                ((2, True), 3, 5, "f8", r"shape\[1\] is True"),
                ((2, 4), 0, 5, "f8", "D is 0"),
                ((2, 4), 3, -1, "f8", "E is -1"),
                ((2, 4), 3, 5, "nope", "dtype is 'nope', must be of numbers"),
                ((2, 4), 3, 5, "O", "dtype is 'O', must be of numbers"),
            ):
                with self.subTest(message, kind=kind.__name__), self.assertRaisesRegex(InputError, message):
                    kind(shape, D_, E_, dtype)  # pyright: ignore[reportArgumentType]
        with self.assertRaisesRegex(InputError, "does not fit in memory; give it fewer slots"):
            PreallocatedCache((2, 2**60), 3, 5, np.float64)

    def test_lengths_that_are_not_there(self) -> None:
        """A cache is cut only to a length that it has."""
        for cache in every_cache():
            cache.append(*tokens(cache.keys.shape[:-2], 2))
            for length, message in ((3, "length is 3, must be at most the 2"), (-1, "length is -1")):
                with self.assertRaisesRegex(InputError, message):
                    cache.truncate(length)
            self.assertEqual(cache.length, 2)


if __name__ == "__main__":
    unittest.main()

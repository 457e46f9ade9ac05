"""What the functions of attention refuse, in which words, and what they keep."""

import itertools
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.errors import InputError
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import check_arrays
from inference_lab.mechanisms.kv_cache import CACHES, PreallocatedCache
from tests.scalar_oracle import inputs, read_only

ROOT = Path(__file__).resolve().parents[2]


CHECKED: tuple[Callable[..., Any], ...] = (
    attention.check_inputs,
    attention.decode_without_cache,
    partial(attention.cached_attention, cache="dynamic"),
    attention.cached_attention,
    attention.causal_attention,
)
X, WQ, WK, WV = inputs(2, 4)  # C = 6, D = 3, E = 5


def with_value(array: Any, value: float) -> Any:
    """A copy whose last element is `value`."""
    changed = array.copy()
    changed.flat[-1] = value
    return changed


# The four arguments, and what the message must say: the argument, what it is, what it must be.
BAD_INPUTS: tuple[tuple[tuple[Any, Any, Any, Any], str], ...] = (
    ((X.tolist(), WQ, WK, WV), "x is a list, must be a plain NumPy array"),
    ((X, None, WK, WV), "wq is a NoneType, must be a plain NumPy array"),
    ((X, np.matrix(WQ), WK, WV), "wq is a matrix, must be a plain NumPy array"),
    ((np.ma.array(X), WQ, WK, WV), "x is a MaskedArray, must be a plain NumPy array"),
    ((X.astype(int), WQ, WK, WV), "x is int64, must be float32 or float64"),
    ((X.astype("f2"), WQ, WK, WV), "x is float16, must be float32 or float64"),
    ((X, WQ, WK, WV.astype(complex)), "wv is complex128, must be float32 or float64"),
    ((X, WQ.astype(object), WK, WV), "wq is object, must be float32 or float64"),
    ((X.astype(">f8"), WQ, WK, WV), "x is >f8, must be float32 or float64"),
    ((X, WQ.astype("f4"), WK, WV), "wq is float32, must be float64 as x is"),
    ((X.astype("f4"), WQ, WK, WV), "wq is float64, must be float32 as x is"),
    ((X, WQ, WK, WV.astype("f4")), "wv is float32, must be float64 as x is"),
    ((np.array(1.0), WQ, WK, WV), "x has shape (), must have the axes (B, T, C) or (T, C)"),
    ((X[0, 0], WQ, WK, WV), "x has shape (6,), must have the axes (B, T, C) or (T, C)"),
    ((X[None], WQ, WK, WV), "x has shape (1, 2, 4, 6), must have the axes (B, T, C)"),
    ((X, WQ[0], WK, WV), "wq has shape (3,), must have the axes (C, D)"),
    ((X, WQ, WK, WV[None]), "wv has shape (1, 6, 5), must have the axes (C, E)"),
    ((X[:0], WQ, WK, WV), "x has shape (0, 4, 6), must have no axis of size 0"),
    ((X[:, :0], WQ, WK, WV), "x has shape (2, 0, 6), must have no axis of size 0"),
    ((X[..., :0], WQ[:0], WK[:0], WV[:0]), "x has shape (2, 4, 0), must have no axis of size 0"),
    ((X, WQ[:, :0], WK[:, :0], WV), "wq has shape (6, 0), must have no axis of size 0"),
    ((X, WQ, WK, WV[:, :0]), "wv has shape (6, 0), must have no axis of size 0"),
    ((X[..., :5], WQ, WK, WV), "wq has shape (6, 3): C is 6, must be 5 as in x"),
    ((X, WQ, WK, WV.T.copy()), "wv has shape (5, 6): C is 5, must be 6 as in x"),
    ((X, WQ, WV, WV), "wk has shape (6, 5): D is 5, must be 3 as in wq"),
    ((with_value(X, np.nan), WQ, WK, WV), "x holds nan at (1, 3, 5), must be finite"),
    ((X, with_value(WQ, np.inf), WK, WV), "wq holds inf at (5, 2), must be finite"),
    ((X, WQ, with_value(WK, -np.inf), WV), "wk holds -inf at (5, 2), must be finite"),
    ((X, WQ, WK, with_value(WV, np.nan)), "wv holds nan at (5, 4), must be finite"),
)  # fmt: skip


class BadInputTest(unittest.TestCase):
    """Every broken rule is refused before any arithmetic, in one line that says which."""

    def refused(self, says: str, call: Callable[..., Any], *arguments: Any) -> None:
        """The call raises InputError, a ValueError, whose one line begins with `says`."""
        with self.subTest(says, call=call), self.assertRaises(InputError) as caught:
            call(*arguments)
        message = str(caught.exception)
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual(message[: len(says)], says)
        self.assertNotIn("\n", message)

    def test_every_checked_function_refuses_every_bad_input(self) -> None:
        """Each public function refuses each bad input with an InputError."""
        for arguments, says in BAD_INPUTS:
            for function in CHECKED:
                self.refused(says, function, *arguments)
        says = "cache is 'paged', must be one of preallocated, dynamic"
        self.refused(says, attention.cached_attention, X, WQ, WK, WV, "paged")

    def test_nothing_is_computed_before_the_check(self) -> None:
        """A bad last input is refused before anything is computed or allocated."""
        bad = with_value(WV, np.nan)
        with mock.patch.object(attention, "attend", side_effect=AssertionError("computed")):
            for function in (attention.decode_without_cache, attention.causal_attention):
                self.refused("wv holds nan", function, X, WQ, WK, bad)
        with mock.patch.object(np, "empty", side_effect=AssertionError("allocated")):
            self.refused("wv holds nan", attention.cached_attention, X, WQ, WK, bad)

    def test_decode_step(self) -> None:
        """A token that does not fit weights or cache, or finds no room, is refused; the cache stays."""
        token, f8 = X[:, 0], np.float64
        bad = (
            (f8, "token has shape (2, 1, 6), must have the axes (B, C) or (C)", X[:, :1], WV),
            (f8, "token is float16, must be", token.astype("f2"), WV),
            (f8, "token holds nan at (1, 5), must be finite", with_value(token, np.nan), WV),
            (f8, "wq has shape (6, 3): C is 6, must be 5 as in token", token[:, :5], WV),
            (f8, "k is float64 (1, 1, 3) and v is float64 (1, 1, 5), must be float64 (2, T", token[:1], WV),
            (f8, "k is float64 (1, 3) and v is float64 (1, 5), must be float64 (2, T, 3)", token[0], WV),
            (f8, "k is float64 (2, 1, 3) and v is float64 (2, 1, 4), must be", token, WV[:, :4]),
            (np.float32, "k is float64 (2, 1, 3) and v is float64 (2, 1, 5), must be float32", token, WV),
        )  # fmt: skip
        for kind, (dtype, says, wrong, wv) in itertools.product(CACHES.values(), bad):
            cache = kind((2, 4), 3, 5, dtype)
            self.refused(says, attention.decode_step, wrong, WQ, WK, wv, cache)
            self.assertEqual(cache.length, 0)
        full = PreallocatedCache((2, 1), 3, 5, f8)
        _, _, keys, _ = attention.decode_step(token, WQ, WK, WV, full)
        says = "1 more tokens do not fit: 1 of 1 slots"
        self.refused(says, attention.decode_step, X[:, 1], WQ, WK, WV, full)
        np.testing.assert_array_equal(full.keys, keys)

    def test_softmax(self) -> None:
        """An axis that is not there and a row without a softmax are refused; nothing gives NaN."""
        for axis in (2, -3, None, True, 1.0):
            self.refused(f"axis is {axis!r}, must be an axis of x", attention.softmax, X[0], axis)
        self.refused("axis is 0, must be an axis of x", attention.softmax, np.array(1.0), 0)
        self.refused("x is a list", attention.softmax, [1.0], 0)
        self.refused("x is int64", attention.softmax, np.arange(3), 0)
        self.refused("x has a row along axis 0 that is empty", attention.softmax, X[:0], 0)
        for row in ([-np.inf, -np.inf], [0.0, np.nan], [0.0, np.inf]):
            with np.errstate(all="raise"):
                self.refused("x has a row along axis 1", attention.softmax, np.array([[0.0, 1.0], row]), 1)

    def test_scaled_dot_product_attention(self) -> None:
        """Arguments that do not fit, and a mask that hides every key from a query, are refused."""
        q, k, v, mask = X[..., :3], X[:, :, 3:], X[..., :5], np.tri(4, dtype=bool)
        hidden = mask & (np.arange(4) != 2)[:, None]
        says = "mask hides every key from a query"
        for arguments, message in (
            ((X[0, 0], k, v), "q has shape (6,), must have the axes (..., T, D)"),
            ((q, k[..., 1:], v), "k has shape (2, 4, 2): D is 2, must be 3 as in q"),
            ((q, k, v[:, 1:]), "v has shape (2, 3, 5): S is 3, must be 4 as in k"),
            ((q, k[0], v), "k has shape (4, 3): ... is (), must be (2,) as in q"),
            ((q, k, v.astype("f4")), "v is float32, must be float64"),
            ((with_value(q, np.inf), k, v), "q holds inf"),
            ((q, k, v, mask.tolist()), "mask is a list, must be a NumPy array"),
            ((q, k, v, mask * 1.0), "mask is float64, must be bool"),
            *(((q, k, v, np.ones(wrong, bool)), f"mask has shape {wrong}, must broadcast to (2, 4, 4)")
              for wrong in ((4, 3), (3, 4, 4), (1, 2, 4, 4))),
            *(((q, k, v, np.broadcast_to(hidden, shape)), says) for shape in ((4, 4), (2, 4, 4))),
            ((q, k, v, np.eye(4, 1, dtype=bool)), says),
            ((q, k, v, np.array(False)), says),
        ):  # fmt: skip
            self.refused(message, attention.scaled_dot_product_attention, *arguments)
        for fits in (np.ones((4, 1), bool), np.array(True), read_only(mask)):
            attention.scaled_dot_product_attention(q, k, v, fits)

    def test_the_timed_half_refuses_sizes(self) -> None:
        """Where NumPy's own text would come, or a wrong result, paths and `attend` say what does not fit."""
        for path in attention.DECODE_PATHS.values():
            self.refused("wq has shape (5, 3): C is 5, must be 6 as in x", path, X, WQ[1:], WK, WV)
        self.refused("x has shape (2, 0, 6), must have no axis", attention.dynamic, X[:, :0], WQ, WK, WV)
        self.refused("k has shape (2, 4, 5): D is 5, must be 6 as in q", attention.attend, X, X[..., 1:], X)
        self.refused("k has shape (2, 0, 6), must have no axis", attention.attend, X, X[:, :0], X[:, :0])

    def test_letters_of_axes(self) -> None:
        """`...` stands for the same axes in a whole call, a letter for one size also within a shape."""
        a = read_only(np.ones((2, 3, 4, 5)))
        for fits in (a, a[0, 0]):
            check_arrays(("a", fits, "... T D"), ("b", fits, "... T D"))
        check_arrays(("a", np.ones((3, 3)), "D D"))
        says = "b has shape (3, 2, 4, 5): ... is (3, 2)"
        self.refused(says, check_arrays, ("a", a, "... T D"), ("b", a.swapaxes(0, 1), "... T D"))
        self.refused("a has shape (3, 4): D is 4, must be 3", check_arrays, ("a", np.ones((3, 4)), "D D"))


class OptimizedTest(unittest.TestCase):
    """No check is an assert."""

    def test_bad_input_is_refused_under_python_o(self) -> None:
        """No check is an assert, which `python -O` removes."""
        done = subprocess.run(
            [sys.executable, "-O", "-m", "unittest", "tests.mechanisms.test_attention_contract.BadInputTest"],
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"Ran [1-9]")


class GoodInputTest(unittest.TestCase):
    """What the contract allows, works."""

    def test_shapes_and_dtypes(self) -> None:
        """Four positional arguments give an output, or an output and two caches, in the inputs' dtype."""
        for B, dtype in itertools.product((2, None), (np.float32, np.float64)):
            x, *weights = inputs(2, 4, dtype=dtype)
            x, leading = (x, (2,)) if B else (x[0], ())
            results = [
                path(x, *weights) for path in (*attention.DECODE_PATHS.values(), attention.causal_attention)
            ]
            for name, kind in CACHES.items():
                output, *caches = attention.cached_attention(x, *weights, cache=name)
                results.append(output)
                self.assertEqual([c.shape for c in caches], [(*leading, 4, 3), (*leading, 4, 5)])
                step = attention.decode_step(x[..., 0, :], *weights, kind((*leading, 4), 3, 5, dtype))
                self.assertEqual({array.dtype for array in (*caches, *step)}, {np.dtype(dtype)})
            self.assertEqual({(r.shape, r.dtype) for r in results}, {((*leading, 4, 5), np.dtype(dtype))})

    def test_one_token_without_a_batch(self) -> None:
        """decode_step takes (C,) with a cache of no batch axis, and gives what (1, C) gives."""
        for kind in CACHES.values():
            alone, batched = kind((4,), 3, 5, np.float64), kind((1, 4), 3, 5, np.float64)
            for t in range(4):
                found = attention.decode_step(X[0, t], WQ, WK, WV, alone)
                other = attention.decode_step(X[:1, t], WQ, WK, WV, batched)
                for a, b in zip(found, other, strict=True):
                    np.testing.assert_allclose(a, b[0], rtol=0, atol=1e-14)

    def test_a_memory_map_is_an_array(self) -> None:
        """An array in a file gives the same result as one in memory."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(X.tobytes())
            file.flush()
            mapped = np.memmap(file.name, X.dtype, "r", shape=X.shape)
            from_file = attention.decode_without_cache(mapped, WQ, WK, WV)
        self.assertIs(type(from_file), np.ndarray)
        np.testing.assert_array_equal(from_file, attention.decode_without_cache(X, WQ, WK, WV))

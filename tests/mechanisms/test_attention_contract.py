"""What the functions of attention refuse, in which words, and what they keep."""

import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.errors import InputError
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import check_arrays, check_mask
from inference_lab.mechanisms.kv_cache import CACHES, PreallocatedCache
from tests.scalar_oracle import inputs, read_only

ROOT = Path(__file__).resolve().parents[2]


def cached_dynamic(*arrays: Any) -> Any:
    """cached_attention with its other cache."""
    return attention.cached_attention(*arrays, cache="dynamic")


CHECKED: tuple[Callable[..., Any], ...] = (
    attention.check_inputs,
    attention.decode_without_cache,
    attention.cached_attention,
    cached_dynamic,
    attention.causal_attention,
)

X, WQ, WK, WV = inputs(2, 4)  # C = 6, D = 3, E = 5


def with_value(array: Any, value: float) -> Any:
    """A copy whose last element is `value`."""
    changed = array.copy()
    changed.flat[-1] = value
    return changed


# What is wrong, the four arguments, and what the message must say: the argument, what it is, what it must be.
BAD_INPUTS: tuple[tuple[str, tuple[Any, Any, Any, Any], str], ...] = (
    ("a list", (X.tolist(), WQ, WK, WV), "x is a list, must be a plain NumPy array"),
    ("nothing", (X, None, WK, WV), "wq is a NoneType, must be a plain NumPy array"),
    ("a matrix", (X, np.matrix(WQ), WK, WV), "wq is a matrix, must be a plain NumPy array"),
    ("a masked array", (np.ma.array(X), WQ, WK, WV), "x is a MaskedArray, must be a plain NumPy array"),
    ("integers", (X.astype(int), WQ, WK, WV), "x is int64, must be float32 or float64"),
    ("float16", (X.astype("f2"), WQ, WK, WV), "x is float16, must be float32 or float64"),
    ("complex", (X, WQ, WK, WV.astype(complex)), "wv is complex128, must be float32 or float64"),
    ("objects", (X, WQ.astype(object), WK, WV), "wq is object, must be float32 or float64"),
    ("swapped bytes", (X.astype(">f8"), WQ, WK, WV), "x is >f8, must be float32 or float64"),
    ("two dtypes", (X, WQ.astype("f4"), WK, WV), "wq is float32, must be float64 as x is"),
    ("two dtypes, x", (X.astype("f4"), WQ, WK, WV), "wq is float64, must be float32 as x is"),
    ("two dtypes, last", (X, WQ, WK, WV.astype("f4")), "wv is float32, must be float64 as x is"),
    ("x of rank 0", (np.array(1.0), WQ, WK, WV), "x has shape (), must have the axes (B, T, C) or (T, C)"),
    ("x of rank 1", (X[0, 0], WQ, WK, WV), "x has shape (6,), must have the axes (B, T, C) or (T, C)"),
    ("x of rank 4", (X[None], WQ, WK, WV), "x has shape (1, 2, 4, 6), must have the axes (B, T, C)"),
    ("w of rank 1", (X, WQ[0], WK, WV), "wq has shape (3,), must have the axes (C, D)"),
    ("w of rank 3", (X, WQ, WK, WV[None]), "wv has shape (1, 6, 5), must have the axes (C, E)"),
    ("no sequence", (X[:0], WQ, WK, WV), "x has shape (0, 4, 6), must have no axis of size 0"),
    ("no token", (X[:, :0], WQ, WK, WV), "x has shape (2, 0, 6), must have no axis of size 0"),
    ("no width", (X[..., :0], WQ[:0], WK[:0], WV[:0]), "x has shape (2, 4, 0), must have no axis of size 0"),
    ("no key width", (X, WQ[:, :0], WK[:, :0], WV), "wq has shape (6, 0), must have no axis of size 0"),
    ("no value width", (X, WQ, WK, WV[:, :0]), "wv has shape (6, 0), must have no axis of size 0"),
    ("x too narrow", (X[..., :5], WQ, WK, WV), "wq has shape (6, 3): C is 6, must be 5 as in x"),
    ("w transposed", (X, WQ, WK, WV.T.copy()), "wv has shape (5, 6): C is 5, must be 6 as in x"),
    ("wk too wide", (X, WQ, WV, WV), "wk has shape (6, 5): D is 5, must be 3 as in wq"),
    ("nan in x", (with_value(X, np.nan), WQ, WK, WV), "x holds nan at (1, 3, 5), must be finite"),
    ("inf in wq", (X, with_value(WQ, np.inf), WK, WV), "wq holds inf at (5, 2), must be finite"),
    ("-inf in wk", (X, WQ, with_value(WK, -np.inf), WV), "wk holds -inf at (5, 2), must be finite"),
    ("nan in wv", (X, WQ, WK, with_value(WV, np.nan)), "wv holds nan at (5, 4), must be finite"),
)  # fmt: skip


class BadInputTest(unittest.TestCase):
    """Every broken rule is refused before any arithmetic, in one line that says which."""

    def refused(self, says: str, call: Callable[..., Any], *arguments: Any) -> None:
        """The call raises InputError, a ValueError, whose one line begins with `says`."""
        with self.assertRaises(InputError) as caught:
            call(*arguments)
        message = str(caught.exception)
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual(message[: len(says)], says)
        self.assertNotIn("\n", message)

    def test_every_checked_function_refuses_every_bad_input(self) -> None:
        """Each public function refuses each bad input with an InputError."""
        for what, arguments, says in BAD_INPUTS:
            for function in CHECKED:
                with self.subTest(what, function=function.__name__):
                    self.refused(says, function, *arguments)

    def test_nothing_is_computed_before_the_check(self) -> None:
        """A bad last input is refused before anything is computed or allocated."""
        with mock.patch.object(attention, "attend", side_effect=AssertionError("computed")):
            for function in (attention.decode_without_cache, attention.causal_attention):
                self.refused("wv holds nan", function, X, WQ, WK, with_value(WV, np.nan))
        with mock.patch.object(np, "empty", side_effect=AssertionError("allocated")):
            self.refused("wv holds nan", attention.cached_attention, X, WQ, WK, with_value(WV, np.nan))

    def test_an_unknown_cache(self) -> None:
        """The refusal of an unknown cache names the known ones."""
        says = "cache is 'paged', must be one of preallocated, dynamic"
        self.refused(says, attention.cached_attention, X, WQ, WK, WV, "paged")

    def test_decode_step(self) -> None:
        """A token that does not fit weights or cache is refused and the cache stays as it was."""
        token = X[:, 0]
        bad = (
            ("token has shape (2, 1, 6), must have the axes (B, C) or (C)", X[:, :1], WV),
            ("token is float16, must be", token.astype("f2"), WV),
            ("token holds nan at (1, 5), must be finite", with_value(token, np.nan), WV),
            ("wq has shape (6, 3): C is 6, must be 5 as in token", token[:, :5], WV),
            ("k is float64 (1, 1, 3) and v is float64 (1, 1, 5), must be float64 (2, T, 3)", token[:1], WV),
            ("k is float64 (1, 3) and v is float64 (1, 5), must be float64 (2, T, 3)", token[0], WV),
            ("k is float64 (2, 1, 3) and v is float64 (2, 1, 4), must be", token, WV[:, :4]),
        )  # fmt: skip
        for kind in CACHES.values():
            cache = kind((2, 4), 3, 5, np.float64)
            for says, wrong, wv in bad:
                with self.subTest(says, cache=kind.__name__):
                    self.refused(says, attention.decode_step, wrong, WQ, WK, wv, cache)
                    self.assertEqual(cache.length, 0)

    def test_a_cache_never_rounds(self) -> None:
        """A float64 token is refused by a float32 cache, where writing it would round it silently."""
        for kind in CACHES.values():
            cache = kind((2, 4), 3, 5, np.float32)
            says = "k is float64 (2, 1, 3) and v is float64 (2, 1, 5), must be float32"
            self.refused(says, attention.decode_step, X[:, 0], WQ, WK, WV, cache)

    def test_a_full_cache(self) -> None:
        """One token more than there are slots is refused; the slots keep what they hold."""
        cache = PreallocatedCache((2, 2), 3, 5, np.float64)
        for t in range(2):
            attention.decode_step(X[:, t], WQ, WK, WV, cache)
        kept = cache.keys.copy()
        self.refused(
            "1 more tokens do not fit: 2 of 2 slots", attention.decode_step, X[:, 2], WQ, WK, WV, cache
        )
        np.testing.assert_array_equal(cache.keys, kept)

    def test_softmax(self) -> None:
        """An axis that is not there and a row without a softmax are refused; nothing gives NaN."""
        nan, inf = np.nan, np.inf
        self.refused("x is a list", attention.softmax, [1.0], 0)
        self.refused("x is int64", attention.softmax, np.arange(3), 0)
        self.refused("axis is 2, must be an axis of x", attention.softmax, X[0], 2)
        self.refused("axis is -3, must be an axis of x", attention.softmax, X[0], -3)
        self.refused("axis is None, must be an axis of x", attention.softmax, X[0], None)
        self.refused("axis is 0, must be an axis of x", attention.softmax, np.array(1.0), 0)
        self.refused("x has a row along axis 0 that is empty", attention.softmax, X[:0], 0)
        for row in ([-inf, -inf], [0.0, nan], [0.0, inf]):
            with self.subTest(row=row), np.errstate(all="raise"):
                x = np.array([[0.0, 1.0], row])
                self.refused("x has a row along axis 1", attention.softmax, x, 1)

    def test_scaled_dot_product_attention(self) -> None:
        """Arguments that do not fit, and a mask that hides every key from a query, are refused."""
        q, k, v = X[..., :3], X[:, :, 3:], X[..., :5]
        function = attention.scaled_dot_product_attention
        self.refused("q has shape (6,), must have the axes (..., T, D)", function, X[0, 0], k, v)
        self.refused("k has shape (2, 4, 2): D is 2, must be 3 as in q", function, q, k[..., 1:], v)
        self.refused("v has shape (2, 3, 5): S is 3, must be 4 as in k", function, q, k, v[:, 1:])
        self.refused("k has shape (4, 3): ... is (), must be (2,) as in q", function, q, k[0], v)
        self.refused("v is float32, must be float64", function, q, k, v.astype("f4"))
        self.refused("q holds inf", function, with_value(q, np.inf), k, v)
        mask = np.tri(4, dtype=bool)
        self.refused("mask is a list, must be a NumPy array", function, q, k, v, mask.tolist())
        self.refused("mask is float64, must be bool", function, q, k, v, mask * 1.0)
        for wrong in ((4, 3), (3, 4, 4), (1, 2, 4, 4)):
            says = f"mask has shape {wrong}, must broadcast to (2, 4, 4)"
            self.refused(says, function, q, k, v, np.ones(wrong, bool))
        hidden = mask.copy()
        hidden[2] = False
        for shape in ((4, 4), (2, 4, 4)):
            says = "mask hides every key from a query"
            self.refused(says, function, q, k, v, np.broadcast_to(hidden, shape))


class ImpossibleSizesTest(unittest.TestCase):
    """What the arithmetic refuses in words, where NumPy's own text would come, or a wrong result."""

    def test_paths_and_caches(self) -> None:
        """Timed paths and their parts refuse shapes that do not fit, too."""
        for call, message in (
            *((lambda path=path: path(X, WQ[1:], WK, WV), "wq has shape (5, 3): C is 5, must be 6 as in x")
              for path in attention.DECODE_PATHS.values()),
            (lambda: attention.dynamic(X[:, :0], WQ, WK, WV), "x has shape (2, 0, 6), must have no axis"),
            (lambda: attention.attend(X, X[..., 1:], X), "k has shape (2, 4, 5): D is 5, must be 6 as in q"),
            (lambda: attention.attend(X, X[:, :0], X[:, :0]), "k has shape (2, 0, 6), must have no axis"),
            *((lambda axis=axis: attention.softmax(X, axis), f"axis is {axis!r}, must be an axis")
              for axis in (True, 1.0, None, 3)),
        ):  # fmt: skip
            with self.subTest(message), self.assertRaises(InputError) as caught:
                call()
            self.assertIn(message, str(caught.exception))


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

    def test_signatures(self) -> None:
        """Four positional arguments give an output, or an output and two caches, of the stated shapes."""
        output = attention.decode_without_cache(X, WQ, WK, WV)
        self.assertEqual(output.shape, (2, 4, 5))
        output, k_cache, v_cache = attention.cached_attention(X, WQ, WK, WV)
        self.assertEqual((output.shape, k_cache.shape, v_cache.shape), ((2, 4, 5), (2, 4, 3), (2, 4, 5)))
        output, k_cache, v_cache = attention.cached_attention(X[0], WQ, WK, WV)
        self.assertEqual((output.shape, k_cache.shape, v_cache.shape), ((4, 5), (4, 3), (4, 5)))

    def test_dtype_is_kept(self) -> None:
        """float32 gives float32 and float64 float64, for outputs, weights and caches."""
        for dtype in (np.float32, np.float64):
            arrays = x, *weights = inputs(2, 4, dtype=dtype)
            results = [path(*arrays) for path in attention.DECODE_PATHS.values()]
            results.append(attention.causal_attention(*arrays))
            for name, kind in CACHES.items():
                results += attention.cached_attention(*arrays, cache=name)
                results += attention.decode_step(x[:, 0], *weights, kind((2, 4), 3, 5, dtype))
            for result in results:
                self.assertEqual(result.dtype, dtype)

    def test_one_token_without_a_batch(self) -> None:
        """decode_step takes (C,) with a cache of no batch axis, and gives what (1, C) gives."""
        for kind in CACHES.values():
            alone, batched = kind((4,), 3, 5, np.float64), kind((1, 4), 3, 5, np.float64)
            for t in range(4):
                found = attention.decode_step(X[0, t], WQ, WK, WV, alone)
                other = attention.decode_step(X[:1, t], WQ, WK, WV, batched)
                for a, b in zip(found, other, strict=True):
                    np.testing.assert_allclose(a, b[0], rtol=0, atol=1e-14)
        self.assertEqual(found[0].shape, (5,))

    def test_a_memory_map_is_an_array(self) -> None:
        """An array in a file gives the same result as one in memory."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(X.tobytes())
            file.flush()
            mapped = np.memmap(file.name, X.dtype, "r", shape=X.shape)
            from_file = attention.decode_without_cache(mapped, WQ, WK, WV)
        self.assertIs(type(from_file), np.ndarray)
        np.testing.assert_array_equal(from_file, attention.decode_without_cache(X, WQ, WK, WV))


class ArrayContractTest(unittest.TestCase):
    """The check every mechanism shares."""

    def test_leading_axes_are_one_name(self) -> None:
        """`...` stands for the same axes in every shape of a call."""
        a = np.ones((2, 3, 4, 5))
        check_arrays(("a", a, "... T D"), ("b", a, "... T D"))
        check_arrays(("a", a[0, 0], "... T D"), ("b", a[0, 0], "... T D"))
        with self.assertRaisesRegex(InputError, r"b has shape \(3, 2, 4, 5\): \.\.\. is \(3, 2\)"):
            check_arrays(("a", a, "... T D"), ("b", a.swapaxes(0, 1), "... T D"))

    def test_one_letter_twice_in_one_shape(self) -> None:
        """A letter that is there twice in a shape has one size."""
        check_arrays(("a", np.ones((3, 3)), "D D"))
        with self.assertRaisesRegex(InputError, r"a has shape \(3, 4\): D is 4, must be 3"):
            check_arrays(("a", np.ones((3, 4)), "D D"))

    def test_a_mask_that_broadcasts_over_keys(self) -> None:
        """A mask that broadcasts over keys is taken where every query sees one, else refused."""
        check_mask(np.ones((4, 1), bool), (2, 4, 6))
        with self.assertRaises(InputError):
            check_mask(np.eye(4, 1, dtype=bool), (2, 4, 6))
        check_mask(np.array(True), (2, 4, 6))
        with self.assertRaises(InputError):
            check_mask(np.array(False), (2, 4, 6))

    def test_arrays_stay_as_they_are(self) -> None:
        """A check reads: it takes read-only arrays."""
        array = read_only(np.ones(3))
        check_arrays(("a", array, "C"))
        check_mask(array > 0, (2, 3))
        np.testing.assert_array_equal(array, 1)

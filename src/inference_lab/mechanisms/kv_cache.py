"""Two ways to keep the keys and values of tokens already decoded: arrays that grow, and slots allocated once.

Answers: where a token's key and value lie, and what an append costs. Leading axes `...` are the caller's:
none, (B,), or (B, G) for G key/value heads. D is the width of keys, E that of values.
"""

import math
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import DTypeLike

from inference_lab.errors import InputError
from inference_lab.mechanisms.arrays import Array, check_count


class KVCache(ABC):
    """`keys` (..., length, D) and `values` (..., length, E) of the tokens so far, read-only.

    `shape` is (..., T), room for T tokens. With `columns` the keys lie in memory as (..., D, T), the order
    in which a product of several queries reads them fastest; they look the same from outside. Numbers of
    another dtype are refused, not rounded. Raises InputError for an impossible size, a dtype of no numbers,
    and for more than fits in memory.
    """

    grows: bool

    def __init__(
        self, shape: tuple[int, ...], D: int, E: int, dtype: DTypeLike, *, columns: bool = False
    ) -> None:
        *leading, T = shape
        for axis, size in enumerate(leading):
            check_count(f"shape[{axis}]", size)
        check_count(f"shape[{len(leading)}]", T, least=0)
        check_count("D", D)
        check_count("E", E)
        slots, self.capacity = (0, math.inf) if self.grows else (T, T)
        keys = _memory((*leading, D, slots) if columns else (*leading, slots, D), dtype)
        self._columns = columns
        self._key_slots = keys.swapaxes(-1, -2) if columns else keys
        self._value_slots = _memory((*leading, slots, E), dtype)
        self._one_token = ((*leading, 1, D), (*leading, 1, E), keys.dtype, keys.dtype)
        self.length = 0
        self._all_keys, self._all_values = _read_only(self._key_slots), _read_only(self._value_slots)
        self.keys, self.values = self._all_keys[..., :0, :], self._all_values[..., :0, :]

    @property
    def key_columns(self) -> Array:
        """(..., D, length): `keys`, transposed."""
        return self.keys.swapaxes(-1, -2)

    @property
    def nbytes(self) -> int:
        """Bytes held: all slots, filled or not, or those of the tokens so far."""
        held = (self.keys, self.values) if self.grows else (self._key_slots, self._value_slots)
        return sum(array.nbytes for array in held)

    def append(self, k: Array, v: Array) -> None:
        """Keep a copy of k (..., T, D), v (..., T, E) of T tokens. Raises InputError and keeps nothing."""
        try:
            new = k.shape, v.shape, k.dtype, v.dtype
        except AttributeError:
            raise InputError("k and v must be NumPy arrays; use np.array") from None
        if new != self._one_token or self.length == self.capacity:  # the usual token costs one comparison
            self.check_append(*new)
        end = self.length + k.shape[-2]
        self._store(k, v, end)
        self.length = end

    def check_append(
        self, k: tuple[int, ...], v: tuple[int, ...], k_dtype: DTypeLike, v_dtype: DTypeLike
    ) -> None:
        """Raise InputError unless keys and values of these shapes and dtypes can be appended."""
        (*leading, _, D), (*_, E), dtype, _ = self._one_token
        T = k[-2] if len(k) > 1 else 0
        if not T or (k, v, k_dtype, v_dtype) != ((*leading, T, D), (*leading, T, E), dtype, dtype):
            axes = "".join(f"{size}, " for size in leading)
            raise InputError(
                f"k is {k_dtype} {k} and v is {v_dtype} {v}, must be {dtype} ({axes}T, {D})"
                f" and ({axes}T, {E}) as in this cache"
            )
        if self.length + T > self.capacity:
            raise InputError(
                f"{T} more tokens do not fit: {self.length} of {self.capacity} slots are taken; make a cache"
                f" of {self.length + T} or more, or reset this one"
            )

    def truncate(self, length: int) -> None:
        """Forget every token from `length` on; what was stored there is never seen again."""
        check_count("length", length, least=0)
        if length > self.length:
            raise InputError(f"length is {length}, must be at most the {self.length} tokens of the cache")
        self.length = length
        self.keys, self.values = self.keys[..., :length, :], self.values[..., :length, :]

    def reset(self) -> None:
        """Forget everything, ready for other sequences of the same shape."""
        self.truncate(0)

    @abstractmethod
    def _store(self, k: Array, v: Array, end: int) -> None:
        """Put k and v behind the `length` tokens there are, and show all up to `end`."""


class DynamicCache(KVCache):
    """A cache that grows: each append allocates longer arrays and copies everything into them.

    What was handed out earlier never changes. T of `shape` allocates nothing.
    """

    grows = True

    def _store(self, k: Array, v: Array, end: int) -> None:
        if self._columns:
            columns = np.concatenate((self.key_columns, k.swapaxes(-1, -2)), axis=-1)
            self.keys = columns.swapaxes(-1, -2)
        else:
            self.keys = np.concatenate((self.keys, k), axis=-2)
        self.values = np.concatenate((self.values, v), axis=-2)
        self.keys.setflags(write=False)
        self.values.setflags(write=False)


class PreallocatedCache(KVCache):
    """A cache of T slots allocated once: each append writes the next free ones.

    What was handed out earlier shows the tokens written to the same slots after `truncate` or `reset`.
    """

    grows = False

    def _store(self, k: Array, v: Array, end: int) -> None:
        self._key_slots[..., self.length : end, :] = k
        self._value_slots[..., self.length : end, :] = v
        self.keys, self.values = self._all_keys[..., :end, :], self._all_values[..., :end, :]


CACHES: dict[str, type[KVCache]] = {"preallocated": PreallocatedCache, "dynamic": DynamicCache}


def _read_only(array: Array) -> Array:
    view = array.view()
    view.setflags(write=False)
    return view


def _memory(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Memory not yet written to. Any number will do, such as int8; what computes checks its own arrays."""
    try:
        if np.dtype(dtype).kind in "fiu":
            return np.empty(shape, dtype)
    except (ValueError, MemoryError):
        raise InputError(f"a cache of shape {shape} does not fit in memory; give it fewer slots") from None
    except TypeError:
        pass
    raise InputError(f"dtype is {dtype!r}, must be of numbers, such as float32")

"""Two ways to keep the keys and values of tokens already decoded: arrays that grow, slots that wait.

Answers: where a token's key and value stand, and what an append costs. Does not know how they were
projected or who attends to them. The first half serves single-head attention, `...` is () or (B,), and checks
sizes alone; the caches of heads, in the second half, check dtypes too.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import DTypeLike

from inference_lab.errors import InputError
from inference_lab.mechanisms.arrays import Array, check_integer


def _slots(shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Memory for keys or values, not yet written. Raises InputError for a dtype of no numbers, too much room.

    Quantised caches are of int8, so any number will do; what is computed checks its own arrays.
    """
    try:
        slots = np.empty(shape, dtype)
    except TypeError:
        raise InputError(f"dtype is {dtype!r}, must be of numbers, such as float32") from None
    except (ValueError, MemoryError):
        raise InputError(f"a cache of shape {shape} does not fit in memory; give it fewer slots") from None
    if slots.dtype.kind not in "fiu":
        raise InputError(f"dtype is {slots.dtype}, must be of numbers, such as float32")
    return slots


def _check_slots(shape: tuple[int, ...], D: int, E: int) -> None:
    for axis, size in enumerate(shape):
        check_integer(f"shape[{axis}]", size, 0)
    check_integer("D", D, 1)
    check_integer("E", E, 1)


class DynamicCache:
    """Keys (..., length, D) and values (..., length, E) in arrays of exactly that length.

    An append allocates longer arrays and copies into them: what was handed out earlier never changes.
    `shape` is (..., T) as for the other cache; this one needs no T.
    """

    is_full = False

    def __init__(self, shape: tuple[int, ...], D: int, E: int, dtype: DTypeLike) -> None:
        _check_slots(shape, D, E)
        self.keys = _slots((*shape[:-1], 0, D), dtype)
        self.values = _slots((*shape[:-1], 0, E), dtype)

    @property
    def length(self) -> int:
        """Cached tokens."""
        return self.keys.shape[-2]

    def append(self, k: Array, v: Array) -> None:
        """Put one token's key (..., D) and value (..., E) behind the others.

        Raises InputError, and keeps nothing, for sizes that do not fit.
        """
        try:
            keys = np.concatenate((self.keys, k[..., None, :]), axis=-2)
            self.values = np.concatenate((self.values, v[..., None, :]), axis=-2)
        except (ValueError, TypeError, IndexError):
            raise _unfit(self, k, v) from None
        self.keys = keys


class PreallocatedCache:
    """Keys and values in one slot a token, allocated once; `shape` (..., T) makes T slots.

    `keys` (..., length, D) and `values` (..., length, E) are views of the slots in use. They see later
    writes to those slots, which happen only after `length` is set to 0 to reuse them for other tokens.
    """

    def __init__(self, shape: tuple[int, ...], D: int, E: int, dtype: DTypeLike) -> None:
        _check_slots(shape, D, E)
        self._keys = _slots((*shape, D), dtype)
        self._values = _slots((*shape, E), dtype)
        self._token = (*shape[:-1], D), (*shape[:-1], E)
        self.length = 0

    @property
    def keys(self) -> Array:
        """(..., length, D)."""
        return self._keys[..., : self.length, :]

    @property
    def values(self) -> Array:
        """(..., length, E)."""
        return self._values[..., : self.length, :]

    @property
    def is_full(self) -> bool:
        """Whether no slot is free."""
        return self.length == self._keys.shape[-2]

    def append(self, k: Array, v: Array) -> None:
        """Write one token's key (..., D) and value (..., E) over whatever the next slot held.

        Raises InputError, and counts nothing, for sizes that do not fit or when no slot is free.
        """
        if self.length == self._keys.shape[-2] or (np.shape(k), np.shape(v)) != self._token:
            raise _unfit(self, k, v)  # a smaller array would be repeated over the slot without a word
        self._keys[..., self.length, :] = k
        self._values[..., self.length, :] = v
        self.length += 1


def _unfit(cache: "KVCache", k: Array, v: Array) -> InputError:
    if cache.is_full:
        return InputError(f"cache is full with {cache.length} tokens; make one with more slots")
    keys, values = ((*kept.shape[:-2], kept.shape[-1]) for kept in (cache.keys, cache.values))
    found = f"k is {np.shape(k)} and v is {np.shape(v)}"
    return InputError(f"{found}, must be {keys} and {values} as in the cache, both arrays")


KVCache = DynamicCache | PreallocatedCache
CACHES: dict[str, type[KVCache]] = {"preallocated": PreallocatedCache, "dynamic": DynamicCache}


class HeadCache(ABC):
    """Keys and values of the `length` positions seen so far, for B sequences and G heads of width D.

    `capacity` is the number of positions allocated at once. `k` and `v` are (B, G, length, D). A row of
    another dtype is refused, not rounded. Raises InputError for a size that is no positive integer.
    """

    def __init__(
        self, batch_size: int, num_kv_heads: int, head_dim: int, dtype: DTypeLike, capacity: int = 0
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_kv_heads", num_kv_heads, 1),
            ("head_dim", head_dim, 1),
            ("capacity", capacity, 0),
        ):
            check_integer(name, value, least)
        self.length = 0
        self._keys = _slots((batch_size, num_kv_heads, head_dim, capacity), dtype)
        self._values = _slots((batch_size, num_kv_heads, capacity, head_dim), dtype)

    @property
    def k(self) -> Array:
        """(B, G, length, D), read-only: the keys so far. It shows what is written here later."""
        return _read_only(self._keys[..., : self.length].swapaxes(2, 3))

    @property
    def k_columns(self) -> Array:
        """(B, G, D, length), read-only: `k` as it lies in memory, a key a column."""
        return _read_only(self._keys[..., : self.length])

    @property
    def v(self) -> Array:
        """(B, G, length, D), read-only: the values so far. It shows what is written here later."""
        return _read_only(self._values[:, :, : self.length])

    @property
    def nbytes(self) -> int:
        """Bytes held, filled or not."""
        return self._keys.nbytes + self._values.nbytes

    def append(self, k: Array, v: Array) -> None:
        """Keep k and v (B, G, T, D) of T new positions. Raises InputError and keeps nothing."""
        try:
            alike = (k.shape, k.dtype) == (v.shape, v.dtype)
        except AttributeError:
            raise InputError("k and v must be NumPy arrays (B, G, T, D); use np.array") from None
        if not alike:
            raise InputError(f"k is {k.dtype} {k.shape} and v is {v.dtype} {v.shape}, must be alike")
        self.check_append(k.shape, k.dtype)
        self._store(k, v)
        self.length += k.shape[2]

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on; what was stored there is never seen again."""
        check_integer("length", length, 0)
        if length > self.length:
            raise InputError(f"length is {length}, must be at most the {self.length} positions of the cache")
        self.length = length

    def reset(self) -> None:
        """Forget everything, ready for other sequences of the same shape."""
        self.truncate(0)

    def check_append(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Raise InputError if keys or values of this (B, G, T, D) shape and dtype cannot be appended."""
        B, G, D, _ = self._keys.shape
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (B, G, D):
            raise InputError(
                f"keys and values of shape {shape} do not fit this cache of B={B}, G={G}, D={D}:"
                f" they must be ({B}, {G}, T, {D}); make a cache for this batch and these heads"
            )
        if dtype != self._keys.dtype:
            raise InputError(
                f"keys and values are {np.dtype(dtype)} and this cache is {self._keys.dtype}:"
                " they must be the same; cast them, or make a cache of their dtype"
            )

    @abstractmethod
    def _store(self, k: Array, v: Array) -> None:
        """Write k and v behind the `length` positions that are kept."""


class DynamicHeadCache(HeadCache):
    """A cache that grows: each append allocates longer arrays and copies everything into them."""

    def _store(self, k: Array, v: Array) -> None:
        kept = slice(0, self.length)
        self._keys = np.concatenate([self._keys[..., kept], k.swapaxes(2, 3)], axis=3)
        self._values = np.concatenate([self._values[:, :, kept], v], axis=2)


class PreallocatedHeadCache(HeadCache):
    """A cache of `capacity` positions allocated once: each append writes the next free slots alone."""

    def check_append(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Raise InputError if this cannot be appended, because it does not fit or there is no room."""
        super().check_append(shape, dtype)
        capacity = self._keys.shape[3]
        if self.length + shape[2] > capacity:
            raise InputError(
                f"{shape[2]} more positions do not fit: {self.length} of a capacity of {capacity} are"
                f" taken; make the cache for {self.length + shape[2]} or more, or reset it"
            )

    def _store(self, k: Array, v: Array) -> None:
        new = slice(self.length, self.length + k.shape[2])
        self._keys[..., new] = k.swapaxes(2, 3)
        self._values[:, :, new] = v


def _read_only(view: Array) -> Array:
    view.flags.writeable = False
    return view

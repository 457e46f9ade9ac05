"""Two ways to keep the keys and values of tokens already decoded: arrays that grow, slots that wait.

Answers: where a token's key and value stand, and what an append costs. Does not know how they were
projected, who attends to them, or what stands before the token axis: `...` is (), (B,) or (B, G).
"""

import numpy as np
from numpy.typing import DTypeLike

from inference_lab.array_contract import Array


class DynamicCache:
    """Keys (..., length, D) and values (..., length, E) in arrays of exactly that length.

    An append allocates longer arrays and copies into them: what was handed out earlier never changes.
    `shape` is (..., T) as for the other cache; this one needs no T.
    """

    is_full = False

    def __init__(self, shape: tuple[int, ...], D: int, E: int, dtype: DTypeLike) -> None:
        self.keys: Array = np.empty((*shape[:-1], 0, D), dtype)
        self.values: Array = np.empty((*shape[:-1], 0, E), dtype)

    @property
    def length(self) -> int:
        """Cached tokens."""
        return self.keys.shape[-2]

    def append(self, k: Array, v: Array) -> None:
        """Put one token's key (..., D) and value (..., E) behind the others."""
        self.keys = np.concatenate((self.keys, k[..., None, :]), axis=-2)
        self.values = np.concatenate((self.values, v[..., None, :]), axis=-2)


class PreallocatedCache:
    """Keys and values in one slot a token, allocated once; `shape` (..., T) makes T slots.

    `keys` (..., length, D) and `values` (..., length, E) are views of the slots in use. They see later
    writes to those slots, which happen only after `length` is set to 0 to reuse them for other tokens.
    """

    def __init__(self, shape: tuple[int, ...], D: int, E: int, dtype: DTypeLike) -> None:
        self._keys: Array = np.empty((*shape, D), dtype)
        self._values: Array = np.empty((*shape, E), dtype)
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
        """Write one token's key (..., D) and value (..., E) over whatever the next slot held."""
        self._keys[..., self.length, :] = k
        self._values[..., self.length, :] = v
        self.length += 1


KVCache = DynamicCache | PreallocatedCache
CACHES: dict[str, type[KVCache]] = {"preallocated": PreallocatedCache, "dynamic": DynamicCache}

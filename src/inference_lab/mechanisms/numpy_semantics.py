"""What a NumPy operation hands out: a view of its source or a copy, and whose writes are seen where.

OPERATIONS are those that attention code is made of; `observation` runs one on a fresh source and `observe`
writes to both sides and looks. Nothing here is looked up. Axes: B sequences, T tokens, C width, H heads, D
head width; `_X` is (B=2, T=3, C=4), float64, in C order, so its strides are 96, 32, 8.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Observation:
    """A result beside its source. None: not defined (a list has no strides) or, of a write, refused."""

    shares_memory: bool
    shape: tuple[int, ...] | None
    strides: tuple[int, ...] | None  # bytes to the next element along each axis
    contiguity: str | None  # "C", "F", "C F" or "neither"
    owns_data: bool | None
    write_reaches_source: bool | None  # does a write to the result show in the source
    sees_source_write: bool  # does a write to the source show in the result
    nbytes: int | None  # of the result's own shape, whatever memory is behind it
    mixes_sequences: bool | None = None  # does sequence 1 change what comes out for sequence 0


def observe(source: Any, result: Any, mixes_sequences: bool | None = None) -> Observation:
    """What `result` is to `source`, both float arrays or both lists. Writes to both.

    Of two lists, shared memory means one and the same list. Raises InputError for a read-only source.
    """
    reaches, seen = _write_shows(result, source), _write_shows(source, result)
    if seen is None:
        raise InputError("the source refuses a write, so nothing can be seen of it; give a writable one")
    if isinstance(result, list):
        return Observation(source is result, None, None, None, None, reaches, seen, None)
    flags = result.flags
    order = " ".join(order for order in "CF" if flags[f"{order}_CONTIGUOUS"]) or "neither"
    shares, layout = np.shares_memory(source, result), (result.shape, result.strides, order, flags.owndata)
    return Observation(shares, *layout, reaches, seen, result.nbytes, mixes_sequences)


def _write_shows(written: Any, watched: Any) -> bool | None:
    """Whether new values in every place of `written` change `watched`; None if the write is refused."""
    before = deepcopy(watched)
    if isinstance(written, list):
        written[:] = [[value] for value in written]
        return watched != before
    if not written.flags.writeable:
        return None
    written += 1.0
    return not np.array_equal(watched, before)


def observation(name: str) -> Observation:
    """What the operation of that name in OPERATIONS does to a fresh source."""
    source, operation = OPERATIONS[name]
    source = deepcopy(source)
    result = operation(source)
    if name == "list_shallow_copy_inner":
        return observe(source[0], result[0])
    if not name.startswith("softmax"):
        return observe(source, result)
    raised = operation(source + np.reshape([0.0, 1.0], (2, 1, 1)))  # sequence 1 raised, sequence 0 looked at
    return observe(source, result, mixes_sequences=not np.array_equal(result[0], raised[0]))


def _add_in_place(x: Array) -> Array:
    y = x
    y += 1
    return y


def _softmax(x: Array, axis: int) -> Array:
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


_X, _ROW, _COLUMN = np.zeros((2, 3, 4)), np.zeros(4), np.zeros((2, 3, 1))
_ONE_TOKEN, _SLOTS = (np.zeros((2, 3, T, 5)) for T in (1, 8))  # (B, H, T, D)

# name: (source, operation)
OPERATIONS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "list_assignment": ([1, 2, 3], lambda x: x),  # y = x: a second name for one list
    "list_shallow_copy": ([[1, 2], [3, 4]], lambda x: x.copy()),  # an outer element replaced
    "list_shallow_copy_inner": ([[1, 2], [3, 4]], lambda x: x.copy()),  # an element of an inner list replaced
    "basic_slice": (_X, lambda x: x[:, 1:3]),  # tokens 1 and 2 of every sequence
    "advanced_index": (_X, lambda x: x[:, [2, 0]]),  # tokens chosen by a list
    "swapaxes": (_X, lambda x: x.swapaxes(1, 2)),
    "concatenate": (_X, lambda x: np.concatenate([x, x], axis=1)),  # how a dynamic cache grows
    "reshape_contiguous": (_X, lambda x: x.reshape(2, 12)),  # T and C merged, in C order
    "reshape_swapped": (_X, lambda x: x.swapaxes(1, 2).reshape(2, 12)),  # as merge_heads does
    "reshape_splits_swapped": (_X, lambda x: x.swapaxes(1, 2).reshape(2, 2, 2, 3)),  # as split_heads does
    "reshape_swapped_one_token": (_ONE_TOKEN, lambda x: x.swapaxes(1, 2).reshape(2, 1, 15)),  # T = 1 hides it
    "ravel_contiguous": (_X, lambda x: x.ravel()),
    "ravel_swapped": (_X, lambda x: x.swapaxes(1, 2).ravel()),
    "broadcast_view": (_ROW, lambda x: np.broadcast_to(x, (2, 3, 4))),  # of a row of 32 bytes
    "broadcast_sum": (_COLUMN, lambda x: x + _ROW),  # operands of 48 and 32 bytes
    "in_place_add": (_X, _add_in_place),  # y = x; y += 1
    "rebinding_add": (_X, lambda x: x + 1),  # y = x; y = y + 1
    "index_drops_axis": (_X, lambda x: x[:, 1, :]),  # one token, without its axis
    "slice_keeps_axis": (_X, lambda x: x[:, 1:2, :]),  # one token, with its axis
    "softmax_axis_0": (_X, lambda x: _softmax(x, 0)),  # over the batch
    "softmax_last_axis": (_X, lambda x: _softmax(x, -1)),
    "cache_view": (_SLOTS, lambda x: x[:, :, :4]),  # the first 4 of 8 slots of a cache
}

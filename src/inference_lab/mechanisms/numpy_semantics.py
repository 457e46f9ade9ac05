"""What a NumPy operation hands out: a view of its source or a copy, and whose writes are seen where.

Answers, for each operation that attention code is made of: does the result share memory with its source,
what are its shape, strides, contiguity and bytes, does it own its data, and does a write on one side
show on the other. Each observation is a function of a few lines that runs the operation on a fresh
source and returns an `Observation`; OBSERVATIONS lists them. Nothing here is looked up: `observe`
writes to both sides and looks.

Does not know attention. Axes as everywhere: B sequences, T tokens, C width, H heads, D head width;
`x` is (B=2, T=3, C=4), float64, in C order, so its strides are 96, 32, 8.
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
    nbytes: int | None  # what the result says of itself, whatever memory stands behind it
    mixes_sequences: bool | None = None  # does sequence 1 change what comes out for sequence 0


def observe(source: Any, result: Any, mixes_sequences: bool | None = None) -> Observation:
    """What `result` is to `source`, both float arrays or both lists. Writes to both.

    Of two lists, shared memory means one and the same list. Raises InputError for a read-only source.
    """
    write_reaches_source = _write_shows(result, source)
    sees_source_write = _write_shows(source, result)
    if sees_source_write is None:
        raise InputError("the source refuses a write, so nothing can be seen of it; give a writable one")
    if isinstance(result, list):
        return Observation(
            source is result, None, None, None, None, write_reaches_source, sees_source_write, None
        )
    return Observation(
        np.shares_memory(source, result),
        result.shape,
        result.strides,
        " ".join(order for order in "CF" if result.flags[f"{order}_CONTIGUOUS"]) or "neither",
        result.flags.owndata,
        write_reaches_source,
        sees_source_write,
        result.nbytes,
        mixes_sequences,
    )


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


def _x() -> Array:
    return np.zeros((2, 3, 4))


def list_assignment() -> Observation:
    """y = x: a second name for one list."""
    source = [1, 2, 3]
    result = source
    return observe(source, result)


def list_shallow_copy() -> Observation:
    """x.copy() of a list of lists, an outer element replaced."""
    source = [[1, 2], [3, 4]]
    result = source.copy()
    return observe(source, result)


def list_shallow_copy_inner() -> Observation:
    """x.copy() of a list of lists, an element of an inner list replaced."""
    source = [[1, 2], [3, 4]]
    result = source.copy()
    return observe(source[0], result[0])


def basic_slice() -> Observation:
    """x[:, 1:3]: tokens 1 and 2 of every sequence."""
    source = _x()
    result = source[:, 1:3]
    return observe(source, result)


def advanced_index() -> Observation:
    """x[:, [2, 0]]: tokens chosen by a list."""
    source = _x()
    result = source[:, [2, 0]]
    return observe(source, result)


def swapaxes() -> Observation:
    """x.swapaxes(1, 2)."""
    source = _x()
    result = source.swapaxes(1, 2)
    return observe(source, result)


def concatenate() -> Observation:
    """np.concatenate([x, x], axis=1): how a dynamic cache grows."""
    source = _x()
    result = np.concatenate([source, source], axis=1)
    return observe(source, result)


def reshape_contiguous() -> Observation:
    """x.reshape(B, T·C) of an array in C order."""
    source = _x()
    result = source.reshape(2, 12)
    return observe(source, result)


def reshape_swapped() -> Observation:
    """x.swapaxes(1, 2).reshape(B, T·C): two swapped axes merged, as in merge_heads."""
    source = _x()
    result = source.swapaxes(1, 2).reshape(2, 12)
    return observe(source, result)


def reshape_splits_swapped() -> Observation:
    """x.swapaxes(1, 2).reshape(B, 2, 2, T): one swapped axis split, as in split_heads."""
    source = _x()
    result = source.swapaxes(1, 2).reshape(2, 2, 2, 3)
    return observe(source, result)


def reshape_swapped_one_token() -> Observation:
    """The merge of reshape_swapped on (B, H, T=1, D): what a test with one token sees of it."""
    source = np.zeros((2, 3, 1, 5))
    result = source.swapaxes(1, 2).reshape(2, 1, 15)
    return observe(source, result)


def ravel_contiguous() -> Observation:
    """x.ravel() of an array in C order."""
    source = _x()
    result = source.ravel()
    return observe(source, result)


def ravel_swapped() -> Observation:
    """x.swapaxes(1, 2).ravel()."""
    source = _x()
    result = source.swapaxes(1, 2).ravel()
    return observe(source, result)


def broadcast_view() -> Observation:
    """np.broadcast_to(row, (B, T, C)) of a row of C values, 32 bytes."""
    source = np.zeros(4)
    result = np.broadcast_to(source, (2, 3, 4))
    return observe(source, result)


def broadcast_sum() -> Observation:
    """(B, T, 1) + (C,): operands of 48 and 32 bytes."""
    source = np.zeros((2, 3, 1))
    result = source + np.zeros(4)
    return observe(source, result)


def in_place_add() -> Observation:
    """y = x; y += 1."""
    source = _x()
    result = source
    result += 1
    return observe(source, result)


def rebinding_add() -> Observation:
    """y = x; y = y + 1."""
    source = _x()
    result = source
    result = result + 1
    return observe(source, result)


def index_drops_axis() -> Observation:
    """x[:, t, :]: one token, without its axis."""
    source = _x()
    result = source[:, 1, :]
    return observe(source, result)


def slice_keeps_axis() -> Observation:
    """x[:, t:t+1, :]: one token, with its axis."""
    source = _x()
    result = source[:, 1:2, :]
    return observe(source, result)


def softmax_axis_0() -> Observation:
    """softmax over axis 0, the batch: sequence 1 raised, sequence 0 looked at."""
    source, raised = _x(), _x() + np.reshape([0.0, 1.0], (2, 1, 1))
    result, other = (np.exp(x) / np.exp(x).sum(axis=0) for x in (source, raised))
    return observe(source, result, mixes_sequences=not np.array_equal(result[0], other[0]))


def softmax_last_axis() -> Observation:
    """softmax over the last axis: sequence 1 raised, sequence 0 looked at."""
    source, raised = _x(), _x() + np.reshape([0.0, 1.0], (2, 1, 1))
    result, other = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True) for x in (source, raised))
    return observe(source, result, mixes_sequences=not np.array_equal(result[0], other[0]))


def cache_view() -> Observation:
    """The first 4 of 8 slots of a (B, H, 8, D) buffer, as a preallocated cache hands them out."""
    source = np.zeros((2, 3, 8, 5))
    result = source[:, :, :4]
    return observe(source, result)


OBSERVATIONS: tuple[Callable[[], Observation], ...] = (
    list_assignment,
    list_shallow_copy,
    list_shallow_copy_inner,
    basic_slice,
    advanced_index,
    swapaxes,
    concatenate,
    reshape_contiguous,
    reshape_swapped,
    reshape_splits_swapped,
    reshape_swapped_one_token,
    ravel_contiguous,
    ravel_swapped,
    broadcast_view,
    broadcast_sum,
    in_place_add,
    rebinding_add,
    index_drops_axis,
    slice_keeps_axis,
    softmax_axis_0,
    softmax_last_axis,
    cache_view,
)

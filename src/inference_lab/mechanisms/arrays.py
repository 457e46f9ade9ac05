"""What an array given to a mechanism must be, checked before any arithmetic.

Answers: do these arguments fit their axes and each other? Does not know what is computed from them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import InputError

Array = NDArray[np.floating[Any]]


def check_arrays(*arguments: tuple[str, object, str]) -> None:
    """Raise InputError unless every (name, array, axes) holds: `check_arrays(("x", x, "B T C|T C"), ...)`.

    A letter is one axis, of the same size in all arguments; `|` separates the shapes allowed; a leading
    `...` is any number of axes. Each array is a plain NumPy array of float32 or float64, of the dtype of
    the first, with no axis of size 0 and finite everywhere. The error names the argument, what it is and
    what it must be.
    """
    agreed: dict[str, tuple[object, str]] = {}  # dtype or axis: its value, who set it
    for name, array, axes in arguments:
        checked = check_float_array(name, array)
        dtype, owner = agreed.setdefault("dtype", (checked.dtype, name))
        if checked.dtype != dtype:
            raise InputError(f"{name} is {checked.dtype}, must be {dtype} as {owner} is; use astype")
        _check_axes(name, checked.shape, axes, agreed)
        finite = np.isfinite(checked)
        if not finite.all():
            place = tuple(np.argwhere(~finite)[0].tolist())
            raise InputError(f"{name} holds {checked[place]} at {place}, must be finite everywhere")


def check_sizes(*arguments: tuple[str, object, str]) -> None:
    """Raise InputError unless the axes of every (name, array, axes) hold, as in `check_arrays`.

    Looks at no value and no dtype: about a microsecond per array.
    """
    agreed: dict[str, tuple[object, str]] = {}
    for name, array, axes in arguments:
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name} is a {type(array).__name__}, must be a NumPy array; use np.array")
        _check_axes(name, array.shape, axes, agreed)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise InputError unless `value` is an integer of at least `least`. A bool is a slip."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}, must be an integer of at least {least}")


def check_float_array(name: str, array: object) -> Array:
    """Return a plain array of native float32 or float64. Raises InputError for anything else."""
    if not isinstance(array, np.ndarray) or type(array) not in (np.ndarray, np.memmap):
        kind = type(array).__name__
        raise InputError(f"{name} is a {kind}, must be a plain NumPy array; use np.array")
    if array.dtype not in (np.float32, np.float64):
        raise InputError(f"{name} is {array.dtype}, must be float32 or float64; use astype")
    return array


def check_mask(name: str, mask: object, shape: tuple[int, ...]) -> None:
    """Raise InputError unless a boolean mask broadcasts to scores of this shape and leaves each query a key.

    A query without a key has no softmax: its row would be nan.
    """
    if not isinstance(mask, np.ndarray):
        raise InputError(f"{name} is a {type(mask).__name__}, must be a NumPy array; use np.array")
    if mask.dtype != bool:
        raise InputError(f"{name} is {mask.dtype}, must be bool; compare it with what it means")
    if mask.ndim > len(shape) or any(
        size not in (1, whole) for size, whole in zip(mask.shape[::-1], shape[::-1], strict=False)
    ):
        raise InputError(f"{name} has shape {mask.shape}, must broadcast to {shape}")
    if not mask.any(axis=-1).all():
        raise InputError(f"{name} hides every key from a query, must leave each query one key")


def _check_axes(name: str, shape: tuple[int, ...], axes: str, agreed: dict[str, tuple[object, str]]) -> None:
    for axis, size in _named_sizes(name, shape, axes):
        known, owner = agreed.setdefault(axis, (size, name))
        if size != known:
            raise InputError(f"{name} has shape {shape}: {axis} is {size}, must be {known} as in {owner}")


def _named_sizes(name: str, shape: tuple[int, ...], axes: str) -> Sequence[tuple[str, object]]:
    """Each axis letter of the shape that fits, with its size; `...` with the tuple of its sizes."""
    for letters in (form.split() for form in axes.split("|")):
        leading = len(shape) - len(letters) + 1 if letters[0] == "..." else 0
        sizes = (shape[:leading], *shape[leading:]) if letters[0] == "..." else shape
        if leading >= 0 and len(sizes) == len(letters):
            named = list(zip(letters, sizes, strict=True))
            break
    else:
        allowed = " or ".join(f"({', '.join(form.split())})" for form in axes.split("|"))
        raise InputError(f"{name} has shape {shape}, must have the axes {allowed}")
    if 0 in shape:
        raise InputError(f"{name} has shape {shape}, must have no axis of size 0")
    return named

"""What an array given to a mechanism must be: do these arguments fit their axes and each other?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import InputError

Array = NDArray[np.floating[Any]]
Argument = tuple[str, Any, str]  # name, array, axes


def check_arrays(*arguments: Argument) -> None:
    """Raise InputError unless every argument fits its axes: `check_arrays(("x", x, "B T C|T C"), ...)`.

    A letter is one axis, of the same size in all arguments; `|` separates the shapes allowed; a leading
    `...` is any number of axes. Each array is a plain NumPy array of float32 or float64, of the dtype of
    the first, with no axis of size 0 and finite everywhere.
    """
    owner, first, _ = arguments[0]
    for name, array, _ in arguments:
        check_float_array(name, array)
        if array.dtype != first.dtype:
            raise InputError(f"{name} is {array.dtype}, must be {first.dtype} as {owner} is; use astype")
    check_sizes(*arguments)
    for name, array, _ in arguments:
        finite = np.isfinite(array)
        if not finite.all():
            place = tuple(np.argwhere(~finite)[0].tolist())
            raise InputError(f"{name} holds {array[place]} at {place}, must be finite everywhere")


def check_sizes(*arguments: Argument) -> None:
    """Raise InputError unless every argument fits its axes, as in `check_arrays`.

    Looks at no value and no dtype: about a microsecond per array.
    """
    agreed: dict[str, tuple[object, str]] = {}  # axis: its size, who set it
    for name, array, axes in arguments:
        if not isinstance(array, np.ndarray):
            raise InputError(f"{name} is a {type(array).__name__}, must be a NumPy array; use np.array")
        shape = array.shape
        for axis, size in _named_sizes(name, shape, axes):
            known, owner = agreed.setdefault(axis, (size, name))
            if size != known:
                raise InputError(f"{name} has shape {shape}: {axis} is {size}, must be {known} as in {owner}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise InputError unless `value` is an integer of at least `least`. A bool is a slip."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}, must be an integer of at least {least}")


def check_float_array(name: str, array: Any) -> None:
    """Raise InputError unless this is a plain array of native float32 or float64."""
    if type(array) not in (np.ndarray, np.memmap):
        raise InputError(f"{name} is a {type(array).__name__}, must be a plain NumPy array; use np.array")
    if array.dtype not in (np.float32, np.float64):
        raise InputError(f"{name} is {array.dtype}, must be float32 or float64; use astype")


def check_mask(mask: Any, shape: tuple[int, ...]) -> None:
    """Raise InputError unless a boolean mask broadcasts to scores of this shape and leaves each query a key.

    A query without a key has no softmax: its row would be nan.
    """
    if not isinstance(mask, np.ndarray):
        raise InputError(f"mask is a {type(mask).__name__}, must be a NumPy array; use np.array")
    if mask.dtype != bool:
        raise InputError(f"mask is {mask.dtype}, must be bool; compare it with what it means")
    sizes = zip(mask.shape[::-1], shape[::-1], strict=False)
    if mask.ndim > len(shape) or any(size not in (1, whole) for size, whole in sizes):
        raise InputError(f"mask has shape {mask.shape}, must broadcast to {shape}")
    if not mask.any(axis=-1).all():
        raise InputError("mask hides every key from a query, must leave each query one key")


def _named_sizes(name: str, shape: tuple[int, ...], axes: str) -> Iterable[tuple[str, object]]:
    """Each axis letter of the form that fits, with its size; `...` with the tuple of its sizes."""
    if 0 in shape:
        raise InputError(f"{name} has shape {shape}, must have no axis of size 0")
    for form in axes.split("|"):
        letters = form.split()
        leading = len(shape) - len(letters) + 1
        if letters[0] == "..." and leading >= 0:
            return zip(letters, (shape[:leading], *shape[leading:]), strict=True)
        if len(letters) == len(shape):
            return zip(letters, shape, strict=True)
    allowed = " or ".join(f"({', '.join(form.split())})" for form in axes.split("|"))
    raise InputError(f"{name} has shape {shape}, must have the axes {allowed}")

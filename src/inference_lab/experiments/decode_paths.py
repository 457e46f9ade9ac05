"""Single-head decode paths against each other over one varied axis: batch size or sequence length.

Binds conditions to callables; how they are timed is `benchmark`'s, what the times mean is `analysis`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import ConfigError
from inference_lab.mechanisms import attention
from inference_lab.records.record import Measurement
from inference_lab.timing import protocol
from inference_lab.timing.protocol import Bench, Timed

FloatArray = NDArray[np.floating[Any]]
Inputs = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

# The relative size of one rounding error in an output, found by running (float64 2e-16, float32 9e-8),
# with room; it grows with the values averaged and with the scores in the exponent.
_TOLERANCE = {"float32": 1e-6, "float64": 1e-14}


def inputs(B: int, T: int, C: int, dtype: str, seed: int) -> Inputs:
    """x (B, T, C) and wq, wk, wv (C, C), read-only; x of a smaller B is the first rows of a larger one.

    Values are unit normal, weights scaled by 1/sqrt(C), so that scores stay near 1 in size.
    """
    rng_w, rng_x = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    weights = rng_w.standard_normal((3, C, C)) / C**0.5
    arrays = [rng_x.standard_normal((B, T, C)), *weights]
    found = [array.astype(dtype) for array in arrays]
    for array in found:
        array.flags.writeable = False
    x, wq, wk, wv = found
    return x, wq, wk, wv


def cells(section: Mapping[str, Any]) -> list[Inputs]:
    """The inputs of each varied value, in the order the section lists them."""
    ((axis, values),) = section["vary"].items()
    if axis not in ("batch_size", "sequence_length"):
        raise ConfigError(f"decode_paths cannot vary {axis!r}; vary batch_size or sequence_length")
    found: list[Inputs] = []
    for value in values:
        at = {**section["fixed"], axis: value}
        cell = inputs(at["batch_size"], at["sequence_length"], at["d_model"], at["dtype"], at["seed"])
        attention.check_inputs(*cell)
        found.append(cell)
    return found


def bind(section: Mapping[str, Any]) -> Bench:
    """The paths of a section as calls without arguments, inputs made once and shared by all of them."""
    calls = {path: path_of(path) for path in section["paths"]}
    all_inputs = cells(section)
    groups: list[list[Timed]] = []
    for cell in all_inputs:
        B, T, C = cell[0].shape
        group = [Timed(path, partial(call, *cell), B, T, C) for path, call in calls.items()]
        groups.append(protocol.with_replica(group, section["baseline"]) if section["replica"] else group)
    return Bench(
        groups,
        check=lambda: [finding for cell in all_inputs for finding in check(cell, section["paths"])],
        data_sha256=protocol.digest_of_arrays(*(array for cell in all_inputs for array in cell)),
    )


def path_of(name: str) -> attention.DecodePath:
    """The decode path of that name. Raises ConfigError when there is none."""
    if name not in attention.DECODE_PATHS:
        raise ConfigError(f"no decode path {name!r}; there are {', '.join(attention.DECODE_PATHS)}")
    return attention.DECODE_PATHS[name]


def check(cell: Inputs, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Each path against decode_without_cache, and that one against one masked pass over the whole."""
    oracle = attention.decode_without_cache(*cell)
    whole = attention.causal_attention(*cell)
    allowed = tolerance(cell)
    found: list[dict[str, Any]] = []
    for path in paths:
        against = whole if path == "no_cache" else oracle
        name = "causal_attention" if path == "no_cache" else "decode_without_cache"
        output = attention.DECODE_PATHS[path](*cell)
        error = float(np.max(np.abs(output - against)))
        found.append(
            {
                "path": path,
                "against": name,
                "batch_size": cell[0].shape[0],
                "shape": list(cell[0].shape),
                "max_abs_error": error,
                "tolerance": allowed,
                "passed": error <= allowed,
            }
        )
    return found


def tolerance(cell: Inputs) -> float:
    """Largest error allowed in an output: rounding times max |V| times max(1, max |score|)."""
    x, wq, wk, wv = cell
    q, k, v = x @ wq, x @ wk, x @ wv
    scores = q @ k.swapaxes(-1, -2) / x.shape[-1] ** 0.5
    return _TOLERANCE[str(x.dtype)] * float(np.max(np.abs(v))) * max(1.0, float(np.max(np.abs(scores))))


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """The measurement of a section, made by fresh processes of this module."""
    return protocol.measure("inference_lab.experiments.decode_paths", section, progress)


if __name__ == "__main__":
    raise SystemExit(protocol.run_child(bind))

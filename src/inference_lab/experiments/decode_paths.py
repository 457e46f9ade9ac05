"""Single-head decode paths against each other over one varied axis: batch size or sequence length."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from inference_lab.config import sections
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.timing import worker
from inference_lab.timing.protocol import Bench, Finding, Timed, digest_of_arrays, finding, group_of

Inputs = tuple[Array, Array, Array, Array]

# The relative size of one rounding error in an output, found by running (float64 2e-16, float32 9e-8),
# with room; it grows with the values averaged and with the scores in the exponent.
_ROUNDING = {"float32": 1e-6, "float64": 1e-14}


def inputs(at: sections.OneHead, tokens: int = 0) -> Inputs:
    """x (B, T, C) and wq, wk, wv (C, C), read-only; x of a smaller B is the first rows of a larger one.

    Values are unit normal, weights scaled by 1/sqrt(C), so that scores stay near 1 in size. `tokens` is T
    where it is not `sequence_length`.
    """
    rng_w, rng_x = (np.random.default_rng([at.seed, stream]) for stream in (0, 1))
    weights = rng_w.standard_normal((3, at.d_model, at.d_model)) / at.d_model**0.5
    tokens_of_all = rng_x.standard_normal((at.batch_size, tokens or at.sequence_length, at.d_model))
    x, wq, wk, wv = (read_only(array.astype(at.dtype)) for array in (tokens_of_all, *weights))
    return x, wq, wk, wv


def read_only(array: Array) -> Array:
    """The same array, which no path can change for the next one."""
    array.setflags(write=False)
    return array


def cells(section: sections.DecodePaths | sections.SelfCheck | sections.KernelsPeers) -> list[Inputs]:
    """The inputs of each varied value, in the order the section lists them, checked."""
    made = [inputs(section.fixed.having(section.axis, value)) for value in section.values]
    for cell in made:
        attention.check_inputs(*cell)
    return made


def bind(section: sections.DecodePaths) -> Bench:
    """The paths of a section as calls without arguments, inputs made once and shared by all of them."""
    every = cells(section)

    def timed(path: str, cell: Inputs) -> Timed:
        return Timed(path, partial(attention.DECODE_PATHS[path], *cell), *cell[0].shape)

    return Bench(
        [group_of(section, (timed(path, cell) for path in section.paths)) for cell in every],
        check=lambda: [finding for cell in every for finding in check(cell, section.paths)],
        data_sha256=digest_of_arrays(*(array for cell in every for array in cell)),
    )


def check(cell: Inputs, paths: Sequence[str]) -> list[Finding]:
    """Compare each path with decode_without_cache, and that one with one masked pass over the whole."""
    oracle = "decode_without_cache", attention.decode_without_cache(*cell)
    whole = "causal_attention", attention.causal_attention(*cell)
    allowed, shape = allowed_error(cell), cell[0].shape
    outputs = {path: attention.DECODE_PATHS[path](*cell) for path in paths}
    return [
        finding(path, output, *(whole if path == "no_cache" else oracle), allowed, shape)
        for path, output in outputs.items()
    ]


def allowed_error(cell: Inputs) -> float:
    """`tolerance` of these inputs."""
    x, wq, wk, wv = cell
    return tolerance(x.dtype, x @ wv, (x @ wq) @ (x @ wk).swapaxes(-1, -2) / x.shape[-1] ** 0.5)


def tolerance(dtype: Any, values: Array, scores: Array) -> float:
    """Largest error allowed in an output: rounding times max |value| times max(1, max |score|)."""
    return _ROUNDING[str(dtype)] * float(np.abs(values).max()) * max(1.0, float(np.abs(scores).max()))


measure = partial(worker.measure, __name__)

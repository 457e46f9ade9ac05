"""Single-head decode paths against each other over one varied axis: batch size or sequence length.

Binds conditions to callables; how they are timed is `timing`'s, what the times mean is `analysis`'s.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from inference_lab.config import sections
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.timing import worker
from inference_lab.timing.protocol import Bench, Finding, Timed, digest_of_arrays, group_of

Inputs = tuple[Array, Array, Array, Array]

# The relative size of one rounding error in an output, found by running (float64 2e-16, float32 9e-8),
# with room; it grows with the values averaged and with the scores in the exponent.
_ROUNDING = {"float32": 1e-6, "float64": 1e-14}


def inputs(B: int, T: int, C: int, dtype: str, seed: int) -> Inputs:
    """x (B, T, C) and wq, wk, wv (C, C), read-only; x of a smaller B is the first rows of a larger one.

    Values are unit normal, weights scaled by 1/sqrt(C), so that scores stay near 1 in size.
    """
    rng_w, rng_x = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    weights = rng_w.standard_normal((3, C, C)) / C**0.5
    x, wq, wk, wv = (read_only(array.astype(dtype)) for array in (rng_x.standard_normal((B, T, C)), *weights))
    return x, wq, wk, wv


def read_only(array: Array) -> Array:
    """The same array, which no path can change for the next one."""
    array.setflags(write=False)
    return array


def tolerance(dtype: Any, values: Array, scores: Array) -> float:
    """Largest error allowed in an output: rounding times max |value| times max(1, max |score|)."""
    return _ROUNDING[str(dtype)] * float(np.abs(values).max()) * max(1.0, float(np.abs(scores).max()))


def cells(section: sections.DecodePaths | sections.SelfCheck | sections.KernelsPeers) -> list[Inputs]:
    """The inputs of each varied value, in the order the section lists them, checked."""
    every = [section.fixed.having(section.axis, value) for value in section.values]
    made = [inputs(at.batch_size, at.sequence_length, at.d_model, at.dtype, at.seed) for at in every]
    for cell in made:
        attention.check_inputs(*cell)
    return made


def bind(section: sections.DecodePaths) -> Bench:
    """The paths of a section as calls without arguments, inputs made once and shared by all of them."""
    every = cells(section)
    groups = [
        group_of(
            section,
            (
                Timed(path, partial(attention.DECODE_PATHS[path], *cell), *cell[0].shape)
                for path in section.paths
            ),
        )
        for cell in every
    ]
    return Bench(
        groups,
        check=lambda: [finding for cell in every for finding in check(cell, section.paths)],
        data_sha256=digest_of_arrays(*(array for cell in every for array in cell)),
    )


def check(cell: Inputs, paths: Sequence[str]) -> list[Finding]:
    """Compare each path with decode_without_cache, and that one with one masked pass over the whole."""
    x, wq, wk, wv = cell
    oracle, whole = attention.decode_without_cache(*cell), attention.causal_attention(*cell)
    allowed = allowed_error(cell)
    return [
        Finding.of(
            path,
            attention.DECODE_PATHS[path](x, wq, wk, wv),
            *(("causal_attention", whole) if path == "no_cache" else ("decode_without_cache", oracle)),
            tolerance=allowed,
            shape=x.shape,
        )
        for path in paths
    ]


def allowed_error(cell: Inputs) -> float:
    """`tolerance` of these inputs."""
    x, wq, wk, wv = cell
    return tolerance(x.dtype, x @ wv, (x @ wq) @ (x @ wk).swapaxes(-1, -2) / x.shape[-1] ** 0.5)


measure = partial(worker.measure, __name__)

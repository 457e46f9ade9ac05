"""Decode steps and prefills of multi-head attention over one varied axis: cached tokens or key/value heads.

Binds conditions to callables; how they are timed is `benchmark`'s, what the times mean is `analysis`'s.

`preallocated`, `dynamic` and `repeated` start from a cache that holds `sequence_length` tokens and decode
`decode_steps` more, one by one; forgetting those again is in the call, once, and costs about 1 µs.
`prefill` and `stepwise` start from an empty cache and fill it with `sequence_length` tokens. Making the
inputs, fusing the weights, the first filling and every look at values happen before; checks of sizes
(comparisons of integers, once a call and at every append) are timed.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from inference_lab.errors import ConfigError
from inference_lab.mechanisms.arrays import Array
from inference_lab.mechanisms.kv_cache import DynamicCache, KVCache, PreallocatedCache
from inference_lab.mechanisms.multi_head import (
    FusedWeights,
    Newest,
    check_inputs,
    decode,
    fuse,
    newest_blocks,
    prefill,
)
from inference_lab.records.record import Measurement
from inference_lab.timing import protocol
from inference_lab.timing.protocol import Bench, Timed

Call = Callable[[], Array]

# Relative rounding error of one output, as in decode_paths.
_TOLERANCE = {"float32": 1e-6, "float64": 1e-14}


class Cell(NamedTuple):
    """What all paths of one varied value share: x holds the T tokens and those decoded after them."""

    x: Array  # (B, T + decode_steps, C)
    wq: Array  # (C, H·D)
    wk: Array  # (C, G·D)
    wv: Array  # (C, G·D)
    num_heads: int
    num_kv_heads: int
    sequence_length: int

    @property
    def weights(self) -> tuple[Array, Array, Array, int, int]:
        """wq, wk, wv, H, G: what every step takes besides its token."""
        return self[1:6]

    def cache(self, kind: type[KVCache]) -> KVCache:
        """An empty cache with room for every token of x."""
        B, tokens, C = self.x.shape
        D = C // self.num_heads
        return kind((B, self.num_kv_heads, tokens), D, D, self.x.dtype, columns=True)


def cells(section: Mapping[str, Any]) -> list[Cell]:
    """The inputs of each varied value, in the order the section lists them, read-only and checked.

    Values are unit normal, weights scaled by 1/sqrt(C). With fewer key/value heads, the first columns
    of the same weights are used.
    """
    ((axis, values),) = section["vary"].items()
    if axis not in ("sequence_length", "num_kv_heads"):
        raise ConfigError(f"multi_head cannot vary {axis!r}; vary sequence_length or num_kv_heads")
    found: list[Cell] = []
    for value in values:
        at: dict[str, Any] = {"decode_steps": 0, **section["fixed"], axis: value}
        B, T, C, H = at["batch_size"], at["sequence_length"], at["d_model"], at["num_heads"]
        G = at.get("num_kv_heads", H)
        rng_w, rng_x = (np.random.default_rng([at["seed"], stream]) for stream in (0, 1))
        wq, wk, wv = rng_w.standard_normal((3, C, C)) / C**0.5
        x = rng_x.standard_normal((B, T + at["decode_steps"], C))
        kept = [
            np.ascontiguousarray(a, at["dtype"]) for a in (x, wq, *(w[:, : G * C // H] for w in (wk, wv)))
        ]
        for array in kept:
            array.flags.writeable = False
        cell = Cell(*kept, H, G, T)  # pyright: ignore[reportCallIssue]  (kept holds x, wq, wk, wv)
        check_inputs(cell.x, *cell.weights)
        found.append(cell)
    return found


def repeated(q: Array, key_columns: Array, v: Array, output: Array) -> None:
    """As `newest_blocks`, but K and V are copied out to all H heads."""
    B, G, group, D = q.shape
    one_each = (B, G * group, 1, D)
    every_k, every_v = np.repeat(key_columns, group, axis=1), np.repeat(v, group, axis=1)
    newest_blocks(q.reshape(one_each), every_k, every_v, output.reshape(one_each))


def steps(cell: Cell, kind: type[KVCache], attend: Newest = newest_blocks) -> Call:
    """A call -> (B, H, decode_steps, D): every token of x behind its first T, one by one."""
    T, weights, cache = cell.sequence_length, fuse(*cell.weights), cell.cache(kind)
    if cell.x.shape[1] == T:
        raise ConfigError("decode_steps is 0 or missing under fixed; a decode path needs at least 1")
    prefill(cell.x[:, :T], weights, cache)

    def call() -> Array:
        cache.truncate(T)
        return decode(cell.x[:, T:], weights, cache, attend)

    return call


def fill(cell: Cell, form: Callable[[Array, FusedWeights, KVCache], Array]) -> Call:
    """A call -> (B, H, T, D): all T tokens into an empty cache, at once or one by one."""
    if over := cell.x.shape[1] - cell.sequence_length:
        raise ConfigError(f"decode_steps is {over} under fixed; prefill and stepwise take none, remove it")
    weights, cache = fuse(*cell.weights), cell.cache(PreallocatedCache)

    def call() -> Array:
        cache.reset()
        return form(cell.x, weights, cache)

    return call


PATHS: dict[str, Callable[[Cell], Call]] = {
    "preallocated": lambda cell: steps(cell, PreallocatedCache),
    "dynamic": lambda cell: steps(cell, DynamicCache),
    "repeated": lambda cell: steps(cell, PreallocatedCache, repeated),
    "prefill": lambda cell: fill(cell, prefill),
    "stepwise": lambda cell: fill(cell, decode),
}


def bind(section: Mapping[str, Any]) -> Bench:
    """The paths of a section as calls without arguments, inputs made once and shared by all of them."""
    if unknown := [path for path in section["paths"] if path not in PATHS]:
        raise ConfigError(f"no multi-head path {unknown[0]!r}; there are {', '.join(PATHS)}")
    all_cells = cells(section)
    groups: list[list[Timed]] = []
    for cell in all_cells:
        B, _, C = cell.x.shape
        axes = (B, cell.sequence_length, C, cell.num_heads, cell.num_kv_heads)
        group = [Timed(path, PATHS[path](cell), *axes) for path in section["paths"]]
        groups.append(protocol.with_replica(group, section["baseline"]) if section["replica"] else group)
    return Bench(
        groups,
        check=lambda: [
            _finding(timed, cell)
            for cell, group in zip(all_cells, groups, strict=True)
            for timed in group
            if timed.kind == "sample"
        ],
        data_sha256=protocol.digest_of_arrays(*(array for cell in all_cells for array in cell[:4])),
    )


def _finding(timed: Timed, cell: Cell) -> dict[str, Any]:
    """What a path gives for the last token against one query over everything, head by head in float64."""
    expected, allowed = last_output(cell)
    error = float(np.max(np.abs(timed.call()[:, :, -1] - expected)))
    return {
        "path": timed.path,
        "against": "last_output",
        "batch_size": timed.batch_size,
        "shape": [*cell.x.shape, cell.num_heads, cell.num_kv_heads],
        "max_abs_error": error,
        "tolerance": allowed,
        "passed": error <= allowed,
    }


def last_output(cell: Cell) -> tuple[Array, float]:
    """(B, H, D) of the last token of x, without a cache, and the largest error allowed in it.

    The error allowed is rounding times max |V| times max(1, max |score|), as in decode_paths.
    """
    x, wq, wk, wv = (array.astype(np.float64) for array in cell[:4])
    D, group = wq.shape[1] // cell.num_heads, cell.num_heads // cell.num_kv_heads
    outputs: list[Array] = []
    largest_value, largest_score = 0.0, 1.0
    for head in range(cell.num_heads):
        its, shared = (slice(i * D, (i + 1) * D) for i in (head, head // group))
        k, v = x @ wk[:, shared], x @ wv[:, shared]
        scores = np.einsum("bd,btd->bt", x[:, -1] @ wq[:, its], k) / math.sqrt(D)
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        outputs.append(np.einsum("bt,btd->bd", powers / powers.sum(axis=1, keepdims=True), v))
        largest_value = max(largest_value, float(np.abs(v).max()))
        largest_score = max(largest_score, float(np.abs(scores).max()))
    return np.stack(outputs, axis=1), _TOLERANCE[str(cell.x.dtype)] * largest_value * largest_score


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """The measurement of a section, made by fresh processes of this module."""
    return protocol.measure("inference_lab.experiments.multi_head", section, progress)


if __name__ == "__main__":
    raise SystemExit(protocol.run_child(bind))

"""Decode steps and prefills of multi-head attention over one varied axis: cached tokens or key/value heads.

`preallocated`, `dynamic` and `repeated` start from a cache that holds `sequence_length` tokens and decode
`decode_steps` more, one by one; forgetting those again is in the call, once, and costs about 1 µs. `prefill`
and `stepwise` fill an empty cache with `sequence_length` tokens. Making the inputs, fusing the weights, the
first filling and every look at values happen before; checks of sizes are timed.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from inference_lab.config import sections
from inference_lab.errors import ConfigError
from inference_lab.experiments import decode_paths
from inference_lab.experiments.decode_paths import read_only
from inference_lab.mechanisms import multi_head
from inference_lab.mechanisms.arrays import Array
from inference_lab.mechanisms.kv_cache import DynamicCache, KVCache, PreallocatedCache
from inference_lab.timing import worker
from inference_lab.timing.protocol import Bench, Finding, Timed, digest_of_arrays, finding, group_of

Call = Callable[[], Array]


class Inputs(NamedTuple):
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

    @property
    def axes(self) -> tuple[int, int, int, int, int]:
        """B, T, C, H, G."""
        B, _, C = self.x.shape
        return B, self.sequence_length, C, self.num_heads, self.num_kv_heads

    def cache(self, kind: type[KVCache]) -> KVCache:
        """An empty cache with room for every token of x."""
        B, tokens, C = self.x.shape
        D = C // self.num_heads
        return kind((B, self.num_kv_heads, tokens), D, D, self.x.dtype, columns=True)


def cells(section: sections.MultiHead | sections.KernelsPeers) -> list[Inputs]:
    """The inputs of each varied value, in the order the section lists them, read-only and checked."""
    return [inputs(section.fixed.having(section.axis, value)) for value in section.values]


def inputs(at: sections.Heads) -> Inputs:
    """As those of decode_paths; with fewer key/value heads, the first columns of the same weights."""
    T, H, G = at.sequence_length, at.num_heads, at.num_kv_heads or at.num_heads
    x, wq, *kv = decode_paths.inputs(at, T + at.decode_steps)
    wk, wv = (read_only(np.ascontiguousarray(w[:, : G * at.d_model // H])) for w in kv)
    cell = Inputs(x, wq, wk, wv, H, G, T)
    multi_head.check_inputs(cell.x, *cell.weights)
    return cell


def repeated(q: Array, key_columns: Array, v: Array, output: Array) -> None:
    """As `newest_blocks`, but K and V are copied out to all H heads."""
    B, G, group, D = q.shape
    one_each = (B, G * group, 1, D)
    every_k, every_v = np.repeat(key_columns, group, axis=1), np.repeat(v, group, axis=1)
    multi_head.newest_blocks(q.reshape(one_each), every_k, every_v, output.reshape(one_each))


def steps(cell: Inputs, kind: type[KVCache], attend: multi_head.Newest = multi_head.newest_blocks) -> Call:
    """A call -> (B, H, decode_steps, D): every token of x behind its first T, one by one."""
    T, weights, cache = cell.sequence_length, multi_head.fuse(*cell.weights), cell.cache(kind)
    if cell.x.shape[1] == T:
        raise ConfigError("decode_steps is 0 or missing under fixed; a decode path needs at least 1")
    multi_head.prefill(cell.x[:, :T], weights, cache)
    decode = multi_head.decode

    def call() -> Array:
        cache.truncate(T)
        return decode(cell.x[:, T:], weights, cache, attend)

    return call


def fill(cell: Inputs, form: Callable[[Array, multi_head.FusedWeights, KVCache], Array]) -> Call:
    """A call -> (B, H, T, D): all T tokens into an empty cache, at once or one by one."""
    if over := cell.x.shape[1] - cell.sequence_length:
        raise ConfigError(f"decode_steps is {over} under fixed; prefill and stepwise take none, remove it")
    weights, cache = multi_head.fuse(*cell.weights), cell.cache(PreallocatedCache)

    def call() -> Array:
        cache.reset()
        return form(cell.x, weights, cache)

    return call


PATHS: dict[str, Callable[[Inputs], Call]] = {
    "preallocated": lambda cell: steps(cell, PreallocatedCache),
    "dynamic": lambda cell: steps(cell, DynamicCache),
    "repeated": lambda cell: steps(cell, PreallocatedCache, repeated),
    "prefill": lambda cell: fill(cell, multi_head.prefill),
    "stepwise": lambda cell: fill(cell, multi_head.decode),
}


def bind(section: sections.MultiHead) -> Bench:
    """The paths of a section as calls without arguments, inputs made once and shared by all of them."""
    every = cells(section)
    groups = [
        group_of(section, (Timed(path, PATHS[path](cell), *cell.axes) for path in section.paths))
        for cell in every
    ]
    pairs = [(timed, cell) for cell, group in zip(every, groups, strict=True) for timed in group]
    return Bench(
        groups,
        check=lambda: [check(timed, cell) for timed, cell in pairs if timed.kind == "sample"],
        data_sha256=digest_of_arrays(*(array for cell in every for array in cell[:4])),
    )


def check(timed: Timed, cell: Inputs) -> Finding:
    """Compare what a path gives for the last token with one query over everything, in float64."""
    expected, allowed = last_output(cell)
    shape = (*cell.x.shape, cell.num_heads, cell.num_kv_heads)
    return finding(timed.path, timed.call()[:, :, -1], "last_output", expected, allowed, shape)


def last_output(cell: Inputs) -> tuple[Array, float]:
    """(B, H, D) of the last token of x without a cache, head by head, and the largest error allowed in it."""
    x, wq, wk, wv = (array.astype(np.float64) for array in cell[:4])
    H, D, group = cell.num_heads, wq.shape[1] // cell.num_heads, cell.num_heads // cell.num_kv_heads
    columns = [slice(i * D, (i + 1) * D) for i in range(H)]
    k, v = (np.stack([x @ w[:, columns[h // group]] for h in range(H)], axis=1) for w in (wk, wv))
    q = np.stack([x[:, -1] @ wq[:, its] for its in columns], axis=1)
    scores = np.einsum("bhd,bhtd->bht", q, k) / math.sqrt(D)
    powers = np.exp(scores - scores.max(axis=2, keepdims=True))
    output = np.einsum("bht,bhtd->bhd", powers / powers.sum(axis=2, keepdims=True), v)
    return output, decode_paths.tolerance(cell.x.dtype, v, scores)


measure = partial(worker.measure, __name__)

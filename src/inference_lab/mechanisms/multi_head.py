"""Causal attention of H query heads over G key/value heads, with and without a cache.

H == G is multi-head attention, G == 1 multi-query, anything between grouped-query attention. One formula
serves them all: query head h reads key/value head h // (H // G), so the heads of a group lie side by side,
and their queries are the rows of one product, with nothing repeated in memory:

    [B, G, H//G · T, D] @ [B, G, D, S] -> [B, G, H//G · T, S]

A group is then one more sequence to single-head attention, which does the rest (`attention.attend`). A cache
made with `columns` keeps the keys as (B, G, D, S), the order in which this product reads them. Axes: B
sequences, T new tokens (queries), S all tokens so far (keys), H query heads, G key/value heads, D head width,
C model width. Sources: Vaswani et al., 2017 (arXiv:1706.03762), 3.2.2; Shazeer, 2019 (arXiv:1911.02150), for
G == 1; Ainslie et al., 2023 (arXiv:2305.13245), for 1 < G < H.

Everything is here twice. The textbook form (`project`, `grouped_attention`, `cached_step`) reads as the
formula does and keeps the weights. The fast form (`fuse`, `prefill`, `decode`), whose oracle it is, projects
all heads in one product with 1/√D inside, never looks at keys behind a block of queries, and multiplies few
queries with many keys in blocks that BLAS takes where they lie. Both raise InputError for sizes that do not
fit and look at no value: call `check_inputs` once before. Nothing writes to its arguments, save to a cache;
results have the inputs' dtype.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from inference_lab.errors import InputError
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array, check_arrays, check_count, check_sizes
from inference_lab.mechanisms.kv_cache import DynamicCache as DynamicCache  # a reader finds both here
from inference_lab.mechanisms.kv_cache import KVCache
from inference_lab.mechanisms.kv_cache import PreallocatedCache as PreallocatedCache

# Queries that one block of a prefill holds of each head: the fewest that keep BLAS busy, so that the corner
# of keys computed in vain (on average half a block a query) stays small.
_QUERIES = 64
# Scores in work at once, about 2 MB of float32: with more of them softmax waits for memory.
_SCORES = 2**19
# Multiply-adds of one product of few queries and many keys. OpenBLAS multiplies up to 10^6 of them where the
# numbers lie (its AVX-512 kernels do); beyond that it copies keys or values first, which takes several times
# as long as multiplying them by a handful of queries.
_MULTIPLY_ADDS = 2**19


def split_heads(projected: Array, num_heads: int) -> Array:
    """(B, T, H·D) -> (B, H, T, D), a view: result[b, h, t, d] is projected[b, t, h·D + d]."""
    check_sizes(("projected", projected, "B T C"))
    check_count("num_heads", num_heads)
    B, T, width = projected.shape
    if width % num_heads:
        raise InputError(f"projected is {width} wide, must be a multiple of its {num_heads} heads")
    # Only strides change, whatever the memory order: nothing is ever copied.
    return projected.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(per_head: Array) -> Array:
    """(B, H, T, D) -> (B, T, H·D), the inverse of `split_heads`.

    A view where heads still lie beside their width in memory (what `split_heads` returned; T = 1 in C
    order; H = 1), else a copy.
    """
    check_sizes(("per_head", per_head, "B H T D"))
    B, H, T, D = per_head.shape
    return per_head.swapaxes(1, 2).reshape(B, T, H * D)


def project(
    x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int
) -> tuple[Array, Array, Array]:
    """(B, T, C), (C, H·D), (C, G·D), (C, G·D) -> q (B, H, T, D), k (B, G, T, D), v (B, G, T, D)."""
    check_sizes(("x", x, "B T C"), ("wq", wq, "C Q"), ("wk", wk, "C K"), ("wv", wv, "C V"))
    _check_widths(wq, wk, wv, num_heads, num_kv_heads)
    q, k, v = x @ wq, x @ wk, x @ wv
    return split_heads(q, num_heads), split_heads(k, num_kv_heads), split_heads(v, num_kv_heads)


def grouped_attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """(B, H, T, D), (B, G, S, D), (B, G, S, D) -> output (B, H, T, D), weights (B, H, T, S).

    softmax(q·kᵀ / √D)·v for each head. The queries are the last T of S positions: t sees 0 to S - T + t.
    """
    _check_grouped(q, k, v)
    B, H, T, D = q.shape
    _, G, S, _ = k.shape
    group = H // G  # query heads on one key/value head
    # One query alone is the newest position and sees everything.
    sees = None if T == 1 else np.tile(np.tri(T, S, S - T, dtype=bool), (group, 1))
    output, weights = attention.attend(q.reshape(B, G, group * T, D), k, v, sees)
    return output.reshape(B, H, T, D), weights.reshape(B, H, T, S)


class StepResult(NamedTuple):
    """What one call of `cached_step` computed for its T new positions."""

    q: Array  # (B, H, T, D)
    k: Array  # (B, G, T, D)
    v: Array  # (B, G, T, D)
    output: Array  # (B, H, T, D)
    weights: Array  # (B, H, T, S)


def cached_step(
    x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int, cache: KVCache
) -> StepResult:
    """(B, T, C) of new tokens -> StepResult; the cache grows from S - T to S positions.

    T = 1 is a decode step; a longer x is a prefill, at the start or after what the cache holds.
    """
    q, k, v = project(x, wq, wk, wv, num_heads, num_kv_heads)
    cache.append(k, v)
    output, weights = grouped_attention(q, cache.keys, cache.values)
    return StepResult(q, k, v, output, weights)


class FusedWeights(NamedTuple):
    """The weights of all heads side by side, H of queries (with 1/√D inside), G of keys, G of values."""

    qkv: Array  # (C, (H + 2·G)·D)
    num_heads: int
    num_kv_heads: int

    def split(self, projected: Array) -> tuple[Array, Array, Array]:
        """(B, T, (H + 2·G)·D) -> q (B, H, T, D), k (B, G, T, D), v (B, G, T, D), views; q is scaled."""
        H, G = self.num_heads, self.num_kv_heads
        heads = split_heads(projected, H + 2 * G)
        return heads[:, :H], heads[:, H : H + G], heads[:, H + G :]


def fuse(wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int) -> FusedWeights:
    """(C, H·D), (C, G·D), (C, G·D) -> FusedWeights, made once for any number of steps."""
    check_sizes(("wq", wq, "C Q"), ("wk", wk, "C K"), ("wv", wv, "C V"))
    _check_widths(wq, wk, wv, num_heads, num_kv_heads)
    scale = 1 / math.sqrt(wq.shape[1] // num_heads)
    return FusedWeights(np.concatenate((wq * scale, wk, wv), axis=1), num_heads, num_kv_heads)


def prefill(x: Array, weights: FusedWeights, cache: KVCache) -> Array:
    """(B, T, C) -> (B, H, T, D): T tokens at once behind those of the cache, which grows by them."""
    _check_fused(x, weights)
    q, k, v = weights.split(x @ weights.qkv)
    cache.append(k, v)
    return causal_blocks(q, cache.keys, cache.values)


def causal_blocks(q: Array, k: Array, v: Array) -> Array:
    """(B, H, T, D), (B, G, S, D), (B, G, S, D) -> (B, H, T, D), as `grouped_attention` of q·√D.

    A block of queries sees the keys up to its last query at once, so its softmax is whole; only the corner
    where the block's own tokens meet is masked.
    """
    _check_grouped(q, k, v)
    B, H, T, D = q.shape
    _, G, S, _ = k.shape
    group = H // G
    grouped = q.reshape(B, G, group, T, D)
    output = np.empty(grouped.shape, q.dtype)
    for start in range(0, T, _QUERIES):
        end = min(start + _QUERIES, T)
        rows, seen = end - start, S - T + end
        hidden = np.triu(np.full((rows, rows), -np.inf, q.dtype), 1)  # added to scores
        some = max(1, _SCORES // (B * group * rows * seen))  # key/value heads at once
        for heads in (slice(g, g + some) for g in range(0, G, some)):
            queries = grouped[:, heads, :, start:end].reshape(B, -1, group * rows, D)
            scores = queries @ k[:, heads, :seen].swapaxes(2, 3)
            scores.reshape(B, -1, group, rows, seen)[..., seen - rows :] += hidden
            sums = _exponentials(scores)
            mixed = scores @ v[:, heads, :seen]
            mixed /= sums
            output[:, heads, :, start:end] = mixed.reshape(B, -1, group, rows, D)
    return output.reshape(B, H, T, D)


def newest_blocks(q: Array, key_columns: Array, v: Array, output: Array) -> None:
    """Write the attention of (B, G, H//G, D) scaled queries, which see all S keys, into `output` alike.

    `key_columns` is (B, G, D, S), `v` (B, G, S, D). The inner step of `decode`: it checks nothing.
    """
    group, D = q.shape[2:]
    S = key_columns.shape[3]
    size = _MULTIPLY_ADDS // (group * D) or 1
    if group == 1 or size >= S:  # one query is multiplied where K and V lie, whatever their length
        scores = q @ key_columns
        sums = _exponentials(scores)
        np.matmul(scores, v, out=output)
    else:
        blocks = [slice(start, start + size) for start in range(0, S, size)]
        scores = np.empty((*q.shape[:3], S), q.dtype)
        for block in blocks:
            np.matmul(q, key_columns[..., block], out=scores[..., block])
        sums = _exponentials(scores)
        np.matmul(scores[..., blocks[0]], v[:, :, blocks[0]], out=output)
        for block in blocks[1:]:
            output += scores[..., block] @ v[:, :, block]
    output /= sums  # D numbers a head, not S


def _exponentials(scores: Array) -> Array:
    """Replace scores by exp(score - the largest of its row); return the sums of the rows, (..., 1)."""
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return np.add.reduce(scores, axis=-1, keepdims=True)


Newest = Callable[[Array, Array, Array, Array], None]


def decode(x: Array, weights: FusedWeights, cache: KVCache, attend: Newest = newest_blocks) -> Array:
    """(B, T, C) -> (B, H, T, D): T steps, each of one token, behind those of the cache, which grows by them.

    Equal to `prefill`. A refused step leaves the tokens before it in the cache.
    """
    _check_fused(x, weights)
    B, T, _ = x.shape
    projected = np.empty((B, weights.qkv.shape[1]), x.dtype)
    q, k, v = weights.split(projected[:, None])  # views: every product below fills them
    H, G, D = q.shape[1], k.shape[1], q.shape[3]
    grouped = q.reshape(B, G, H // G, D)
    output = np.empty((T, *grouped.shape), x.dtype)
    for t in range(T):
        np.matmul(x[:, t], weights.qkv, out=projected)
        cache.append(k, v)
        attend(grouped, cache.key_columns, cache.values, output[t])
    return output.reshape(T, B, H, D).transpose(1, 2, 0, 3)


def multi_head_attention(
    x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int | None = None
) -> tuple[Array, Array]:
    """(B, T, C), (C, H·D), (C, G·D), (C, G·D) -> output (B, H, T, D), weights (B, H, T, T).

    Without a cache. `num_kv_heads` is G, H when not given. Raises InputError as `check_inputs` does.
    """
    G = num_heads if num_kv_heads is None else num_kv_heads
    check_inputs(x, wq, wk, wv, num_heads, G)
    return grouped_attention(*project(x, wq, wk, wv, num_heads, G))


def cached_multi_head_attention(
    x: Array,
    wq: Array,
    wk: Array,
    wv: Array,
    num_heads: int,
    num_kv_heads: int | None = None,
    *,
    cache: KVCache,
    prompt_length: int = 1,
) -> Array:
    """(B, T, C) and weights as `multi_head_attention` -> output (B, H, T, D), equal to its output.

    The first `prompt_length` tokens go through in one step (prefill), the others one by one (decode), behind
    whatever the cache holds. Raises InputError as `check_inputs` does or when the cache cannot take T tokens.
    """
    G = num_heads if num_kv_heads is None else num_kv_heads
    check_inputs(x, wq, wk, wv, num_heads, G)
    B, T, _ = x.shape
    of_all = (B, G, T, wk.shape[1] // G)
    cache.check_append(of_all, of_all, x.dtype, x.dtype)
    check_count("prompt_length", prompt_length)
    if prompt_length > T:
        raise InputError(f"prompt_length is {prompt_length}, must be at most the {T} tokens of x")
    weights = fuse(wq, wk, wv, num_heads, G)
    prompt = prefill(x[:, :prompt_length], weights, cache)
    if prompt_length == T:
        return prompt
    return np.concatenate((prompt, decode(x[:, prompt_length:], weights, cache)), axis=2)


def check_inputs(x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int) -> None:
    """Raise InputError unless x (B, T, C), wq (C, H·D), wk (C, G·D), wv (C, G·D) fit together.

    H and G are positive integers, H a multiple of G, and every width splits into heads of one width D.
    """
    check_arrays(("x", x, "B T C"), ("wq", wq, "C Q"), ("wk", wk, "C K"), ("wv", wv, "C V"))
    _check_widths(wq, wk, wv, num_heads, num_kv_heads)


def _check_fused(x: Array, weights: FusedWeights) -> None:
    check_sizes(("x", x, "B T C"), ("weights.qkv", weights.qkv, "C N"))
    if x.dtype != weights.qkv.dtype:
        raise InputError(f"x is {x.dtype}, must be {weights.qkv.dtype} as the weights are; use astype")


def _check_grouped(q: Array, k: Array, v: Array) -> None:
    check_sizes(("q", q, "B H T D"), ("k", k, "B G S D"), ("v", v, "B G S D"))
    _check_divides(q.shape[1], k.shape[1])
    if q.shape[2] > k.shape[2]:
        raise InputError(f"q has {q.shape[2]} positions, must have at most the {k.shape[2]} of k")


def _check_divides(num_heads: int, num_kv_heads: int) -> None:
    check_count("num_heads", num_heads)
    check_count("num_kv_heads", num_kv_heads)
    if num_heads % num_kv_heads:
        raise InputError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")


def _check_widths(wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int) -> None:
    _check_divides(num_heads, num_kv_heads)
    D = wq.shape[1] // num_heads
    for name, weights, heads in (("wq", wq, num_heads), ("wk", wk, num_kv_heads), ("wv", wv, num_kv_heads)):
        width = weights.shape[1]
        if width % heads:
            raise InputError(f"{name} is {width} wide, must be a multiple of its {heads} heads")
        if width // heads != D:
            raise InputError(f"{name} has {heads} heads of width {width // heads}, must be {D} wide as in wq")

"""Single-head causal attention, and four ways to decode a sequence with it, one token a step.

Answers: what a key/value cache saves, and that it changes the cost alone. Step t attends from the
newest token to all n = t + 1 so far. Keys and values of the older ones depend on nothing newer, so they
can be kept. Multiply-adds of that step for one sequence, all widths C:

    no_cache               3·n·C² + 2·n²·C        everything again, every query of the prefix
    no_cache_last_query    (2·n + 1)·C² + 2·n·C   keys and values again, one query
    dynamic, preallocated  3·C² + 2·n·C           one token projected; they differ in the cache alone

Axes: B sequences, T queries, S keys, C model width, D width of queries and keys, E width of values; `...` is
(B,) or nothing. Formula: Vaswani et al. 2017 (arXiv:1706.03762), eq. 1.

The first half checks sizes, which costs microseconds, and no value: call `check_inputs` once before a timed
call. The second half checks all. Arguments are never written to, a cache excepted, and no result shares
memory with one. Results have the inputs' dtype, float32 or float64.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import InputError
from inference_lab.mechanisms.arrays import Array, check_arrays, check_float_array, check_mask, check_sizes
from inference_lab.mechanisms.kv_cache import CACHES, DynamicCache, KVCache, PreallocatedCache

DecodePath = Callable[[Array, Array, Array, Array], Array]
Mask = NDArray[np.bool]


def attend(q: Array, k: Array, v: Array, mask: Mask | None = None) -> tuple[Array, Array]:
    """(..., T, D), (..., S, D), (..., S, E), (..., T, S) -> output (..., T, E), weights (..., T, S).

    softmax(q·kᵀ / √D)·v. A query sees a key where `mask` is True; it must see one. Raises InputError for
    sizes that do not fit.
    """
    check_sizes(("q", q, "... T D"), ("k", k, "... S D"), ("v", v, "... S E"))
    return _attend(q, k, v, mask)


def _attend(q: Array, k: Array, v: Array, mask: Mask | None = None) -> tuple[Array, Array]:
    scores = q / math.sqrt(q.shape[-1]) @ k.swapaxes(-1, -2)  # np.sqrt would make float32 float64
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = _softmax(scores, axis=-1)
    return weights @ v, weights


def _softmax(x: Array, axis: int) -> Array:
    weights = x - x.max(axis, keepdims=True)  # the largest becomes 0, so that no exp overflows
    np.exp(weights, out=weights)
    weights /= weights.sum(axis, keepdims=True)
    return weights


def no_cache(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(..., T, C) -> (..., T, E): each step attends over its whole prefix anew, keeps the last row."""
    _check_sizes(x, wq, wk, wv)
    output = np.empty((*x.shape[:-1], wv.shape[1]), x.dtype)
    mask = _causal_mask(x.shape[-2])
    for t in range(x.shape[-2]):
        prefix = x[..., : t + 1, :]
        rows, _ = _attend(prefix @ wq, prefix @ wk, prefix @ wv, mask[: t + 1, : t + 1])
        output[..., t, :] = rows[..., -1, :]
    return output


def no_cache_last_query(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(..., T, C) -> (..., T, E): each step projects K and V of its prefix anew, Q of one token."""
    _check_sizes(x, wq, wk, wv)
    output = np.empty((*x.shape[:-1], wv.shape[1]), x.dtype)
    for t in range(x.shape[-2]):
        prefix, newest = x[..., : t + 1, :], x[..., t : t + 1, :]
        row, _ = _attend(
            newest @ wq, prefix @ wk, prefix @ wv
        )  # no mask: the newest token sees all before it
        output[..., t, :] = row[..., 0, :]
    return output


def dynamic(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(..., T, C) -> (..., T, E): each step appends K and V of one token to a DynamicCache."""
    _check_sizes(x, wq, wk, wv)
    return _decode(x, wq, wk, wv, DynamicCache)[0]


def preallocated(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(..., T, C) -> (..., T, E): each step writes K and V of one token to a PreallocatedCache."""
    _check_sizes(x, wq, wk, wv)
    return _decode(x, wq, wk, wv, PreallocatedCache)[0]


DECODE_PATHS: dict[str, DecodePath] = {
    path.__name__: path for path in (no_cache, no_cache_last_query, dynamic, preallocated)
}


def _causal_mask(T: int) -> Mask:
    return np.tri(T, dtype=bool)  # query t sees the keys up to and including t


def _check_sizes(x: Array, wq: Array, wk: Array, wv: Array) -> None:
    check_sizes(("x", x, "B T C|T C"), ("wq", wq, "C D"), ("wk", wk, "C D"), ("wv", wv, "C E"))


def _fuse(wq: Array, wk: Array, wv: Array) -> Array:
    """(C, D), (C, D), (C, E) -> (C, D+D+E): one product gives Q/√D, K and V."""
    return np.concatenate((wq * (1 / math.sqrt(wq.shape[1])), wk, wv), axis=1)


def _split(qkv: Array, D: int) -> tuple[Array, Array, Array]:
    """(..., D+D+E) -> (..., D), (..., D), (..., E), views."""
    return qkv[..., :D], qkv[..., D : 2 * D], qkv[..., 2 * D :]


def _decode(x: Array, wq: Array, wk: Array, wv: Array, kind: type[KVCache]) -> tuple[Array, KVCache]:
    """(..., T, C) -> (..., T, E): T steps from an empty cache, each projecting its own token alone."""
    cache = kind(x.shape[:-1], wk.shape[1], wv.shape[1], x.dtype)
    output = np.empty((*x.shape[:-1], wv.shape[1]), x.dtype)
    w_qkv = _fuse(wq, wk, wv)
    qkv = np.empty((*x.shape[:-2], 1, w_qkv.shape[1]), x.dtype)
    q, k, v = _split(qkv, wk.shape[1])  # views: every product below fills them
    newest, query = qkv[..., 0, :], q[..., 0, :]
    row = np.empty((*x.shape[:-2], 1), x.dtype)
    for t in range(x.shape[-2]):
        np.matmul(x[..., t, :], w_qkv, out=newest)
        cache.append(k, v)
        _attend_newest(query, cache, output[..., t, :], row)
    return output, cache


def _attend_newest(q: Array, cache: KVCache, output: Array, row: Array) -> Array:
    """(..., D) of the newest token -> exponentials (..., length); fills `output` (..., E) and `row`."""
    scores = np.matvec(cache.keys, q)
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True, out=row)
    exponentials = np.exp(scores, out=scores)
    np.vecmat(exponentials, cache.values, out=output)
    output /= np.add.reduce(exponentials, axis=-1, keepdims=True, out=row)  # E numbers, not `length`
    return exponentials


def check_inputs(x: Array, wq: Array, wk: Array, wv: Array) -> None:
    """Raise InputError unless x (B, T, C) or (T, C) can be decoded with wq, wk (C, D) and wv (C, E)."""
    check_arrays(("x", x, "B T C|T C"), ("wq", wq, "C D"), ("wk", wk, "C D"), ("wv", wv, "C E"))


def decode_without_cache(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(..., T, C) -> (..., T, E): `no_cache`, after check_inputs."""
    check_inputs(x, wq, wk, wv)
    return no_cache(x, wq, wk, wv)


def cached_attention(
    x: Array, wq: Array, wk: Array, wv: Array, cache: str = "preallocated"
) -> tuple[Array, Array, Array]:
    """(..., T, C) -> output (..., T, E), k_cache (..., T, D), v_cache (..., T, E), after check_inputs.

    `cache` names one of CACHES. The caches returned are the caller's: nothing writes to them later.
    """
    check_inputs(x, wq, wk, wv)
    if cache not in CACHES:
        raise InputError(f"cache is {cache!r}, must be one of {', '.join(CACHES)}")
    output, kept = _decode(x, wq, wk, wv, CACHES[cache])
    return output, kept.keys, kept.values


def decode_step(
    token: Array, wq: Array, wk: Array, wv: Array, cache: KVCache
) -> tuple[Array, Array, Array, Array]:
    """(B, C) or (C,) -> output (..., E), weights (..., length), keys, values: one step of a decode.

    `token` is the newest of each sequence; `cache` grows by it, and its keys and values are returned.
    Raises InputError, the cache unchanged, when the token does not fit the weights or the cache.
    """
    check_arrays(("token", token, "B C|C"), ("wq", wq, "C D"), ("wk", wk, "C D"), ("wv", wv, "C E"))
    q, k, v = _split(token[..., None, :] @ _fuse(wq, wk, wv), wk.shape[1])
    cache.append(k, v)
    output = np.empty((*token.shape[:-1], wv.shape[1]), token.dtype)
    sums = np.empty((*token.shape[:-1], 1), token.dtype)
    weights = _attend_newest(q[..., 0, :], cache, output, sums) / sums
    return output, weights, cache.keys, cache.values


def causal_attention(x: Array, wq: Array, wk: Array, wv: Array) -> Array:
    """(..., T, C) -> (..., T, E): what every path decodes, in one masked pass; after check_inputs."""
    check_inputs(x, wq, wk, wv)
    return attend(x @ wq, x @ wk, x @ wv, _causal_mask(x.shape[-2]))[0]


def scaled_dot_product_attention(
    q: Array, k: Array, v: Array, mask: Mask | None = None
) -> tuple[Array, Array]:
    """`attend`, checked: `mask` may broadcast to (..., T, S), and every query must see a key."""
    check_arrays(("q", q, "... T D"), ("k", k, "... S D"), ("v", v, "... S E"))
    if mask is not None:
        check_mask(mask, (*q.shape[:-1], k.shape[-2]))
    return attend(q, k, v, mask)


def softmax(x: Array, axis: int) -> Array:
    """(...) -> (...): exp(x) over its sum along `axis`; each row sums to 1, -inf weighs 0.

    Raises InputError for a row that is empty, nowhere finite, or holds nan or inf.
    """
    check_float_array("x", x)
    if type(axis) is not int or axis not in range(-x.ndim, x.ndim):  # True and 1.0 are in that range too
        raise InputError(f"axis is {axis!r}, must be an axis of x, whose shape is {x.shape}")
    if x.shape[axis] == 0 or not np.isfinite(x.max(axis)).all():
        raise InputError(f"x has a row along axis {axis} that is empty, all -inf, or holds nan or inf")
    return _softmax(x, axis)

"""Causal attention of H query heads over G key/value heads, with and without a cache.

Answers: how one matrix of projections becomes heads, what each head sees, and what a cache keeps of
them. H == G is multi-head attention, G == 1 multi-query attention, anything between grouped-query
attention. One formula serves them all: query head h reads key/value head h // (H // G), so the heads of
a group lie side by side, and their queries are the rows of one product, with nothing repeated in memory:

    [B, G, H//G · T, D] @ [B, G, D, S] -> [B, G, H//G · T, S]

A group is then one more sequence to single-head attention, which does the rest (`attention.attend`).
The caches keep the keys as (B, G, D, S), the order in which this product reads them.

Does not know clocks, positions, output projections, layers or tokens. Axes: B sequences, T new tokens
(queries), S all tokens so far (keys), H query heads, G key/value heads, D head width, C model width.
Sources: Vaswani et al., 2017 (arXiv:1706.03762), 3.2.2; Shazeer, 2019 (arXiv:1911.02150), for G == 1;
Ainslie et al., 2023 (arXiv:2305.13245), for 1 < G < H.

`split_heads`, `merge_heads`, `project`, `grouped_attention` and `cached_step` are arithmetic, so that a
timed call holds no check of its inputs: call `check_inputs` once before them. The functions named
multi-head attention check, then call those. Nothing writes to its arguments, save to a cache. The dtype
of the result is that of the inputs, float32 or float64.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from inference_lab import attention
from inference_lab.array_contract import Array, check_arrays
from inference_lab.errors import InputError


def split_heads(projected: Array, num_heads: int) -> Array:
    """(B, T, H·D) -> (B, H, T, D), a view: result[b, h, t, d] is projected[b, t, h·D + d].

    Splitting the last axis and swapping two axes only changes strides, so this never copies, whatever
    the memory order of `projected`.
    """
    B, T, width = projected.shape
    return projected.reshape(B, T, num_heads, width // num_heads).swapaxes(1, 2)


def merge_heads(per_head: Array) -> Array:
    """(B, H, T, D) -> (B, T, H·D), the inverse of `split_heads`.

    A view where heads still lie beside their width in memory (what `split_heads` returned; T = 1 in C
    order; H = 1). Otherwise the merge must copy, and a write to the result is lost.
    """
    B, H, T, D = per_head.shape
    return per_head.swapaxes(1, 2).reshape(B, T, H * D)


def project(
    x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int
) -> tuple[Array, Array, Array]:
    """(B, T, C), (C, H·D), (C, G·D), (C, G·D) -> q (B, H, T, D), k (B, G, T, D), v (B, G, T, D)."""
    return (
        split_heads(x @ wq, num_heads),
        split_heads(x @ wk, num_kv_heads),
        split_heads(x @ wv, num_kv_heads),
    )


def grouped_attention(q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """(B, H, T, D), (B, G, S, D), (B, G, S, D) -> output (B, H, T, D), weights (B, H, T, S).

    softmax(q·kᵀ / √D)·v for each head. The T queries are the last T of the S positions: query t stands
    at position S - T + t, sees it and every earlier one, and its weights over those sum to 1.
    """
    B, H, T, D = q.shape
    _, G, S, _ = k.shape
    group = H // G  # query heads on one key/value head
    # One query alone is the newest position and sees everything.
    sees = None if T == 1 else np.tile(np.tri(T, S, S - T, dtype=bool), (group, 1))
    output, weights = attention.attend(q.reshape(B, G, group * T, D), k, v, sees)
    return output.reshape(B, H, T, D), weights.reshape(B, H, T, S)


class HeadCache(ABC):
    """Keys and values of the `length` positions seen so far, for B sequences and G heads of width D.

    `capacity` is the number of positions allocated at once. `k` and `v` are (B, G, length, D). A row of
    another dtype is refused, not rounded. Raises InputError for a size that is no positive integer.
    """

    def __init__(
        self, batch_size: int, num_kv_heads: int, head_dim: int, dtype: DTypeLike, capacity: int = 0
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("num_kv_heads", num_kv_heads, 1),
            ("head_dim", head_dim, 1),
            ("capacity", capacity, 0),
        ):
            _check_integer(name, value, least)
        self.length = 0
        self._keys = np.empty((batch_size, num_kv_heads, head_dim, capacity), dtype)
        self._values = np.empty((batch_size, num_kv_heads, capacity, head_dim), dtype)

    @property
    def k(self) -> Array:
        """(B, G, length, D), read-only: the keys so far. It shows what is written here later."""
        return _read_only(self._keys[..., : self.length].swapaxes(2, 3))

    @property
    def v(self) -> Array:
        """(B, G, length, D), read-only: the values so far. It shows what is written here later."""
        return _read_only(self._values[:, :, : self.length])

    @property
    def nbytes(self) -> int:
        """Bytes held, filled or not."""
        return self._keys.nbytes + self._values.nbytes

    def append(self, k: Array, v: Array) -> None:
        """Keep k and v (B, G, T, D) of T new positions. Raises InputError and keeps nothing."""
        if (k.shape, k.dtype) != (v.shape, v.dtype):
            raise InputError(f"k is {k.dtype} {k.shape} and v is {v.dtype} {v.shape}, must be alike")
        self.check_append(k.shape, k.dtype)
        self._store(k, v)
        self.length += k.shape[2]

    def truncate(self, length: int) -> None:
        """Forget every position from `length` on; what was stored there is never seen again."""
        _check_integer("length", length, 0)
        if length > self.length:
            raise InputError(f"length is {length}, must be at most the {self.length} positions of the cache")
        self.length = length

    def reset(self) -> None:
        """Forget everything, ready for other sequences of the same shape."""
        self.truncate(0)

    def check_append(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Raise InputError if keys or values of this (B, G, T, D) shape and dtype cannot be appended."""
        B, G, D, _ = self._keys.shape
        if len(shape) != 4 or (shape[0], shape[1], shape[3]) != (B, G, D):
            raise InputError(
                f"keys and values of shape {shape} do not fit this cache of B={B}, G={G}, D={D}:"
                f" they must be ({B}, {G}, T, {D}); make a cache for this batch and these heads"
            )
        if dtype != self._keys.dtype:
            raise InputError(
                f"keys and values are {np.dtype(dtype)} and this cache is {self._keys.dtype}:"
                " they must be the same; cast them, or make a cache of their dtype"
            )

    @abstractmethod
    def _store(self, k: Array, v: Array) -> None:
        """Write k and v behind the `length` positions that are kept."""


class DynamicHeadCache(HeadCache):
    """A cache that grows: each append allocates longer arrays and copies everything into them."""

    def _store(self, k: Array, v: Array) -> None:
        kept = slice(0, self.length)
        self._keys = np.concatenate([self._keys[..., kept], k.swapaxes(2, 3)], axis=3)
        self._values = np.concatenate([self._values[:, :, kept], v], axis=2)


class PreallocatedHeadCache(HeadCache):
    """A cache of `capacity` positions allocated once: each append writes the next free slots alone."""

    def check_append(self, shape: tuple[int, ...], dtype: DTypeLike) -> None:
        """Raise InputError if this cannot be appended, because it does not fit or there is no room."""
        super().check_append(shape, dtype)
        capacity = self._keys.shape[3]
        if self.length + shape[2] > capacity:
            raise InputError(
                f"{shape[2]} more positions do not fit: {self.length} of a capacity of {capacity} are"
                f" taken; make the cache for {self.length + shape[2]} or more, or reset it"
            )

    def _store(self, k: Array, v: Array) -> None:
        new = slice(self.length, self.length + k.shape[2])
        self._keys[..., new] = k.swapaxes(2, 3)
        self._values[:, :, new] = v


class Step(NamedTuple):
    """What one call of `cached_step` computed for its T new positions."""

    q: Array  # (B, H, T, D)
    k: Array  # (B, G, T, D)
    v: Array  # (B, G, T, D)
    output: Array  # (B, H, T, D)
    weights: Array  # (B, H, T, S)


def cached_step(
    x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int, cache: HeadCache
) -> Step:
    """(B, T, C) of new tokens -> Step; the cache grows from S - T to S positions.

    T = 1 is a decode step; a longer x is a prefill, at the start or after what the cache holds.
    """
    q, k, v = project(x, wq, wk, wv, num_heads, num_kv_heads)
    cache.append(k, v)
    output, weights = grouped_attention(q, cache.k, cache.v)
    return Step(q, k, v, output, weights)


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
    cache: HeadCache,
    prompt_length: int = 1,
) -> Array:
    """(B, T, C) and weights as `multi_head_attention` -> output (B, H, T, D), equal to its output.

    The first `prompt_length` tokens go through in one step (prefill), the others one by one (decode),
    behind whatever the cache holds already. Raises InputError before any arithmetic, as `check_inputs`
    does or when the cache cannot take all T tokens.
    """
    G = num_heads if num_kv_heads is None else num_kv_heads
    check_inputs(x, wq, wk, wv, num_heads, G)
    B, T, _ = x.shape
    cache.check_append((B, G, T, wk.shape[1] // G), x.dtype)
    _check_integer("prompt_length", prompt_length, 1)
    if prompt_length > T:
        raise InputError(f"prompt_length is {prompt_length}, must be at most the {T} tokens of x")
    ends = range(prompt_length, T + 1)
    starts = (0, *ends[:-1])
    steps = [
        cached_step(x[:, start:end], wq, wk, wv, num_heads, G, cache).output
        for start, end in zip(starts, ends, strict=True)
    ]
    return np.concatenate(steps, axis=2)


def check_inputs(x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int) -> None:
    """Raise InputError unless x (B, T, C), wq (C, H·D), wk (C, G·D), wv (C, G·D) fit together.

    As `array_contract.check_arrays` says of the arrays; H and G are positive integers, H a multiple of
    G, and every width splits into heads of one width D.
    """
    check_arrays(("x", x, "B T C"), ("wq", wq, "C Q"), ("wk", wk, "C K"), ("wv", wv, "C V"))
    _check_integer("num_heads", num_heads, 1)
    _check_integer("num_kv_heads", num_kv_heads, 1)
    if num_heads % num_kv_heads:
        raise InputError(
            f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads};"
            " every key/value head must serve the same number of query heads"
        )
    for name, weights, heads in (("wq", wq, num_heads), ("wk", wk, num_kv_heads), ("wv", wv, num_kv_heads)):
        width = weights.shape[1]
        if width % heads:
            raise InputError(f"{name} is {width} wide, must be a multiple of its {heads} heads")
        if width // heads != wq.shape[1] // num_heads:
            raise InputError(
                f"{name} has {heads} heads of width {width // heads}, must be of the width"
                f" {wq.shape[1] // num_heads} of wq; is the number of heads right?"
            )


def _check_integer(name: str, value: object, least: int) -> None:
    # bool is an int to Python, but True heads is a slip.
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} is {value!r}, must be an integer of at least {least}")


def _read_only(view: Array) -> Array:
    view.flags.writeable = False
    return view

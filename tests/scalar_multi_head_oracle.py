"""Multi-head attention in scalar loops: for each sequence and query head, one scalar decode by itself.

Head h has columns h·D to (h+1)·D of wq and, with g = h // (H // G), columns g·D to (g+1)·D of wk and
wv. There is no heads axis, no reshape and nothing shared between heads: what one head gives is what
`scalar_oracle.decode` gives for its columns.
"""

import math

import numpy as np

from inference_lab.mechanisms.arrays import Array
from tests.scalar_oracle import Decoded, Matrix, decode, read_only

Expected = list[list[Decoded]]  # B sequences of H heads


def columns(w: Matrix, head: int, D: int) -> Matrix:
    """Rows of H·D -> rows of D: the columns of one head."""
    return [[row[head * D + d] for d in range(D)] for row in w]


def decode_heads(x: Array, wq: Array, wk: Array, wv: Array, num_heads: int, num_kv_heads: int) -> Expected:
    """x (B, T, C) and weights -> what query head h of sequence b must give, at [b][h]."""
    D = wq.shape[1] // num_heads
    found: Expected = []
    for sequence in x.tolist():
        found.append([])
        for h in range(num_heads):
            g = h // (num_heads // num_kv_heads)
            its_q = columns(wq.tolist(), h, D)
            found[-1].append(decode(sequence, its_q, columns(wk.tolist(), g, D), columns(wv.tolist(), g, D)))
    return found


def inputs(
    B: int, T: int, H: int, G: int, D: int, C: int = 7, dtype: object = np.float64, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """Read-only x (B, T, C), wq (C, H·D), wk and wv (C, G·D): unit normal, weights over √C."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((B, T, C))
    weights = [rng.standard_normal((C, heads * D)) / math.sqrt(C) for heads in (H, G, G)]
    return tuple(read_only(array.astype(dtype)) for array in (x, *weights))  # pyright: ignore

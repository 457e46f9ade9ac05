"""Causal attention in scalar loops over Python floats: written to be believed, not to be fast.

No broadcasting, no axis, no cache: one sum for each number, in the order of the formula
softmax(q·kᵀ / √D)·v. Every decode path meets `decode`, at every position, within `tolerance`.
"""

import math
from dataclasses import dataclass

import numpy as np

from inference_lab.mechanisms.arrays import Array

Matrix = list[list[float]]


@dataclass(frozen=True)
class Decoded:
    """One sequence of T tokens; row t of `weights` has t + 1 entries."""

    output: Matrix  # T rows of E
    weights: Matrix
    keys: Matrix  # T rows of D
    values: Matrix  # T rows of E
    largest_score: float


def project(x: Matrix, w: Matrix) -> Matrix:
    """T rows of C, C rows of N -> T rows of N."""
    columns = len(w[0])
    return [[math.fsum(row[c] * w[c][n] for c in range(len(w))) for n in range(columns)] for row in x]


def decode(x: Matrix, wq: Matrix, wk: Matrix, wv: Matrix) -> Decoded:
    """T rows of C, C rows of D, C rows of D, C rows of E -> what a decode of that sequence must give."""
    queries, keys, values = project(x, wq), project(x, wk), project(x, wv)
    D, E = len(keys[0]), len(values[0])
    output: Matrix = []
    weights: Matrix = []
    largest_score = 0.0
    for t in range(len(x)):
        scores: list[float] = []
        for s in range(t + 1):  # token t sees itself and what came before
            score = math.fsum(queries[t][d] * keys[s][d] for d in range(D)) / math.sqrt(D)
            scores.append(score)
            largest_score = max(largest_score, abs(score))
        highest = max(scores)
        exponentials = [math.exp(score - highest) for score in scores]
        total = math.fsum(exponentials)
        weights.append([exponential / total for exponential in exponentials])
        output.append([math.fsum(weights[t][s] * values[s][e] for s in range(t + 1)) for e in range(E)])
    return Decoded(output, weights, keys, values, largest_score)


def decode_batch(x: Array, wq: Array, wk: Array, wv: Array) -> list[Decoded]:
    """x (B, T, C) -> B sequences, each decoded alone. A float32 is a Python float exactly."""
    return [decode(sequence.tolist(), wq.tolist(), wk.tolist(), wv.tolist()) for sequence in x]


def tolerance(expected: list[Decoded], dtype: object) -> float:
    """Largest absolute error allowed in an output of these sequences.

    An output is a mean of values, so its error grows with max|V|. An error of a score is a relative
    error of its weight, since exp(s + e) ≈ exp(s)·(1 + e), and grows with max|score|. Hence
    roundings · max|V| · max(1, max|score|): 1e-6 is 17 roundings of float32 (2⁻²⁴ each), 1e-14 is 90 of
    float64 (2⁻⁵³), against 2·C + D + T, about 30, if every rounding in the sums were the worst and
    alike. Seen over 600 decodes: 0.09 and 0.03 of the bound. Never relative to the output: values of
    both signs cancel to nearly 0.
    """
    roundings = 1e-6 if np.dtype(dtype) == np.float32 else 1e-14  # pyright: ignore[reportArgumentType]
    largest_value = max(abs(v) for one in expected for row in one.values for v in row)
    largest_score = max(one.largest_score for one in expected)
    return roundings * largest_value * max(1.0, largest_score)


def inputs(
    B: int, T: int, C: int = 6, D: int = 3, E: int = 5, dtype: object = np.float64, seed: int = 0
) -> tuple[Array, Array, Array, Array]:
    """Read-only x (B, T, C), wq, wk (C, D), wv (C, E): unit normal, weights over √C, all rows different.

    The widths differ from each other and from every B and T the tests use, so that no swapped axis fits.
    """
    rng = np.random.default_rng(seed)
    shapes = ((B, T, C), (C, D), (C, D), (C, E))
    x, *weights = (rng.standard_normal(shape) for shape in shapes)
    arrays = [x, *(w / math.sqrt(C) for w in weights)]
    return tuple(read_only(a.astype(dtype)) for a in arrays)  # pyright: ignore


def read_only(array: Array) -> Array:
    """The same array, after which a write to it raises ValueError."""
    array.flags.writeable = False
    return array

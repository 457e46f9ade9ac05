"""The smallest decode that can be watched: a cache that grows by one token a step.

Answers: does a cached step give what the whole computation gives? Does not measure.
"""

import numpy as np

from inference_lab.mechanisms import attention
from inference_lab.mechanisms.kv_cache import PreallocatedCache

TOKENS, D_MODEL, SEED = 4, 3, 42


def example() -> str:
    """A table as text: each step's cache length, attention weights, and cached minus full output."""
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((TOKENS, D_MODEL))
    wq, wk, wv = rng.standard_normal((3, D_MODEL, D_MODEL)) / D_MODEL**0.5
    full = attention.decode_without_cache(x, wq, wk, wv)
    cache = PreallocatedCache((TOKENS,), D_MODEL, D_MODEL, x.dtype)
    lines = [
        f"One sequence: x {x.shape} {x.dtype}, wq, wk, wv {wq.shape}. A step projects its own token,",
        "appends its key and value to the cache, and attends to every token in the cache.",
        "",
        "step  cache length  max |cached - full|  weights of the newest token",
    ]
    differences: list[float] = []
    for t in range(TOKENS):
        before = cache.length
        output, weights, _, _ = attention.decode_step(x[t], wq, wk, wv, cache)
        differences.append(float(np.abs(output - full[t]).max()))
        seen = "  ".join(f"{weight:.3f}" for weight in weights)
        lines.append(f"{t:4}  {before:5} -> {cache.length:<3}  {differences[-1]:19.1e}  {seen}")
    lines += ["", f"Largest difference: {max(differences):.1e}. `full` recomputed each prefix from nothing."]
    return "\n".join(lines)

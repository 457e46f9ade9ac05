"""How many tokens of published models' caches fit one GiB, one row per model and dtype: m2_capacity."""

from collections.abc import Callable

import numpy as np

from inference_lab.config import sections
from inference_lab.mechanisms.kv_cache import PreallocatedCache
from inference_lab.mechanisms.kv_capacity import GIB, PUBLISHED_MODELS, Capacity, KVShape, PublishedModel
from inference_lab.records.record import Measurement, tabulated


def rows(section: sections.Capacity) -> list[dict[str, str]]:
    """One row for each dtype under `vary` and each published model, as text."""
    return [
        {name: str(value) for name, value in _row(model, dtype, section).items()}
        for dtype in section.vary.dtype
        for model in PUBLISHED_MODELS
    ]


def _row(model: PublishedModel, dtype: str, section: sections.Capacity) -> dict[str, object]:
    shape, fixed = model.shape, section.fixed
    per_token = shape.bytes_per_token(dtype)
    loose, paged = Capacity(GIB, per_token), Capacity(GIB, per_token, fixed.block_size)
    return {
        "model": model.name,
        "dtype": dtype,
        "num_layers": shape.num_layers,
        "num_kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "bytes_per_token": per_token,
        "measured_bytes_per_token": measured_bytes_per_token(shape, dtype, fixed.block_size),
        "tokens_per_gib": loose.tokens,
        "sequences_per_gib": loose.sequences(fixed.sequence_length),
        "block_tokens_per_gib": paged.tokens,
        "block_sequences_per_gib": paged.sequences(fixed.sequence_length),
        "config_repository": model.repository,
        "config_path": model.path,
        "config_commit": model.commit,
    }


def measured_bytes_per_token(shape: KVShape, dtype: str, capacity: int) -> int | str:
    """Bytes per token of real preallocated caches, one per layer; "" when NumPy has no such dtype."""
    if dtype == "bfloat16":
        return ""
    D = shape.head_dim
    layer = PreallocatedCache((1, shape.num_kv_heads, capacity), D, D, np.dtype(dtype))
    return layer.nbytes * shape.num_layers // capacity


def measure(section: sections.Capacity, progress: Callable[[int, int], None]) -> Measurement:
    """The rows of a section: computed, beside the bytes of real caches made now."""
    found = rows(section)
    progress(len(found), len(found))
    return tabulated("capacity", list(found[0]), found)

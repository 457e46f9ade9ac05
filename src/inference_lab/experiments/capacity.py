"""How many tokens of published models' caches fit one GiB, one row a model and dtype: m2_capacity."""

from collections.abc import Callable

import numpy as np

from inference_lab.config import sections
from inference_lab.mechanisms.kv_cache import PreallocatedCache
from inference_lab.mechanisms.kv_capacity import GIB, PUBLISHED_MODELS, Capacity, KVShape
from inference_lab.records.record import Measurement, tabulated

COLUMNS = (
    "model",
    "dtype",
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "bytes_per_token",
    "measured_bytes_per_token",
    "tokens_per_gib",
    "sequences_per_gib",
    "block_tokens_per_gib",
    "block_sequences_per_gib",
    "config_repository",
    "config_path",
    "config_commit",
)


def rows(section: sections.Capacity) -> list[dict[str, str]]:
    """One row for each dtype under `vary` and each published model, as text under COLUMNS.

    Sequences are of `sequence_length` tokens; the block columns count in blocks of `block_size`.
    `measured_bytes_per_token` is what a real cache holds; empty for a dtype that NumPy does not have.
    """
    block_size, sequence_length = section.fixed.block_size, section.fixed.sequence_length
    found: list[dict[str, str]] = []
    for dtype in section.vary.dtype:
        for model in PUBLISHED_MODELS:
            shape, per_token = model.shape, model.shape.bytes_per_token(dtype)
            measured = measured_bytes_per_token(shape, dtype, block_size)
            loose, paged = Capacity(GIB, per_token), Capacity(GIB, per_token, block_size)
            values = (
                model.name,
                dtype,
                shape.num_layers,
                shape.num_kv_heads,
                shape.head_dim,
                per_token,
                "" if measured is None else measured,
                loose.tokens,
                loose.sequences(sequence_length),
                paged.tokens,
                paged.sequences(sequence_length),
                model.repository,
                model.path,
                model.commit,
            )
            found.append({name: str(value) for name, value in zip(COLUMNS, values, strict=True)})
    return found


def measured_bytes_per_token(shape: KVShape, dtype: str, capacity: int) -> int | None:
    """Bytes a token of real preallocated caches, one a layer; None when NumPy has no such dtype."""
    if dtype == "bfloat16":
        return None
    D = shape.head_dim
    layer = PreallocatedCache((1, shape.num_kv_heads, capacity), D, D, np.dtype(dtype))
    return layer.nbytes * shape.num_layers // capacity


def measure(section: sections.Capacity, progress: Callable[[int, int], None]) -> Measurement:
    """The rows of a section: computed, beside the bytes of real caches made now."""
    found = rows(section)
    progress(len(found), len(found))
    return tabulated("capacity", COLUMNS, found)

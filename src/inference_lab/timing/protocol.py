"""How calls are timed in one process: warm-ups, shuffled rounds, a replica and a probe, raw samples.

Answers: how long did each call take, and in what order? Is given callables; knows no mechanism.
"""

import contextlib
import gc
import hashlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_lab.config import sections
from inference_lab.records.samples import Sample

Floats = NDArray[np.floating[Any]]
PROBE_LOOPS = 20_000  # about 1 ms of plain Python


@dataclass(frozen=True)
class Timed:
    """One thing to time: the cell it belongs to and the call; `dtype` is read from what it returns.

    `around` makes what surrounds each call: entered before the clock is read, left after it.
    """

    path: str
    call: Callable[[], NDArray[Any]]
    batch_size: int
    sequence_length: int
    d_model: int
    num_heads: int = 1
    num_kv_heads: int = 1
    kind: str = "sample"
    around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext

    @property
    def axes(self) -> tuple[int, int, int, int, int]:
        """B, T, C, H, G."""
        return self.batch_size, self.sequence_length, self.d_model, self.num_heads, self.num_kv_heads


@dataclass(frozen=True)
class Finding:
    """The largest error of a path against its oracle, and the largest allowed."""

    path: str
    against: str
    batch_size: int
    shape: tuple[int, ...]
    max_abs_error: float
    tolerance: float
    passed: bool


def finding(
    path: str, output: Floats, against: str, expected: Floats, tolerance: float, shape: tuple[int, ...]
) -> Finding:
    """Compare an output of `path` with what the oracle `against` gives; `shape` begins with B."""
    error = float(np.max(np.abs(output - expected)))
    return Finding(path, against, shape[0], shape, error, tolerance, passed=error <= tolerance)


@dataclass(frozen=True)
class Bench:
    """What one process times: per varied value the calls of one group, adjacent in every round.

    `check` compares every path with its oracle before anything is timed; `data_sha256` says which inputs
    all paths share; `facts` of every process are kept in the manifest.
    """

    groups: Sequence[Sequence[Timed]]
    check: Callable[[], list[Finding]]
    data_sha256: str
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


def group_of(section: sections.Timed, calls: Iterable[Timed]) -> list[Timed]:
    """The calls of one varied value and, where the section asks for a replica, its baseline's once more."""
    group = list(calls)
    again = [replace(timed, kind="replica") for timed in group if timed.path == section.baseline]
    return [*group, *again] if section.replica else group


def digest_of_arrays(*arrays: NDArray[Any]) -> str:
    """sha256 over dtype, shape and bytes of the arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def time_calls(
    bench: Bench,
    section: sections.Timed,
    process: int,
    blas_threads: int,
    *,
    clock: Callable[[], int] = time.perf_counter_ns,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """Every sample of one process in the order it happened: warm-ups, then rounds.

    A round shuffles the groups, then the calls inside each, and holds one probe. Garbage is collected
    once a round and never while timing. Same seed and process, same order.
    """
    order = random.Random(f"{section.fixed.seed}/{process}")
    samples: list[Sample] = []

    def once(timed: Timed, kind: str, round_: int, position: int) -> None:
        with timed.around():
            started = clock()
            output = timed.call()
            elapsed = clock() - started
        cell = (timed.path, *timed.axes, str(output.dtype), blas_threads)
        checksum = digest_of_arrays(output)[:16]
        samples.append(Sample(process, round_, position, *cell, elapsed, started, checksum, kind))

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        to_warm = [timed for group in bench.groups for timed in group if timed.kind == "sample"]
        for position, timed in enumerate(timed for timed in to_warm for _ in range(section.warmups)):
            once(timed, "warmup", 0, position)
        for round_ in range(section.rounds):
            gc.collect()
            calls: list[list[Timed]] = [order.sample(group, len(group)) for group in bench.groups]
            calls.append([PROBE])
            order.shuffle(calls)
            for position, timed in enumerate(timed for group in calls for timed in group):
                once(timed, timed.kind, round_, position)
            progress(round_ + 1)
    finally:
        if was_enabled:
            gc.enable()
    return samples


def _probe() -> NDArray[np.float64]:
    value = 1.0
    for _ in range(PROBE_LOOPS):
        value *= 1.0000001
    return np.array(value)


PROBE = Timed("probe", _probe, 1, 1, 1, kind="probe")

"""Timing records with a known truth: made by a fake clock, complete in every field a real one has.

    record = timing_record(machine=drifting(0.01), seed=3)

`cost` says what a call truly takes; a `machine` says how much longer this call took on this machine.
Nothing here measures anything.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from pandas import DataFrame

from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS, CONTROL_COLUMNS, Sample

PROBE_NS = 2_000_000
STEP_NS = {  # (a step, a step and sequence, a step, sequence and token of the prefix)
    "no_cache": (60_000, 30_000, 900),
    "no_cache_last_query": (50_000, 20_000, 400),
    "dynamic": (14_000, 3_000, 20),
    "preallocated": (11_000, 2_000, 15),
}


class Call(NamedTuple):
    """One call as the fake machine sees it."""

    kind: str  # sample, replica, probe, warmup
    path: str
    value: int  # of the varied axis
    process: int
    round: int
    place: int  # among the calls of one varied value in one round: 0 runs first
    number: int  # calls made before it, in the whole run


Machine = Callable[[Call], float]


def steady(noise: float = 0.01, *, seed: int = 0) -> Machine:
    """A machine whose only fault is independent noise of this relative width."""
    rng = random.Random(seed)
    return lambda call: max(0.2, 1 + rng.gauss(0, noise))


def drifting(rate: float = 0.01) -> Machine:
    """Every call is slower than the one before it by `rate` of the first call."""
    return lambda call: 1 + rate * call.number


def first_pays(penalty: float = 0.05) -> Machine:
    """Whatever runs first among the calls of one varied value takes longer."""
    return lambda call: 1 + penalty * (call.place == 0 and call.kind != "probe")


def two_states(gap: float = 0.5, dwell: int = 10, *, path: str | None = None, seed: int = 0) -> Machine:
    """Slower by `gap` for stretches of `dwell` rounds on average; every call, or those of one path."""
    rng = random.Random(seed)
    slow: dict[tuple[int, int], bool] = {}

    def factor(call: Call) -> float:
        key, before = (call.process, call.round), (call.process, call.round - 1)
        if key not in slow:
            stay = before in slow and rng.random() >= 1 / dwell
            slow[key] = slow[before] if stay else rng.random() < 0.5
        return 1 + gap * (slow[key] and call.kind != "probe" and path in (None, call.path))

    return factor


def process_offsets(width: float = 0.1, *, path: str, seed: int = 0) -> Machine:
    """Each cell of one path is faster or slower in a whole process, by another amount in each."""
    rng = random.Random(seed)
    offsets: dict[tuple[int, int], float] = {}

    def factor(call: Call) -> float:
        key = call.process, call.value
        if key not in offsets:
            offsets[key] = max(0.2, 1 + rng.gauss(0, width))
        return offsets[key] if call.path == path and call.kind == "sample" else 1.0

    return factor


def heavy_tail(share: float = 0.1, times: float = 5.0, *, seed: int = 0) -> Machine:
    """A share of the calls takes several times as long, at random."""
    rng = random.Random(seed)
    return lambda call: times if rng.random() < share else 1.0


def cold(calls: int = 8, times: float = 10.0) -> Machine:
    """The first calls of each path and value in a process take longer, warm-ups first of all."""
    seen: dict[tuple[int, str, int], int] = {}

    def factor(call: Call) -> float:
        key = (call.process, call.path, call.value)
        seen[key] = seen.get(key, 0) + 1
        return times if seen[key] <= calls and call.kind != "probe" else 1.0

    return factor


def together(*machines: Machine) -> Machine:
    """A machine with all these faults at once."""
    return lambda call: math.prod(machine(call) for machine in machines)


def usual_cost(path: str, cell: Mapping[str, Any]) -> float:
    """ns of one full decode, of plausible size for the known paths and any other name."""
    step, sequence, token = STEP_NS.get(path, STEP_NS["dynamic"])
    T, B = cell["sequence_length"], cell["batch_size"]
    return T * (step + B * (sequence + token * T / 2))


def timing_record(
    *,
    experiment: str = "m1",
    paths: Sequence[str] = ("dynamic", "preallocated"),
    vary: Mapping[str, Sequence[int]] | None = None,
    processes: int = 6,
    rounds: int = 20,
    warmups: int = 8,
    baseline: str | None = None,
    replica: bool = True,
    probe: bool = True,
    blas_threads: int = 1,
    fixed: Mapping[str, Any] | None = None,
    cost: Callable[[str, Mapping[str, Any]], float] = usual_cost,
    machine: Machine | None = None,
    environment: Mapping[str, Any] | None = None,
    shuffle: bool = True,
    seed: int = 0,
) -> Record:
    """One whole timing record: conditions, samples in the order they happened, controls, manifest."""
    ((axis, values),) = (vary or {"batch_size": (1, 2, 4, 8)}).items()
    usual = {"batch_size": 1, "sequence_length": 128, "d_model": 64, "dtype": "float64", "seed": 42}
    fixed = {name: value for name, value in {**usual, **(fixed or {})}.items() if name != axis}
    common = {"num_heads": 1, "num_kv_heads": 1, "blas_threads": blas_threads, **fixed}
    of_probe = dict.fromkeys(("batch_size", "sequence_length", "d_model", "num_heads", "num_kv_heads"), 1)
    baseline, machine, rng = baseline or paths[0], machine or steady(seed=seed), random.Random(seed)
    calls: list[Sample] = []
    clock = 1_000_000_000

    def call(kind: str, path: str, value: int, process: int, round_: int, position: int, place: int) -> None:
        nonlocal clock
        cell = common | {axis: value} | (of_probe if kind == "probe" else {})
        true = PROBE_NS if kind == "probe" else cost(path, cell)
        factor = machine(Call(kind, path, value, process, round_, place, len(calls)))
        elapsed = max(1, round(true * factor))
        columns = (cell[name] for name in CELL_COLUMNS[1:])
        checksum = f"{path[:4]}-{value:08d}"
        calls.append(Sample(process, round_, position, path, *columns, elapsed, clock, checksum, kind))
        clock += elapsed + 20_000

    own = axis == "blas_threads"  # a process has one number of threads from its start
    for process in range(processes * len(values) if own else processes):
        here = [values[process % len(values)]] if own else list(values)
        warming = [(path, value) for value in here for path in paths for _ in range(warmups)]
        for position, (path, value) in enumerate(warming):
            call("warmup", path, value, process, 0, position, 0)
        for round_ in range(rounds):
            turns = [("probe", "probe", here[0] if own else 1, 0)] * probe
            for value in rng.sample(here, len(here)) if shuffle else here:
                group = [("sample", path) for path in paths] + [("replica", baseline)] * replica
                if shuffle:
                    rng.shuffle(group)
                turns += [(kind, path, value, place) for place, (kind, path) in enumerate(group)]
            for position, (kind, path, value, place) in enumerate(turns):
                call(kind, path, value, process, round_, position, place)
        clock += 500_000_000

    samples, controls = ([c for c in calls if (c.kind == "sample") == wanted] for wanted in (True, False))
    conditions = {
        **{"by": "decode_paths", "vary": {axis: list(values)}, "fixed": fixed, "paths": list(paths)},
        **{"baseline": baseline, "replica": replica, "blas_threads": blas_threads},
        **{"processes": processes, "rounds": rounds, "warmups": warmups},
    }
    manifest = manifest_of(experiment, conditions, len(samples), len(controls), environment or {})
    return Record(experiment, manifest, table_of(samples), table_of(controls))


def table_of(samples: Iterable[Sample]) -> DataFrame:
    """The samples as a record holds them."""
    return DataFrame(map(attrgetter(*CONTROL_COLUMNS), samples), columns=list(CONTROL_COLUMNS))


def samples_of(table: DataFrame) -> list[Sample]:
    """The samples in the table of a record."""
    return [Sample(*row) for row in table.itertuples(index=False)]


def manifest_of(
    experiment: str,
    conditions: Mapping[str, Any],
    samples: int,
    controls: int,
    environment: Mapping[str, Any],
) -> dict[str, Any]:
    """A manifest as a measurement writes it; `environment` replaces single fields."""
    ((axis, values),) = conditions["vary"].items()
    found = {"shape": [1, 128, 64], "max_abs_error": 2.2e-16, "tolerance": 1e-14, "passed": True}
    sizes = [value if axis == "batch_size" else 1 for value in values]
    return {
        **{"schema": 1, "stage": "measure", "kind": "timing", "experiment": experiment},
        **{"command": ["inference-lab", "measure", experiment], "conditions": dict(conditions)},
        "inputs": {"src/inference_lab/mechanisms/attention.py": "a" * 64},
        "pins": {"numpy": "2.4.6"},
        "prediction": {"file": f"predictions/{experiment}.yaml", "sha256": "b" * 64},
        "outputs": {
            "raw.csv": {"sha256": "c" * 64, "rows": samples},
            "controls.csv": {"sha256": "d" * 64, "rows": controls},
        },
        "oracle": [{"path": path, "batch_size": B, **found} for path in conditions["paths"] for B in sizes],
        "environment": {
            **{"cpu_model": "Example CPU @ 2.00GHz", "cores": 2, "affinity": [0, 1], "kernel": "Linux 6.1.0"},
            **{"governor": None, "load_before": [0.1, 0.2, 0.3], "load_after": [1.0, 0.5, 0.4]},
            "others_used_cores": {"median": 0.01, "max": 0.05},
            "steal_cores": {"median": 0.0, "max": 0.0},
            "pressure_percent": {"median": 0.0, "max": 0.01},
            **{"python": "3.11.9", "packages": {"numpy": "2.4.6"}},
            "blas": {"name": "openblas", "version": "0.3.31", "core": "Haswell"}
            | {"threads": conditions["blas_threads"]},
            "thread_variables": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            **environment,
        },
        "git": {"commit": "0" * 40, "dirty": False},
        "started_at": "2026-11-02T10:00:00+00:00",
        "finished_at": "2026-11-02T10:01:00+00:00",
        "clock": "perf_counter_ns",
        "validity": {"valid": True, "reasons": []},
    }

"""How callables are timed: fresh processes, warm-ups, shuffled rounds, a replica and a probe, raw samples.

    measure(module, section)      in the run's process: starts one fresh process after another
    run_child(bind)               in each of them: binds the conditions to callables, checks them, times them

Answers: how long did each call take, in what order, under which threads? Is given callables; knows no
mechanism and no statistics.
"""

import contextlib
import gc
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inference_lab.errors import LabError, MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.locks import die_with_parent
from inference_lab.records.record import Measurement
from inference_lab.records.samples import Sample, write_samples
from inference_lab.timing import machine

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


@dataclass(frozen=True)
class Bench:
    """What one process times: per varied value the calls of one group, adjacent in every round.

    `check` returns the oracle's findings for every path, made before anything is timed; `data_sha256`
    says which inputs all paths share; `facts` of every process are kept in the manifest.
    """

    groups: Sequence[Sequence[Timed]]
    check: Callable[[], list[dict[str, Any]]]
    data_sha256: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


def with_replica(group: Sequence[Timed], baseline: str) -> list[Timed]:
    """The group and its baseline once more under another label: the same call, for A/A."""
    again = [replace(timed, kind="replica") for timed in group if timed.path == baseline]
    if len(again) != 1:
        paths = ", ".join(timed.path for timed in group)
        raise MeasurementRefused(f"baseline {baseline!r} is not one of the paths {paths}; name one of them")
    return [*group, *again]


def digest_of_arrays(*arrays: NDArray[Any]) -> str:
    """sha256 over dtype, shape and bytes of the arrays."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def time_calls(
    bench: Bench,
    *,
    process: int,
    rounds: int,
    warmups: int,
    seed: int,
    blas_threads: int,
    clock: Callable[[], int] = time.perf_counter_ns,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """Every sample of one process in the order it happened: warm-ups, then rounds.

    A round shuffles the groups, then the calls inside each, and holds one probe. Garbage is collected
    once a round and never while timing. Same seed and process, same order.
    """
    order = random.Random(f"{seed}/{process}")
    samples: list[Sample] = []

    def once(timed: Timed, kind: str, round_: int, position: int) -> None:
        with timed.around():
            started = clock()
            output = timed.call()
            elapsed = clock() - started
        samples.append(
            Sample(
                process,
                round_,
                position,
                timed.path,
                timed.batch_size,
                timed.sequence_length,
                timed.d_model,
                timed.num_heads,
                timed.num_kv_heads,
                str(output.dtype),
                blas_threads,
                elapsed,
                started,
                digest_of_arrays(output)[:16],
                kind,
            )
        )

    was_enabled = gc.isenabled()
    gc.disable()
    try:
        to_warm = [timed for group in bench.groups for timed in group if timed.kind == "sample"]
        for position, timed in enumerate(timed for timed in to_warm for _ in range(warmups)):
            once(timed, "warmup", 0, position)
        for round_ in range(rounds):
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


def run_child(bind: Callable[[Mapping[str, Any]], Bench]) -> int:
    """Exit status of one measuring process: its task as JSON on stdin, its findings as lines on stdout."""
    try:
        task = json.loads(sys.stdin.read())
        die_with_parent(task["parent"])
        section = task["section"]
        threads = section["blas_threads"]
        blas = machine.check_blas_threads(threads)
        installed.check_loaded()
        bench = bind(section)
        oracle = bench.check() if task["check"] else []
        ready = {"blas": blas, "thread_variables": installed.thread_variables()}
        _say(ready={**ready, "oracle": oracle, "data_sha256": bench.data_sha256, "facts": bench.facts})
        samples = time_calls(
            bench,
            process=task["process"],
            rounds=section["rounds"],
            warmups=section["warmups"],
            seed=section["fixed"]["seed"],
            blas_threads=threads,
            progress=lambda round_: _say(round=round_),
        )
        installed.check_loaded()
        _say(samples=[astuple(sample) for sample in samples])
    except LabError as error:
        _say(refused=str(error))
        return 2
    return 0


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


def threads_of_processes(section: Mapping[str, Any]) -> list[int]:
    """How many BLAS threads each process has, in the order they run.

    Where the section varies blas_threads, each number has `processes` processes of its own: one of each,
    shuffled, then one of each again.
    """
    order = random.Random(section["fixed"]["seed"])
    numbers: list[int] = section["vary"].get("blas_threads") or [section["blas_threads"]]
    return [number for _ in range(section["processes"]) for number in order.sample(numbers, len(numbers))]


def measure(
    module: str,
    section: Mapping[str, Any],
    progress: Callable[[int, int], None],
    *,
    first_process: int = 0,
) -> Measurement:
    """The whole measurement of a section: fresh processes of `module`, one after another.

    `first_process` is the number of the first, which decides its order too. Raises MeasurementRefused
    when threads, oracle, inputs or the number of rows are not as declared.
    """
    if "blas_threads" not in section["vary"]:
        machine.check_thread_variables(section["blas_threads"])
    quiet_bound, patience_s = section["quiet_cores"], section["quiet_wait_s"]
    waited_s = machine.wait_until_quiet(quiet_bound, patience_s)
    found: list[dict[str, Any]] = []
    samples: list[Sample] = []
    threads = threads_of_processes(section)
    total = len(threads) * section["rounds"]
    with machine.Watch() as watch:
        for number, blas_threads in enumerate(threads):
            task = {
                "section": {**section, "blas_threads": blas_threads},
                "process": first_process + number,
                "check": blas_threads not in threads[:number],
                "parent": os.getpid(),
            }
            done = number * section["rounds"]
            ready, rows = _one_process(module, task, lambda round_, done=done: progress(done + round_, total))
            found.append(ready)
            samples += rows
    if len({ready["data_sha256"] for ready in found}) != 1:
        raise MeasurementRefused("the processes made different inputs from one seed; nothing was recorded")
    check_rows(samples, section)
    formal = [sample for sample in samples if sample.kind == "sample"]
    controls = [sample for sample in samples if sample.kind != "sample"]
    return Measurement(
        kind="timing",
        files={"raw.csv": write_samples(formal), "controls.csv": write_samples(controls, controls=True)},
        rows={"raw.csv": len(formal), "controls.csv": len(controls)},
        facts={
            "oracle": [finding for ready in found for finding in ready["oracle"]],
            "data_sha256": found[0]["data_sha256"],
            **({"processes": [ready["facts"] for ready in found]} if found[0]["facts"] else {}),
        },
        environment={
            **watch.summary(),
            "waited_for_quiet_s": waited_s,
            "blas": _of_all(ready["blas"] for ready in found),
            "thread_variables": _of_all(ready["thread_variables"] for ready in found),
        },
    )


def _of_all(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What all processes say under each name: the one value, or the list of those that differ."""
    values: dict[str, list[Any]] = {}
    for facts in found:
        for name, value in facts.items():
            if value not in (known := values.setdefault(name, [])):
                known.append(value)
    return {name: some[0] if len(some) == 1 else sorted(some) for name, some in values.items()}


def _one_process(
    module: str, task: Mapping[str, Any], progress: Callable[[int], None]
) -> tuple[dict[str, Any], list[Sample]]:
    child = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=machine.with_threads(task["section"]["blas_threads"]),
    )
    ready: dict[str, Any] = {}
    samples: list[Sample] = []
    with child:
        try:
            task_pipe, lines = child.stdin, child.stdout
            if task_pipe is None or lines is None:
                raise MeasurementRefused("the measuring process has no pipes; nothing was recorded")
            with contextlib.suppress(BrokenPipeError):  # it ended already: its status is told below
                task_pipe.write(json.dumps(task))
                task_pipe.close()
            for line in lines:
                if not line.endswith("\n"):  # it ended within a word
                    break
                message = json.loads(line)
                if "refused" in message:
                    raise MeasurementRefused(message["refused"])
                if "ready" in message:
                    ready = message["ready"]
                    _check_oracle(ready["oracle"])
                if "round" in message:
                    progress(message["round"])
                samples += [Sample(*row) for row in message.get("samples", [])]
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0 or not samples:
        raise MeasurementRefused(
            f"measuring process {task['process']} ended with status {child.returncode} before it was done;"
            " its own words stand above; nothing was recorded"
        )
    return ready, samples


def _check_oracle(oracle: Sequence[Mapping[str, Any]]) -> None:
    for finding in oracle:
        if not finding["passed"]:
            raise MeasurementRefused(
                f"path {finding['path']} at B={finding['batch_size']} differs from its oracle by"
                f" {finding['max_abs_error']:.3g}, tolerance {finding['tolerance']:.3g}; mend it first"
            )


def check_rows(samples: Sequence[Sample], section: Mapping[str, Any]) -> None:
    """Raises MeasurementRefused unless every cell has processes x rounds samples and one result."""
    cells: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        if sample.kind == "sample":
            cells.setdefault(sample.cell, []).append(sample)
    wanted = section["processes"] * section["rounds"]
    declared = len(section["paths"]) * len(next(iter(section["vary"].values())))
    if len(cells) != declared:
        raise MeasurementRefused(
            f"{len(cells)} cells were timed, {declared} are declared; nothing was recorded"
        )
    for cell, rows in cells.items():
        if len(rows) != wanted:
            raise MeasurementRefused(
                f"cell {cell} has {len(rows)} rows, declared are {wanted}; nothing recorded"
            )
        if len({row.checksum for row in rows}) != 1:
            raise MeasurementRefused(
                f"cell {cell} gave different results from the same inputs: state was carried from one repeat"
                " to the next; nothing was recorded"
            )

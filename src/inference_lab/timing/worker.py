"""Measuring in fresh processes, one after another: `measure` starts them, this module as a program is one.

    measure(module, section, progress)             in the process that records
    python -m inference_lab.timing.worker MODULE   in each measuring process: `MODULE.bind(section)` gives
                                                   the calls, which are checked, then timed

A task goes in as JSON on stdin, what happens comes out as lines of JSON on stdout.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from importlib import import_module  # noqa: TID251  (the module that was measured says itself what it needs)
from typing import Any, cast

from inference_lab.config import sections
from inference_lab.errors import LabError, MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.locks import die_with_parent
from inference_lab.records.record import Measurement
from inference_lab.records.samples import Sample, write_samples
from inference_lab.timing import machine
from inference_lab.timing.protocol import Bench, time_calls

PROGRAM = "inference_lab.timing.worker"


def measure(
    module: str,
    section: sections.Timed,
    progress: Callable[[int, int], None],
    *,
    first_process: int = 0,
) -> Measurement:
    """Measure a section in fresh processes that time what `module` binds.

    `first_process` is the number of the first one, which decides its order too. Raises MeasurementRefused
    when threads, oracle, inputs or the number of rows are not as declared.
    """
    if section.blas_threads:
        machine.check_thread_variables(section.blas_threads)
    waited_s = machine.wait_until_quiet(section.quiet_cores, section.quiet_wait_s)
    ready: list[dict[str, Any]] = []
    samples: list[Sample] = []
    threads = threads_of_processes(section)
    total = len(threads) * section.rounds
    with machine.Watch() as watch:
        for number, blas_threads in enumerate(threads):
            task = {
                "section": section.given(),
                "blas_threads": blas_threads,
                "process": first_process + number,
                "check": blas_threads not in threads[:number],
                "parent": os.getpid(),
            }
            done = number * section.rounds
            of_process, rows = _one_process(
                module, task, lambda round_, done=done: progress(done + round_, total)
            )
            ready.append(of_process)
            samples += rows
    if len({each["data_sha256"] for each in ready}) != 1:
        raise MeasurementRefused("the processes made different inputs from one seed; nothing was recorded")
    check_rows(samples, section)
    formal = [sample for sample in samples if sample.kind == "sample"]
    controls = [sample for sample in samples if sample.kind != "sample"]
    return Measurement(
        kind="timing",
        files={"raw.csv": write_samples(formal), "controls.csv": write_samples(controls, controls=True)},
        rows={"raw.csv": len(formal), "controls.csv": len(controls)},
        facts={
            "oracle": [finding for each in ready for finding in each["oracle"]],
            "data_sha256": ready[0]["data_sha256"],
            **({"processes": [each["facts"] for each in ready]} if ready[0]["facts"] else {}),
        },
        environment={
            **watch.summary(),
            "waited_for_quiet_s": waited_s,
            "blas": _of_all(each["blas"] for each in ready),
            "thread_variables": _of_all(each["thread_variables"] for each in ready),
        },
    )


def threads_of_processes(section: sections.Timed) -> list[int]:
    """How many BLAS threads each process has, in the order they run.

    Where the section varies them, each number has `processes` processes of its own: one of each, shuffled,
    then one of each again.
    """
    order = random.Random(section.fixed.seed)
    numbers = section.values if section.axis == "blas_threads" else [section.blas_threads]
    return [number for _ in range(section.processes) for number in order.sample(numbers, len(numbers))]


def _one_process(
    module: str, task: Mapping[str, Any], progress: Callable[[int], None]
) -> tuple[dict[str, Any], list[Sample]]:
    """What a process said when it was ready, and its samples."""
    child = subprocess.Popen(
        [sys.executable, "-m", PROGRAM, module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=machine.with_threads(task["blas_threads"]),
    )
    assert child.stdin is not None
    assert child.stdout is not None
    ready: dict[str, Any] = {}
    samples: list[Sample] = []
    with child:
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: its status is reported below
                child.stdin.write(json.dumps(task))
                child.stdin.close()
            for line in child.stdout:
                if not line.endswith("\n"):  # it ended within a line
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
            " what it printed is above; nothing was recorded"
        )
    return ready, samples


def _check_oracle(oracle: Sequence[Mapping[str, Any]]) -> None:
    for finding in oracle:
        if not finding["passed"]:
            raise MeasurementRefused(
                f"path {finding['path']} at B={finding['batch_size']} differs from its oracle by"
                f" {finding['max_abs_error']:.3g}, tolerance {finding['tolerance']:.3g}; fix it first"
            )


def check_rows(samples: Sequence[Sample], section: sections.Timed) -> None:
    """Raise MeasurementRefused unless every cell has processes x rounds samples and one result."""
    cells: dict[tuple[Any, ...], list[Sample]] = {}
    for sample in samples:
        if sample.kind == "sample":
            cells.setdefault(sample.cell, []).append(sample)
    declared = len(section.paths) * len(section.values)
    if len(cells) != declared:
        raise MeasurementRefused(f"{len(cells)} cells were timed, {declared} declared; nothing was recorded")
    expected = section.processes * section.rounds
    for cell, rows in cells.items():
        if len(rows) != expected:
            raise MeasurementRefused(
                f"cell {cell} has {len(rows)} rows, {expected} declared; nothing recorded"
            )
        if len({row.checksum for row in rows}) != 1:
            raise MeasurementRefused(
                f"cell {cell} gave different results from the same inputs: state was carried from one repeat"
                " to the next; nothing was recorded"
            )


def _of_all(every: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Under each name the one value that all processes report, or the list of those that differ."""
    values: dict[str, list[Any]] = {}
    for facts in every:
        for name, value in facts.items():
            if value not in (known := values.setdefault(name, [])):
                known.append(value)
    return {name: some[0] if len(some) == 1 else sorted(some) for name, some in values.items()}


def run(bind: Callable[[Any], Bench]) -> int:
    """Check and time what `bind` makes of the task on stdin; return the exit status."""
    try:
        task = json.load(sys.stdin)
        die_with_parent(task["parent"])
        section = cast(sections.Timed, sections.read_measure(task["section"], "a measuring process's task"))
        blas = machine.check_blas_threads(task["blas_threads"])
        installed.check_loaded()
        bench = bind(section)
        _say(
            ready={
                "blas": blas,
                "thread_variables": installed.thread_variables(),
                "oracle": [asdict(finding) for finding in bench.check()] if task["check"] else [],
                "data_sha256": bench.data_sha256,
                "facts": bench.facts,
            }
        )
        samples = time_calls(
            bench,
            process=task["process"],
            rounds=section.rounds,
            warmups=section.warmups,
            seed=section.fixed.seed,
            blas_threads=task["blas_threads"],
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


if __name__ == "__main__":
    raise SystemExit(run(import_module(sys.argv[1]).bind))

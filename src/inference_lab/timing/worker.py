"""Measuring in fresh processes, one after another: `measure` starts them, this module as a program is one.

    python -m inference_lab.timing.worker MODULE TASK    MODULE.bind(section) gives the calls, which are
                                                         checked, then timed

The task is JSON; what happens comes out as lines of JSON on stdout.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple
from importlib import import_module  # noqa: TID251  (the module that was measured says itself what it needs)
from typing import Any, cast

from inference_lab.config import sections
from inference_lab.errors import LabError, MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.forms import JSON
from inference_lab.records.locks import die_with_parent
from inference_lab.records.record import Measurement
from inference_lab.records.samples import Cell, Sample, write_samples
from inference_lab.timing import machine
from inference_lab.timing.protocol import time_calls

PROGRAM = "inference_lab.timing.worker"


def measure(
    module: str, section: sections.Timed, progress: Callable[[int, int], None], *, first_process: int = 0
) -> Measurement:
    """Measure a section in fresh processes that time what `module` binds.

    `first_process` is the number of the first one, which decides its order too. Raises MeasurementRefused
    when threads, oracle, inputs or the number of rows are not as declared.
    """
    if section.blas_threads:
        machine.check_thread_variables(section.blas_threads)
    ready: list[JSON] = []
    samples: list[Sample] = []
    threads = threads_of_processes(section)
    total = len(threads) * section.rounds
    with machine.Watch(section.quiet_cores, section.quiet_wait_s) as watch:
        for number, blas_threads in enumerate(threads):
            task = {
                "section": section.given(),
                "blas_threads": blas_threads,
                "process": first_process + number,
                "check": blas_threads not in threads[:number],
                "parent": os.getpid(),
            }
            done = number * section.rounds
            facts, rows = _one_process(module, task, lambda n, done=done: progress(done + n, total))
            ready.append(facts)
            samples += rows
    if len({each["data_sha256"] for each in ready}) != 1:
        raise MeasurementRefused("the processes made different inputs from one seed; nothing was recorded")
    check_rows(samples, section)
    formal = [sample for sample in samples if sample.kind == "sample"]
    controls = [sample for sample in samples if sample.kind != "sample"]
    same = {name: _of_all(each[name] for each in ready) for name in ("blas", "thread_variables")}
    return Measurement(
        kind="timing",
        files={"raw.csv": write_samples(formal), "controls.csv": write_samples(controls, controls=True)},
        rows={"raw.csv": len(formal), "controls.csv": len(controls)},
        facts={
            "oracle": [finding for each in ready for finding in each["oracle"]],
            "data_sha256": ready[0]["data_sha256"],
            **({"processes": [each["facts"] for each in ready]} if ready[0]["facts"] else {}),
        },
        environment={**watch.summary(), **same},
    )


def threads_of_processes(section: sections.Timed) -> list[int]:
    """BLAS threads of each process: one process of each number, shuffled, then one of each again."""
    order = random.Random(section.fixed.seed)
    numbers = section.values if section.axis == "blas_threads" else [section.blas_threads]
    return [number for _ in range(section.processes) for number in order.sample(numbers, len(numbers))]


def _one_process(module: str, task: JSON, progress: Callable[[int], None]) -> tuple[JSON, list[Sample]]:
    """What a process said when it was ready, and its samples."""
    ready: JSON = {}
    samples: list[Sample] = []
    command = [sys.executable, "-m", PROGRAM, module, json.dumps(task)]
    env = machine.with_threads(task["blas_threads"])
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env) as child:
        try:
            for line in child.stdout or ():
                if not line.endswith(b"\n"):  # it ended within a line
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


def _check_oracle(oracle: Sequence[JSON]) -> None:
    for finding in oracle:
        if not finding["passed"]:
            raise MeasurementRefused(
                f"path {finding['path']} at B={finding['batch_size']} differs from its oracle by"
                f" {finding['max_abs_error']:.3g}, tolerance {finding['tolerance']:.3g}; fix it first"
            )


def check_rows(samples: Sequence[Sample], section: sections.Timed) -> None:
    """Raise MeasurementRefused unless every cell has processes x rounds samples and one result."""
    checksums: dict[Cell, list[str]] = {}
    for sample in samples:
        if sample.kind == "sample":
            checksums.setdefault(sample.cell, []).append(sample.checksum)
    cells, rows = len(section.paths) * len(section.values), section.processes * section.rounds
    if len(checksums) != cells:
        raise MeasurementRefused(f"{len(checksums)} cells were timed, {cells} declared; nothing recorded")
    for cell, of_cell in checksums.items():
        if len(of_cell) != rows:
            raise MeasurementRefused(f"{cell} has {len(of_cell)} rows, {rows} declared; nothing recorded")
        if len(set(of_cell)) != 1:
            raise MeasurementRefused(
                f"{cell} gave different results from the same inputs: state was carried from one repeat to"
                " the next; nothing recorded"
            )


def _of_all(every: Iterable[JSON]) -> JSON:
    """Under each name the one value that all processes report, or the list of those that differ."""
    values: dict[str, list[Any]] = {}
    for facts in every:
        for name, value in facts.items():
            if value not in (known := values.setdefault(name, [])):
                known.append(value)
    return {name: some[0] if len(some) == 1 else sorted(some) for name, some in values.items()}


def main(module: str, task: JSON) -> int:
    """Check and time what the module binds of the task's section; return the exit status."""
    try:
        die_with_parent(task["parent"])
        section = cast(sections.Timed, sections.read_measure(task["section"], "a measuring process's task"))
        blas = machine.check_blas_threads(task["blas_threads"])
        bind = import_module(module).bind
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
        process, threads = task["process"], task["blas_threads"]
        samples = time_calls(bench, section, process, threads, progress=lambda round_: _say(round=round_))
        installed.check_loaded()
        _say(samples=[astuple(sample) for sample in samples])
    except LabError as error:
        _say(refused=str(error))
        return 2
    return 0


def _say(**message: object) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], json.loads(sys.argv[2])))

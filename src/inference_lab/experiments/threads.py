"""Decode paths under other numbers of BLAS threads, beside an idle and beside a busy core: m1_threads.

A path whose name ends in `_beside_busy` is the path before it, timed while a process of ours keeps one core
busy. All paths are timed in every round of every process, which has one number of threads from the start.
"""

import atexit
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from inference_lab.config import sections
from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import spinner
from inference_lab.experiments.decode_paths import check, inputs
from inference_lab.mechanisms import attention
from inference_lab.records.record import Measurement
from inference_lab.timing import machine, worker
from inference_lab.timing.protocol import Bench, Timed, digest_of_arrays, group_of

BESIDE_BUSY = "_beside_busy"
SETTLE_S = 0.02  # before each call, idle or busy: two ticks of the kernel's clock, by which a spinner is seen


class BusyCore:
    """A spinner on one core that is stopped except within `busy()`; it ends with this process."""

    def __init__(self, core: int) -> None:
        command = [sys.executable, "-m", spinner.__name__, str(core), str(os.getpid())]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        atexit.register(self.end)
        if self.process.stdout is None or not self.process.stdout.readline():
            raise MeasurementRefused(f"the spinner on core {core} did not start; what it printed is above")
        self.process.send_signal(signal.SIGSTOP)

    @contextmanager
    def idle(self) -> Generator[None]:
        """The core is free, and was so for as long as it is busy before a call within `busy()`."""
        time.sleep(SETTLE_S)
        yield

    @contextmanager
    def busy(self, patience_s: float = 1.0) -> Generator[None]:
        """The core is busy. Raises MeasurementRefused when the spinner gets no time on it."""
        before, deadline = machine.process_s(self.process.pid), time.monotonic() + patience_s
        self.process.send_signal(signal.SIGCONT)
        try:
            time.sleep(SETTLE_S)
            while machine.process_s(self.process.pid) <= before:
                if time.monotonic() > deadline:
                    raise MeasurementRefused("the spinner got no time on its core; free the core")
                time.sleep(SETTLE_S / 4)
            yield
        finally:
            self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """Kill the spinner and wait for it, so that what it used counts as ours."""
        with self.process:
            self.process.kill()


def core_beside() -> int:
    """The last core this process may use. Raises MeasurementRefused when it is the only one."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        raise MeasurementRefused(f"the spinner needs a core of its own, allowed is {cores}; allow two")
    return max(cores)


def bind(section: sections.Threads) -> Bench:
    """The paths of a section as one group of calls over the same inputs."""
    cell = inputs(section.fixed)
    attention.check_inputs(*cell)
    beside = BusyCore(core_beside())
    plain = {path: path.removesuffix(BESIDE_BUSY) for path in section.paths}

    def timed(path: str, name: str) -> Timed:
        call = partial(attention.DECODE_PATHS[name], *cell)
        return Timed(path, call, *cell[0].shape, around=beside.idle if path == name else beside.busy)

    return Bench(
        [group_of(section, (timed(path, name) for path, name in plain.items()))],
        check=lambda: check(cell, list(dict.fromkeys(plain.values()))),
        data_sha256=digest_of_arrays(*cell),
    )


def measure(section: sections.Threads, progress: Callable[[int, int], None]) -> Measurement:
    """Measure a section; the manifest says how many cores were kept busy beside each path."""
    core = core_beside()
    measured = worker.measure(__name__, section, progress)
    busy = {path: int(path.endswith(BESIDE_BUSY)) for path in section.paths}
    return replace(
        measured,
        facts={**measured.facts, "neighbours": busy},
        environment={**measured.environment, "neighbour_core": core},
    )

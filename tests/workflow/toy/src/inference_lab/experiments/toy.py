"""An experiment whose clock is moved by its own calls alone: same seed, same samples, on every machine.

TOY_SLEEP_S   real seconds a call takes besides, so that a kill can land in it
TOY_SPANS     file to which every measurement appends when it began and ended
"""

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import toydep  # a package whose version the checks change
from numpy.typing import NDArray

from inference_lab import toy_pause
from inference_lab.config.sections import DecodePaths
from inference_lab.records.record import Measurement
from inference_lab.timing import protocol, worker
from inference_lab.timing.protocol import Bench, Timed, group_of


def measure(section: DecodePaths, progress: Callable[[int, int], None]) -> Measurement:
    """A whole toy measurement, in fresh processes as a real one."""
    began = time.monotonic()
    toy_pause.here("measure")
    found = worker.measure(__name__, section, progress)
    if spans := os.environ.get("TOY_SPANS"):
        with Path(spans).open("a") as file:
            file.write(f"{began} {time.monotonic()}\n")
    return found


class Clock:
    """Integer ns that pass only when a call says so, and one more at every look."""

    def __init__(self, seed: int) -> None:
        self._noise = random.Random(seed)
        self.now_ns = 1_000

    def __call__(self) -> int:
        """The time now; a look takes 1 ns."""
        self.now_ns += 1
        return self.now_ns

    def work(self, us: float) -> None:
        """Let about `us` microseconds pass."""
        self.now_ns += int(1_000 * us) + self._noise.randrange(100)


def bind(section: DecodePaths) -> Bench:
    """The toy calls of each batch size; the clock of this process is theirs."""
    clock = Clock(seed=7)
    (protocol.time_calls.__kwdefaults__ or {})["clock"] = clock

    def timed(path: str, B: int) -> Timed:
        cost_us = toydep.COST_US[path] * B

        def call() -> NDArray[np.float64]:
            time.sleep(float(os.environ.get("TOY_SLEEP_S", "0")))
            clock.work(cost_us)
            return np.full(2, B, np.float64)

        return Timed(path, call, B, section.fixed.sequence_length, section.fixed.d_model)

    groups = [group_of(section, (timed(path, B) for path in section.paths)) for B in section.values]
    return Bench(groups, _threads_seen, "0" * 64)


def _threads_seen() -> list[dict[str, Any]]:
    """No oracle; what this process sees of its thread variables goes to TOY_THREADS, if that is set."""
    if seen := os.environ.get("TOY_THREADS"):
        names = {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}
        Path(seen).write_text(json.dumps(names))
    return []

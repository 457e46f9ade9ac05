"""Decode paths beside an idle and a busy core: the spinner, what it surrounds, and whose work it is."""

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import threads
from inference_lab.records.record import Measurement
from inference_lab.timing import machine
from tests import checkout

PATHS = ["preallocated", "no_cache", "preallocated_beside_busy", "no_cache_beside_busy"]
CONDITIONS: dict[str, Any] = {
    "by": "threads",
    "vary": {"blas_threads": [1, 2]},
    "fixed": {"batch_size": 1, "sequence_length": 4, "d_model": 2, "dtype": "float64", "seed": 42},
    "paths": PATHS,
    "baseline": "preallocated",
    "replica": True,
}
SECTION: Any = checkout.section(**CONDITIONS)
STARTS_A_NEIGHBOUR = """
from inference_lab.experiments.threads import BusyCore
import time
beside = BusyCore(0)
with beside.busy():
    print(beside.process.pid, flush=True)
    time.sleep(60)
"""


def state_of(pid: int) -> str:
    """R running, S asleep, T stopped, Z ended but not waited for; "" gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@unittest.skipUnless(sys.platform == "linux", "cores are given out by Linux")
class BusyCoreTest(unittest.TestCase):
    """A real spinner."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.core = max(os.sched_getaffinity(0))
        self.beside = threads.BusyCore(self.core)
        self.addCleanup(self.beside.end)
        self.pid = self.beside.process.pid

    def until(self, *states: str) -> None:
        """Wait until the kernel shows the spinner in one of these states."""
        deadline = time.monotonic() + 5
        while state_of(self.pid) not in states and time.monotonic() < deadline:
            time.sleep(0.005)
        self.assertIn(state_of(self.pid), states)

    def test_it_is_busy_only_while_told(self) -> None:
        """Stopped at first and after; within `busy` it has spent time on the one core it may use."""
        self.until("T")
        before = machine.process_s(self.pid)
        with self.beside.busy():
            self.assertEqual(state_of(self.pid), "R")
            self.assertGreater(machine.process_s(self.pid), before)
            self.assertEqual(os.sched_getaffinity(self.pid), {self.core})
        self.until("T")
        spent = machine.process_s(self.pid)
        with self.beside.idle():
            self.assertEqual(state_of(self.pid), "T")
        self.assertEqual(machine.process_s(self.pid), spent)

    def test_a_failure_stops_it(self) -> None:
        """It is stopped when what runs beside it fails; without time on its core nothing is measured."""
        with self.assertRaises(ZeroDivisionError), self.beside.busy():
            raise ZeroDivisionError
        self.until("T")
        with (
            mock.patch.object(machine, "process_s", return_value=1.0),
            self.assertRaisesRegex(MeasurementRefused, "got no time on its core"),
            self.beside.busy(patience_s=0.0),
        ):
            self.fail("the call must not be timed")
        self.until("T")

    def test_it_ends_with_its_parent(self) -> None:
        """No busy process outlives who started it."""
        with subprocess.Popen(
            [sys.executable, "-c", STARTS_A_NEIGHBOUR], stdout=subprocess.PIPE, text=True
        ) as parent:
            self.assertIsNotNone(parent.stdout)
            self.pid = int(parent.stdout.readline() if parent.stdout else "0")
            self.assertEqual(state_of(self.pid), "R")
            parent.send_signal(signal.SIGKILL)
        self.until("", "Z")


class BindTest(unittest.TestCase):
    """Paths as calls, with a busy core that only remembers."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.beside = self.enterContext(mock.patch.object(threads, "BusyCore")).return_value
        self.enterContext(mock.patch.object(os, "sched_getaffinity", return_value={0, 5}))

    def test_a_path_is_timed_beside_its_core(self) -> None:
        """One group of the same calls; what ends in _beside_busy is surrounded by a busy core."""
        (group,) = threads.bind(SECTION).groups
        self.assertEqual([call.path for call in group], [*PATHS, "preallocated"])
        self.assertEqual([call.kind for call in group], ["sample"] * 4 + ["replica"])
        for call in group:
            busy = call.path.endswith("_beside_busy")
            self.assertIs(call.around, self.beside.busy if busy else self.beside.idle)
        outputs = [call.call() for call in group]
        np.testing.assert_array_equal(outputs[0], outputs[2])
        np.testing.assert_array_equal(outputs[1], outputs[3])
        threads.BusyCore.assert_called_once_with(5)  # pyright: ignore[reportAttributeAccessIssue]
        found = threads.bind(SECTION).check()  # beside a busy core a path is the same function
        self.assertEqual(
            [(finding.path, finding.passed) for finding in found], [(p, True) for p in PATHS[:2]]
        )

    def test_one_core_is_no_neighbourhood(self) -> None:
        """Where only one core is allowed, there is no core to keep busy: refused before measuring."""
        alone = mock.patch.object(os, "sched_getaffinity", return_value={3})
        with alone, self.assertRaisesRegex(MeasurementRefused, r"needs a core of its own, allowed is \{3\}"):
            threads.measure(SECTION, print)

    def test_the_manifest_names_the_neighbours(self) -> None:
        """The record says how many cores were kept busy beside each path, and which core that was."""
        made = Measurement("timing", {}, {}, {"oracle": []}, {"steal_cores": None})
        with mock.patch("inference_lab.timing.worker.measure", return_value=made) as measured:
            found = threads.measure(SECTION, print)
        measured.assert_called_once_with(threads.__name__, SECTION, print)
        self.assertEqual(
            found.facts, {"oracle": [], "neighbours": dict(zip(PATHS, (0, 0, 1, 1), strict=True))}
        )
        self.assertEqual(found.environment, {"steal_cores": None, "neighbour_core": 5})


if __name__ == "__main__":
    unittest.main()

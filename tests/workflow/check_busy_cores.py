"""Two BLAS threads and a spinner on the other core: is every such record refused or invalid? (OpenBLAS#731)

    INFERENCE_LAB_TIMES=20 uv run python -m unittest tests.workflow.check_busy_cores -v

Three times by default, which take some 20 s; the machine should be quiet otherwise, or its load is the cause.
"""

import csv
import io
import os
import signal
import subprocess
import sys
import unittest
from typing import Any
from unittest import mock

from inference_lab.analysis.timing import summarise
from inference_lab.config.sections import read_measure
from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import decode_paths, threads
from inference_lab.records.installed import machine
from inference_lab.records.record import Measurement, Record
from inference_lab.records.samples import read_samples
from inference_lab.timing.machine import THREAD_VARIABLES
from tests import checkout
from tests.checkout import judge_of

TIMES = int(os.environ.get("INFERENCE_LAB_TIMES", "3"))
SECTION: dict[str, Any] = {
    "by": "decode_paths",
    "vary": {"sequence_length": [128]},
    "fixed": {"batch_size": 1, "d_model": 64, "dtype": "float64", "seed": 42},
    "paths": ["preallocated", "no_cache"],
    "baseline": "preallocated",
    "replica": True,
    "blas_threads": 2,
    "processes": 2,
    "rounds": 6,
    "warmups": 2,
    "quiet_cores": 0.2,
    "quiet_wait_s": 1,
}
SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print(os.getpid(), flush=True)
while os.path.exists(f"/proc/{sys.argv[2]}"):
    for _ in range(1_000_000):
        pass
"""
BESIDE = [*SECTION["paths"], "preallocated_beside_busy", "no_cache_beside_busy"]


@unittest.skipUnless(len(os.sched_getaffinity(0)) == 2, "the case is one of two cores")
class BusyCoresTest(unittest.TestCase):
    """The same measurement again and again, beside a spinner."""

    def setUp(self) -> None:
        """Two threads, whatever this shell says; files go to a folder that is thrown away."""
        self.enterContext(mock.patch.dict(os.environ, dict.fromkeys(THREAD_VARIABLES, "2")))
        self.root = checkout.enter(self)

    def flags(self, measured: Measurement, section: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
        """The flags of each cell, by path and threads, as its summary has them."""
        for name, text in measured.files.items():
            (self.root / name).write_text(text)
        samples, controls = (read_samples(self.root / n, controls=n[0] == "c") for n in measured.files)
        environment = {**machine([]), **measured.environment}
        manifest = {"conditions": section, **measured.facts, "environment": environment}
        text = summarise(Record("case", manifest, samples, controls), judge_of())
        rows = csv.DictReader(io.StringIO(text))
        return {(row["path"], row["blas_threads"]): set(row["flags"].split()) for row in rows}

    def test_a_spinner_of_somebody_else(self) -> None:
        """An ordinary measurement of two threads beside a spinner nobody declared: invalid every time."""
        self.start_somebody_elses(max(os.sched_getaffinity(0)))
        for time in range(TIMES):
            with self.subTest(time):
                try:
                    found = decode_paths.measure(read_measure(SECTION, "a check"), lambda done, total: None)
                except MeasurementRefused as refused:
                    print(f"\n{time}: refused: {refused}", file=sys.stderr)
                    continue
                flags = self.flags(found, SECTION)
                print(f"\n{time}: others {found.environment['others_used_cores']}", file=sys.stderr)
                self.assertTrue(all(codes & {"busy", "threads"} for codes in flags.values()), flags)

    def start_somebody_elses(self, core: int) -> None:
        """A spinner that is no child of this process: the work of a child would count as our own."""
        words = [sys.executable, "-c", SPIN, str(core), str(os.getpid())]
        with subprocess.Popen(["sh", "-c", '"$@" &', "sh", *words], stdout=subprocess.PIPE) as shell:
            assert shell.stdout is not None
            spinner = int(shell.stdout.readline())
        self.addCleanup(os.kill, spinner, signal.SIGKILL)

    def test_a_spinner_of_ours(self) -> None:
        """m1_threads itself: exactly the cells of two threads beside the busy core are for threads."""
        section = {**SECTION, "vary": {"blas_threads": [1, 2]}, "paths": BESIDE, "processes": 1, "rounds": 3}
        section["fixed"] = {**SECTION["fixed"], "sequence_length": 128}
        del section["blas_threads"]
        found = threads.measure(read_measure(section, "a check"), lambda done, total: None)
        flagged = {cell for cell, codes in self.flags(found, section).items() if "threads" in codes}
        self.assertEqual(flagged, {(path, "2") for path in BESIDE[2:]})


if __name__ == "__main__":
    unittest.main()

"""Does `inference-lab doctor` find what would spoil a measurement, and say what to do?"""

import os
import unittest
from typing import Any
from unittest import mock

from inference_lab.commands import doctor
from inference_lab.errors import MeasurementRefused

QUIET = {"others_used_cores": {"median": 0.01, "max": 0.1}}
BUSY = {"others_used_cores": {"median": 1.5, "max": 2.0}}
UNKNOWN = {"others_used_cores": None}


def replaced(name: str, answer: object) -> Any:
    """A patch: this function of `doctor`, or method of its Watch, answers so."""
    where = doctor.machine.Watch if name == "summary" else doctor
    return mock.patch.object(where, name, mock.Mock(return_value=answer))


class DoctorTest(unittest.TestCase):
    """This machine, and what a fit one and unfit ones would show."""

    def setUp(self) -> None:
        """Look for a moment; read no package."""
        look = mock.patch.object(doctor, "_LOOK_S", 0.02)
        for patch in (look, replaced("_pins", "as pinned"), replaced("kernel_says", None)):
            patch.start()
            self.addCleanup(patch.stop)

    def finding(self, what: str) -> tuple[str, int]:
        """The line that speaks of this, and the exit status."""
        text, status = doctor.doctor()
        return next(line for line in text.splitlines() if line.startswith(f"{what} ")), status

    def test_each_fault_has_its_advice(self) -> None:
        """What is wrong ends with 2, and its line says what to do."""
        shown = {"/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave"}
        refused = mock.Mock(side_effect=MeasurementRefused("numpy 1.0 installed; run uv sync"))
        for what, words, patch in (
            (
                "others",
                "stop what else runs",
                replaced("summary", BUSY),
            ),
            (
                "others",
                "does not show",
                replaced("summary", UNKNOWN),
            ),
            ("threads", "unset it", mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "4"})),
            ("governor", "echo performance", mock.patch.object(doctor, "kernel_says", shown.get)),
            ("timer", "microsecond", replaced("timer_step_ns", 15_000)),
            ("stamps", "later by its own delay", replaced("kernel_stamps", False)),
            ("pins", "run uv sync", mock.patch.object(doctor, "_pins", refused)),
            ("disk", "make room", mock.patch.object(doctor, "_FREE_BYTES", 1 << 60)),
        ):
            with self.subTest(what, words=words), patch:
                line, status = self.finding(what)
                self.assertIn(words, line)
                self.assertEqual(status, 2)

    def test_a_fit_machine(self) -> None:
        """Where nothing is wrong the status is 0; what a kernel does not show is no fault."""
        with (
            replaced("summary", QUIET),
            replaced("_history", "commit"),
            mock.patch.dict(os.environ, dict.fromkeys(doctor.machine.THREAD_VARIABLES, "1")),
        ):
            text, status = doctor.doctor()
        self.assertEqual((status, text.splitlines()[-1]), (0, "fit to measure"), text)

    def test_the_timer_of_this_machine(self) -> None:
        """perf_counter_ns steps by more than nothing and less than a millisecond."""
        self.assertTrue(0 < doctor.timer_step_ns() < 1_000_000)

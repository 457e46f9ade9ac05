"""What a measuring process runs under, and what others did on the machine meanwhile."""

import fnmatch
import itertools
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.timing import machine
from tests import checkout

POOL = {"user_api": "blas", "internal_api": "openblas", "version": "0.3.31", "architecture": "Zen"}
TICKS = os.sysconf("SC_CLK_TCK")


def stat_line(busy_s: float, stolen_s: float) -> str:
    """The start of /proc/stat after this much work: user, nice, system, idle, iowait, irq, soft, steal."""
    ticks = [busy_s * TICKS / 2, 0, busy_s * TICKS / 2, 999_999, 999, 0, 0, stolen_s * TICKS, 0, 0]
    return f"cpu  {' '.join(str(round(n)) for n in ticks)}\ncpu0 1 2 3 4 5 6 7 8 9 10"


def process_stat(used_s: float) -> str:
    """The /proc/<pid>/stat of a process after this much work, whatever it is called."""
    fields = ["S", *["0"] * 10, str(round(used_s * TICKS)), "0", "0", "0", *["0"] * 30]
    return f"77 (a ) b) {' '.join(fields)}"


class ThreadsTest(unittest.TestCase):
    """Declared threads against those there are."""

    def test_a_contradicting_variable_is_named(self) -> None:
        """Each thread variable with another number refuses and says which one to set; unset is no matter."""
        for name, value in itertools.product(machine.THREAD_VARIABLES, ("2", "", "one", "01")):
            says = (
                f"{name} is {value!r} but this measurement declares blas_threads: 1; set {name}=1 or unset it"
            )
            shell = mock.patch.dict(os.environ, {name: value})
            with self.subTest(says), shell, self.assertRaisesRegex(MeasurementRefused, f"^{says}$"):
                machine.check_thread_variables(1)
        for shell in ({}, dict.fromkeys(machine.THREAD_VARIABLES, "3")):
            with mock.patch.dict(os.environ, shell, clear=True):
                machine.check_thread_variables(3)

    def test_a_process_is_given_its_threads(self) -> None:
        """The environment of a measuring process sets every thread variable and keeps those of no Python."""
        with mock.patch.dict(os.environ, {"OMP_NUM_THREADS": "7", "HOME": "/somewhere"}, clear=True):
            given = machine.with_threads(2)
        source = {"PYTHONPATH": str(checkout.ROOT / "src"), "PYTHONSAFEPATH": "1"}
        threads = dict.fromkeys(machine.THREAD_VARIABLES, "2")
        self.assertEqual(given, {**threads, **source, "HOME": "/somewhere"})

    def test_no_variable_of_this_shell_steers_a_child(self) -> None:
        """Foreign folders of modules, foreign bytecode and slower modes stay here; packages are found."""
        folders = [Path(self.enterContext(tempfile.TemporaryDirectory())) for _ in range(2)]
        (folders[1] / "numpy-1.dist-info").mkdir()
        shell = {
            "PYTHONPATH": os.pathsep.join(["", *map(str, folders)]),
            "PYTHONPYCACHEPREFIX": "/bytecode",
            "PYTHONDEVMODE": "1",
            "PYTHONHASHSEED": "5",
            "PYTHONUSERBASE": "/home/of/packages",
        }
        with mock.patch.dict(os.environ, shell, clear=True):
            given = installed.of_child()
        kept = {"PYTHONSAFEPATH": "1", "PYTHONUSERBASE": "/home/of/packages"}
        self.assertEqual(given, kept | {"PYTHONPATH": f"{checkout.ROOT / 'src'}{os.pathsep}{folders[1]}"})

    def test_threads_are_those_blas_has(self) -> None:
        """threadpoolctl's number is what counts: another than declared, or no BLAS to ask, refuses."""
        openmp = {"user_api": "openmp", "internal_api": "openmp", "version": None, "num_threads": 1}
        one = POOL | {"num_threads": 1}
        for pools, words in (
            (
                [POOL | {"num_threads": 2}],
                "openblas has 2 threads, declared are 1; set OPENBLAS_NUM_THREADS=1",
            ),
            ([one, openmp | {"num_threads": 4}], "openmp has 4 threads, declared are 1"),
            ([openmp], "finds no BLAS in this NumPy"),
            ([], "finds no BLAS in this NumPy"),
        ):
            found = mock.patch("threadpoolctl.threadpool_info", return_value=pools)
            with self.subTest(words), found, self.assertRaisesRegex(MeasurementRefused, words):
                machine.check_blas_threads(1)
        with mock.patch("threadpoolctl.threadpool_info", return_value=[openmp, one]):
            found = machine.check_blas_threads(1)
        self.assertEqual(found, {"name": "openblas", "version": "0.3.31", "core": "Zen", "threads": 1})


class WatchTest(unittest.TestCase):
    """What others did while something was measured, under a made-up kernel."""

    def watched(
        self, looks: list[dict[str, str]], own_s: list[float], *, child: int | None = None
    ) -> dict[str, Any]:
        """The summary of a watch that sees these files, a second apart, while this process worked so much."""
        ended = threading.Event()
        moments: Iterator[tuple[int, dict[str, str]]] = iter(enumerate(looks))
        files: dict[str, str] = {}
        second = 0

        def read(path: str) -> str | None:
            nonlocal files, second
            if path == "/proc/stat":
                second, files = next(moments, (second, {}))
                if not files:
                    ended.set()
            if path == f"/proc/{os.getpid()}/stat":
                return process_stat(own_s[second])
            if path == f"/proc/{os.getpid()}/task/{os.getpid()}/children":
                return "" if child is None else f"{child} "
            return files.get(path)

        def threads(pattern: str) -> list[str]:
            own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
            return fnmatch.filter([own, *files], pattern)

        clock = mock.Mock(monotonic=lambda: 50.0 + second)
        watch = machine.Watch(0, 0, interval_s=0.001)
        with (
            mock.patch.object(machine, "_read", read),
            mock.patch.object(machine, "glob", threads),
            mock.patch.object(machine, "_CORES", 4),
            mock.patch.object(machine, "time", clock),
            watch,
        ):
            self.assertTrue(ended.wait(10))
        return watch.summary()

    def test_others_are_all_but_us(self) -> None:
        """Busy time of all cores minus our own; what cannot be is no number, what ticks round is bounded.

        Time of our own that vanishes, or more than all cores, is counted as an unknown look.
        """
        for busy_s, own_s, others, unknown in (
            ((100, 101.5, 102.6, 105), [10, 11, 12, 13], {"median": 0.5, "max": 1.4}, 0),
            ((100, 101.5, 102.5, 104.0, 109.0), [80, 81, 1, 2, 2], {"median": 0.5, "max": 0.5}, 2),
            ((100, 104.02, 105), [10, 10, 11.01], {"median": 2.0, "max": 4}, 0),
        ):
            found = self.watched([{"/proc/stat": stat_line(busy, 0)} for busy in busy_s], own_s)
            self.assertEqual(found["others_used_cores"], others)
            self.assertEqual(found["steal_cores"], {"median": 0.0, "max": 0.0})
            self.assertEqual(
                (found["unknown_looks"], found["watched_s"]), (unknown, (len(busy_s) - 1) / 1000)
            )

    def test_the_family_of_the_measuring_child_is_us(self) -> None:
        """What the child uses, or a process that it keeps alive, is not others' work, whatever its name."""
        for of_child, of_grandchild in ((1, 0), (0, 1)):
            looks = [
                {
                    "/proc/stat": stat_line(100 + 1.25 * second, 0),
                    "/proc/77/stat": process_stat(of_child * second),
                    "/proc/77/task/77/children": "88 ",
                    "/proc/88/stat": process_stat(of_grandchild * second),
                }
                for second in (0, 1, 2)
            ]
            for child, others in ((77, 0.25), (None, 1.25)):
                found = self.watched(looks, own_s=[10, 10, 10], child=child)
                self.assertEqual(found["others_used_cores"]["median"], others)

    def test_a_child_of_another_thread_is_us(self) -> None:
        """A child counts as ours, whichever thread started it."""
        pids: list[int] = []
        started, stop = threading.Event(), threading.Event()

        def start() -> None:
            spin = "while True: pass"
            with subprocess.Popen([sys.executable, "-c", spin]) as process:
                pids.append(process.pid)
                started.set()
                stop.wait(20)
                process.kill()

        thread = threading.Thread(target=start)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(stop.set)
        self.assertTrue(started.wait(20))
        before = machine.process_s(os.getpid())
        own = time.process_time()
        give_up = time.monotonic() + 20
        while machine.process_s(os.getpid()) - before < 0.1 + 2 * (time.process_time() - own):
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.05)

    def test_steal_pressure_and_frequency_are_kept(self) -> None:
        """Stolen time, the pressure of waiting tasks and the clock of the core are summarised as well."""
        frequency = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"
        looks = [
            {
                "/proc/stat": stat_line(100 + second, 0.5 * second),
                "/proc/pressure/cpu": f"some avg10={second}.50 avg60=0.00 total=1\nfull avg10=0.00",
                frequency: f"{2_000_000 + second}",
            }
            for second in (0, 1, 2)
        ]
        found = self.watched(looks, own_s=[0, 1, 2])
        self.assertEqual(found["steal_cores"], {"median": 0.5, "max": 0.5})
        self.assertEqual(found["pressure_percent"], {"median": 2.0, "max": 2.5})
        self.assertEqual(found["mhz"], {"median": 2000.0015, "max": 2000.002})


class QuietTest(unittest.TestCase):
    """Waiting for a quiet machine."""

    def test_a_kernel_without_proc_is_no_error(self) -> None:
        """Where /proc and /sys are missing nothing is waited for, and what they would say is None."""
        with mock.patch.object(machine, "_read", return_value=None):
            self.assertLess(machine.wait_until_quiet(0.1, patience_s=0.01), 1)
            with machine.Watch(0.1, 0.01, interval_s=0.001) as watch:
                pass
            self.assertIsNone(watch.summary()["others_used_cores"])
            self.assertIsNone(watch.summary()["pressure_percent"])

    def waited(self, busy: list[float], patience_s: float) -> float:
        """Seconds waited for less than 0.5 cores, on a machine that had done this much after each second."""
        now = 0.0

        def sleep(seconds: float) -> None:
            nonlocal now
            now += seconds

        def read(path: str) -> str | None:
            return stat_line(busy[min(int(now), len(busy) - 1)], 0) if path == "/proc/stat" else None

        clock = mock.Mock(monotonic=lambda: now, sleep=sleep)
        with mock.patch.object(machine, "time", clock), mock.patch.object(machine, "_read", read):
            return machine.wait_until_quiet(0.5, patience_s)

    def test_it_ends_with_the_first_quiet_second(self) -> None:
        """One quiet second is waited for, or as long as the config says, not longer."""
        for busy, patience_s, waited_s in (
            ([10, 10.2, 15], 30, 1),
            ([10, 11, 12, 13, 13.1, 20], 30, 4),
            ([float(second) for second in range(99)], 3.5, 3.5),
            ([1, 2, 3], 0, 0),
        ):
            self.assertEqual(self.waited(busy, patience_s), waited_s)


if __name__ == "__main__":
    unittest.main()

"""One measurement at a time on a machine, and none without its run."""

import errno
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import unittest
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.records import locks

MEASURE = """
import sys
from inference_lab.records.locks import one_measurement
with one_measurement(sys.argv[1]):
    print("measures", flush=True)
    sys.stdin.read()
"""
CHILD = """
import os, time
from inference_lab.records.locks import die_with_parent
die_with_parent()
print(os.getpid(), flush=True)
time.sleep(60)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
ORPHAN = """
from unittest import mock
from inference_lab.errors import MeasurementRefused
from inference_lab.records.locks import die_with_parent
for known, parents in ((None, [7, 1]), (None, [1, 1]), (8, [7]), (1, [1])):
    with mock.patch("os.getppid", side_effect=parents):
        try:
            die_with_parent(known)
        except MeasurementRefused as error:
            print(error)
"""


class LockTest(unittest.TestCase):
    """The lock of measuring, under a name of the test's own."""

    def setUp(self) -> None:
        """A lock that nobody holds yet."""
        self.lock = f"test of {os.getpid()}"

    def other(self, **variables: str) -> "subprocess.Popen[str]":
        """Another process that measures as soon as it has the lock."""
        process = subprocess.Popen(
            [sys.executable, "-c", MEASURE, self.lock],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def test_the_second_waits_and_names_the_first(self) -> None:
        """While one process measures, another says for whom it waits, and goes on when the first is done."""
        with locks.one_measurement(self.lock):
            second = self.other(TMPDIR="/", HOME="/nowhere")  # it is one machine whatever these say
            assert second.stderr is not None
            said, _, _ = select.select([second.stdout, second.stderr], [], [], 10)
            self.assertEqual(said, [second.stderr])
            words = second.stderr.readline()
            self.assertRegex(words, rf"^waiting: process {os.getpid()} \(.*\) measures on this machine\n$")
            self.assertIsNone(second.poll())
        said, more = second.communicate(timeout=10)
        self.assertEqual((said, more), ("measures\n", ""))

    def test_a_dead_holder_holds_nothing(self) -> None:
        """A measurement that was killed leaves the machine free for the next, without a word or a wait."""
        first = self.other()
        assert first.stdout is not None
        self.assertEqual(first.stdout.readline(), "measures\n")
        first.kill()
        first.wait()
        with mock.patch("sys.stderr") as stderr, locks.one_measurement(self.lock):
            stderr.write.assert_not_called()

    def test_it_is_freed_by_a_failure(self) -> None:
        """An error while measuring frees the machine."""
        with self.assertRaises(ZeroDivisionError), locks.one_measurement(self.lock):
            raise ZeroDivisionError
        second = self.other()
        self.assertEqual(second.communicate(timeout=10), ("measures\n", ""))

    def test_a_holder_that_goes_at_once_is_followed(self) -> None:
        """A holder that does not listen yet, or ends while the other asks, is no error."""
        with locks.one_measurement(self.lock):
            second = self.other()
            assert second.stderr is not None
            second.stderr.readline()
        self.assertEqual(second.communicate(timeout=10)[0], "measures\n")
        with socket.socket(socket.AF_UNIX) as held:
            held.bind(f"\0{self.lock}")  # and never listens
            second = self.other()
            with self.assertRaises(subprocess.TimeoutExpired):
                second.communicate(timeout=0.5)
        self.assertEqual(second.communicate(timeout=10), ("measures\n", ""))

    def test_a_lock_that_cannot_be_taken_is_named(self) -> None:
        """A name the system does not take refuses in words."""
        with self.assertRaisesRegex(MeasurementRefused, "^the machine's lock 'x+' cannot be taken "):
            locks.one_measurement("x" * 200).__enter__()

    def test_a_system_without_such_names_locks_a_folder(self) -> None:
        """Elsewhere than on Linux the folder of temporary files is locked meanwhile."""
        self.enterContext(mock.patch("sys.platform", "darwin"))
        with locks.one_measurement(self.lock):
            handle = os.open("/tmp", os.O_RDONLY)
            self.addCleanup(os.close, handle)
            with self.assertRaises(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_a_file_system_without_locks_refuses(self) -> None:
        """Where nothing can be locked, who asks is told why and the way out, in one line."""
        for number in (errno.ENOLCK, errno.EOPNOTSUPP):
            none = mock.patch.object(fcntl, "flock", side_effect=OSError(number, os.strerror(number)))
            words = rf"^here: its file system keeps no locks \({os.strerror(number)}\), so .* local disk$"
            with none, self.assertRaisesRegex(MeasurementRefused, words):
                locks.hold(0, "here", "runs in this checkout")


@unittest.skipUnless(sys.platform == "linux", "the kernel's parent-death signal is Linux's")
class ParentTest(unittest.TestCase):
    """A measuring process and the run that started it."""

    def test_it_dies_with_its_parent(self) -> None:
        """When the run is killed with no time to clean up, its measuring process ends with it."""
        parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        try:
            parent.communicate(timeout=10)  # the pipe ends when the child, its last writer, does
        except subprocess.TimeoutExpired:
            os.kill(child, signal.SIGKILL)
            self.fail("the child lived on after its parent was killed")

    def test_it_does_not_start_without_one(self) -> None:
        """A process whose run is gone, whoever adopted it, or goes while it asks, refuses to measure."""
        found = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=True)
        self.assertEqual(found.stdout.count("the run that started this measurement is gone"), 3, found.stdout)


if __name__ == "__main__":
    unittest.main()

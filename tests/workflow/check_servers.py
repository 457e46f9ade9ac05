"""A server and its family of processes end with the one that started them, however that one ended."""

import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.servers.process import log_tail, refuse_dead, supervised
from inference_lab.timing.machine import process_s
from tests.stream_load.support import lives

# A family: the command, and a child that would outlive it and takes no SIGTERM.
_FAMILY = (
    "import os, signal, subprocess, sys, time\n"
    "child = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)'\n"
    "child = subprocess.Popen([sys.executable, '-c', child], stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n"
    "print('family', os.getpid(), child.pid, flush=True)\n"
    "time.sleep(60)"
)
# A command whose child left a child behind, which works and takes no SIGTERM.
_ORPHAN = (
    "import os, subprocess, sys, time\n"
    "spin = 'import signal; signal.signal(15, signal.SIG_IGN)\\nwhile True: pass'\n"
    "child = 'import subprocess, sys; words = [sys.executable, *sys.argv[1:]]'\n"
    "child += '\\nprint(subprocess.Popen(words, stdout=-3, stderr=-3).pid)'\n"
    "child = [sys.executable, '-c', child, '-c', spin]\n"
    "child = subprocess.run(child, capture_output=True, text=True)\n"
    "print('family', os.getpid(), child.stdout.strip(), flush=True)\n"
    "time.sleep(60)"
)
_STARTER = (
    "import sys, time; from pathlib import Path\n"
    "from inference_lab.stream_load.servers.process import supervised\n"
    "with supervised([sys.executable, '-c', sys.argv[1]], Path(sys.argv[2])): time.sleep(60)"
)


class GuardTest(unittest.TestCase):
    """A command and its children end together, whatever happens to whom."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.log = Path(self.enterContext(tempfile.TemporaryDirectory())) / "server.log"

    def family(self) -> list[int]:
        """The processes of the family, once its log names them."""
        give_up = time.monotonic() + 20
        while not (self.log.exists() and self.log.read_text().startswith("family")):
            self.assertLess(time.monotonic(), give_up)
            time.sleep(0.01)
        return [int(word) for word in self.log.read_text().split()[1:3]]

    def assert_gone(self, pids: list[int]) -> None:
        """All have ended."""
        give_up = time.monotonic() + 20
        while living := [pid for pid in pids if lives(pid)]:
            self.assertLess(time.monotonic(), give_up, f"{living} live on")
            time.sleep(0.01)

    def test_the_family_ends_with_the_block(self) -> None:
        """A child that its parent leaves behind and that ignores SIGTERM is killed too."""
        with supervised([sys.executable, "-c", _FAMILY], self.log):
            family = self.family()
        self.assert_gone(family)

    def test_what_orphans_used_is_their_family_s(self) -> None:
        """What a child without its parent used counts as used here, while it lives and once it ended."""

        def of_family() -> float:
            return process_s(os.getpid()) - time.process_time()

        before = of_family()
        with supervised([sys.executable, "-c", _ORPHAN], self.log):
            orphan = self.family()[1]
            give_up = time.monotonic() + 30
            while (spent := process_s(orphan)) < 1:
                self.assertLess(time.monotonic(), give_up)
                time.sleep(0.05)
            self.assertGreaterEqual(of_family() - before, spent - 0.1)
        self.assertGreaterEqual(of_family() - before, spent - 0.1)

    def test_nobody_survives_the_kill_of_the_starter(self) -> None:
        """SIGKILL of the measuring process, which can do nothing any more, leaves no process."""
        command = [sys.executable, "-c", _STARTER, _FAMILY, str(self.log)]
        with subprocess.Popen(command) as starter:
            family = self.family()
            starter.kill()
        self.assert_gone(family)

    def test_a_family_that_ends_by_itself(self) -> None:
        """The command's death ends its children, and is told with its signal and the log's last lines."""
        with supervised([sys.executable, "-c", _FAMILY], self.log) as process:
            family = self.family()
            os.kill(family[0], 9)
            code = process.wait(20)
            self.assert_gone(family)
        with self.assertRaisesRegex(MeasurementRefused, r"(?s)killed by signal 9; its log .*\n  \| family"):
            refuse_dead(code, self.log)

    def test_a_command_that_cannot_be_started(self) -> None:
        """The log says which."""
        with supervised(["/no/such/program"], self.log) as process:
            self.assertEqual(process.wait(20), 127)
        self.assertIn("/no/such/program cannot be started: No such file", log_tail(self.log))


if __name__ == "__main__":
    unittest.main()

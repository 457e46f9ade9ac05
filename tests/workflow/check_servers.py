"""Servers as processes: the reference server serves and says why not; a family ends with who started it."""

import asyncio
import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.servers.process import log_tail, refuse_dead, supervised
from inference_lab.timing.machine import process_s
from tests.stream_load.support import ask, lives, record_of, reference_server, serving
from tests.workflow.harness import wait_for

SERVE = [sys.executable, "-m", "inference_lab.stream_load.reference.cli"]
PARENT = (
    "import os, sys, time\n"
    "from tests.stream_load.support import reference_server\n"
    "with reference_server() as url: print(url, flush=True); time.sleep(60)"
)


def limited(name: int, to: int) -> Callable[[], None]:
    """What a child does before it starts: have no more of this resource."""
    return lambda: resource.setrlimit(name, (to, to))


def base_url(server: subprocess.Popen[bytes]) -> str:
    """The address that a started server prints."""
    assert server.stdout is not None
    return json.loads(server.stdout.readline())["base_url"]


def status(url: str, **extra: int) -> str:
    """How a request to this address ends."""

    async def run() -> str:
        async with serving(url=url) as (_, client):
            return record_of(await ask(client, **extra)).status

    return asyncio.run(run())


class ReferenceTest(unittest.TestCase):
    """The life of the reference server's process."""

    def ends(self, *words: str) -> None:
        """Assert that a server with these options, the last what it says, ends with 2 and one line."""
        ended = subprocess.run([*SERVE, *words[:-1]], capture_output=True, text=True, timeout=20, check=False)
        self.assertEqual((ended.returncode, ended.stderr.count("\n")), (2, 1), ended.stderr)
        self.assertIn(words[-1], ended.stderr)

    def test_truth_is_whole_after_the_end(self) -> None:
        """When the server is stopped its truth file holds requests, steps and the clock."""
        with tempfile.TemporaryDirectory() as folder:
            with reference_server(Path(folder), itl_ms=1, ttft_ms=1) as url:
                self.assertEqual(status(url), "ok")
            truth = Path(folder, "server.truth.jsonl").read_text()
        lines = [json.loads(line) for line in truth.splitlines()]
        request = next(line for line in lines if line["kind"] == "request")
        self.assertEqual((request["request_id"], request["ended"]), ("r0", "whole"))
        self.assertEqual(len(request["token_ns"]), 6)
        self.assertLess(request["received_ns"], request["token_ns"][0])
        self.assertEqual([line["batch"] for line in lines if line["kind"] == "step"], [1] * 6)
        self.assertEqual(lines[-1]["kind"], "end")

    def test_dies_with_its_parent(self) -> None:
        """SIGKILL of the parent leaves no server behind."""
        with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            url = parent.stdout.readline().decode().strip()
            parent.kill()
        self.assertTrue(wait_for(lambda: status(url) == "connect_error", 20), "the server lives on")

    def test_a_server_that_dies(self) -> None:
        """Mid-stream that is a truncated answer with its tokens; afterwards nothing connects."""
        words = [*SERVE, "--port", "0", "--itl-ms", "1"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
            url = base_url(server)

            async def run() -> None:
                async with serving(url=url) as (_, client):
                    asked = asyncio.create_task(ask(client, max_tokens=100_000))
                    while client.live_events < 3:  # noqa: ASYNC110  (the client has no event for it)
                        await asyncio.sleep(0.001)
                    server.kill()
                    record = record_of(await asked)
                    self.assertEqual(record.status, "truncated")
                    self.assertGreaterEqual(record.output_tokens, 3)

            asyncio.run(run())
            self.assertEqual(status(url), "connect_error")

    def test_out_of_descriptors(self) -> None:
        """With more connections than files it says so in one line and serves on when some have ended."""
        few = limited(resource.RLIMIT_NOFILE, 40)
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [*SERVE, "--port", "0"], stdout=subprocess.PIPE, stderr=errors, preexec_fn=few
            ) as server,
        ):
            url = base_url(server)
            port = int(url.rpartition(":")[2].partition("/")[0])
            with contextlib.ExitStack() as crowd:
                for _ in range(80):
                    crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
                time.sleep(2)
            with urllib.request.urlopen(f"{url}/models", timeout=20) as answer:
                self.assertEqual(answer.status, 200)
            cpu = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
            server.terminate()
            server.wait(20)
            errors.seek(0)
            said = errors.read()
        self.assertEqual((server.returncode, said.count("\n")), (0, 1), said)
        self.assertIn("no connection can be accepted now (Too many open files)", said)
        self.assertLess(int(cpu[11]) + int(cpu[12]), 100)  # ticks of 10 ms; it would have spun for 2 s

    def test_a_truth_that_cannot_be_written(self) -> None:
        """It ends with one line that names the file; one that exists is not written over."""
        small = limited(resource.RLIMIT_FSIZE, 2000)
        with tempfile.TemporaryDirectory() as folder:
            truth = str(Path(folder, "truth.jsonl"))
            words = ["--port", "0", "--itl-ms", "1", "--truth", truth]
            with subprocess.Popen(
                [*SERVE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=small
            ) as server:
                self.assertEqual(status(base_url(server), max_tokens=9000), "truncated")
                said = server.communicate(timeout=20)[1].decode()
            self.assertEqual((server.returncode, said.count("\n")), (2, 1), said)
            self.assertIn(f"truth {truth}: cannot be written (File too large)", said)
            self.ends(*words, f"truth {truth}: cannot be made (File exists); name a new file")

    def test_what_cannot_be_served(self) -> None:
        """A port in use, and a port, a host or a step of no sense, is one line."""
        self.ends("--port", "70000", "cannot serve on 127.0.0.1:70000")
        self.ends("--host", "no.such.host.invalid", "cannot serve on no.such.host.invalid:8000")
        self.ends("--itl-ms", "inf", "itl_ms inf: must be above 0, at most 3600000")
        self.ends("--ttft-ms", "nan", "ttft_ms is nan")
        with reference_server() as url:
            port = url.rpartition(":")[2].partition("/")[0]
            self.ends("--port", port, f"cannot serve on 127.0.0.1:{port}")

    def test_a_server_that_does_not_start(self) -> None:
        """Whoever needs it is told, and does not wait for ever."""
        with (
            mock.patch.object(sys, "executable", "/bin/false"),
            self.assertRaisesRegex(MeasurementRefused, "ended with exit code 1"),
            reference_server(),
        ):
            pass


# A family: the command, and a child that would outlive it and takes no SIGTERM.
FAMILY = (
    "import os, signal, subprocess, sys, time\n"
    "child = 'import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)'\n"
    "child = subprocess.Popen([sys.executable, '-c', child], stdout=subprocess.PIPE)\n"
    "child.stdout.readline()\n"
    "print('family', os.getpid(), child.pid, flush=True)\n"
    "time.sleep(60)"
)
# A command whose child left a child behind, which works and takes no SIGTERM.
ORPHAN = (
    "import os, subprocess, sys, time\n"
    "spin = 'import signal; signal.signal(15, signal.SIG_IGN)\\nwhile True: pass'\n"
    "child = 'import subprocess, sys; words = [sys.executable, *sys.argv[1:]]'\n"
    "child += '\\nprint(subprocess.Popen(words, stdout=-3, stderr=-3).pid)'\n"
    "child = [sys.executable, '-c', child, '-c', spin]\n"
    "child = subprocess.run(child, capture_output=True, text=True)\n"
    "print('family', os.getpid(), child.stdout.strip(), flush=True)\n"
    "time.sleep(60)"
)
STARTER = (
    "import sys, time; from pathlib import Path\n"
    "from inference_lab.stream_load.servers.process import supervised\n"
    "with supervised([sys.executable, '-c', sys.argv[1]], Path(sys.argv[2])): time.sleep(60)"
)


class FamilyTest(unittest.TestCase):
    """A command and its children end together, whatever happens to whom."""

    def setUp(self) -> None:
        """A log that nobody has written yet."""
        self.log = Path(self.enterContext(tempfile.TemporaryDirectory())) / "server.log"

    def family(self) -> list[int]:
        """The processes of the family, once its log names them."""
        named = wait_for(lambda: self.log.exists() and self.log.read_text().startswith("family"), 20)
        self.assertTrue(named)
        return [int(word) for word in self.log.read_text().split()[1:3]]

    def assert_gone(self, pids: list[int]) -> None:
        """All have ended."""
        self.assertTrue(wait_for(lambda: not any(map(lives, pids)), 20), f"some of {pids} live on")

    def test_the_family_ends_with_the_block(self) -> None:
        """A child that its parent leaves behind and that ignores SIGTERM is killed too."""
        with supervised([sys.executable, "-c", FAMILY], self.log):
            family = self.family()
        self.assert_gone(family)

    def test_what_orphans_used_is_their_family_s(self) -> None:
        """What a child without its parent used counts as used here, while it lives and once it ended."""

        def of_family() -> float:
            return process_s(os.getpid()) - time.process_time()

        before = of_family()
        with supervised([sys.executable, "-c", ORPHAN], self.log):
            orphan = self.family()[1]
            self.assertTrue(wait_for(lambda: process_s(orphan) >= 1, 30))
            spent = process_s(orphan)
            self.assertGreaterEqual(of_family() - before, spent - 0.1)
        self.assertGreaterEqual(of_family() - before, spent - 0.1)

    def test_nobody_survives_the_kill_of_the_starter(self) -> None:
        """SIGKILL of the measuring process, which can do nothing any more, leaves no process."""
        command = [sys.executable, "-c", STARTER, FAMILY, str(self.log)]
        with subprocess.Popen(command) as starter:
            family = self.family()
            starter.kill()
        self.assert_gone(family)

    def test_a_family_that_ends_by_itself(self) -> None:
        """The command's death ends its children, and is told with its signal and the log's last lines."""
        with supervised([sys.executable, "-c", FAMILY], self.log) as process:
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

"""A reference server in its own process: it starts, dies with its parent, and may die by itself."""

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path
from unittest import mock

from inference_lab.errors import MeasurementRefused
from tests.stream_load.support import ask, record_of, reference_server, serving

_PARENT = (
    "import os, sys, time\n"
    "from tests.stream_load.support import reference_server\n"
    "with reference_server() as url: print(url, flush=True); time.sleep(60)"
)


class TestReferenceProcess(unittest.TestCase):
    """The life of the process."""

    def test_truth_is_whole_after_the_end(self) -> None:
        """When the server is stopped its truth file holds requests, steps and the clock."""
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "server.truth.jsonl"
            with reference_server(Path(folder), itl_ms=1, ttft_ms=1) as url:

                async def run() -> None:
                    async with serving(url=url) as (_, client):
                        self.assertEqual(record_of(await ask(client)).status, "ok")

                asyncio.run(run())
            lines = [json.loads(line) for line in truth.read_text().splitlines()]
        request = next(line for line in lines if line["kind"] == "request")
        self.assertEqual((request["request_id"], request["ended"]), ("r0", "whole"))
        self.assertEqual(len(request["token_ns"]), 6)
        self.assertLess(request["received_ns"], request["token_ns"][0])
        steps = [line for line in lines if line["kind"] == "step"]
        self.assertEqual([step["batch"] for step in steps], [1] * 6)
        self.assertEqual(lines[-1]["kind"], "end")

    def test_dies_with_its_parent(self) -> None:
        """SIGKILL of the parent leaves no server behind."""
        with subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE) as parent:
            assert parent.stdout is not None
            url = parent.stdout.readline().decode().strip()
            parent.kill()

        async def status() -> str:
            async with serving(url=url) as (_, client):
                return record_of(await ask(client)).status

        give_up = time.monotonic() + 20
        while asyncio.run(status()) != "connect_error":
            self.assertLess(time.monotonic(), give_up, "the server lives on")

    def test_a_server_that_dies(self) -> None:
        """Mid-stream that is a truncated answer with its tokens; afterwards nothing connects."""
        command = [sys.executable, "-m", "inference_lab.stream_load.reference.cli", "--port", "0"]
        with subprocess.Popen([*command, "--itl-ms", "1"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["base_url"]

            async def run() -> None:
                async with serving(url=url) as (_, client):
                    asked = asyncio.create_task(ask(client, max_tokens=100_000))
                    while client.live_events < 3:  # noqa: ASYNC110  (the client has no event for it)
                        await asyncio.sleep(0.001)
                    process.kill()
                    record = record_of(await asked)
                    self.assertEqual(record.status, "truncated")
                    self.assertGreaterEqual(record.output_tokens, 3)
                    self.assertEqual(record_of(await ask(client)).status, "connect_error")

            asyncio.run(run())

    def test_a_port_in_use(self) -> None:
        """A server that cannot start says so, and its starter is told."""
        with reference_server() as url:
            port = url.rpartition(":")[2].partition("/")[0]
            command = [
                sys.executable,
                "-m",
                "inference_lab.stream_load.reference.cli",
                "--port",
                port,
            ]
            ended = subprocess.run(command, capture_output=True, timeout=20, check=False)
        self.assertEqual(ended.returncode, 2)
        self.assertIn(f"cannot serve on 127.0.0.1:{port}", ended.stderr.decode())

    def test_out_of_descriptors(self) -> None:
        """With more connections than files it says so in one line and serves on when some have ended."""

        def few_files() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

        command = [sys.executable, "-m", "inference_lab.stream_load.reference.cli", "--port", "0"]
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, preexec_fn=few_files) as process,
        ):
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["base_url"]
            port = int(url.rpartition(":")[2].partition("/")[0])
            with contextlib.ExitStack() as crowd:
                for _ in range(80):
                    crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
                time.sleep(2)
            with urllib.request.urlopen(f"{url}/models", timeout=20) as answer:
                self.assertEqual(answer.status, 200)
            cpu = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            process.terminate()
            process.wait(20)
            errors.seek(0)
            said = errors.read().decode()
        self.assertEqual((process.returncode, said.count("\n")), (0, 1), said)
        self.assertIn("no connection can be accepted now (Too many open files)", said)
        self.assertLess(int(cpu[11]) + int(cpu[12]), 100)  # ticks of 10 ms; it would have spun for 2 s

    def test_a_truth_that_cannot_be_written(self) -> None:
        """It ends with one line that names the file; one that exists is not written over."""

        def small_files() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.jsonl"
            command = [
                sys.executable,
                "-m",
                "inference_lab.stream_load.reference.cli",
                "--port",
                "0",
            ]
            command += ["--itl-ms", "1", "--truth", str(truth)]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=small_files
            ) as process:
                assert process.stdout is not None
                url = json.loads(process.stdout.readline())["base_url"]

                async def run() -> None:
                    async with serving(url=url) as (_, client):
                        self.assertEqual(record_of(await ask(client, max_tokens=9000)).status, "truncated")

                asyncio.run(run())
                said = process.communicate(timeout=20)[1].decode()
            self.assertEqual((process.returncode, said.count("\n")), (2, 1), said)
            self.assertIn(f"truth {truth}: cannot be written (File too large)", said)
            again = subprocess.run(command, capture_output=True, timeout=20, check=False)
        self.assertEqual(again.returncode, 2)
        self.assertIn(f"truth {truth}: cannot be made (File exists); name a new file", again.stderr.decode())

    def test_what_cannot_be_served(self) -> None:
        """A port, a host or a step of no sense is one line."""
        for words, says in (
            (["--port", "70000"], "cannot serve on 127.0.0.1:70000"),
            (["--host", "no.such.host.invalid"], "cannot serve on no.such.host.invalid:8000"),
            (["--itl-ms", "inf"], "itl_ms inf: must be above 0, at most 3600000"),
            (["--ttft-ms", "nan"], "ttft_ms is nan"),
        ):
            command = [sys.executable, "-m", "inference_lab.stream_load.reference.cli", *words]
            ended = subprocess.run(command, capture_output=True, timeout=20, check=False)
            said = ended.stderr.decode()
            self.assertEqual((ended.returncode, said.count("\n")), (2, 1), said)
            self.assertIn(says, said)

    def test_a_server_that_does_not_start(self) -> None:
        """Whoever needs it is told, and does not wait for ever."""
        ends_at_once = mock.patch.object(sys, "executable", "/bin/false")
        with (
            ends_at_once,
            self.assertRaisesRegex(MeasurementRefused, "ended with exit code 1"),
            reference_server(),
        ):
            pass

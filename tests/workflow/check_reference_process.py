"""A reference server in its own process: it starts, dies with its parent, and may die by itself."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.serving.reference_process import reference_server
from tests.serving.support import ask, record_of, serving

_PARENT = (
    "import os, sys, time; from inference_lab.serving.reference_process import reference_server\n"
    "with reference_server(['--truth', sys.argv[1]]) as url: print(url, flush=True); time.sleep(60)"
)


class TestReferenceProcess(unittest.TestCase):
    """The life of the process."""

    def test_truth_is_whole_after_the_end(self) -> None:
        """When the server is stopped its truth file holds requests, steps and the clock."""
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.jsonl"
            with reference_server(["--itl-ms", "1", "--ttft-ms", "1", "--truth", str(truth)]) as url:

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
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", _PARENT, str(Path(folder) / "truth.jsonl")]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
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
        with reference_server(["--manner", "exit", "--itl-ms", "1", "--ttft-ms", "1"]) as url:

            async def run() -> None:
                async with serving(url=url) as (_, client):
                    record = record_of(await ask(client))
                    self.assertEqual((record.status, record.output_tokens), ("truncated", 3))
                    self.assertEqual(record_of(await ask(client)).status, "connect_error")

            asyncio.run(run())

    def test_a_port_in_use(self) -> None:
        """A server that cannot start says so, and its starter is told."""
        with reference_server() as url:
            port = url.rpartition(":")[2].partition("/")[0]
            command = [sys.executable, "-m", "inference_lab.serving.serve_reference", "--port", port]
            ended = subprocess.run(command, capture_output=True, timeout=20, check=False)
        self.assertEqual(ended.returncode, 2)
        self.assertIn(f"cannot serve on 127.0.0.1:{port}", ended.stderr.decode())

    def test_a_server_that_does_not_start(self) -> None:
        """Whoever needs it is told, and does not wait for ever."""
        ends_at_once = mock.patch.object(sys, "executable", "/bin/false")
        with ends_at_once, self.assertRaisesRegex(MeasurementRefused, "did not start"), reference_server():
            pass

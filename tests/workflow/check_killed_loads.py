"""What SIGKILL takes from a load: the server's truth beside the lines that are on disk, kill after kill."""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from inference_lab.stream_load.cli import __name__ as load_command
from inference_lab.stream_load.requests import PARTIAL, read_requests
from tests.stream_load.support import reference_server

_KILLS = 12
_CONCURRENCY = 8


class KilledLoadTest(unittest.TestCase):
    """A load of short requests, killed at times that have nothing to do with it."""

    def kill_one(self, place: Path, after_s: float) -> tuple[set[str], list[dict[str, Any]], int]:
        """(ids on disk, requests the server received, when) of a load killed after its first line."""
        truth, output = place / "server.truth.jsonl", place / "run"
        with reference_server(place, ttft_ms=5, itl_ms=5, max_num_seqs=8) as base_url:
            words = ["--base-url", base_url, "--output", str(output), "--concurrency", str(_CONCURRENCY)]
            words += ["--requests", "100000", "--output-tokens", "4:40"]
            load = subprocess.Popen([sys.executable, "-m", load_command, *words])
            try:
                while not (output / PARTIAL).exists() or not (output / PARTIAL).stat().st_size:
                    self.assertIsNone(load.poll())
                    time.sleep(0.01)
                time.sleep(after_s)
            finally:
                killed_ns = time.monotonic_ns()
                load.kill()
                load.wait()
        records = read_requests(output / PARTIAL)
        lines = [json.loads(line) for line in truth.read_text().splitlines()]
        asked = [line for line in lines if line["kind"] == "request" and line["request_id"]]
        return {record.request_id for record in records}, asked, killed_ns

    def test_no_finished_request_is_lost(self) -> None:
        """A request without a line had its place at the gate: its end was not seen to before the kill.

        So the server never has more of them than the gate holds; and of those that it had written to the
        last byte, at most one in a hundred was still on its way to the client.
        """
        chosen = random.Random(6)
        finished = lost = 0
        for _ in range(_KILLS):
            with tempfile.TemporaryDirectory() as place:
                recorded, asked, killed_ns = self.kill_one(Path(place), chosen.uniform(0.3, 0.8))
            without = [line for line in asked if line["request_id"] not in recorded]
            self.assertLessEqual(len(without), _CONCURRENCY)
            # A server goes on writing to a process that has been killed but is not torn down yet.
            before = [line["ended"] == "whole" and line["finished_ns"] < killed_ns for line in asked]
            finished += sum(before)
            lost += sum(line in without for line, counts in zip(asked, before, strict=True) if counts)
        print(f"{_KILLS} kills: {lost} of {finished} finished requests have no line", file=sys.stderr)
        self.assertLessEqual(lost, finished / 100)


_P2 = """
import os, sys
os.environ["TMPDIR"] = sys.argv[1]
from inference_lab.experiments import client_gate
from tests.checkout import section_of
fixed = {"requests": 200, "input_tokens": 8, "output_tokens": 50, "ttft_ms": 5, "itl_ms": 5, "seed": 1}
client_gate.measure(
    section_of("client_gate", vary={"setup": ["gate_4_batch_2"]}, fixed=fixed),
    lambda done, total: None,
)
"""


class KilledExperimentTest(unittest.TestCase):
    """A measurement whose server and clients write into a folder for the time being."""

    def test_a_killed_p2_leaves_no_folder(self) -> None:
        """Whatever signal ends it while its clients run, nothing of it is left among temporary files."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
            with tempfile.TemporaryDirectory() as place:
                measuring = subprocess.Popen([sys.executable, "-c", _P2, place], stderr=subprocess.DEVNULL)
                give_up = time.monotonic() + 60
                while not list(Path(place).glob("inference-lab-serving-*/client0/*.partial")):
                    self.assertIsNone(measuring.poll())
                    self.assertLess(time.monotonic(), give_up)
                    time.sleep(0.01)
                measuring.send_signal(number)
                measuring.wait(60)
                while left := list(Path(place).iterdir()):
                    self.assertLess(time.monotonic(), give_up, left)
                    time.sleep(0.01)

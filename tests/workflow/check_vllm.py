"""The real vLLM under start_server: its steps, its capacity, its errors, and no process left behind.

Skipped where its environment is not installed. Takes a few minutes.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.servers.start import start_server
from inference_lab.stream_load.servers.vllm import SCRIPTS, find_environment, written_model
from tests.stream_load.support import lives
from tests.workflow.harness import wait_for

SHAPE = {"vocab_size": 512, "hidden_size": 256, "num_layers": 4, "num_heads": 8, "num_kv_heads": 2, "seed": 1}
SETTINGS: dict[str, Any] = {
    "kind": "vllm",
    "model": SHAPE,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 1024,
    "kv_cache_gib": 0.0625,
    "dtype": "float32",
    "block_size": 32,
    "enable_prefix_caching": False,
    "ready_s": 600,
}
_STARTER = (
    "import json, sys, time; from pathlib import Path\n"
    "from inference_lab.stream_load.servers.start import start_server\n"
    "with start_server(json.loads(sys.argv[1]), Path(sys.argv[2])): \n"
    " print('ready', flush=True); time.sleep(600)"
)


class VllmCheck(unittest.TestCase):
    """What only the real server can show."""

    @classmethod
    def setUpClass(cls) -> None:
        """Find vLLM's environment, or skip."""
        try:
            cls.environment = find_environment()
        except MeasurementRefused as refused:
            raise unittest.SkipTest(str(refused)) from None

    def setUp(self) -> None:
        """A log that nobody has written yet."""
        self.log = Path(self.enterContext(tempfile.TemporaryDirectory()), "server.log")

    def test_a_prompt_in_chunks_and_a_death(self) -> None:
        """A prompt of 150 in chunks of 64, on the client's clock; the capacity; a killed worker is told."""
        with start_server(SETTINGS, self.log) as server:
            began_ns = time.monotonic_ns()
            asked = {"model": "model", "prompt": [7] * 150, "max_tokens": 5, "ignore_eos": True}
            headers = {"Content-Type": "application/json"}
            body = json.dumps(asked).encode()
            answer = json.load(urlopen(Request(f"{server.base_url}/completions", body, headers)))
            ended_ns = time.monotonic_ns()
            server.check()
            family = _descendants(os.getpid())
            os.kill(next(pid for pid in family if b"Worker" in _command(pid)), signal.SIGKILL)
            with self.assertRaisesRegex(MeasurementRefused, "the server ended .* Executor failed"):
                for _ in range(600):
                    server.check()
                    time.sleep(0.1)
        self.assertEqual(answer["usage"]["completion_tokens"], 5)
        steps = server.steps()
        self.assertEqual([step["prefill_tokens"] for step in steps], [64, 64, 22, 0, 0, 0, 0])
        self.assertEqual([step["decode_tokens"] for step in steps], [0, 0, 0, 1, 1, 1, 1])
        times = [began_ns, *(step["ended_ns"] for step in steps), ended_ns]
        self.assertEqual(times, sorted(times))
        bytes_per_token = 2 * SHAPE["num_layers"] * SHAPE["num_kv_heads"] * 32 * 4
        self.assertEqual(server.facts["kv_cache_tokens"], 2**26 // bytes_per_token)
        self.assertEqual(server.facts["block_size"], 32)

    def test_nothing_survives_the_kill_of_the_starter(self) -> None:
        """SIGKILL of the measuring process ends the API server, the engine and its worker."""
        command = [sys.executable, "-c", _STARTER, json.dumps(SETTINGS), str(self.log)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as starter:
            assert starter.stdout is not None
            self.assertEqual(starter.stdout.readline(), b"ready\n", self.log.read_text()[-2000:])
            family = _descendants(starter.pid)
            self.assertGreaterEqual(len(family), 4, "guard, API server, engine, worker")
            starter.kill()
        self.assertTrue(wait_for(lambda: not any(map(lives, family)), 30), f"some of {family} live on")

    def test_what_it_refuses(self) -> None:
        """An unknown argument and a block size that it has no kernel for: the reason is in the first line."""
        for more, words in (
            ({"arguments": ["--no-such-option"]}, "unrecognized arguments: --no-such-option"),
            ({"block_size": 16}, "No common block size for 16"),
        ):
            with self.subTest(more), self.assertRaises(MeasurementRefused) as caught:
                start_server(SETTINGS | more, self.log).__enter__()
            self.assertIn(words, str(caught.exception).splitlines()[0])
            self.log.unlink()

    def test_the_model_is_the_same_each_time(self) -> None:
        """Written twice, its files have the same bytes."""
        first = written_model(self.environment, SHAPE)
        shape = SHAPE | {"intermediate_size": 512, "max_position_embeddings": 8192}
        again = self.log.parent / "again"
        command = [self.environment.python, SCRIPTS / "write_model.py", again, json.dumps(shape)]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
        names = sorted(path.name for path in first.iterdir())
        self.assertIn("model.safetensors", names)
        self.assertEqual(names, sorted(path.name for path in again.iterdir()))
        for name in names:
            self.assertEqual((first / name).read_bytes(), (again / name).read_bytes(), name)

    def test_the_trace_holds(self) -> None:
        """Every declared place stands where it was read, and the page says so."""
        page = self.log.with_name("trace.md")
        subprocess.run([sys.executable, SCRIPTS / "trace.py", "--output", page], check=True)
        self.assertEqual(page.read_text(), Path("docs/vllm-trace.md").read_text())


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *_descendants(child))]


def _command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


if __name__ == "__main__":
    unittest.main()

"""Real loads that something disturbed: the record is made, and its summary says what was wrong with it."""

import csv
import io
import json
import os
import signal
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import summary_rows
from inference_lab.experiments import sweep
from inference_lab.experiments.serving_run import serving
from inference_lab.records.record import Measurement, Record
from inference_lab.stream_load.requests import read_requests
from inference_lab.stream_load.schedule import Schedule
from inference_lab.stream_load.servers.process import Server
from inference_lab.stream_load.session import LoadOptions, load
from inference_lab.stream_load.workload import Length, Workload
from tests.checkout import judge_of, section_of

SECTION: dict[str, Any] = {
    "vary": {"concurrency": [2]},
    "fixed": {
        **{"requests": 100, "input_tokens": 8, "output_tokens": 10, "seed": 1},
        **{"max_num_seqs": 4, "max_num_batched_tokens": 2048, "kv_cache_gib": 1},
    },
    "server": {"kind": "reference", "ttft_ms": 5, "itl_ms": 5},
    "servers": 1,
    "rounds": 1,
    "warmup_requests": 0,
    "sample_s": 0.2,
}
STOPPED_S = 4.0


def summary_of(found: Measurement, conditions: Mapping[str, Any]) -> list[dict[str, str]]:
    """The summary of a measurement, read back from its files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "requests.jsonl")
        path.write_text(found.files["requests.jsonl"])
        requests = read_requests(path)
    rows = list(csv.DictReader(io.StringIO(found.files["raw.csv"])))
    server = [json.loads(line) for line in found.files["server.jsonl"].splitlines()]
    manifest = {"conditions": conditions, "environment": {}, **found.facts}
    record = Record("s", manifest, None, None, rows, requests, (), server)
    return summary_rows(summarise(record, judge_of(window="all")), "summary.csv")


class DisturbedTest(unittest.TestCase):
    """A sweep over the reference server while something else happens."""

    def measured(self, disturb: Callable[[Server], None]) -> dict[str, dict[str, str]]:
        """Rows of the summary by metric; `disturb` ran in the middle of the load."""

        @contextmanager
        def start(settings: Mapping[str, Any], place: Path) -> Generator[Server]:
            with serving(settings, place) as server:
                thread = threading.Thread(target=self.in_the_middle, args=(server, disturb))
                thread.start()
                yield server
                thread.join()

        with mock.patch.object(sweep, "serving", start):
            found = sweep.measure(section_of("sweep", **SECTION), lambda *_: None)
        return {row["metric"]: row for row in summary_of(found, SECTION)}

    def in_the_middle(self, server: Server, disturb: Callable[[Server], None]) -> None:
        """Wait until the engine works for the load, then disturb it."""
        give_up = time.monotonic() + 30
        while len(server.steps()) < 100 and time.monotonic() < give_up:
            time.sleep(0.02)
        disturb(server)

    def test_an_undisturbed_load(self) -> None:
        """Without a disturbance nothing is flagged but what a busy machine does to a server's own pace."""
        rows = self.measured(lambda _: None)
        self.assertEqual((rows["ok"]["value"], rows["ok"]["flags"]), ("100", ""))
        self.assertEqual(rows["server_generation_tokens"]["value"], "1000")

    def test_a_server_that_was_stopped(self) -> None:
        """SIGSTOP for seconds is a silence that the client saw and the engine's steps confirm."""

        def stop(server: Server) -> None:
            assert server.log is not None
            said = next(
                line for line in server.log.read_text().splitlines() if line.startswith('{"base_url"')
            )
            pid = json.loads(said)["pid"]
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)

        rows = self.measured(stop)
        self.assertEqual(rows["ok"]["value"], "100")
        for metric in ("itl", "output_tokens_per_s", "duration"):
            self.assertIn("server-late", rows[metric]["flags"].split(), metric)
        self.assertIn("; the server stood still", rows["itl"]["advice"])
        self.assertEqual(rows["ok"]["flags"], "")
        self.assertIn("unscraped", rows["peak_running"]["flags"])

    def test_requests_of_others(self) -> None:
        """Somebody else's requests to the same server are in its counters, and the cell claims nothing."""

        def ask(server: Server) -> None:
            with tempfile.TemporaryDirectory() as folder:
                one = Length(4, 4)
                workload = Workload("reference", prompt="ids", input_tokens=one, output_tokens=one)
                options = LoadOptions(server.base_url, Schedule("closed", 3), workload, concurrency=1)
                load(options, Path(folder, "run"))

        rows = self.measured(ask)
        self.assertTrue(all("two-sides" in row["flags"].split() for row in rows.values()))
        self.assertIn("the server finished 103 requests, this client sent 100", rows["ttft"]["advice"])


if __name__ == "__main__":
    unittest.main()

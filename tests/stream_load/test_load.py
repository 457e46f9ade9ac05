"""A load as a user starts it: its folder, its exit code, its interrupts."""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.commands.own_load import describe, reopen
from inference_lab.errors import InputError, MeasurementRefused, RecordError
from inference_lab.records.files import write_json
from inference_lab.records.receipts import seal
from inference_lab.stream_load.cli import add_arguments, options_from, outcome, reasons
from inference_lab.stream_load.requests import PARTIAL, RequestFile, RequestRecord, read_requests
from inference_lab.stream_load.session import INFO, Snapshot, exit_code, load
from tests.stream_load.support import reference_server
from tests.synthetic import timing_record

ONE = ("--concurrency", "1", "--requests", "1")


def arguments(*words: str) -> argparse.Namespace:
    """Parsed arguments of `load`."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


class TestLoad(unittest.TestCase):
    """One reference server for all tests, one folder for each."""

    base_url: str

    @classmethod
    def setUpClass(cls) -> None:
        """Have what all tests of the class share, gone at their end."""
        cls.base_url = cls.enterClassContext(reference_server(ttft_ms=2, itl_ms=1, max_num_seqs=8))

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.output = Path(self.enterContext(tempfile.TemporaryDirectory())) / "run"
        self.printed = self.enterContext(mock.patch("builtins.print"))

    def words(self, *more: str) -> list[str]:
        """The command's arguments for this server and folder."""
        return ["--base-url", self.base_url, "--output", str(self.output), *more]

    def run_command(self, *more: str) -> int:
        """The exit code of the command in this process."""
        args = arguments(*self.words(*more))
        result = load(options_from(args), args.output, resume=args.resume)
        told = reasons(read_requests(result.requests_path), result.info["sessions"])
        self.said = "\n".join([outcome(result), *told])
        return result.exit_code

    def records(self) -> list[RequestRecord]:
        """The records of the finished run, in the order of their ids."""
        return sorted(read_requests(self.output / "requests.jsonl"), key=lambda record: record.request_id)

    def info(self) -> dict[str, Any]:
        """What the run says of itself."""
        return json.loads((self.output / INFO).read_text())

    def test_closed_loop_with_nothing_but_the_needed_options(self) -> None:
        """The model is discovered, every request recorded once, the exit code 0."""
        self.assertEqual(
            self.run_command("--concurrency", "4", "--requests", "16", "--output-tokens", "3:9"), 0
        )
        self.assertEqual([record.request_id for record in self.records()], [f"r{i:06d}" for i in range(16)])
        self.assertEqual({record.status for record in self.records()}, {"ok"})
        info = self.info()
        self.assertEqual((info["model"], info["counts"]), ("reference", {"ok": 16}))
        self.assertEqual(info["conditions"]["workload"]["output_tokens"], {"low": 3, "high": 9})
        self.assertEqual(info["sessions"][0]["clock"]["stamps"], "kernel")

    def test_open_loop(self) -> None:
        """At a Poisson rate, requests arrive after they were scheduled and in that order."""
        code = self.run_command("--rate", "400", "--poisson", "--requests", "20", "--output-tokens", "2")
        records = self.records()
        self.assertEqual((code, len(records)), (0, 20))
        scheduled = [record.scheduled_ns for record in records]
        self.assertEqual(scheduled, sorted(scheduled))
        self.assertTrue(all(r.arrival_ns >= r.scheduled_ns for r in records))

    def test_failures_decide_the_exit_code(self) -> None:
        """Failures above the declared share, or no success at all, are not 0."""
        failing = ("--requests", "3", "--concurrency", "2", "--extra-body", '{"model": "other"}')
        self.assertEqual(self.run_command(*failing, "--max-failure-share", "1"), 1)
        self.assertEqual({record.status for record in self.records()}, {"http_error"})
        self.assertIn("failed: 3 of 3, http_error: ", self.said)
        for counts, share, code in (
            ({"ok": 9, "timeout": 1}, 0.1, 0),
            ({"ok": 9, "timeout": 1}, 0.09, 1),
            ({"ok": 1, "cancelled": 5}, 0.0, 0),
            ({}, 1.0, 1),
        ):
            self.assertEqual(exit_code(counts, share, interrupted=False), code, counts)

    def test_the_key_is_sent_and_never_kept(self) -> None:
        """No file of the run and nothing printed holds the API key."""
        key, more = "sk-do-not-keep", (*ONE, "--api-key-env", "LAB_KEY")
        with mock.patch.dict(os.environ, {"LAB_KEY": key}):
            self.assertEqual(self.run_command(*more), 0)
        self.assertNotIn(key, f"{self.printed.mock_calls} {self.said}")
        for path in self.output.iterdir():
            self.assertNotIn(key.encode(), path.read_bytes())
        with self.assertRaisesRegex(InputError, "LAB_KEY holds no usable API key"):
            self.run_command(*more)

    def test_a_server_that_cannot_be_asked(self) -> None:
        """Without a model to discover nothing is measured, and the folder's name stays free."""
        self.base_url += "/other"
        with self.assertRaisesRegex(MeasurementRefused, "/other/models: HTTP 404"):
            self.run_command(*ONE)
        self.assertFalse(self.output.exists())

    def test_arguments_that_are_refused(self) -> None:
        """A secret in the extra body at any depth, and a service level of no number, name the right form."""
        secret, bound = "holds a secret, which records would show; give --api-key-env", "like ttft_ms=200"
        for option, text, says in (
            ("--extra-body", '{"api_key": "sk-abc"}', secret),
            ("--extra-body", '{"user": [{"password": "x"}]}', secret),
            *(("--slo", f"ttft_ms={limit}", bound) for limit in ("inf", "nan", "fast", "")),
        ):
            with mock.patch("sys.stderr", io.StringIO()) as said, self.assertRaises(SystemExit):
                arguments(*self.words(option, text))
            self.assertIn(says, said.getvalue())

    def test_contradictions_are_refused(self) -> None:
        """What cannot be meant is said before anything is sent."""
        for words, says in (
            ("--requests 3", "a closed loop needs a concurrency"),
            ("--rate 1 --burst --requests 3", "not both"),
            ("--poisson --requests 3", "--poisson needs --rate"),
            ("--concurrency 0 --requests 3", "concurrency is 0"),
            ("--concurrency 1", "a schedule must stop"),
            ("--concurrency 1 --requests 1 --max-failure-share 2", "from 0 to 1"),
            ("--concurrency 1 --requests 1 --name a\nb", "printable ASCII"),
            ("--concurrency 1 --requests 1 --retries -1", "retries is -1"),
            ("--concurrency 1 --requests 1 --total-timeout inf", "positive and finite"),
        ):
            with self.subTest(says), self.assertRaisesRegex(InputError, says):
                self.run_command(*words.split(" "))
            self.assertFalse(self.output.exists(), "its name stays free")

    def test_a_record_that_cannot_be_written_ends_the_load(self) -> None:
        """The load stops with the reason instead of going on unrecorded."""
        options = options_from(arguments(*self.words("--concurrency", "2", "--duration", "3600")))
        full = RecordError("the disk is full")
        patched = mock.patch.object(RequestFile, "append", side_effect=full)
        with patched, self.assertRaisesRegex(RecordError, "the disk is full"):
            load(options, self.output)

    def test_a_load_imports_no_analysis(self) -> None:
        """A load starts without NumPy, pandas and Matplotlib."""
        code = "import sys, inference_lab.stream_load.cli; print(*sys.modules)"
        printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
        self.assertFalse({"numpy", "pandas", "matplotlib"} & set(printed.decode().split()))

    def test_progress_line(self) -> None:
        """One line says what is in flight, done, failed, how fast, and how long it will take."""
        line = describe(Snapshot(in_flight=4, done=10, failed=1, tokens=640), 40, 5.0)
        self.assertEqual(line, "5 s: 4 in flight, 10/40 done, 1 failed, 128 tokens/s, about 15 s to go")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds; fail after 20 s."""
        give_up = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), give_up, "it never happened")
            time.sleep(0.005)

    def running(self) -> float:
        """How many requests the server has in its engine."""
        with urllib.request.urlopen(self.base_url.replace("/v1", "/metrics")) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith("vllm:num_requests_run")))

    def interrupted(self, times: int, *more: str) -> None:
        """Run a load that gets Ctrl-C so many times, the first one when two requests run."""

        def interrupt() -> None:
            self.wait_for(lambda: self.running() == 2)
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                self.wait_for(lambda: self.printed.called)  # the load has heard the first one

        thread = threading.Thread(target=interrupt)
        thread.start()
        self.assertEqual(self.run_command("--concurrency", "2", *more), 130)
        thread.join()

    def test_once_drains(self) -> None:
        """After one Ctrl-C the requests in flight end and the record is complete and marked."""
        self.interrupted(1, "--requests", "50", "--output-tokens", "100")
        self.assertEqual({record.status for record in self.records()}, {"ok"})
        self.assertLess(len(self.records()), 50)
        self.assertTrue(self.info()["sessions"][0]["interrupted"])

    def test_twice_stops(self) -> None:
        """A second Ctrl-C ends at once; what had arrived is kept, cancelled, in the partial file."""
        self.interrupted(2, "--requests", "3", "--output-tokens", "100000")
        records = read_requests(self.output / PARTIAL)
        self.assertEqual([record.status for record in records], ["cancelled"] * 2)
        self.assertTrue(all(record.output_tokens for record in records))
        self.assertTrue((self.output / PARTIAL).read_bytes().endswith(b"\n"))
        self.wait_for(lambda: self.running() == 0)

    def test_a_finished_record_is_resumed_as_it_was_recorded(self) -> None:
        """When its requests were edited since, --resume takes nothing over and changes nothing."""
        self.output.mkdir(parents=True)
        (self.output / "requests.jsonl").write_text("")
        made = {"requests.jsonl": {"sha256": "0" * 64, "rows": 0}}
        record = {**timing_record(rounds=1).manifest, "outputs": made}
        write_json(self.output / "manifest.json", seal(record))
        before = {path: path.read_bytes() for path in self.output.iterdir()}
        with self.assertRaisesRegex(RecordError, r"requests\.jsonl: differs from .* expected sha256 0000"):
            reopen(self.output, options_from(arguments(*self.words(*ONE))))
        self.assertEqual({path: path.read_bytes() for path in self.output.iterdir()}, before)

    def test_killed_and_resumed(self) -> None:
        """After SIGKILL every line is whole, and --resume asks exactly what is missing."""
        more = ("--concurrency", "2", "--requests", "30", "--output-tokens", "30")
        command = [sys.executable, "-m", "inference_lab.stream_load.cli", *self.words(*more)]
        path = self.output / PARTIAL
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            self.wait_for(lambda: path.exists() and path.read_bytes().count(b"\n") >= 4)
            process.kill()
        before = path.read_bytes()
        before = before[: before.rfind(b"\n") + 1]
        with self.assertRaisesRegex(InputError, "another concurrency: 3, the run has 2"):
            self.run_command("--resume", "--concurrency", "3", *more[2:])
        self.assertEqual(self.run_command("--resume", *more), 0)
        self.assertTrue((self.output / "requests.jsonl").read_bytes().startswith(before))
        self.assertEqual([record.request_id for record in self.records()], [f"r{i:06d}" for i in range(30)])
        self.assertEqual(self.info()["counts"], {"ok": 30})
        self.assertRegex(self.said, r"note: \d+ requests are of a session that was killed")

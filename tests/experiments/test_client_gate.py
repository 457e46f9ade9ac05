"""The p2 experiment: what its records show, and that the gate is what shows it."""

import asyncio
import csv
import io
import json
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.analysis.verdicts import evaluate
from inference_lab.config.prediction import load_prediction
from inference_lab.experiments import client_gate
from inference_lab.experiments.serving_run import Recording
from inference_lab.records.record import Record
from inference_lab.stream_load.requests import read_requests
from tests.checkout import ROOT, judge_of, section_of

FIXED = {"requests": 16, "input_tokens": 8, "output_tokens": 4, "ttft_ms": 4, "itl_ms": 2, "seed": 42}
SECTION = section_of("client_gate", vary={"setup": ["two_gates_4_batch_8"]}, fixed=FIXED)


def simulated() -> Recording:
    """Both sides of every setup in virtual time."""
    sides = Recording()
    for name in client_gate.SETUPS:
        client_gate.simulate(name, SECTION.fixed, sides)
    return sides


def verdicts(sides: Recording) -> dict[str, str]:
    """What the prediction of p2 comes to over the simulated half of a record."""
    found = sides.truth_measurement({})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "requests.jsonl")
        path.write_text(found.files["requests.jsonl"])
        requests = read_requests(path)
    rows = list(csv.DictReader(io.StringIO(found.files["raw.csv"])))
    manifest = {"conditions": {"vary": {"setup": list(client_gate.SETUPS)}}, "environment": {}, **found.facts}
    record = Record("p2", manifest, None, None, rows, requests)
    view = View(
        record, summary_rows(summarise(record, judge_of(window="all")), "summary.csv"), judge_of(), {}
    )
    prediction = load_prediction(ROOT / "predictions/p2.yaml")
    claims = [claim for claim in prediction.claims if claim.id.startswith("sim-")]
    judged = evaluate(prediction.having("claims", claims), view, prediction_changed=False)
    return {verdict["id"]: verdict["verdict"] for verdict in judged}


class TestP2(unittest.TestCase):
    """Client gate against server batch."""

    def test_both_records_prove_it(self) -> None:
        """In flight is what the gate says, in a step what the scheduler says: every claim is supported."""
        found = verdicts(simulated())
        self.assertEqual(set(found.values()), {"Supported"}, found)
        self.assertEqual(len(found), 6)

    def test_without_the_semaphore(self) -> None:
        """Take the gate away and what was claimed of it is refuted; the server's batch of 2 stays."""
        endless = asyncio.Semaphore(10**6)
        with mock.patch("inference_lab.stream_load.driver.asyncio.Semaphore", return_value=endless):
            found = verdicts(simulated())
        refuted = {name for name, verdict in found.items() if verdict == "Refuted"}
        self.assertEqual(refuted, {"sim-gate-4", "sim-gate-2", "sim-two-gates", "sim-batch-4-unfilled"})
        self.assertEqual(found["sim-batch-2"], "Supported")

    def test_same_record_every_time(self) -> None:
        """Two simulations give the same lines and steps."""
        self.assertEqual(simulated(), simulated())

    def test_measure(self) -> None:
        """Simulation and HTTP, two clients at a server that knows neither: both sides are recorded."""
        done: list[tuple[int, int]] = []
        found = client_gate.measure(SECTION, lambda *now: done.append(now))
        self.assertEqual(done, [(1, 1)])
        lines = [json.loads(line) for line in found.files["requests.jsonl"].splitlines()]
        self.assertEqual((found.kind, len(lines), found.rows["requests.jsonl"]), ("serving", 64, 64))
        sessions = found.facts["sessions"]
        self.assertEqual([session["concurrency"] for session in sessions], [4] * 4)
        for session in sessions:
            own = [line for line in lines if line["request_id"].startswith(session["name"])]
            self.assertEqual((len(own), {line["status"] for line in own}), (16, {"ok"}))
        steps = list(csv.DictReader(io.StringIO(found.files["raw.csv"])))
        self.assertEqual(list(steps[0]), found.facts["columns"])
        over_http = [int(step["batch"]) for step in steps if step["transport"] == "http"]
        self.assertLessEqual(max(over_http), 8)
        truth = [json.loads(line) for line in found.files["truth.jsonl"].splitlines()]
        http = {line["request_id"] for line in lines if line["request_id"].startswith("http/")}
        self.assertEqual({line["request_id"] for line in truth}, http)

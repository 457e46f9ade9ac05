"""The calibration experiment records both sides of every request."""

import json
import tempfile
import unittest
from itertools import accumulate
from pathlib import Path
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import calibration
from inference_lab.experiments.serving_run import Recording, cli_options
from tests.checkout import section_of

FIXED = {
    "requests_per_stream": 2,
    "input_tokens": 4,
    "output_tokens": 3,
    "ttft_ms": 4,
    "itl_ms": 2,
    "seed": 42,
}


class TestCalibration(unittest.TestCase):
    """Clients beside the truth."""

    def test_both_sides(self) -> None:
        """Every token a client saw is one the server wrote, before, under the same request id."""
        section = section_of(
            "calibration", vary={"streams": [3]}, fixed=FIXED, paths=["kernel", "open_loop"], rounds=1
        )
        done: list[tuple[int, int]] = []
        found = calibration.measure(section, lambda *now: done.append(now))
        self.assertEqual(done, [(1, 2), (2, 2)])
        seen = {
            line["request_id"]: line for line in map(json.loads, found.files["requests.jsonl"].splitlines())
        }
        written = {
            line["request_id"]: line for line in map(json.loads, found.files["truth.jsonl"].splitlines())
        }
        self.assertEqual(set(seen), set(written))
        self.assertEqual(len(seen), 12)
        for request_id, record in seen.items():
            self.assertEqual(record["clock"], "kernel")
            times = accumulate(record["itl_ns"], initial=record["first_token_ns"])
            line = written[request_id]
            truth = accumulate(line["itl_ns"], initial=line["first_token_ns"])
            for at_ns, written_ns in zip(times, truth, strict=True):
                self.assertGreater(at_ns, written_ns - 50_000)  # smaller steps of the wall clock go unseen
        sessions = {session["cell"]["path"]: session for session in found.facts["sessions"]}
        self.assertEqual({session["cell"]["streams"] for session in sessions.values()}, {3})
        self.assertEqual(sessions["open_loop"]["schedule"], "poisson")
        self.assertGreater(sessions["kernel"]["start_ns"], sessions["kernel"]["launched_ns"])

    def test_a_failed_client_records_nothing(self) -> None:
        """When a request fails there is no record; what there was is kept and named."""
        client = cli_options(concurrency=1, requests=1, extra_body='{"model": "other"}')
        place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        refused = self.assertRaisesRegex(MeasurementRefused, rf"exit codes \[1\].*see {place}")
        with mock.patch("tempfile.tempdir", str(place)), refused:
            Recording().load_beside_truth({}, {"ttft_ms": 2, "itl_ms": 1}, [client])
        self.assertEqual(len(list(place.glob("*/client0/requests.jsonl"))), 1)

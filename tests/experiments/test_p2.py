"""The p2 experiment: what its records show, and that the gate is what shows it."""

import asyncio
import csv
import io
import json
import unittest
from typing import Any
from unittest import mock

from inference_lab.errors import ConfigError
from inference_lab.experiments import p2

FIXED = {"requests": 16, "input_tokens": 8, "output_tokens": 4, "ttft_ms": 4, "itl_ms": 2, "seed": 42}


def peaks(lines: list[str]) -> dict[str, int]:
    """Most requests in flight at once, from admissions and ends, of each client."""
    events: dict[str, list[tuple[int, int]]] = {}
    for record in map(json.loads, lines):
        client = record["request_id"].rpartition("/")[0]
        events.setdefault(client, []).extend([(record["admitted_ns"], 1), (record["finish_ns"], -1)])
    found: dict[str, int] = {}
    for client, changes in events.items():
        now = 0
        for _, change in sorted(changes):
            now += change
            found[client] = max(found.get(client, 0), now)
    return found


class TestP2(unittest.TestCase):
    """Client gate against server batch."""

    def test_simulation(self) -> None:
        """In flight is what the gate says, in a step what the scheduler says: neither follows the other."""
        for name, in_flight, batch in (
            ("gate_4_batch_2", {"simulation/gate_4_batch_2/0": 4}, 2),
            ("gate_2_batch_4", {"simulation/gate_2_batch_4/0": 2}, 2),
            ("two_gates_4_batch_8", {f"simulation/two_gates_4_batch_8/{i}": 4 for i in (0, 1)}, 8),
        ):
            with self.subTest(name):
                lines, steps = p2.simulate(name, FIXED)
                self.assertEqual(peaks(lines), in_flight)
                self.assertEqual(max(len(step.batch) for step in steps), batch)
                self.assertEqual({json.loads(line)["status"] for line in lines}, {"ok"})

    def test_without_the_semaphore(self) -> None:
        """Take the gate away and all 16 are in flight: what is shown is the gate's doing."""
        endless = asyncio.Semaphore(10**6)
        with mock.patch("inference_lab.serving.driver.asyncio.Semaphore", return_value=endless):
            lines, steps = p2.simulate("gate_4_batch_2", FIXED)
        self.assertEqual(peaks(lines), {"simulation/gate_4_batch_2/0": 16})
        self.assertEqual(max(len(step.batch) for step in steps), 2)

    def test_same_record_every_time(self) -> None:
        """Two simulations give the same lines."""
        name = "two_gates_4_batch_8"
        self.assertEqual(p2.simulate(name, FIXED)[0], p2.simulate(name, FIXED)[0])

    def test_measure(self) -> None:
        """Simulation and HTTP, two clients at a server that knows neither: both sides are recorded."""
        section: dict[str, Any] = {"vary": {"setup": ["two_gates_4_batch_8"]}, "fixed": FIXED}
        done: list[tuple[int, int]] = []
        found = p2.measure(section, lambda *now: done.append(now))
        self.assertEqual(done, [(1, 1)])
        lines = found.files["requests.jsonl"].splitlines()
        self.assertEqual((found.kind, len(lines), found.rows["requests.jsonl"]), ("serving", 64, 64))
        seen = peaks(lines)
        self.assertEqual(set(seen.values()), {4})
        self.assertEqual(len(seen), 4)
        steps = list(csv.DictReader(io.StringIO(found.files["steps.csv"])))
        over_http = [int(step["batch"]) for step in steps if step["transport"] == "http"]
        self.assertLessEqual(max(over_http), 8)
        self.assertEqual(len(steps), found.rows["steps.csv"])
        self.assertEqual(len(found.facts["sessions"]["two_gates_4_batch_8"]), 2)

    def test_an_unknown_setup(self) -> None:
        """A section that varies something else is refused with what may be varied."""
        for vary in ({"setup": ["gate_3"]}, {"batch_size": [1]}):
            with self.assertRaisesRegex(ConfigError, "p2 varies setup over gate_4_batch_2"):
                p2.measure({"vary": vary, "fixed": FIXED}, lambda *_: None)

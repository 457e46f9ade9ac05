"""What a server says of itself during a load, from counters, gauges and steps made by hand."""

import unittest
from collections.abc import Mapping
from typing import Any

from inference_lab.analysis.load_runs import runs_of
from inference_lab.analysis.metrics import TTFT
from inference_lab.analysis.server_metrics import by_fresh_server, warmup
from inference_lab.records.record import Record
from tests.loads import record, request, rows_of, session, step

QUEUE = "request_queue_time_seconds"


def line(phase: str, metrics: Mapping[str, float] | None, load: str = "a/") -> dict[str, Any]:
    """A line of server.jsonl."""
    return {"load": load, "cell": {}, "phase": phase, "at_ns": 0, "metrics": metrics}


def one_load(**parts: Any) -> Record:
    """A load named a/ of two requests, with these lines and steps."""
    made = session("a/", cell={"concurrency": 2}, server=0, requests_before=0)
    steps = [{"concurrency": "2", **row} for row in parts.pop("rows", ())]
    return record([request(n, name="a/") for n in (0, 1)], made, rows=steps, **parts)


def summed(found: Record) -> dict[str, dict[str, str]]:
    """Rows of the summary by their metric, for a record of one cell."""
    return {row["metric"]: row for row in rows_of(found, window="all")}


class TestServerSide(unittest.TestCase):
    """Numbers of one load."""

    def assert_values(self, found: Record, expected: Mapping[str, str], *undefined: str) -> None:
        """These metrics have these values, those have no row."""
        rows = summed(found)
        self.assertEqual({name: rows[name]["value"] for name in expected}, expected)
        self.assertFalse({*undefined} & set(rows))

    def test_counters_count_from_before_to_after(self) -> None:
        """Means are growth of sum over growth of count, labels added up; what was before is not in it."""
        before = {f"{QUEUE}_sum": 1.0, f"{QUEUE}_count": 10, 'num_preemptions_total{a="1"}': 1}
        after = {f"{QUEUE}_sum": 1.5, f"{QUEUE}_count": 12, 'num_preemptions_total{a="1"}': 2}
        after['num_preemptions_total{a="2"}'] = 3
        found = one_load(server=[line("before", before), line("after", after)])
        self.assert_values(found, {"server_queue_mean": "250", "preemptions": "4"}, "server_ttft_mean")

    def test_a_server_that_did_not_answer_said_nothing(self) -> None:
        """Without the last page no counter grew by a known number; a peak is of the pages there are."""
        samples = [line("sample", {"num_requests_waiting": n}) for n in (1, 4, 2)]
        lines = [line("before", {"prompt_tokens_total": 5}), *samples, line("sample", None)]
        found = one_load(server=[*lines, line("after", None)])
        self.assert_values(found, {"peak_waiting": "4"}, "server_prompt_tokens")

    def test_steps_tell_prefill_from_decode(self) -> None:
        """Chunks a request, tokens a step with a prompt, the share of steps with both, times of each kind."""
        steps = [
            step(0, 10, prefills=(1, 6), decodes=0, load="a/"),
            step(10, 12, prefills=(1, 2), decodes=1, load="a/"),
            *(step(22, lasts, decodes=2, load="a/") for lasts in (4, 6)),
        ]
        found = one_load(rows=[*steps, step(lasts=99, prefills=(9, 9), load="warmup/")])
        expected = {"steps": "4", "prefill_chunks_a_request": "1", "mixed_steps": "25"}
        expected |= {"step_prefill_tokens_mean": "4", "step_prefill_tokens_peak": "6"}
        self.assert_values(found, expected)
        rows = summed(found)
        self.assertEqual((rows["decode_step"]["p50_ms"], rows["prefill_step"]["max_ms"]), ("5", "12"))

    def test_capacity_stands_beside_what_the_server_says(self) -> None:
        """Whole blocks of the declared shape, budget and type; nothing where one of them is unknown."""
        model = {"num_layers": 4, "num_heads": 8, "num_kv_heads": 2, "hidden_size": 256}
        settings = {"model": model, "dtype": "float32", "kv_cache_gib": 0.3}
        told = {"server": 0, "settings": settings, "facts": {"kv_cache_tokens": 7, "block_size": 128}}
        found = {"kv_cache_tokens": "7", "kv_capacity_tokens": "157184"}
        self.assert_values(one_load(servers=[told]), found)
        self.assert_values(one_load(servers=[{**told, "facts": {"block_size": None}}]), {}, *found)


class TestWarmup(unittest.TestCase):
    """From which request on a fresh server is steady."""

    def test_slow_ones_at_the_start_are_warmup(self) -> None:
        """Only those in a row from the first one on, above the steady band; a late outlier is none."""
        steady = [10.0, 11.0] * 10
        for slow, expected in (([], 0), ([50.0], 1), ([90.0, 50.0, 12.0], 3), ([10.0, 90.0], 0)):
            with self.subTest(slow):
                self.assertEqual(warmup([*slow, *steady]), expected)
        self.assertIsNone(warmup(steady[:19]))

    def test_requests_are_counted_over_the_loads_of_a_server(self) -> None:
        """In order of arrival, across its loads; of a server that was not watched from the start, nothing."""
        sessions = [
            session("a/", cell={"c": 1}, server=0, requests_before=0),
            session("b/", cell={"c": 1}, server=0, requests_before=2),
            session("c/", cell={"c": 1}, server=1, requests_before=8),
        ]
        made = [request(n, n, name=name) for name in ("a/", "b/", "c/") for n in (0, 1)]
        found = by_fresh_server(runs_of(record(made, *sessions), steady=False), TTFT)
        self.assertEqual(
            {server: [n for n, _ in times] for server, times in found.items()}, {0: [0, 1, 2, 3]}
        )

    def test_a_load_that_warmed_up_is_measured_nowhere(self) -> None:
        """Its requests are recorded, known, and in no run."""
        warming = session("w/", cell={}, warmup=True)
        made = [request(0, name="w/"), request(0, name="a/")]
        (run,) = runs_of(record(made, warming, session("a/")), steady=False)
        self.assertEqual([r.request_id for r in run.requests], ["a/000000"])

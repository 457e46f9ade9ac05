"""What held for which server, and what limited a load."""

import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from inference_lab.analysis.summary_table import summary_rows
from inference_lab.pages import environment
from inference_lab.pages.report import limits


def manifest(axis: str, servers: Sequence[tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    """Of servers that have these (varied value, facts); one value: the server serves them all."""
    return {
        "conditions": {"vary": {axis: [value for value, _ in servers]}},
        "servers": [
            {"server": number, "settings": {axis: value} if len(servers) > 1 else {}, "facts": facts}
            for number, (value, facts) in enumerate(servers)
        ],
    }


class ServersTest(unittest.TestCase):
    """One server per value of the first experiment, one for all values of the second."""

    def test_where_a_fact_holds(self) -> None:
        """52,352 tokens were what the server of 0.1 GiB held; one experiment alone is not named."""
        servers = [
            (gib, {"version": "1", "kv_cache_tokens": n, "arguments": ["--eager", "--gib", str(gib)]})
            for gib, n in {0.1: 52_352, 1: 524_288}.items()
        ]
        capacity = manifest("kv_cache_gib", servers)
        clients = manifest("concurrency", [(1, servers[1][1])])
        both = environment.servers({"capacity": capacity, "clients": clients})
        for fact in (
            ("version", "1", "all"),
            ("kv_cache_tokens", "52352", "capacity (kv_cache_gib 0.1)"),
            ("kv_cache_tokens", "524288", "capacity (kv_cache_gib 1), clients"),
            ("options", "--eager", "all"),
            ("options", "--gib 0.1", "capacity (kv_cache_gib 0.1)"),
        ):
            self.assertIn(fact, both)
        one = environment.servers({"capacity": capacity})
        self.assertIn(("kv_cache_tokens", "524288", "kv_cache_gib 1"), one)
        self.assertIn(("version", "1", "all"), one)
        self.assertEqual(environment.servers({"m1": {"conditions": {}}}), [])


class LimitsTest(unittest.TestCase):
    """What was at its bound."""

    def test_what_limits_what(self) -> None:
        """The report says of each load what limits it."""
        fixed = {"max_num_seqs": 8, "max_num_batched_tokens": 128}
        numbers = {  # batch, in flight, prefill tokens, waiting, preempted, queue, TTFT
            4: (4, 4, 64, 0, 0, 0.1, 20, "the clients (every request in flight was in a step)"),
            16: (8, 16, 64, 8, 0, 60, 100, "max_num_seqs (a full batch of 8, and 8 waited: 60%"),
            32: (6, 32, 128, 8, 2, 60, 100, "the KV cache (running requests were preempted); max_num_"),
            64: (6, 32, 64, 8, 0, 60, 100, "none of the declared bounds"),
            128: ("", 32, 64, 8, 0, 60, 100, "not known"),
        }
        metrics = (
            *("peak_step_batch", "peak_in_flight", "step_prefill_tokens_peak", "peak_waiting"),
            *("preemptions", "server_queue_mean", "server_ttft_mean"),
        )
        lines = [
            f"{gate},{metric},{number},{number}"
            for gate, row in numbers.items()
            for metric, number in zip(metrics, row, strict=False)
        ]
        text = "\n".join(["concurrency,metric,value,median", *lines, ""])
        conditions = {"vary": {"concurrency": list(numbers)}, "fixed": fixed}
        found = limits({"conditions": conditions}, summary_rows(text, "summary.csv"))
        for gate, row in numbers.items():
            (reason,) = (reason for reason, values in found.items() if str(gate) in values)
            self.assertTrue(reason.startswith(str(row[-1])), reason)

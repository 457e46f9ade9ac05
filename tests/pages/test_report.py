"""The report's table of what held for which server."""

import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from inference_lab.pages import report as report_page
from inference_lab.pages.report import About


def about(name: str, axis: str, servers: Sequence[tuple[Any, Mapping[str, Any]]]) -> About:
    """An experiment whose servers have these (varied value, facts); one value: the server serves them all."""
    manifest = {
        "conditions": {"vary": {axis: [value for value, _ in servers]}},
        "environment": {"cores": 2},
        "servers": [
            {"server": number, "settings": {axis: value} if len(servers) > 1 else {}, "facts": facts}
            for number, (value, facts) in enumerate(servers)
        ],
        "git": None,
        "started_at": "2026-11-02T10:00:00+00:00",
        "finished_at": "2026-11-02T10:01:00+00:00",
    }
    return About(name, manifest, (), (), "", ())


class EnvironmentTest(unittest.TestCase):
    """Two experiments: one server each value of the first, one for all values of the second."""

    def setUp(self) -> None:
        """The rows of the table."""
        sizes = [(0.1, 52_352), (1, 524_288)]
        each = about(
            "capacity",
            "kv_cache_gib",
            [(gib, {"version": "0.32.0", "kv_cache_tokens": n, "started_s": 40 + gib}) for gib, n in sizes],
        )
        other = about("clients", "concurrency", [(1, {"version": "0.32.0", "kv_cache_tokens": 524_288})])
        (text,) = report_page.environment([each, other])
        rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
        self.of = {(row[0], row[1]): row[2] for row in rows}

    def test_a_fact_of_one_server_names_its_varied_value(self) -> None:
        """52,352 tokens were what the server of 0.1 GiB held, not all of them."""
        self.assertEqual(self.of["server kv cache tokens", "52352"], "capacity (kv_cache_gib 0.1)")
        self.assertEqual(self.of["server kv cache tokens", "524288"], "capacity (kv_cache_gib 1), clients")

    def test_all_is_said_only_of_what_every_server_shares(self) -> None:
        """The version is the same everywhere; how long a start took is a range of its experiment."""
        self.assertEqual(self.of["server version", "0.32.0"], "all")
        self.assertEqual(self.of["server started s", "40.1 to 41"], "capacity")

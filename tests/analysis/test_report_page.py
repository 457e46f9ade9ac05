"""The report of a served system, over the committed records of vLLM."""

import unittest
from pathlib import Path

from inference_lab.analysis.report_page import report
from inference_lab.records.files import read_json

ABOUT = ("vllm_token_budget", "vllm_capacity")


class EnvironmentTest(unittest.TestCase):
    """The table of what held for which server."""

    def setUp(self) -> None:
        """The rows of the table."""
        about = [{"experiment": name, "figures": []} for name in ABOUT]
        text = report("vllm", {"experiments": about, "unmeasured": []})
        table = text.partition("## Environment")[2].partition("## ")[0]
        rows = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("|")]
        self.rows = [[cell.strip() for cell in row] for row in rows]

    def test_a_fact_of_one_server_names_its_varied_value(self) -> None:
        """52,352 tokens were what the server of 0.1 GiB held, not all of them."""
        tokens = {value: of for name, value, of in self.rows if name == "server kv cache tokens"}
        self.assertEqual(tokens["52352"], "vllm_capacity (kv_cache_gib 0.1)")

    def test_all_is_said_only_of_what_every_server_shares(self) -> None:
        """For each fact that stands as `all`, every server of every manifest has that very value."""
        facts = [
            server["facts"]
            for name in ABOUT
            for server in read_json(Path("results", name, "manifest.json"))["servers"]
        ]
        for name, of in (("arguments", "server arguments"), ("kv_cache_tokens", "server kv cache tokens"),
                         ("version", "server version")):  # fmt: skip
            same = len({str(fact[name]) for fact in facts}) == 1
            said = any(row[0] == of and row[2] == "all" for row in self.rows)
            self.assertEqual(said, same, name)

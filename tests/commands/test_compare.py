"""Comparison: two records beside each other, and what is not claimed."""

import shutil
import unittest
from dataclasses import replace
from typing import Any
from unittest import mock

from inference_lab.commands import compare
from inference_lab.errors import RecordError
from tests import checkout, loads, recorded
from tests.commands.test_run_stage import git


class CompareTest(unittest.TestCase):
    """Records of one experiment: here, superseded, of another machine."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded."""
        checkout.enter_copy(self)
        shutil.copytree(checkout.ROOT / "predictions", "predictions")
        recorded.record_m1()

    def test_two_runs(self) -> None:
        """Absolute times are not claimed; of another processor, which is named, records are not pooled."""
        recorded.record_m1(seed=1, at="elsewhere")
        said = compare.compare("results/m1", "elsewhere")
        self.assertIn("conditions: the same\nmachine: the same\n", said)
        self.assertRegex(said, r"preallocated +8 +\d+\.\d+ \[.*\] .* [+-]\d+\.\d%")
        self.assertIn("none is claimed", said)
        self.assertNotIn("not pooled", said)
        recorded.record_m1(seed=1, at="elsewhere", cpu_model="Another CPU")
        said = compare.compare("results/m1", "elsewhere")
        self.assertIn("machine: cpu_model Example CPU @ 2.00GHz -> Another CPU\n", said)
        self.assertIn("not pooled", said)

    def test_one_record_twice(self) -> None:
        """A record beside itself, in a copy or a commit, is the same, and nothing is compared."""
        shutil.copytree("results/m1", "copy")
        git("init", "-q")
        git("add", "results")
        git("commit", "-qm", "recorded")
        for other in ("results/m1", "copy", "HEAD:results/m1/"):
            said = compare.compare("results/m1", other)
            self.assertIn("one and the same record", said)
            self.assertNotIn("ratio", said)

    def test_records_of_other_kinds(self) -> None:
        """Exact rows are said to be the same or listed; of requests, quantiles stand side by side."""
        exact, other = {"rows": [{"x": "1", "y": "2"}]}, {"rows": [{"x": "1", "y": "3"}]}
        served = [{"requests": [loads.request(tokens=(first, 40))]} for first in (30, 31)]
        for kind, a, b, said in (
            ("capacity", exact, exact, "all 1 rows are the same"),
            ("capacity", exact, other, "only in A: 1,2\nonly in B: 1,3"),
            ("serving", *served, r"ttft +ms +30 \[open, open\] +31 \[open, open\]"),
        ):
            with self.subTest(said):
                self.assertRegex(self.compared(kind, a, b), said)

    def compared(self, kind: str, *parts: dict[str, Any]) -> str:
        """What is said of two records in memory that hold these rows or requests."""
        facts = {"kind": kind, "pins": {}, "conditions": {"by": "p2"}}
        records = [
            replace(record, manifest={**record.manifest, **facts, "digest": str(n), "started_at": str(n)})
            for n, record in enumerate(
                replace(loads.record(part.get("requests", ())), rows=part.get("rows", ())) for part in parts
            )
        ]
        with mock.patch.object(compare, "_read", side_effect=records):
            return compare.compare("A", "B")

    def test_what_is_no_record_is_refused(self) -> None:
        """No folder, no manifest, no repository, no such commit or none with the record: one line each."""
        self.refused("nowhere", "no such folder")
        self.refused("src", "no manifest.json there")
        self.refused("HEAD:results/m1", "this folder is no git repository")
        git("init", "-q")
        git("commit", "-q", "--allow-empty", "-m", "A")
        self.refused("HEAD~3:results/m1", "git knows no commit 'HEAD~3' here")
        self.refused("--help:results/m1", "git knows no commit '--help' here")
        self.refused("HEAD:results/m1", "that commit holds no results/m1/manifest.json")

    def refused(self, name: str, said: str) -> None:
        """Assert that comparing with what goes by this name is refused in one line of our words."""
        with self.subTest(name, said=said), self.assertRaises(RecordError) as refused:
            compare.compare("results/m1", name)
        self.assertEqual(str(refused.exception), f"{name}: {said}; {compare._WAY_OUT}")  # pyright: ignore


if __name__ == "__main__":
    unittest.main()

"""Every manifest under results/: nothing in it contradicts what can be."""

import unittest
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from inference_lab.analysis.surroundings import UNBOUNDED, environment_of
from inference_lab.records.receipts import read_receipt
from tests.checkout import ROOT

_UNITS = {"others_used_cores", "steal_cores"}  # what no machine can have more of than cores


def environments(manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The environment of a record, or of each run where it holds whole measurements."""
    common = manifest["environment"]
    for run in manifest.get("runs", [{}]):
        yield {**common, **run}


class ManifestsTest(unittest.TestCase):
    """What the committed records say of their sessions."""

    def setUp(self) -> None:
        """Every committed manifest, by its experiment."""
        self.manifests = {
            path.parent.name: read_receipt(path) for path in sorted(ROOT.glob("results/*/manifest.json"))
        }

    def test_nobody_used_more_than_there_is(self) -> None:
        """A median lies within its maximum, that within the cores; per cent within 100, none below zero."""
        for name, manifest in self.manifests.items():
            for said in environments(manifest):
                found = environment_of({"environment": said})
                for quantity, seen in found.items():
                    if not (isinstance(seen, dict) and set(seen) == {"median", "max"}):
                        continue
                    with self.subTest(name, quantity=quantity):
                        if seen["max"] == UNBOUNDED:
                            # Of vLLM's first records alone: what is recorded now has no such key.
                            self.assertIn("others_cpu", said)
                            self.assertNotIn("others_used_cores", said)
                            self.assertEqual(manifest["servers"][0]["facts"]["kind"], "vllm")
                            self.assertTrue(0 <= seen["median"] <= found["cores"])
                            continue
                        self.assertLessEqual(0, seen["median"])
                        self.assertLessEqual(seen["median"], seen["max"])
                        bound = found["cores"] if quantity in _UNITS else 100
                        if quantity != "mhz":
                            self.assertLessEqual(seen["max"], bound)

    def test_times_follow_each_other(self) -> None:
        """A record ends after it began, was watched no longer than that, and so does each session in it."""
        for name, manifest in self.manifests.items():
            started, finished = (datetime.fromisoformat(manifest[k]) for k in ("started_at", "finished_at"))
            with self.subTest(name):
                self.assertLessEqual(started, finished)
                lasted_s = (finished - started).total_seconds() + 1  # both are cut to whole seconds
                for said in environments(manifest):
                    self.assertLessEqual(said.get("watched_s", 0), lasted_s)
                    self.assertLessEqual(said.get("waited_for_quiet_s", 0), lasted_s)
                for session in manifest.get("sessions", ()):
                    times = [session[k] for k in ("launched_ns", "start_ns", "end_ns") if k in session]
                    self.assertTrue(all(a < b for a, b in pairwise(times)), session["name"])
                    if len(times) == 3:
                        self.assertLessEqual((times[-1] - times[0]) / 1e9, lasted_s)
                        self.assertLessEqual(session["client_cpu_ns"], times[-1] - times[0])

    def test_a_valid_record_has_no_reason_against_it(self) -> None:
        """Valid and a reason exclude each other, and the files it names have rows or are controls."""
        for name, manifest in self.manifests.items():
            with self.subTest(name):
                self.assertEqual(manifest["validity"]["valid"], not manifest["validity"]["reasons"])
                for file, made in manifest["outputs"].items():
                    self.assertGreaterEqual(made["rows"], int(file != "controls.csv"))
                self.assertLessEqual(
                    len(manifest["environment"]["affinity"]), manifest["environment"]["cores"]
                )


if __name__ == "__main__":
    unittest.main()

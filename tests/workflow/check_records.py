"""Every manifest under results/: nothing in it contradicts what can be.

No unit test: a record that breaks a rule has to be measured again, which needs tests that pass.
"""

import unittest
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import pairwise
from typing import Any

from inference_lab.config.sections import read_measure
from inference_lab.records.files import canonical, sha256_file, sha256_value
from inference_lab.records.forms import read_metadata
from inference_lab.records.receipts import read_receipt
from inference_lab.records.stages import WAITS
from tests.checkout import ROOT


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

    def test_quantities(self) -> None:
        """A median within its maximum, that within the cores or 100%, none below 0; none without its unit."""
        for name, manifest in self.manifests.items():
            for environment in environments(manifest):
                cores = environment["cores"]
                bounds = {"others_used_cores": cores, "steal_cores": cores, "pressure_percent": 100}
                with self.subTest(name):
                    self.assertEqual({"others_cpu", "pressure", "steal"} & environment.keys(), set())
                    for quantity in bounds.keys() & environment.keys():
                        if span := environment[quantity]:
                            self.assertTrue(0 <= span["median"] <= span["max"] <= bounds[quantity], span)

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

    def test_a_figure_names_every_file_it_is_drawn_from(self) -> None:
        """Its origin has the digest of each raw file of its record and of the summary, as they are here."""
        for figure in sorted(ROOT.glob("results/*/*.svg")):
            outputs = self.manifests[figure.parent.name]["outputs"]
            with self.subTest(figure.relative_to(ROOT).as_posix()):
                source = read_metadata(figure.read_text(encoding="utf-8"))
                digests = {name: made["sha256"] for name, made in outputs.items()}
                digests["summary.csv"] = sha256_file(figure.with_name("summary.csv"))
                self.assertEqual(source["experiment"], figure.parent.name)
                self.assertEqual(source["files"], digests)

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

    def test_conditions_have_the_recorded_digest(self) -> None:
        """Or every record would be out of date."""
        for name, manifest in self.manifests.items():
            with self.subTest(name):
                given = read_measure(manifest["conditions"], name).given()
                self.assertEqual(canonical(given), canonical(manifest["conditions"]))
                decides = {key: value for key, value in given.items() if key not in WAITS}
                self.assertEqual(manifest["inputs"]["section"], sha256_value(decides))


if __name__ == "__main__":
    unittest.main()

"""analysis.md and verdicts.csv beside a prediction."""

import csv
import hashlib
import io
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_lab.analysis.summary_table import View
from inference_lab.pages.analysis import pages
from tests.analysis.views import table_view, view_of
from tests.synthetic import Call, heavy_tail, steady, timing_record, together

PREDICTION = """\
question: Does batching pay?
prediction: Yes, twice | or more.
claims:
  - {id: pays, says: B=8 does 2 to 4 times as much, kind: ratio, of: positions_per_s, path: dynamic,
     at: {batch_size: 8}, over: {batch_size: 1}, within: [2, 4]}
  - {id: slower, says: it takes longer, kind: less_than, of: p50_ms, path: dynamic,
     at: {batch_size: 8}, over: {batch_size: 1}}
"""
SECTIONS = (
    "# m1",
    "## Question",
    "## Prediction",
    "## What was measured",
    "## Oracle",
    "## Result",
    "## Anomalies, kept and named",
    "## Verdict",
    "## Boundary: what this does not show",
)


class Pages(unittest.TestCase):
    """`pages`."""

    def setUp(self) -> None:
        """A prediction file in a folder of its own."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = Path(folder.name) / "m1.yaml"
        self.file.write_text(PREDICTION, encoding="utf-8")

    def predicted(self, view: View, sha256: str | None = None, **fields: Any) -> View:
        """The view, its manifest naming the prediction file as it is now or by another digest."""
        sha256 = sha256 or hashlib.sha256(self.file.read_bytes()).hexdigest()
        prediction = {"file": "predictions/m1.yaml", "sha256": sha256}
        manifest = {**view.record.manifest, "prediction": prediction, **fields}
        return replace(view, record=replace(view.record, manifest=manifest))

    def test_the_order_of_an_analysis(self) -> None:
        """Question, prediction, conditions, oracle, result, anomalies, verdict, boundary."""
        _, page = pages(self.predicted(view_of(timing_record())), self.file)
        self.assertEqual([line for line in page.splitlines() if line.startswith("#")], list(SECTIONS))
        for words in (
            "Does batching pay?",
            "Yes, twice | or more.",
            "| vary | batch_size 1, 2, 4, 8 |",
            "Example CPU",
            "2.2e-16",
            "1 Supported, 1 Refuted.",
            "None was found.",
            "this machine in this session",
        ):
            self.assertIn(words, page)
        self.assertNotIn("changed after measuring", page)

    def test_numbers_are_those_of_the_summary(self) -> None:
        """Every cell of the summary stands in the result, with interval, claim and flags."""
        view = self.predicted(view_of(timing_record(rounds=10)))
        _, page = pages(view, self.file)
        result = page[page.index("## Result") : page.index("## Anomalies")]
        for row in view.summary:
            self.assertIn(
                f"| {row['path']} | {row['batch_size']} | 60 | {float(row['p50_ms']):.4g} [", result
            )
        self.assertIn("open]", result)
        self.assertIn("A P95 with both bounds: n = 60", page)

    def test_a_prediction_edited_after_measuring(self) -> None:
        """Another digest, or no prediction at the time, is marked in verdicts.csv and analysis.md."""
        view = view_of(timing_record(rounds=6))
        for marked in (self.predicted(view, "0" * 64), self.predicted(view, prediction=None)):
            verdicts, page = pages(marked, self.file)
            for row in csv.DictReader(io.StringIO(verdicts)):
                self.assertTrue(row["reason"].startswith("prediction changed after measuring; "))
            self.assertEqual(page.count("**This prediction changed after measuring.**"), 2)

    def test_anomalies_are_named(self) -> None:
        """Flags with their cells, what was not assessed, and samples far from the rest."""

        def machine(call: Call) -> float:
            return 1.3 if call.kind == "replica" and call.value == 4 else 1.0

        record = timing_record(
            machine=together(machine, steady(0.01), heavy_tail(0.02, 6)),
            environment={"others_used_cores": None},
        )
        _, page = pages(self.predicted(view_of(record)), self.file)
        anomalies = page[page.index("## Anomalies") : page.index("## Verdict")]
        self.assertIn("- every cell: load of others not assessed", anomalies)
        self.assertIn(
            "- path=dynamic batch_size=4; path=preallocated batch_size=4: the baseline measured twice",
            anomalies,
        )
        self.assertIn("x P50", anomalies)

    def test_an_invalid_record(self) -> None:
        """The reason of an invalid record stands among anomalies and in every verdict."""
        validity = {"valid": False, "reasons": ["a thread too many"]}
        record = timing_record(rounds=6)
        record = replace(record, manifest={**record.manifest, "validity": validity})
        verdicts, page = pages(self.predicted(view_of(record)), self.file)
        self.assertIn("- a thread too many", page)
        self.assertEqual(verdicts.count("Inconclusive,"), 2)

    def test_a_claim_of_several_lines_is_one_row(self) -> None:
        """What YAML's `says: |` or a bar would tear apart stays one row of the table of verdicts."""
        self.file.write_text(
            "question: q\nprediction: p\nclaims:\n  - id: a\n    says: |\n      one | two\n      three\n"
            "    kind: knee\n    path: dynamic\n    within: [1, 2]\n",
            encoding="utf-8",
        )
        _, page = pages(view_of(timing_record(rounds=6), knee_factor=1.25), self.file)
        self.assertIn("\n| one \\| two three | **", page)

    def test_a_record_of_observations(self) -> None:
        """A record without samples or oracle has the same page, every column shown."""
        self.file.write_text(
            "question: q\nprediction: p\nclaims:\n"
            "  - {id: a.shape, says: s, kind: equal, of: shape, at: {observation: a}, value: 2 3}\n",
            encoding="utf-8",
        )
        view = table_view([{"observation": "a", "shape": "2 3"}], {})
        verdicts, page = pages(self.predicted(view), self.file)
        self.assertIn("a.shape,equal,s,Supported,2 3,,,1,", verdicts)
        self.assertIn("| observation | shape |", page)
        self.assertIn("No oracle was recorded", page)

"""analysis.md and verdicts.csv beside a prediction."""

import csv
import hashlib
import io
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_lab.analysis.summary_table import View, summary_rows
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
SECTIONS = [
    *("", "Answer", "Prediction", "Numbers", "Flags, anomalies and notes"),
    *("What this does not show", "Conditions", "Oracle", "Environment"),
]


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

    def parts(self, view: View) -> dict[str, str]:
        """The sections of its analysis.md by their titles; the first has none."""
        _, page = pages(self.predicted(view), self.file)
        return dict(part.partition("\n")[::2] for part in f"\n{page}".split("\n## "))

    def test_the_answer_comes_first(self) -> None:
        """The page has its sections in order, the answer above all others."""
        parts = self.parts(view_of(timing_record()))
        self.assertEqual(list(parts), SECTIONS)
        for title, words in (
            ("", "Does batching pay?"),
            ("Answer", "2 claims: 1 Supported, 1 Refuted."),
            ("Answer", "- **Supported**: B=8 does 2 to 4 times as much. Found "),
            ("Prediction", "Yes, twice | or more."),
            ("Conditions", "| vary | batch_size 1, 2, 4, 8 |"),
            ("Oracle", "2.2e-16"),
            ("Environment", "Example CPU"),
        ):
            with self.subTest(words):
                self.assertIn(words, parts[title])
        self.assertNotIn("changed after measuring", "".join(parts.values()))

    def test_numbers_are_those_of_the_summary(self) -> None:
        """Every cell has its line; what is the same in all is said once; an open bound is explained."""
        view = view_of(timing_record(rounds=10))
        parts = self.parts(view)
        for row in view.summary:
            self.assertIn(
                f"| {row['path']} | {row['batch_size']} | {float(row['p50_ms']):.4g} [", parts["Numbers"]
            )
        for words in ("P50, ms", "open]", "The same in every row: n 60;", "(A/A): "):
            self.assertIn(words, parts["Numbers"])
        self.assertIn("n = 72 per cell; here n is 60", parts["What this does not show"])

    def test_loads_are_columns_and_metrics_lines(self) -> None:
        """Usual metrics and claimed ones, with units; what is equal everywhere is a sentence."""
        self.file.write_text(
            "question: q\nprediction: p\nclaims:\n  - {id: a, says: s, kind: equal, of: value,"
            " at: {metric: peak_in_flight, concurrency: 4}, value: 4}\n",
            encoding="utf-8",
        )
        columns = "concurrency,metric,unit,n,value,median,median_lo,median_hi,p50_ms,p50_lo_ms,p50_hi_ms"
        rows = [
            f"{gate},{row}"
            for gate in (1, 4)
            for row in (
                f"ttft,ms,40,,,,,{20 * gate},{19 * gate},{21 * gate}",
                f"peak_in_flight,requests,6,{gate},,,,,,",
                "preemptions,requests,6,,0,0,0,,,",
                "unknown,requests,6,,7,7,7,,,",
            )
        ]
        header = f"{columns},p95_ms,flags,advice"
        text = "\n".join((header, *(f"{row},,," for row in rows))) + "\n"
        view = table_view(summary_rows(text, "summary.csv"), {"concurrency": [1, 4]})
        parts = self.parts(view)
        self.assertIn("|  | unit | n | concurrency 1 | concurrency 4 |", parts["Numbers"])
        self.assertIn("| TTFT P50 | ms | 40 | 20 [19, 21] | 80 [76, 84] |", parts["Numbers"])
        self.assertIn("The same in every column: preempted 0 requests.", parts["Numbers"])
        self.assertNotIn("unknown", parts["Numbers"])
        self.assertIn("Found 4 requests: as predicted.", parts["Answer"])
        self.assertNotIn("Oracle", parts)

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
        anomalies = self.parts(view_of(record))["Flags, anomalies and notes"]
        self.assertIn("- every cell: load of others not assessed", anomalies)
        self.assertIn(
            "- path=dynamic batch_size=4; path=preallocated batch_size=4: the baseline measured twice",
            anomalies,
        )
        self.assertIn("times the P50", anomalies)

    def test_a_claim_of_several_lines_is_one_row(self) -> None:
        """What YAML's `says: |` or a bar would tear apart stays one line."""
        torn = PREDICTION.replace("it takes longer", '"one | two\\n three"')
        self.file.write_text(torn, encoding="utf-8")
        self.assertIn("**: one \\| two  three.", self.parts(view_of(timing_record(rounds=6)))["Answer"])

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
        self.assertNotIn("oracle", page)

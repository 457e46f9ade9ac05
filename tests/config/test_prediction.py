"""A prediction file is closed: what it may not say is found before anything is measured."""

import tempfile
import unittest
from pathlib import Path

from inference_lab.config.prediction import Prediction, load_prediction
from inference_lab.errors import ConfigError

HEAD = "question: q\nprediction: p\nclaims:\n"
RATIO = (
    "{id: a, says: s, kind: ratio, of: p50_ms, at: {batch_size: 8}, over: {batch_size: 1}, within: [1, 2]}"
)


class Predictions(unittest.TestCase):
    """`load_prediction`."""

    def load(self, text: str) -> Prediction:
        """The text, through a file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "m1.yaml"
            path.write_text(text, encoding="utf-8")
            return load_prediction(path)

    def test_committed_predictions_load(self) -> None:
        """Every prediction of this repository is one that may be measured."""
        files = sorted(Path("predictions").glob("*.yaml"))
        self.assertGreater(len(files), 0)
        for file in files:
            with self.subTest(file.name):
                self.assertTrue(load_prediction(file).claims)

    def test_each_kind(self) -> None:
        """The six kinds with every key they know."""
        self.load(f"{HEAD}  - {RATIO}\n")
        for claim in (
            "kind: less_than, of: x, path: p, at: {b: 1}, over: {b: 2}",
            "kind: less_than, of: x, at: {b: 1}, value: 3.5",
            "kind: equal, of: x, at: {b: 1}, over: {b: 2}, tolerance: 0.1",
            "kind: equal, of: x, at: {b: true}, value: null",
            "kind: order, of: x, path: p, cells: [{b: 1}, {b: 2}]",
            "kind: slope, of: x, path: p, within: [1, 2], from: 1, to: 8",
            "kind: knee, path: p, within: [2, 4]",
            "kind: knee, of: x, not_reached: true",
        ):
            with self.subTest(claim):
                self.load(f"{HEAD}  - {{id: a, says: s, {claim}}}\n")

    def test_what_it_may_not_say(self) -> None:
        """One line each: the file, the key, what it says, what is allowed."""
        whole = f"{HEAD}  - {RATIO}\n"
        for old, new, *words in (
            (whole, "question: q\nprediction: p\n", "claims", "missing"),
            (whole, "question: q\nprediction: p\nclaims: []\n", "claims"),
            (whole, "question: [q\n", "not YAML"),
            (whole, "just words\n", "'just words'", "mapping"),
            ("question: q", "boundary: b", "unknown key 'boundary'", "question, prediction, claims"),
            ("question: q", "question: q\nquestion: r", "'question' twice"),
            ("kind: ratio", "kind: ratios", "claims.0: 'kind'", "'ratios'", "knee"),
            ("kind: ratio, ", "", "claims.0: key 'kind' is missing"),
            ("within", "withn", "claims.0", "'withn'", "within"),
            ("[1, 2]", "[2, 1]", "claims.0", "from 2 to 1"),
            ("[1, 2]", "[1]", "claims.0.within", "1 entries", "at least 2"),
            ("[1, 2]", f"[1, {10**400}]", "claims.0.within.1", "number"),
            ("[1, 2]", "[1, .nan]", "claims.0.within.1", "nan", "number"),
            ("[1, 2]", "wide", "claims.0.within", "'wide'", "list"),
            ("at: {", "at: {batch_size: 4, ", "'batch_size' twice"),
            (f"{RATIO}\n", f"{RATIO}\n  - {RATIO}\n", "claims.1", "'a' again"),
            (
                RATIO,
                "{id: a, says: s, kind: less_than, of: x, at: {b: 1}}",
                "claims.0: key 'value' or 'over'",
            ),
            (
                RATIO,
                "{id: a, says: s, kind: equal, of: x, at: {b: 1}, over: {b: 2}, value: 1}",
                "'value' and 'over'",
            ),
            (RATIO, "{id: a, says: s, kind: knee, not_reached: false}", "not_reached", "False", "True"),
            (RATIO, "{id: a, says: s, kind: slope, of: x, within: [1, 2], from: 8, to: 1}", "8 to 1"),
        ):
            with self.subTest(new), self.assertRaises(ConfigError) as refused:
                self.load(whole.replace(old, new, 1))
            message = str(refused.exception)
            self.assertRegex(message, r"\A[^\n]*m1\.yaml[^\n]*\Z")
            for word in words:
                self.assertIn(word, message)

    def test_a_missing_file(self) -> None:
        """Without a prediction nothing is measured in the pipeline, and the message says what to do."""
        with self.assertRaisesRegex(ConfigError, "before measuring"):
            load_prediction(Path("predictions/none.yaml"))

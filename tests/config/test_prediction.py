"""A prediction file is closed: what it may not say is found before anything is measured."""

import subprocess
import sys
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
        for claim in (
            RATIO,
            "{id: a, says: s, kind: less_than, of: x, path: p, at: {b: 1}, over: {b: 2}}",
            "{id: a, says: s, kind: less_than, of: x, at: {b: 1}, value: 3.5}",
            "{id: a, says: s, kind: equal, of: x, at: {b: 1}, over: {b: 2}, tolerance: 0.1}",
            "{id: a, says: s, kind: equal, of: x, at: {b: true}, value: null}",
            "{id: a, says: s, kind: order, of: x, path: p, cells: [{b: 1}, {b: 2}]}",
            "{id: a, says: s, kind: slope, of: x, path: p, within: [1, 2], from: 1, to: 8}",
            "{id: a, says: s, kind: knee, path: p, within: [2, 4]}",
            "{id: a, says: s, kind: knee, of: x, not_reached: true}",
        ):
            with self.subTest(claim):
                self.load(f"{HEAD}  - {claim}\n")

    def test_what_it_may_not_say(self) -> None:
        """One line each: the file, the key, what it says, what is allowed."""
        for text, *words in (
            ("question: q\nprediction: p\n", "claims", "missing"),
            ("question: q\nprediction: p\nclaims: []\n", "claims"),
            (f"{HEAD}  - {RATIO}\nboundary: b\n", "unknown key 'boundary'", "question, prediction, claims"),
            (
                f"{HEAD}  - {RATIO.replace('kind: ratio', 'kind: ratios')}\n",
                "claims.0: 'kind'",
                "'ratios'",
                "knee",
            ),
            (f"{HEAD}  - {RATIO.replace('kind: ratio, ', '')}\n", "claims.0: key 'kind' is missing"),
            (
                f"{HEAD}  - {RATIO.replace('within: [1, 2]', 'withn: [1, 2]')}\n",
                "claims.0",
                "'withn'",
                "within",
            ),
            (f"{HEAD}  - {RATIO.replace('[1, 2]', '[2, 1]')}\n", "claims.0", "from 2 to 1"),
            (f"{HEAD}  - {RATIO.replace('[1, 2]', '[1]')}\n", "claims.0.within", "1 entries", "at least 2"),
            (f"{HEAD}  - {RATIO.replace('[1, 2]', f'[1, {10**400}]')}\n", "claims.0.within.1", "number"),
            (f"{HEAD}  - {RATIO.replace('[1, 2]', '[1, .nan]')}\n", "claims.0.within.1", "nan", "number"),
            (f"{HEAD}  - {RATIO.replace('at: {', 'at: {batch_size: 4, ')}\n", "'batch_size' twice"),
            (f"{HEAD}  - {RATIO}\nquestion: r\n", "'question' twice"),
            (f"{HEAD}  - {RATIO.replace('[1, 2]', 'wide')}\n", "claims.0.within", "'wide'", "list"),
            (f"{HEAD}  - {RATIO}\n  - {RATIO}\n", "claims.1", "'a' again"),
            (
                f"{HEAD}  - {{id: a, says: s, kind: less_than, of: x, at: {{b: 1}}}}\n",
                "claims.0: key 'value' or 'over'",
            ),
            (
                f"{HEAD}  - {{id: a, says: s, kind: equal, of: x, at: {{b: 1}}, over: {{b: 2}}, value: 1}}\n",
                "'value' and 'over'",
            ),
            (
                f"{HEAD}  - {{id: a, says: s, kind: knee, not_reached: false}}\n",
                "not_reached",
                "False",
                "True",
            ),
            (f"{HEAD}  - {{id: a, says: s, kind: slope, of: x, within: [1, 2], from: 8, to: 1}}\n", "8 to 1"),
            ("question: [q\n", "not YAML"),
            ("just words\n", "'just words'", "mapping"),
        ):
            with self.subTest(text), self.assertRaises(ConfigError) as refused:
                self.load(text)
            message = str(refused.exception)
            self.assertIn("m1.yaml", message)
            self.assertNotIn("\n", message)
            for word in words:
                self.assertIn(word, message)

    def test_a_missing_file(self) -> None:
        """Without a prediction nothing is measured in the pipeline, and the message says what to do."""
        with self.assertRaisesRegex(ConfigError, "before measuring"):
            load_prediction(Path("predictions/none.yaml"))

    def test_it_imports_no_numbers(self) -> None:
        """Measuring loads it too: neither NumPy nor pandas nor scipy comes with it."""
        program = (
            "import sys, inference_lab.config.prediction;"
            "print([name for name in ('numpy', 'pandas', 'scipy') if name in sys.modules])"
        )
        found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        self.assertEqual(found.stdout.strip(), "[]")

"""The rows of p0 and of m2_capacity: computed and observed, nothing timed."""

import csv
import io
import unittest
from typing import Any

from inference_lab.config.sections import read_measure
from inference_lab.errors import ConfigError
from inference_lab.experiments import capacity, observations
from inference_lab.experiments.observations import COLUMNS
from inference_lab.mechanisms.kv_capacity import PUBLISHED_MODELS
from inference_lab.mechanisms.numpy_semantics import OPERATIONS

NAMES = list(OPERATIONS)
DTYPES = ["float32", "float16", "bfloat16", "int8"]
FIXED = {"block_size": 16, "sequence_length": 1000}
OBSERVED: Any = read_measure({"by": "observations", "vary": {"observation": NAMES}}, "a test")
CAPACITY: Any = read_measure({"by": "capacity", "vary": {"dtype": DTYPES}, "fixed": FIXED}, "a test")


class RecordTest(unittest.TestCase):
    """What is recorded."""

    def test_the_raw_file_holds_the_rows(self) -> None:
        """Kind, number and text of the rows, all under the same columns; progress once, at the end."""
        for module, section, kind, rows in (
            (observations, OBSERVED, "observation", observations.rows(NAMES)),
            (capacity, CAPACITY, "capacity", capacity.rows(CAPACITY)),
        ):
            told: list[tuple[int, int]] = []
            found = module.measure(section, lambda *now, told=told: told.append(now))
            self.assertEqual((found.kind, found.rows["raw.csv"], told), (kind, len(rows), [(len(rows),) * 2]))
            self.assertEqual(list(csv.DictReader(io.StringIO(found.files["raw.csv"]))), rows)


class ObservationsTest(unittest.TestCase):
    """Observations as text."""

    def test_how_values_are_written(self) -> None:
        """In the order named; booleans in lower case, shapes between blanks, nothing where not defined."""
        rows = observations.rows(NAMES)
        self.assertEqual([row["observation"] for row in rows], NAMES)
        self.assertEqual({tuple(row) for row in rows}, {COLUMNS})
        found = {row["observation"]: row for row in rows}
        self.assertEqual(found["basic_slice"]["shares_memory"], "true")
        self.assertEqual(found["basic_slice"]["shape"], "2 2 4")
        self.assertEqual(found["broadcast_view"]["write_reaches_source"], "")
        self.assertEqual(found["list_assignment"]["strides"], "")
        self.assertEqual(found["softmax_axis_0"]["mixes_sequences"], "true")
        with self.assertRaisesRegex(ConfigError, "no observation 'slice'; there are list_assignment"):
            observations.rows(["slice"])


class CapacityTest(unittest.TestCase):
    """One row per dtype and model."""

    def test_rows(self) -> None:
        """In order; where NumPy has the dtype a real cache holds the computed bytes; blocks lose a rest."""
        found = {(row["dtype"], row["model"]): row for row in capacity.rows(CAPACITY)}
        self.assertEqual(list(found), [(dtype, model.name) for dtype in DTYPES for model in PUBLISHED_MODELS])
        for (dtype, _), row in found.items():
            expected = "" if dtype == "bfloat16" else row["bytes_per_token"]
            self.assertEqual(row["measured_bytes_per_token"], expected, row)
        row = found["float16", "Gemma-2B"]
        self.assertEqual((row["tokens_per_gib"], row["sequences_per_gib"]), ("58254", "58"))
        self.assertEqual((row["block_tokens_per_gib"], row["block_sequences_per_gib"]), ("58240", "57"))


if __name__ == "__main__":
    unittest.main()

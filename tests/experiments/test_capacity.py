"""The rows of m2_capacity."""

import csv
import io
import unittest
from typing import Any

from inference_lab.config.sections import read_measure
from inference_lab.experiments.capacity import measure, rows
from inference_lab.mechanisms.kv_capacity import PUBLISHED_MODELS

SECTION: Any = read_measure(
    {
        "by": "capacity",
        "vary": {"dtype": ["float32", "float16", "bfloat16", "int8"]},
        "fixed": {"block_size": 16, "sequence_length": 1000},
    },
    "a test",
)


class RowsTest(unittest.TestCase):
    """One row a dtype and model."""

    def test_one_row_a_dtype_and_model(self) -> None:
        """Every dtype of every model has one row."""
        found = rows(SECTION)
        wanted = [(dtype, model.name) for dtype in SECTION.vary.dtype for model in PUBLISHED_MODELS]
        self.assertEqual([(row["dtype"], row["model"]) for row in found], wanted)

    def test_measured_bytes_are_the_formulas(self) -> None:
        """Where NumPy has the dtype a real cache holds the computed bytes; for bfloat16 the cell is empty."""
        for row in rows(SECTION):
            expected = "" if row["dtype"] == "bfloat16" else row["bytes_per_token"]
            self.assertEqual(row["measured_bytes_per_token"], expected, (row["model"], row["dtype"]))

    def test_blocks_lose_the_rest_of_each_sequence(self) -> None:
        """Gemma 2B, float16: 58254 tokens and 58 sequences of 1000, in blocks of 16 58240 and 57."""
        (row,) = (r for r in rows(SECTION) if (r["model"], r["dtype"]) == ("Gemma-2B", "float16"))
        self.assertEqual((row["tokens_per_gib"], row["sequences_per_gib"]), ("58254", "58"))
        self.assertEqual((row["block_tokens_per_gib"], row["block_sequences_per_gib"]), ("58240", "57"))

    def test_what_is_recorded(self) -> None:
        """The record is of kind capacity and its raw file holds exactly the rows."""
        found = measure(SECTION, lambda done, total: None)
        self.assertEqual((found.kind, found.rows["raw.csv"]), ("capacity", 4 * len(PUBLISHED_MODELS)))
        self.assertEqual(list(csv.DictReader(io.StringIO(found.files["raw.csv"]))), rows(SECTION))


if __name__ == "__main__":
    unittest.main()

"""The rows of p0 and the predictions made about them."""

import csv
import io
import unittest
from pathlib import Path

import yaml

from inference_lab.experiments.observations import COLUMNS, measure, rows
from inference_lab.ndarray_semantics import OBSERVATIONS

PREDICTION = Path(__file__).parents[2] / "predictions" / "p0.yaml"


class RowsTest(unittest.TestCase):
    """Observations as text."""

    def test_one_row_an_observation_in_order(self) -> None:
        """Every observation has a row under exactly COLUMNS, all text, the same when made again."""
        found = rows()
        self.assertEqual([row["observation"] for row in found], [look.__name__ for look in OBSERVATIONS])
        for row in found:
            self.assertEqual(tuple(row), COLUMNS)
            self.assertTrue(all(isinstance(value, str) for value in row.values()))
        self.assertEqual(found, rows())

    def test_how_values_are_written(self) -> None:
        """Booleans in lower case, shapes between blanks, nothing where nothing is defined."""
        found = {row["observation"]: row for row in rows()}
        self.assertEqual(found["basic_slice"]["shares_memory"], "true")
        self.assertEqual(found["basic_slice"]["shape"], "2 2 4")
        self.assertEqual(found["broadcast_view"]["write_reaches_source"], "")
        self.assertEqual(found["list_assignment"]["strides"], "")
        self.assertEqual(found["softmax_axis_0"]["mixes_sequences"], "true")

    def test_what_is_recorded(self) -> None:
        """A record of kind observation, its raw.csv the rows under their columns, progress told once."""
        told: list[tuple[int, int]] = []
        found = measure({}, lambda done, total: told.append((done, total)))
        count = len(OBSERVATIONS)
        self.assertEqual((found.kind, found.rows["raw.csv"], told), ("observation", count, [(count, count)]))
        self.assertEqual(list(csv.DictReader(io.StringIO(found.files["raw.csv"]))), rows())

    def test_every_property_was_predicted(self) -> None:
        """Each property of each observation has exactly one claim, and no claim is about anything else."""
        claims = yaml.safe_load(PREDICTION.read_text(encoding="utf-8"))["claims"]
        claimed = [(claim["at"]["observation"], claim["of"]) for claim in claims]
        expected = [
            (row["observation"], column)
            for row in rows()
            for column in COLUMNS[1:]
            if column != "mixes_sequences" or row[column]
        ]
        self.assertEqual(sorted(claimed), sorted(expected))


if __name__ == "__main__":
    unittest.main()

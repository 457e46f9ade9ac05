"""The rows of p0 and the predictions made about them."""

import csv
import io
import unittest
from typing import Any

from inference_lab.config.sections import read_measure
from inference_lab.errors import ConfigError
from inference_lab.experiments.observations import COLUMNS, measure, rows
from inference_lab.mechanisms.numpy_semantics import OPERATIONS

NAMES = list(OPERATIONS)


class RowsTest(unittest.TestCase):
    """Observations as text."""

    def test_one_row_an_observation_in_order(self) -> None:
        """Every observation has a row under exactly COLUMNS, all text, the same when made again."""
        found = rows(NAMES)
        self.assertEqual([row["observation"] for row in found], list(OPERATIONS))
        for row in found:
            self.assertEqual(tuple(row), COLUMNS)
            self.assertTrue(all(isinstance(value, str) for value in row.values()))
        self.assertEqual(found, rows(NAMES))

    def test_how_values_are_written(self) -> None:
        """Booleans in lower case, shapes between blanks, nothing where nothing is defined."""
        found = {row["observation"]: row for row in rows(NAMES)}
        self.assertEqual(found["basic_slice"]["shares_memory"], "true")
        self.assertEqual(found["basic_slice"]["shape"], "2 2 4")
        self.assertEqual(found["broadcast_view"]["write_reaches_source"], "")
        self.assertEqual(found["list_assignment"]["strides"], "")
        self.assertEqual(found["softmax_axis_0"]["mixes_sequences"], "true")

    def test_what_is_recorded(self) -> None:
        """A record of kind observation, its raw.csv the rows under their columns, progress told once."""
        section: Any = read_measure({"by": "observations", "vary": {"observation": NAMES}}, "a test")
        told: list[tuple[int, int]] = []
        found = measure(section, lambda done, total: told.append((done, total)))
        count = len(OPERATIONS)
        self.assertEqual((found.kind, found.rows["raw.csv"], told), ("observation", count, [(count, count)]))
        self.assertEqual(list(csv.DictReader(io.StringIO(found.files["raw.csv"]))), rows(NAMES))

    def test_a_name_nothing_has_is_refused(self) -> None:
        """An unknown observation is a ConfigError that names it and those there are."""
        with self.assertRaisesRegex(ConfigError, "no observation 'slice'; there are list_assignment"):
            rows(["slice"])


if __name__ == "__main__":
    unittest.main()

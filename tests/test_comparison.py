"""Comparison: two records beside each other, and what is not claimed."""

import unittest

from inference_lab.comparison import compare
from inference_lab.errors import RecordError
from tests import recorded


class CompareTest(unittest.TestCase):
    """Records of one experiment: here, superseded, of another machine."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded and derived."""
        recorded.enter(self)

    def test_one_machine(self) -> None:
        """Two runs of one machine: conditions and machine the same, absolute times are not claimed."""
        recorded.record_m1(seed=1, at="elsewhere")
        said = compare("results/m1", "elsewhere")
        self.assertIn("conditions: the same", said)
        self.assertIn("machine: the same", said)
        self.assertRegex(said, r"preallocated +8 +\d+\.\d+ \[.*\] .* [+-]\d+\.\d%")
        self.assertIn("none is claimed", said)
        self.assertNotIn("not pooled", said)

    def test_another_machine(self) -> None:
        """Another processor is named, and the records are not pooled."""
        recorded.record_m1(seed=1, at="elsewhere", cpu_model="Another CPU")
        said = compare("results/m1", "elsewhere")
        self.assertIn("cpu_model Example CPU @ 2.00GHz -> Another CPU", said)
        self.assertIn("not pooled", said)

    def test_what_is_no_record_is_refused(self) -> None:
        """A folder without a manifest and a commit without the record are each one line."""
        for name in ("nowhere", "HEAD:results/m1"):
            with self.subTest(name), self.assertRaises(RecordError) as refused:
                compare("results/m1", name)
            self.assertIn(name, str(refused.exception))
            self.assertNotIn("\n", str(refused.exception))


if __name__ == "__main__":
    unittest.main()

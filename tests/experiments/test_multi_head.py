"""Multi-head paths as timed calls: what they start from, what they give, what they refuse."""

import unittest
from typing import Any

import numpy as np

from inference_lab.errors import ConfigError
from inference_lab.experiments import multi_head
from inference_lab.mechanisms.multi_head import multi_head_attention
from tests import checkout

FIXED = {"batch_size": 2, "d_model": 24, "num_heads": 6, "dtype": "float32", "seed": 42}


def section(axis: str, values: list[int], paths: list[str], **fixed: int) -> Any:
    """These paths over an axis, with the replica of the first."""
    vary = {"vary": {axis: values}, "fixed": FIXED | fixed}
    return checkout.section(by="multi_head", **vary, paths=paths, baseline=paths[0], replica=True)


DECODE_T = section("sequence_length", [3, 5], ["preallocated", "dynamic"], decode_steps=4, num_kv_heads=2)
DECODE_G = section(
    "num_kv_heads", [1, 2, 3, 6], ["preallocated", "repeated"], decode_steps=4, sequence_length=5
)
PREFILL_T = section("sequence_length", [1, 5], ["prefill", "stepwise"], num_kv_heads=6)


class BindTest(unittest.TestCase):
    """Sections bound to calls."""

    def test_every_path_meets_the_oracle(self) -> None:
        """The check finds every path of every cell, each within tolerance, each error recorded."""
        for conditions in (DECODE_T, DECODE_G, PREFILL_T):
            bench = multi_head.bind(conditions)
            findings = bench.check()
            self.assertEqual([f.path for f in findings], conditions.paths * len(conditions.values))
            for finding in findings:
                self.assertTrue(finding.passed, finding)
                self.assertGreater(finding.tolerance, 0)

    def test_the_oracle_sees_a_wrong_output(self) -> None:
        """last_output is the last position of multi_head_attention, and another position is far off."""
        (cell,) = multi_head.cells(section("sequence_length", [5], ["prefill"], num_kv_heads=2))
        expected, allowed = multi_head.last_output(cell)
        output, _ = multi_head_attention(cell.x, *cell.weights)
        self.assertLessEqual(np.abs(output[:, :, -1] - expected).max(), allowed)
        self.assertGreater(np.abs(output[:, :, -2] - expected).max(), 1000 * allowed)

    def test_cells_and_labels(self) -> None:
        """Calls carry the axes of their cell, the baseline comes again; a repeat gives the same bits."""
        for conditions in (DECODE_T, DECODE_G, PREFILL_T):
            bench = multi_head.bind(conditions)
            base = conditions.baseline
            kinds = [*((path, "sample") for path in conditions.paths), (base, "replica")]
            for group, cell in zip(bench.groups, multi_head.cells(conditions), strict=True):
                labels = [((timed.path, timed.kind), timed.axes) for timed in group]
                self.assertEqual(labels, [(kind, cell.axes) for kind in kinds])
            first = [timed.call() for group in bench.groups for timed in group]
            again = [timed.call() for group in bench.groups for timed in group]
            for one, two in zip(first, again, strict=True):
                self.assertEqual(one.dtype, np.float32)
                np.testing.assert_array_equal(one, two)
        self.assertEqual(
            [cell.axes for cell in multi_head.cells(DECODE_G)], [(2, 5, 24, 6, G) for G in (1, 2, 3, 6)]
        )

    def test_fewer_heads_use_the_same_weights(self) -> None:
        """x and wq are the same for every G; wk and wv of a smaller G are the first columns of a larger's."""
        one, *_, six = multi_head.cells(DECODE_G)
        np.testing.assert_array_equal(one.x, six.x)
        np.testing.assert_array_equal(one.wq, six.wq)
        np.testing.assert_array_equal(one.wk, six.wk[:, :4])
        self.assertFalse(one.x.flags.writeable)

    def test_sections_that_cannot_be_meant(self) -> None:
        """Decode steps are asked for where a path decodes, and refused where it prefills."""
        for path, steps, message in (
            ("preallocated", {}, "decode_steps is 0 or missing"),
            ("prefill", {"decode_steps": 2}, "decode_steps is 2"),
        ):
            conditions = section("sequence_length", [3], [path], num_kv_heads=2, **steps)
            with self.subTest(message), self.assertRaisesRegex(ConfigError, message):
                multi_head.bind(conditions)


if __name__ == "__main__":
    unittest.main()

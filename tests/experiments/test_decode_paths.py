"""Decode paths bound to conditions: shared inputs, adjacent paths, an oracle before any timing."""

import unittest
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.config.sections import OneHead
from inference_lab.experiments import decode_paths
from inference_lab.experiments.decode_paths import bind, cells
from inference_lab.mechanisms import attention
from tests import checkout

FIXED = {"sequence_length": 6, "d_model": 4, "dtype": "float64", "seed": 42}
PATHS = list(attention.DECODE_PATHS)


def section(**changes: Any) -> Any:
    """All decode paths over two batch sizes, with other values."""
    return checkout.section(**{"fixed": FIXED, "paths": PATHS, "replica": True} | changes)


def inputs(B: int, T: int = 5, **changes: Any) -> decode_paths.Inputs:
    """The inputs of these conditions."""
    return decode_paths.inputs(OneHead(**{**FIXED, "batch_size": B, "sequence_length": T} | changes))


SECTION = section()


class InputsTest(unittest.TestCase):
    """What the paths are given."""

    def test_smaller_ones_are_the_start_of_larger_ones(self) -> None:
        """A batch grows by sequences, a sequence at its end; the weights stay."""
        largest = inputs(8)
        for B in (1, 2, 4):
            for array, same in zip(inputs(B), (largest[0][:B], *largest[1:]), strict=True):
                np.testing.assert_array_equal(array, same)
        fixed = {"batch_size": 1, "d_model": 4, "dtype": "float64", "seed": 42}
        short, long = cells(section(vary={"sequence_length": [32, 512]}, fixed=fixed))
        np.testing.assert_array_equal(short[0], long[0][:, :32])

    def test_sequences_and_weights_differ(self) -> None:
        """No two sequences of a batch and no two weights are equal, and a seed is what decides them."""
        x, *weights = inputs(4)
        other = inputs(4, seed=43)
        rows = [*x, *weights, *other[0], *other[1:]]
        self.assertEqual(len({row.tobytes() for row in rows}), len(rows))

    def test_arrays(self) -> None:
        """Inputs are read-only; float32 ones are the float64 ones, rounded."""
        for exact, rounded in zip(inputs(2), inputs(2, dtype="float32"), strict=True):
            self.assertEqual(rounded.dtype, np.float32)
            np.testing.assert_array_equal(rounded, exact.astype(np.float32))
            with self.assertRaisesRegex(ValueError, "read-only"):
                exact[:] = 0


class BindTest(unittest.TestCase):
    """Paths as calls."""

    def test_each_cell_is_one_group_of_paths(self) -> None:
        """The paths of one batch size, in the order listed, and the baseline once more, on equal inputs.

        The same call twice gives the same bits: no token of the first is left in its cache.
        """
        for B, group in zip((1, 2), bind(SECTION).groups, strict=True):
            called = [(call.path, call.kind, *call.axes) for call in group]
            kinds = [*((path, "sample") for path in PATHS), ("dynamic", "replica")]
            self.assertEqual(called, [(*kind, B, 6, 4, 1, 1) for kind in kinds])
            first = group[0].call()
            self.assertEqual(first.shape, (B, 6, 4))
            for call in group:
                np.testing.assert_allclose(call.call(), first, rtol=1e-7, atol=1e-8)
                self.assertEqual(call.call().tobytes(), call.call().tobytes(), call.path)
        self.assertEqual(bind(section(replica=False)).groups[0][-1].kind, "sample")

    def test_every_process_makes_the_same_inputs(self) -> None:
        """The digest of the inputs is that of the conditions: another seed, dtype or size is another."""
        digest = bind(SECTION).data_sha256
        self.assertEqual(bind(section(paths=["dynamic"])).data_sha256, digest)
        for name, value in (("seed", 43), ("dtype", "float32"), ("sequence_length", 7)):
            self.assertNotEqual(bind(section(fixed={**FIXED, name: value})).data_sha256, digest, name)


class OracleTest(unittest.TestCase):
    """The check that comes before timing."""

    def test_every_path_is_checked_at_every_size(self) -> None:
        """A finding for each path and varied value, all passed, with the error beside its tolerance."""
        for dtype, least in (("float64", 1e-12), ("float32", 1e-4)):
            findings = bind(section(fixed={**FIXED, "dtype": dtype})).check()
            checked = [(finding.path, finding.batch_size) for finding in findings]
            self.assertEqual(checked, [(path, B) for B in (1, 2) for path in PATHS])
            for finding in findings:
                self.assertTrue(finding.passed, finding)
                self.assertLessEqual(finding.max_abs_error, finding.tolerance)
                self.assertLess(finding.tolerance, least)
                self.assertEqual(finding.shape, (finding.batch_size, 6, 4))

    def test_a_wrong_path_is_found(self) -> None:
        """A path off by far or a little, in one token, or not a number does not pass; others do."""
        for by in (1.0, -1e-9, 1e-12, float("nan"), float("inf")):

            def off(*arrays: attention.Array, by: float = by) -> attention.Array:
                output = attention.preallocated(*arrays)
                output[..., -1, 0] += by
                return output

            wrong = {**attention.DECODE_PATHS, "dynamic": off}
            with self.subTest(by), mock.patch.object(attention, "DECODE_PATHS", wrong):
                passed = {finding.path: finding.passed for finding in bind(SECTION).check()}
            self.assertEqual(passed, {path: path != "dynamic" for path in PATHS})

    def test_the_oracle_is_checked_too(self) -> None:
        """`no_cache`, which the others are held against, is itself held against one masked pass."""

        def wrong(*arrays: attention.Array) -> attention.Array:
            return attention.preallocated(*arrays) + 1e-6

        paths = mock.patch.object(attention, "DECODE_PATHS", {**attention.DECODE_PATHS, "no_cache": wrong})
        with paths, mock.patch.object(attention, "no_cache", wrong):  # decode_without_cache is as wrong
            findings = bind(SECTION).check()
        self.assertIn("no_cache", {finding.path for finding in findings if not finding.passed})
        self.assertEqual({f.against for f in findings if f.path == "no_cache"}, {"causal_attention"})


if __name__ == "__main__":
    unittest.main()

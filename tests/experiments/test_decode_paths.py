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


def section(**changes: Any) -> Any:
    """All decode paths over two batch sizes, with other values."""
    conditions = {"fixed": FIXED, "paths": list(attention.DECODE_PATHS), "replica": True}
    return checkout.section(**conditions | changes)


def over_tokens(*lengths: int) -> Any:
    """The section with T as its axis."""
    fixed = {"batch_size": 1, "d_model": 4, "dtype": "float64", "seed": 42}
    return section(vary={"sequence_length": list(lengths)}, fixed=fixed)


SECTION = section()


def inputs(B: int, T: int, C: int, dtype: str, seed: int) -> decode_paths.Inputs:
    """The inputs of these conditions."""
    return decode_paths.inputs(OneHead(batch_size=B, sequence_length=T, d_model=C, dtype=dtype, seed=seed))


class InputsTest(unittest.TestCase):
    """What the paths are given."""

    def test_one_sequence_is_row_0_of_eight(self) -> None:
        """The batch grows by sequences: those of a smaller batch are the first of a larger one."""
        largest = inputs(8, 5, 4, "float64", 42)
        for B in (1, 2, 4):
            x, *weights = inputs(B, 5, 4, "float64", 42)
            np.testing.assert_array_equal(x, largest[0][:B])
            for weight, same in zip(weights, largest[1:], strict=True):
                np.testing.assert_array_equal(weight, same)

    def test_a_short_sequence_is_the_start_of_a_long_one(self) -> None:
        """Over T the sequence grows at its end: T=32 is the first 32 tokens of T=512."""
        short, long = cells(over_tokens(32, 512))
        np.testing.assert_array_equal(short[0], long[0][:, :32])

    def test_sequences_and_weights_differ(self) -> None:
        """No two sequences of a batch and no two weights are equal, and a seed is what decides them."""
        x, *weights = inputs(4, 5, 4, "float64", 42)
        other = inputs(4, 5, 4, "float64", 43)
        rows = [*x, *weights, *other[0], *other[1:]]
        self.assertEqual(len({row.tobytes() for row in rows}), len(rows))

    def test_inputs_are_read_only(self) -> None:
        """No timed path can change the inputs of the next."""
        for cell in cells(SECTION):
            for array in cell:
                with self.assertRaisesRegex(ValueError, "read-only"):
                    array[:] = 0

    def test_inputs_have_the_dtype_asked_for(self) -> None:
        """float32 inputs are the float64 ones, rounded."""
        for exact, rounded in zip(
            inputs(2, 3, 4, "float64", 42), inputs(2, 3, 4, "float32", 42), strict=True
        ):
            self.assertEqual(rounded.dtype, np.float32)
            np.testing.assert_array_equal(rounded, exact.astype(np.float32))


class BindTest(unittest.TestCase):
    """Paths as calls."""

    def test_each_cell_is_one_group_of_paths(self) -> None:
        """Paths of one batch size stand in one group, in the order listed, the baseline once more."""
        bench = bind(SECTION)
        self.assertEqual(
            [[(call.path, call.kind, call.batch_size) for call in group] for group in bench.groups],
            [
                [(path, "sample", B) for path in attention.DECODE_PATHS] + [("dynamic", "replica", B)]
                for B in (1, 2)
            ],
        )
        self.assertEqual(bind(section(replica=False)).groups[0][-1].kind, "sample")
        call = bench.groups[1][0]
        self.assertEqual(
            (call.sequence_length, call.d_model, call.num_heads, call.num_kv_heads), (6, 4, 1, 1)
        )

    def test_paths_share_their_inputs(self) -> None:
        """Every path of a cell, the replica too, decodes the same sequences to the same outputs."""
        for group in bind(SECTION).groups:
            first, *others = (call.call() for call in group)
            self.assertEqual(first.shape, (group[0].batch_size, 6, 4))
            for output in others:
                np.testing.assert_allclose(output, first, rtol=1e-7, atol=1e-8)

    def test_a_repeat_starts_empty(self) -> None:
        """The same call twice gives the same bits: no token of the first is left in its cache."""
        for call in bind(SECTION).groups[1]:
            self.assertEqual(call.call().tobytes(), call.call().tobytes(), call.path)

    def test_every_process_makes_the_same_inputs(self) -> None:
        """The digest of the inputs is that of the conditions: another seed, dtype or size is another."""
        digest = bind(SECTION).data_sha256
        self.assertEqual(bind(SECTION).data_sha256, digest)
        self.assertEqual(bind(section(paths=["dynamic"])).data_sha256, digest)
        for name, value in (("seed", 43), ("dtype", "float32"), ("sequence_length", 7)):
            other = section(fixed={**FIXED, name: value})
            self.assertNotEqual(bind(other).data_sha256, digest, name)


class OracleTest(unittest.TestCase):
    """The check that comes before timing."""

    def test_every_path_is_checked_at_every_size(self) -> None:
        """A finding for each path and varied value, all passed, with the error beside its tolerance."""
        for dtype in ("float64", "float32"):
            findings = bind(section(fixed={**FIXED, "dtype": dtype})).check()
            self.assertEqual(
                [(finding.path, finding.batch_size) for finding in findings],
                [(path, B) for B in (1, 2) for path in attention.DECODE_PATHS],
            )
            for finding in findings:
                self.assertTrue(finding.passed, finding)
                self.assertLessEqual(finding.max_abs_error, finding.tolerance)
                self.assertLess(finding.tolerance, 1e-12 if dtype == "float64" else 1e-4)
                self.assertEqual(finding.shape, (finding.batch_size, 6, 4))

    def test_a_wrong_path_is_found(self) -> None:
        """A path that is off by far or a little, in one token, or not a number does not pass; others do."""

        def off(by: float) -> attention.DecodePath:
            def path(*arrays: attention.Array) -> attention.Array:
                output = attention.preallocated(*arrays)
                output[..., -1, 0] += by
                return output

            return path

        for by in (1.0, -1e-9, 1e-12, float("nan"), float("inf")):
            wrong = {**attention.DECODE_PATHS, "dynamic": off(by)}
            with self.subTest(by), mock.patch.object(attention, "DECODE_PATHS", wrong):
                passed = {finding.path: finding.passed for finding in bind(SECTION).check()}
            self.assertEqual(passed, {path: path != "dynamic" for path in attention.DECODE_PATHS})

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

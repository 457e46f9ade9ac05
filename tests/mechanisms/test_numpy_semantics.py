"""The observations of what NumPy shares and copies, and the eye that makes them."""

import unittest

import numpy as np

from inference_lab.errors import InputError
from inference_lab.mechanisms import numpy_semantics
from inference_lab.mechanisms.numpy_semantics import OPERATIONS, observation
from tests import subject

tried = subject.of(numpy_semantics)

VIEWS = {
    "basic_slice",
    "swapaxes",
    "reshape_contiguous",
    "reshape_splits_swapped",
    "reshape_swapped_one_token",
    "ravel_contiguous",
    "in_place_add",
    "index_drops_axis",
    "slice_keeps_axis",
    "cache_view",
}
COPIES = {
    "advanced_index",
    "concatenate",
    "reshape_swapped",
    "ravel_swapped",
    "broadcast_sum",
    "rebinding_add",
    "softmax_axis_0",
    "softmax_last_axis",
}


class ObserveTest(unittest.TestCase):
    """`observe` on pairs whose relation is plain."""

    def test_a_view(self) -> None:
        """Every second element: shared both ways, not contiguous, not the owner, bytes of its own shape."""
        source = np.zeros(8)
        found = tried.observe(source, source[::2])
        self.assertTrue(found.shares_memory and found.write_reaches_source and found.sees_source_write)
        self.assertEqual((found.shape, found.strides, found.nbytes), ((4,), (16,), 32))
        self.assertEqual((found.contiguity, found.owns_data), ("neither", False))

    def test_a_copy(self) -> None:
        """A Fortran-ordered copy: nothing shared, contiguous the other way, its own owner."""
        source = np.zeros((2, 3))
        found = tried.observe(source, source.copy(order="F"))
        self.assertFalse(found.shares_memory or found.write_reaches_source or found.sees_source_write)
        self.assertEqual((found.contiguity, found.owns_data, found.strides), ("F", True, (8, 16)))

    def test_neighbours_are_not_shared(self) -> None:
        """Two views of one buffer with no element in common share nothing."""
        buffer = np.zeros(8)
        found = tried.observe(buffer[::2], buffer[1::2])
        self.assertFalse(found.shares_memory or found.write_reaches_source or found.sees_source_write)

    def test_a_read_only_result(self) -> None:
        """A refused write is None, not False; the source's writes are still seen."""
        source = np.zeros(4)
        result = source.view()
        result.flags.writeable = False
        found = tried.observe(source, result)
        self.assertIsNone(found.write_reaches_source)
        self.assertTrue(found.sees_source_write)

    def test_a_read_only_source_is_refused(self) -> None:
        """A source that refuses writes is an error, not an observation."""
        source = np.zeros(4)
        source.flags.writeable = False
        with self.assertRaisesRegex(InputError, "source refuses a write"):
            tried.observe(source, np.zeros(4))

    def test_lists(self) -> None:
        """One list under two names shares; an equal list does not; neither has shape or strides."""
        source = [1, 2]
        same, equal = tried.observe(source, source), tried.observe([1, 2], [1, 2])
        self.assertEqual((same.shares_memory, same.write_reaches_source, same.sees_source_write), (True,) * 3)
        self.assertEqual((equal.shares_memory, equal.write_reaches_source), (False, False))
        self.assertFalse(equal.sees_source_write)
        self.assertEqual((same.shape, same.strides, same.contiguity, same.nbytes), (None,) * 4)


class ObservationsTest(unittest.TestCase):
    """The operations, each on a fresh source."""

    def test_each_look_is_fresh(self) -> None:
        """An observation writes to its source; the next one of the same operation sees nothing of that."""
        for name in OPERATIONS:
            self.assertEqual(observation(name), observation(name), name)

    def test_views_share_and_copies_do_not(self) -> None:
        """Of each operation: memory is shared and writes show both ways, or none of it."""
        seen = {name: observation(name) for name in OPERATIONS}
        for names, shared in ((VIEWS, True), (COPIES, False)):
            for name in names:
                with self.subTest(name):
                    found = seen[name]
                    self.assertEqual(found.shares_memory, shared)
                    self.assertEqual(found.write_reaches_source, shared)
                    self.assertEqual(found.sees_source_write, shared)
        others = {"list_assignment", "list_shallow_copy", "list_shallow_copy_inner", "broadcast_view"}
        self.assertEqual(set(seen), VIEWS | COPIES | others)

    def test_owner_does_not_tell_view_from_copy(self) -> None:
        """A copy made inside reshape or advanced indexing is not the owner of its data."""
        for name in ("reshape_swapped", "advanced_index"):
            found = observation(name)
            self.assertEqual((found.shares_memory, found.owns_data), (False, False), name)

    def test_one_token_hides_the_copy(self) -> None:
        """A reshape that copies for many tokens is a view for one."""
        self.assertFalse(observation("reshape_swapped").shares_memory)
        self.assertTrue(observation("reshape_swapped_one_token").shares_memory)

    def test_a_broadcast_view_counts_bytes_it_does_not_hold(self) -> None:
        """(B, T, C) of one row: strides 0, 192 bytes of 32 stored, and a write is refused."""
        found = observation("broadcast_view")
        self.assertEqual((found.strides, found.nbytes), ((0, 0, 8), 192))
        self.assertIsNone(found.write_reaches_source)

    def test_indexing_keeps_or_drops_the_token_axis(self) -> None:
        """x[:, t, :] is (B, C), x[:, t:t+1, :] is (B, 1, C)."""
        self.assertEqual(observation("index_drops_axis").shape, (2, 4))
        self.assertEqual(observation("slice_keeps_axis").shape, (2, 1, 4))

    def test_softmax_over_the_batch_mixes_sequences(self) -> None:
        """Only softmax over axis 0 lets one sequence change another."""
        self.assertIs(observation("softmax_axis_0").mixes_sequences, True)
        self.assertIs(observation("softmax_last_axis").mixes_sequences, False)


if __name__ == "__main__":
    unittest.main()

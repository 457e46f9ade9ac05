"""The observations of what NumPy shares and copies, and the eye that makes them."""

import unittest

import numpy as np

from inference_lab.errors import InputError
from inference_lab.mechanisms import numpy_semantics
from inference_lab.mechanisms.numpy_semantics import OPERATIONS, observation
from tests import subject

tried = subject.of(numpy_semantics)

VIEWS = {
    *("basic_slice", "swapaxes", "reshape_contiguous", "reshape_splits_swapped", "reshape_swapped_one_token"),
    *("ravel_contiguous", "in_place_add", "index_drops_axis", "slice_keeps_axis", "cache_view"),
}
COPIES = {
    *("advanced_index", "concatenate", "reshape_swapped", "ravel_swapped", "broadcast_sum", "rebinding_add"),
    *("softmax_axis_0", "softmax_last_axis"),
}
OTHERS = {"list_assignment", "list_shallow_copy", "list_shallow_copy_inner", "broadcast_view"}


def shared(found: numpy_semantics.Observation) -> tuple[bool, bool | None, bool]:
    """Whether memory is shared, and whether a write shows in the source and in the result."""
    return found.shares_memory, found.write_reaches_source, found.sees_source_write


class ObserveTest(unittest.TestCase):
    """`observe` on pairs whose relation is plain."""

    def test_views_and_copies(self) -> None:
        """A view is shared both ways and owns nothing; a copy, or a view of other elements, is not shared."""
        source, square = np.zeros(8), np.zeros((2, 3))
        view, copy = tried.observe(source, source[::2]), tried.observe(square, square.copy(order="F"))
        apart = tried.observe(source[::2], source[1::2])
        self.assertEqual([shared(one) for one in (view, copy, apart)], [(True,) * 3, *[(False,) * 3] * 2])
        self.assertEqual((view.shape, view.strides, view.nbytes), ((4,), (16,), 32))
        self.assertEqual((view.contiguity, view.owns_data), ("neither", False))
        self.assertEqual((copy.contiguity, copy.owns_data, copy.strides), ("F", True, (8, 16)))

    def test_read_only(self) -> None:
        """A refused write of the result is None, not False; of the source it is an error."""
        source = np.zeros(4)
        result = source.view()
        result.flags.writeable = False
        self.assertEqual(shared(tried.observe(source, result)), (True, None, True))
        with self.assertRaisesRegex(InputError, "source refuses a write"):
            tried.observe(result, np.zeros(4))

    def test_lists(self) -> None:
        """One list under two names shares; an equal list does not; neither has shape or strides."""
        source = [1, 2]
        same, equal = tried.observe(source, source), tried.observe([1, 2], [1, 2])
        self.assertEqual((shared(same), shared(equal)), ((True,) * 3, (False,) * 3))
        self.assertEqual((same.shape, same.strides, same.contiguity, same.nbytes), (None,) * 4)


class ObservationsTest(unittest.TestCase):
    """The operations, each on a fresh source."""

    def test_views_share_and_copies_do_not(self) -> None:
        """Memory is shared and writes show both ways, or none of it; the next look sees no earlier write."""
        self.assertEqual(set(OPERATIONS), VIEWS | COPIES | OTHERS)
        for name in OPERATIONS:
            with self.subTest(name):
                self.assertEqual(observation(name), observation(name))
                if name not in OTHERS:
                    self.assertEqual(shared(observation(name)), (name in VIEWS,) * 3)

    def test_what_misleads(self) -> None:
        """Copies that own nothing, bytes of a broadcast that are not held, axes dropped, sequences mixed."""
        for name in ("reshape_swapped", "advanced_index"):
            self.assertIs(observation(name).owns_data, False, name)
        broadcast = observation("broadcast_view")
        self.assertEqual((broadcast.strides, broadcast.nbytes), ((0, 0, 8), 192))
        self.assertIsNone(broadcast.write_reaches_source)
        self.assertEqual(observation("index_drops_axis").shape, (2, 4))
        self.assertEqual(observation("slice_keeps_axis").shape, (2, 1, 4))
        self.assertIs(observation("softmax_axis_0").mixes_sequences, True)
        self.assertIs(observation("softmax_last_axis").mixes_sequences, False)


if __name__ == "__main__":
    unittest.main()

"""The unit tests of the toy checkout: few, so that its tests stage is quick."""

import unittest

from inference_lab import toy_pause


class Toy(unittest.TestCase):
    """What the toy promises."""

    def test_pause_is_off(self) -> None:
        """A stage that nobody pauses goes on."""
        toy_pause.here("tests")
        self.assertIsNone(toy_pause.here("nowhere"))

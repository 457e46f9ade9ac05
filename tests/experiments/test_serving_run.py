"""Both sides of a load, before they become a record."""

import unittest
from pathlib import Path

from inference_lab.errors import MeasurementRefused
from inference_lab.experiments.serving_run import refuse_contradiction


class ContradictionTest(unittest.TestCase):
    """What a client saw against what its server wrote."""

    def test_both_count_the_same_tokens(self) -> None:
        """A request of which the server wrote otherwise is refused when it is measured, and both are kept."""
        seen = [{"request_id": "a0", "output_tokens": 2}]
        step = {"kind": "step"}
        refuse_contradiction(
            seen, [step, {"kind": "request", "request_id": "a0", "token_ns": [1, 2]}], Path("kept")
        )
        for written, words in (
            ([{"kind": "request", "request_id": "a0", "token_ns": [1]}], "wrote 1 of it"),
            ([{"kind": "request", "request_id": "b0", "token_ns": [1, 2]}], "wrote nothing of it"),
            ([step], "wrote nothing of it"),
        ):
            with self.assertRaisesRegex(MeasurementRefused, f"saw 2 tokens, the server {words}.* in kept"):
                refuse_contradiction(seen, written, Path("kept"))


if __name__ == "__main__":
    unittest.main()

"""What others did, read from records of today and of before."""

import unittest

from inference_lab.analysis.surroundings import UNBOUNDED, environment_of


class EnvironmentTest(unittest.TestCase):
    """One form, whenever it was recorded."""

    def test_the_impossible_is_not_printed(self) -> None:
        """A maximum above all cores, as older records have it, is not known; everything else stands."""
        older = {
            "cores": 2,
            "others_cpu": {"median": 0.1, "max": 183.9},
            "steal": {"median": 0.0, "max": 0.1},
        }
        found = environment_of({"environment": older})
        self.assertEqual(found["others_used_cores"], {"median": 0.1, "max": UNBOUNDED})
        self.assertEqual(found["steal_cores"], {"median": 0.0, "max": 0.1})
        self.assertNotIn("others_cpu", found)

    def test_the_possible_is(self) -> None:
        """What can be stands as it was recorded; nothing recorded is nothing told."""
        for others in ({"median": 0.1, "max": 1.9}, None):
            self.assertEqual(
                environment_of({"environment": {"cores": 2, "others_cpu": others}})["others_used_cores"],
                others,
            )
        today = {"cores": 2, "others_used_cores": {"median": 0.1, "max": 2}, "unknown_looks": 3}
        self.assertEqual(environment_of({"environment": today}), today)
        self.assertEqual(environment_of({}), {})


if __name__ == "__main__":
    unittest.main()

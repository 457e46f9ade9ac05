"""The checkoff pages: their seven parts, their links, and tests that can be run as written."""

import re
import unittest
from pathlib import Path

PAGES = sorted((Path(__file__).parents[1] / "docs" / "checkoffs").glob("*.md"))
PARTS = ["Question", "Prediction", "Pre-read", "Action", "Feedback", "Artifact", "Transfer"]


class CheckoffPagesTest(unittest.TestCase):
    """Every page under docs/checkoffs."""

    def test_every_page_has_the_seven_parts_on_one_page(self) -> None:
        """Question to Transfer, in order, in at most 40 lines; there is a page for P0, P1 and M2."""
        self.assertEqual({page.name[:2] for page in PAGES}, {"p0", "p1", "m2"})
        for page in PAGES:
            with self.subTest(page.name):
                text = page.read_text(encoding="utf-8")
                self.assertEqual(re.findall(r"^\*\*([\w-]+)\.\*\*", text, re.MULTILINE), PARTS)
                self.assertLessEqual(len(text.splitlines()), 40)

    def test_every_link_leads_to_a_file(self) -> None:
        """Relative links resolve from the page."""
        for page in PAGES:
            for link in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
                with self.subTest(page=page.name, link=link):
                    self.assertTrue((page.parent / link).is_file())

    def test_every_exercise_names_tests_that_exist(self) -> None:
        """The command of each exercise finds at least one test, and a reader's file can be tried with it."""
        for page in PAGES:
            commands = re.findall(
                r"INFERENCE_LAB_SUBJECT=mine\.py .*unittest (\S+) -v", page.read_text("utf-8")
            )
            self.assertTrue(commands, page.name)
            for name in commands:
                with self.subTest(page=page.name, name=name):
                    found = unittest.defaultTestLoader.loadTestsFromName(name)
                    self.assertEqual(unittest.defaultTestLoader.errors, [])
                    self.assertGreater(found.countTestCases(), 0)
                    module = re.sub(r"\.[A-Z]\w*$", "", name).replace(".", "/")
                    source = Path(__file__).parents[1] / f"{module}.py"
                    self.assertIn("subject.of(", source.read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()

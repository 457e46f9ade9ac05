"""The tests stage: evidence comes from tests that ran and passed, or there is none."""

import contextlib
import io
import sys
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.testing import TestsFailed, run_unit_tests
from tests import checkout

PASSING = """
import unittest

class Example(unittest.TestCase):
    def test_one(self):
        with self.subTest(part=1):
            self.assertEqual(1, 1)

    def test_two(self):
        print("noise")

    @unittest.skip("no such machine here")
    def test_three(self): ...
"""


class RunUnitTestsTest(unittest.TestCase):
    """A folder of made-up tests in a made-up checkout."""

    def setUp(self) -> None:
        """A checkout without tests; what the made-up ones import is forgotten again."""
        checkout.enter(self)
        Path("tests/test_attention.py").unlink()
        self.enterContext(mock.patch.object(sys, "path", sys.path.copy()))
        self.enterContext(mock.patch.dict(sys.modules))

    def outcomes(self, **files: str) -> dict[str, str]:
        """The outcomes of tests/<name>.py for each given text."""
        for name, text in files.items():
            Path(f"tests/{name}.py").write_text(text)
        with contextlib.redirect_stderr(io.StringIO()):
            return run_unit_tests("tests")

    def test_every_test_has_its_outcome(self) -> None:
        """Each test id stands with passed, or skipped and why, sorted; nothing else is in the evidence."""
        self.assertEqual(
            self.outcomes(test_made_up_a=PASSING),
            {
                "test_made_up_a.Example.test_one": "passed",
                "test_made_up_a.Example.test_three": "skipped: no such machine here",
                "test_made_up_a.Example.test_two": "passed",
            },
        )

    def test_what_is_no_evidence_is_refused(self) -> None:
        """A failure, an error, an unexpected success, a file that does not import and no test at all."""
        test = "import unittest\nclass Example(unittest.TestCase):\n    {}def test_one(self): {}\n"
        for name, text, words in (
            ("test_made_up_b", test.format("", "self.fail()"), "1 of 1 unit tests failed, first .*test_one"),
            ("test_made_up_c", test.format("", "1 / 0"), "1 of 1 unit tests failed"),
            (
                "test_made_up_d",
                test.format("", "\n        with self.subTest(1): self.fail()"),
                "1 of 1 unit tests failed",
            ),
            (
                "test_made_up_e",
                test.format("@unittest.expectedFailure\n    ", "pass"),
                "1 of 1 unit tests failed",
            ),
            ("test_made_up_f", "import no_such_module\n", "1 of 1 unit tests failed, first .*test_made_up_f"),
            ("test_made_up_g", "class Example:\n    def test_one(self): ...\n", "no test was collected"),
        ):
            with self.subTest(words, text=text):
                with self.assertRaisesRegex(TestsFailed, words):
                    self.outcomes(**{name: text})
                Path(f"tests/{name}.py").unlink()
        with self.assertRaisesRegex(TestsFailed, "nowhere/: no such folder"):
            run_unit_tests("nowhere")


if __name__ == "__main__":
    unittest.main()

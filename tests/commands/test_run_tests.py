"""The tests stage: evidence comes from tests that ran and passed, or there is none."""

import contextlib
import functools
import io
import os
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.commands import run_tests
from inference_lab.commands.run_tests import TestsFailed
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
SEES = """
import os
import sys
import unittest

class Example(unittest.TestCase):
    def test_one(self):
        self.assertNotIn("INFERENCE_LAB_SUBJECT", os.environ)
        self.assertIsNone(sys.pycache_prefix)
        self.assertNotIn("/nowhere", sys.path)
        self.assertNotIn("", sys.path)
        self.assertNotIn("PYTHONSAFEPATH", os.environ)
        self.assertEqual(os.environ["OPENBLAS_NUM_THREADS"], "1")
"""


class RunUnitTestsTest(unittest.TestCase):
    """A folder of made-up tests in a made-up checkout."""

    def setUp(self) -> None:
        """A checkout without tests; what the made-up ones import is forgotten again."""
        checkout.enter(self)
        Path("tests/test_attention.py").unlink()
        self.enterContext(mock.patch.object(sys, "path", sys.path.copy()))
        self.enterContext(mock.patch.dict(sys.modules))

    def outcomes(self, text: str, name: str = "test_made_up") -> dict[str, str]:
        """The outcomes of tests/<name>.py with this text."""
        Path(f"tests/{name}.py").write_text(text)
        with contextlib.redirect_stderr(io.StringIO()):
            return run_tests.outcomes()

    def test_every_test_has_its_outcome(self) -> None:
        """Each test id stands with passed, or skipped and why, sorted; nothing else is in the evidence."""
        outcomes = {"one": "passed", "three": "skipped: no such machine here", "two": "passed"}
        expected = {f"test_made_up.Example.test_{name}": outcome for name, outcome in outcomes.items()}
        self.assertEqual(list(self.outcomes(PASSING).items()), list(expected.items()))

    def test_what_is_no_evidence_is_refused(self) -> None:
        """A failure, an error, an unexpected success, a file that does not import and no test at all."""
        test = "import unittest\nclass Example(unittest.TestCase):\n    {}def test_one(self): {}\n"
        failed = "1 of 1 unit tests failed, first .*"
        for name, text, words in (
            ("test_fails", test.format("", "self.fail()"), f"{failed}test_one"),
            ("test_errs", test.format("", "1 / 0"), failed),
            ("test_part", test.format("", "\n        with self.subTest(1): self.fail()"), failed),
            ("test_unexpected", test.format("@unittest.expectedFailure\n    ", "pass"), failed),
            ("test_import", "import no_such_module\n", f"{failed}test_import"),
            ("test_none", "class Example:\n    def test_one(self): ...\n", "no test was collected"),
        ):
            with self.subTest(name), self.assertRaisesRegex(TestsFailed, words):
                self.outcomes(text, name)
            Path(f"tests/{name}.py").unlink()
        with self.assertRaisesRegex(TestsFailed, "nowhere/: no such folder"):
            run_tests.outcomes("nowhere")

    def test_a_failure_points(self) -> None:
        """What others build on runs first; a fault is told by its first case and the module to look at."""
        many = "'It holds.'\n        for n in range(9):\n            with self.subTest(n=n): self.fail()"
        fails = f"import unittest\nclass E(unittest.TestCase):\n    def test_one(self):\n        {many}\n"
        for name in ("commands", "mechanisms"):
            Path("tests", name).mkdir()
            Path("tests", name, "__init__.py").touch()
            Path("tests", name, "test_attention_made_up.py").write_text(fails)
            sys.modules.pop(name, None)  # the real tests' folder, when all of them run
        Path("src/inference_lab/mechanisms/attention.py").touch()
        with self.assertRaises(TestsFailed) as refused:
            self.outcomes(PASSING)
        self.assertEqual(
            str(refused.exception).splitlines(),
            [
                "1 of 1 unit tests failed, first mechanisms.test_attention_made_up.E.test_one: It holds.",
                "look at src/inference_lab/mechanisms/attention.py",
            ],
        )

    def test_they_run_in_a_process_of_their_own(self) -> None:
        """No variable of the shell steers it: not another path, not other bytecode, not a reader's file."""
        self.assertEqual(self.run_in_a_process(SEES), {"test_made_up.Example.test_one": "passed"})
        with self.assertRaisesRegex(TestsFailed, "process ended with status -9 before it was done"):
            self.run_in_a_process("import os\nos.kill(os.getpid(), 9)\n")
        Path("tests/colorsys.py").write_text("")  # hides the standard library's
        with self.assertRaisesRegex(TestsFailed, r"module colorsys was taken from /.*/tests/colorsys\.py"):
            self.run_in_a_process(f"import colorsys\n{PASSING}")

    def run_in_a_process(self, text: str) -> dict[str, str]:
        """The outcomes of one test file in a process of its own, whose words go nowhere."""
        Path("tests/test_made_up.py").write_text(text)
        shell = {"PYTHONPATH": "/nowhere", "PYTHONPYCACHEPREFIX": "/nowhere", run_tests.SUBJECT: "mine.py"}
        start = functools.partial(subprocess.run, stderr=subprocess.DEVNULL)
        with mock.patch.dict(os.environ, shell), mock.patch.object(run_tests.subprocess, "run", start):
            return run_tests.run_unit_tests()


if __name__ == "__main__":
    unittest.main()

"""A reader's own file in place of the package: what is tried, skipped and refused."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.mechanisms import multi_head
from tests import subject

OWN_SPLIT = "def split_heads(projected, num_heads):\n    return 'mine'\n"


class SubjectTest(unittest.TestCase):
    """INFERENCE_LAB_SUBJECT."""

    def of_file(self, text: str) -> subject.Subject:
        """What is tried when a reader's file holds this text."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = Path(folder.name) / "mine.py"
        path.write_text(text, encoding="utf-8")
        with mock.patch.dict(os.environ, {"INFERENCE_LAB_SUBJECT": str(path)}):
            return subject.of(multi_head)

    def test_without_the_variable_the_package_is_tried(self) -> None:
        """No variable, or an empty one: the package's own functions."""
        without = {name: value for name, value in os.environ.items() if name != "INFERENCE_LAB_SUBJECT"}
        for environment in (without, {**without, "INFERENCE_LAB_SUBJECT": ""}):
            with mock.patch.dict(os.environ, environment, clear=True):
                found = subject.of(multi_head)
            self.assertIs(found.split_heads, multi_head.split_heads)

    def test_the_readers_function_is_tried(self) -> None:
        """A name the file defines comes from the file; one that it lacks is skipped."""
        own = self.of_file(OWN_SPLIT)
        self.assertEqual(own.split_heads(None, 3), "mine")
        with self.assertRaisesRegex(unittest.SkipTest, "mine.py defines no merge_heads"):
            _ = own.merge_heads

    def test_a_file_without_any_name_is_refused(self) -> None:
        """A slip in the one name, or an import of the package's functions, is no implementation."""
        for text in ("def split_head(x): ...\n", "from inference_lab.mechanisms.multi_head import *\n"):
            with self.subTest(text), self.assertRaisesRegex(ImportError, "defines none of the names"):
                self.of_file(text)

    def test_a_missing_file_is_refused(self) -> None:
        """A path that is no file is named."""
        with (
            mock.patch.dict(os.environ, {"INFERENCE_LAB_SUBJECT": "nowhere/mine.py"}),
            self.assertRaisesRegex(ImportError, "nowhere/mine.py: no such file"),
        ):
            subject.of(multi_head)


if __name__ == "__main__":
    unittest.main()

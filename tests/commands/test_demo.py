"""Does `inference-lab demo` run what its page says, in a clone, and stop where the page is wrong?"""

import contextlib
import io
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

from inference_lab.commands.demo import PARTS, DemoFailed, demo
from inference_lab.errors import LabError

ROOT = Path(__file__).resolve().parents[2]
PART = "# Page\n\n## 1. First\n\nWhat it does.\n\n```sh\n{}\n```\n\nLook here.\n"


class DemoTest(unittest.TestCase):
    """Made-up pages in a made-up repository."""

    def setUp(self) -> None:
        """A repository of one commit."""
        self.enterContext(contextlib.chdir(self.enterContext(tempfile.TemporaryDirectory())))
        Path("kept.txt").write_text("as it was")
        git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
        for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "-m", "one")):
            subprocess.run([*git, *words], check=True)

    def demo(self, text: str) -> str:
        """What a page's demonstration prints."""
        Path("page.md").write_text(text)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            end = demo(Path("page.md"))
        return printed.getvalue() + end

    def test_it_happens_in_a_clone(self) -> None:
        """Each part is run where nothing of this checkout is touched; a failure that is expected is none."""
        printed = self.demo(PART.format("rm kept.txt\n! test -e kept.txt"))
        for words in ("== 1. First", "What it does.", "rm kept.txt", "Look here.", "1 demonstrations in"):
            self.assertIn(words, printed)
        self.assertEqual(Path("kept.txt").read_text(), "as it was")

    def test_a_page_that_is_wrong(self) -> None:
        """A command that fails, a failure that does not come, a page of no parts or no page: one line."""
        for commands in ("test -e nothing\ntrue", "true\n! true"):
            with self.subTest(commands), self.assertRaisesRegex(DemoFailed, "page.md: 1. First.*status 1"):
                self.demo(PART.format(commands))
        with self.assertRaisesRegex(DemoFailed, "page.md: holds no part"):
            self.demo("# Nothing")
        Path("page.md").unlink()
        with self.assertRaisesRegex(LabError, "page.md: .*git checkout"):
            demo(Path("page.md"))

    def test_both_languages_run_the_same(self) -> None:
        """The commands of the Chinese page are those of the English one, and every part is read."""
        english, chinese = (
            (ROOT / "docs" / name).read_text() for name in ("handover.md", "handover.zh-CN.md")
        )
        blocks = re.findall(r"```sh\n.*?```", english, re.DOTALL)
        self.assertEqual(re.findall(r"```sh\n.*?```", chinese, re.DOTALL), blocks)
        for page in (english, chinese):
            self.assertEqual([part[2] for part in PARTS.findall(page)], [block[6:-3] for block in blocks])

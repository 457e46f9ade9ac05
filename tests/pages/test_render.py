"""What a template inserts is escaped; what it lacks is an error: see test_article."""

import tempfile
import unittest
from pathlib import Path

from inference_lab.pages.render import Markdown, render, table, words


class RenderTest(unittest.TestCase):
    """`render`."""

    def render(self, template: str, **facts: object) -> str:
        """What a template in a file of its own makes of these facts."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "page.md.j2")
            file.write_text(template, encoding="utf-8")
            return render(file, **facts)

    def test_text_of_a_server_is_no_markup(self) -> None:
        """A tag, a bar, a line break and a control character stay text in their line; Markdown is kept."""
        said = "v1 <img src=x>|\x1b[2J\nnext"
        shown = "v1 &lt;img src=x>\\|\\x1b[2J next"
        self.assertEqual(self.render("| {{ said }} |\n", said=said), f"| {shown} |\n")
        self.assertEqual(table([[said]], ["<b>"]), f"| &lt;b> |\n| --- |\n| {shown} |")
        self.assertEqual(self.render("{{ text }}", text=Markdown("a\n\n| b |")), "a\n\n| b |")

    def test_facts_in_words(self) -> None:
        """Values of a manifest are written as words, nested ones flat."""
        for value, text in (
            (None, "not known"),
            (True, "true"),
            ({"a": [1, 2.5], "b": "c"}, "a 1, 2.5, b c"),
            (1.716796875, "1.717"),
        ):
            self.assertEqual(words(value), text)

"""A term of docs/glossary.md has no second name: the words of its table "Not called" are used nowhere."""

import re
import unittest

from tests.checkout import ROOT

FIXED = re.compile(  # names and headings that records, setups and predictions already carry
    r"gate_\d_batch_\d|two_gates(_4_batch_8)?|gate_C_batch_S|client_gate|ClientGate"
    r"|\bneighbours\b(?=\"|:|=)|neighbour_core|thread_anomaly|Flags, anomalies and notes"
)
PLACES = (
    "src/**/*.py",
    "src/**/*.j2",
    "workflow/**/*.py",
    "workflow/**/*.smk",
    "README*",
    "docs/*.md",
    "*.yaml",
)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # of CamelCase and snake_case too


def retired() -> list[str]:
    """The left column of the table."""
    table = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("| not | but |")[2]
    return re.findall(r"^\| ([a-z ]+) \|", table, re.MULTILINE)


def uses(text: str, word: str) -> list[str]:
    """The lines that use a word, or a form of it, outside FIXED."""
    form = re.compile(rf"\b{word.removesuffix('y')}(?:y|ies|s|ed|ful|ing)?\b")
    lines = {line: " ".join(WORD.findall(FIXED.sub("", line))).lower() for line in text.splitlines()}
    return [line.strip() for line, words in lines.items() if form.search(words)]


class GlossaryTest(unittest.TestCase):
    """The table against sources, pages and config."""

    def test_no_term_has_a_second_name(self) -> None:
        """No source, template, page or comment uses a retired word."""
        words = retired()
        self.assertGreater(len(words), 5)
        for path in (path for place in PLACES for path in sorted(ROOT.glob(place))):
            text = path.read_text(encoding="utf-8").partition("## Not called")[0]
            for word in words:
                with self.subTest(path.relative_to(ROOT).as_posix(), word=word):
                    self.assertEqual(uses(text, word), [])

    def test_every_form_is_found(self) -> None:
        """In prose, in plural and inside of names; a longer word of another meaning is none."""
        for text in ("Doubts", "class GateLoad:", "judge_anomalies", "two mended", "a seed command"):
            self.assertTrue([word for word in retired() if uses(text, word)], text)
        for text in ("a gateway", "gate_4_batch_2", "recommend", "random seed"):
            self.assertEqual([word for word in retired() if uses(text, word)], [], text)

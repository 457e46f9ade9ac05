"""Explanation: the chain behind a file in words, here and for a figure copied elsewhere."""

import shutil
import tempfile
import unittest
from pathlib import Path

from inference_lab.commands.explain import explain
from inference_lab.errors import RecordError
from inference_lab.records import receipts
from inference_lab.records.files import json_text, sha256_file
from inference_lab.records.plan import Plan
from tests import recorded

FIGURE, SUMMARY, MANIFEST = (f"results/m1/{name}" for name in ("ratios.svg", "summary.csv", "manifest.json"))


def words(file: str | Path) -> str:
    """The explanation of a file by a fresh plan."""
    return explain(Path(file), Plan(recorded.CONFIG))


class ExplainTest(unittest.TestCase):
    """A figure, a summary, a record, a stranger."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded and derived, and a copy of a figure outside of it."""
        recorded.enter(self)
        self.raw = sha256_file(Path("results/m1/raw.csv"))
        folder = self.enterContext(tempfile.TemporaryDirectory())
        self.copy = shutil.copy(FIGURE, Path(folder, "figure 1.svg"))

    def test_a_figure_names_every_link(self) -> None:
        """Summary, raw rows, machine, pins, sources and the command; a link that broke has both digests."""
        said, before = words(FIGURE), sha256_file(Path(SUMMARY))
        for expected in (
            f"{FIGURE}: sha256",
            "made by src/inference_lab/figures/ratios.py with",
            f"{SUMMARY}: sha256 {before}, holds",
            f"sha256 {self.raw}, holds",
            "on Example CPU @ 2.00GHz, 2 cores",
            "with numpy",
            "src/inference_lab/mechanisms/attention.py",
            f"rm {FIGURE} && uv run snakemake {FIGURE}",
        ):
            self.assertIn(expected, said)
        Path(SUMMARY).write_text("n\n1\n")
        self.assertRegex(words(FIGURE), f"summary.csv: DIFFERS: expected sha256 {before}")

    def test_what_is_gone_breaks_a_link_not_the_chain(self) -> None:
        """With the summary gone or the figure's receipt edited, the rest of the chain is said."""
        Path(SUMMARY).unlink()
        said = words(FIGURE)
        self.assertIn(f"{SUMMARY}: missing", said)
        self.assertIn(f"sha256 {self.raw}, holds", said)
        Path("results/m1/receipts/ratios.svg.json").write_text("{}")
        said = words(FIGURE)
        self.assertIn("receipts/ratios.svg.json was edited", said)
        self.assertIn(f"sha256 {self.raw}, holds", said)

    def test_a_record_says_how_to_measure_again(self) -> None:
        """The manifest is explained by the measurement alone, a superseded raw file by its own."""
        said = words(MANIFEST)
        self.assertIn(f"Measure it again: uv run snakemake -R {MANIFEST} --", said)
        self.assertNotIn("made by", said)
        recorded.record_m1(seed=1)
        (kept,) = Path("results/m1").glob("superseded/*/raw.csv")
        said = words(kept)
        self.assertIn("a record, not the current one", said)
        self.assertIn(f"sha256 {self.raw}, holds", said)

    def test_a_copied_figure_finds_its_record(self) -> None:
        """By its metadata: the current record, a superseded one, or none, and then what is not known."""
        raw = f"raw.csv with sha256 {self.raw}"
        said = words(self.copy)
        self.assertIn(raw, said)
        self.assertIn(f"the same bytes as {FIGURE} here", said)
        recorded.record_m1(seed=1)
        said = words(self.copy)
        self.assertRegex(said, r"recorded in results/m1/superseded/[^/]+/manifest\.json")
        self.assertIn("This record was superseded here.", said)
        shutil.rmtree("results")
        said = words(self.copy)
        self.assertIn(raw, said)
        self.assertIn("are not known", said)

    def test_a_stranger_is_refused(self) -> None:
        """What is of no record and says nothing of itself is one line of our words, with a way out."""
        Path("other.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        Path("photo.png").write_bytes(b"\x89PNG\r\n")
        Path("empty").mkdir()
        for file, said in (
            ("other.svg", "is SVG that says nothing in dc:source"),
            ("pyproject.toml", "belongs to no record of this checkout and is no whole SVG"),
            ("missing.svg", "no such file"),
            ("photo.png", "it is not UTF-8 text"),
            ("empty", "is a folder without manifest.json"),
        ):
            line = rf"^{file}: [^\[\n]*{said}[^\[\n]*; name a figure, [^\n]* copied from one$"
            with self.subTest(file), self.assertRaisesRegex(RecordError, line):
                words(file)

    def test_the_tests_are_named_or_missed(self) -> None:
        """Whether results/tests.json is that of the measurement, another, torn or gone is said."""
        passed = json_text(receipts.seal({"tests": {"a": "passed", "b": "skipped: no"}}))
        for receipt, said in (
            (None, r"results/tests\.json is missing, .* names sha256 0123"),
            ("{", r"results/tests\.json was edited and is no evidence"),
            (passed, "1 passed .* again since"),
        ):
            with self.subTest(said):
                recorded.record_m1(tests="0123")
                if receipt:
                    Path("results/tests.json").write_text(receipt)
                self.assertRegex(words(MANIFEST), f"<- tests: {said}")


if __name__ == "__main__":
    unittest.main()

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


def words(file: str | Path) -> str:
    """The explanation of a file by a fresh walk."""
    return explain(Path(file), Plan(recorded.CONFIG))


class ExplainTest(unittest.TestCase):
    """A figure, a summary, a record, a stranger."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded and derived."""
        recorded.enter(self)
        self.raw = sha256_file(Path("results/m1/raw.csv"))

    def test_a_figure_names_every_link(self) -> None:
        """Summary, raw rows, machine, conditions, pins, sources and the rebuilding command are named."""
        said = words("results/m1/ratios.svg")
        for expected in (
            "results/m1/ratios.svg: sha256",
            "made by src/inference_lab/figures/ratios.py with",
            f"results/m1/summary.csv: sha256 {sha256_file(Path('results/m1/summary.csv'))}, holds",
            f"sha256 {self.raw}, holds",
            "on Example CPU @ 2.00GHz, 2 cores",
            "with numpy",
            "src/inference_lab/mechanisms/attention.py",
            "rm results/m1/ratios.svg && uv run snakemake results/m1/ratios.svg",
        ):
            self.assertIn(expected, said)

    def test_a_broken_link_is_said(self) -> None:
        """A summary edited after the figure was drawn stands there as DIFFERS with both digests."""
        before = sha256_file(Path("results/m1/summary.csv"))
        Path("results/m1/summary.csv").write_text("n\n1\n")
        self.assertRegex(words("results/m1/ratios.svg"), f"summary.csv: DIFFERS: expected sha256 {before}")

    def test_a_record_says_how_to_measure_again(self) -> None:
        """raw.csv and the manifest are explained by the measurement alone."""
        said = words("results/m1/manifest.json")
        self.assertIn("Measure it again: uv run snakemake -R results/m1/manifest.json --", said)
        self.assertNotIn("made by", said)

    def test_a_copied_figure_finds_its_record(self) -> None:
        """An SVG copied out of the checkout names the right raw digest and the file it equals."""
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy("results/m1/ratios.svg", Path(folder, "figure 1.svg"))
            said = words(copy)
        self.assertIn(f"raw.csv with sha256 {self.raw}", said)
        self.assertIn("the same bytes as results/m1/ratios.svg here", said)

    def test_a_copied_figure_of_a_superseded_record(self) -> None:
        """When m1 was measured again, the old figure still finds its record among the superseded."""
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy("results/m1/ratios.svg", folder)
            recorded.record_m1(seed=1)
            said = words(copy)
        self.assertRegex(said, r"recorded in results/m1/superseded/[^/]+/manifest\.json")
        self.assertIn("This record was superseded here.", said)

    def test_what_it_cannot_know_is_said(self) -> None:
        """Without the record, metadata alone speaks, and it says what cannot be told."""
        with tempfile.TemporaryDirectory() as folder:
            copy = shutil.copy("results/m1/ratios.svg", folder)
            shutil.rmtree("results")
            said = words(copy)
        self.assertIn(f"raw.csv with sha256 {self.raw}", said)
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
            with self.subTest(file), self.assertRaises(RecordError) as refused:
                words(file)
            self.assertRegex(
                str(refused.exception),
                rf"^{file}: [^\[\n]*{said}[^\[\n]*; name a figure, [^\n]* copied from one$",
            )

    def test_the_tests_are_named_or_missed(self) -> None:
        """Whether results/tests.json is that of the measurement, another, torn or gone is said."""
        for receipt, said in (
            (None, r"results/tests\.json is missing, .* names sha256 0123"),
            ("{", r"results/tests\.json was edited and is no evidence"),
            (
                json_text(receipts.seal({"tests": {"a": "passed", "b": "skipped: no"}})),
                "1 passed .* again since",
            ),
        ):
            with self.subTest(said):
                recorded.record_m1(tests="0123")
                if receipt:
                    Path("results/tests.json").write_text(receipt)
                self.assertRegex(words("results/m1/manifest.json"), f"<- tests: {said}")

    def test_a_superseded_record_is_explained(self) -> None:
        """A raw file that was kept aside still says when it was measured, and whether it is whole."""
        recorded.record_m1(seed=1)
        (kept,) = Path("results/m1").glob("superseded/*/raw.csv")
        said = words(kept)
        self.assertIn("a record, not the current one", said)
        self.assertIn(f"sha256 {self.raw}, holds", said)

    def test_what_is_gone_breaks_a_link_not_the_chain(self) -> None:
        """With the summary gone or the figure's receipt edited, the rest of the chain is told."""
        Path("results/m1/summary.csv").unlink()
        said = words("results/m1/ratios.svg")
        self.assertIn("results/m1/summary.csv: missing", said)
        self.assertIn(f"sha256 {self.raw}, holds", said)
        Path("results/m1/receipts/ratios.svg.json").write_text("{}")
        said = words("results/m1/ratios.svg")
        self.assertIn("receipts/ratios.svg.json was edited", said)
        self.assertIn(f"sha256 {self.raw}, holds", said)


if __name__ == "__main__":
    unittest.main()

"""Explanation: the chain behind a file in words, here and for a figure copied elsewhere."""

import shutil
import tempfile
import unittest
from pathlib import Path

from inference_lab.errors import RecordError
from inference_lab.explanation import explain
from inference_lab.records.chain import Chain
from inference_lab.records.files import sha256_file
from tests import recorded


def words(file: str | Path) -> str:
    """The explanation of a file by a fresh walk."""
    return explain(Path(file), Chain(recorded.CONFIG))


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
            "src/inference_lab/attention.py",
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
        self.assertIn(f"raw samples with sha256 {self.raw}", said)
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
        self.assertIn(f"raw samples with sha256 {self.raw}", said)
        self.assertIn("cannot be told", said)

    def test_a_stranger_is_refused(self) -> None:
        """A file of no record that says nothing of itself is one line, not a traceback."""
        Path("other.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
        for file in ("other.svg", "pyproject.toml", "missing.svg"):
            with self.subTest(file), self.assertRaises(RecordError) as refused:
                words(file)
            self.assertNotIn("\n", str(refused.exception))


if __name__ == "__main__":
    unittest.main()

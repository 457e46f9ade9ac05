"""Does `snakemake --report` hold every figure, page and table, in a clone where no job has run?"""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SNAKEMAKE = Path(sys.executable).with_name("snakemake")


class ReportTest(unittest.TestCase):
    """One HTML file to browse."""

    def test_everything_is_listed(self) -> None:
        """Each SVG, page and table under results/ is in the report, which is made without a warning."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder, "report.html")
            done = subprocess.run(
                [SNAKEMAKE, "--report", report, "--", "all"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            )
            text = report.read_text(encoding="utf-8")
        self.assertNotIn("warning", done.stderr.lower())
        for path in sorted((ROOT / "results").glob("*/*")):
            if path.suffix in {".svg", ".md"} or path.name in {"summary.csv", "verdicts.csv"}:
                with self.subTest(path.relative_to(ROOT)):
                    self.assertIn(f'"{path.relative_to(ROOT).as_posix()}": {{"name"', text)

"""A figure's origin is read back without drawing, or refused."""

import json
import subprocess
import sys
from unittest import TestCase

from inference_lab.errors import RecordError
from inference_lab.records.forms import read_metadata, source_text

SOURCE = {
    "experiment": "m1",
    "files": {"raw.csv": "a" * 64, "summary.csv": "b" * 64},
    "command": "uv run snakemake --cores 1 results/m1/latency-p50-p95.svg",
}
SVG = '<svg xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata><dc:source>{}</dc:source></metadata></svg>'


class ReadMetadataTests(TestCase):
    """`explain` starts from what the figure says of itself."""

    def test_what_was_written_is_read_back(self) -> None:
        """The three facts, and no others."""
        self.assertEqual(read_metadata(SVG.format(source_text({**SOURCE, "more": "x"}))), SOURCE)

    def test_an_older_figure_is_read(self) -> None:
        """Before every file was named, a figure named one raw file and the summary: both are still found."""
        old = {"experiment": "m1", "raw_sha256": "a" * 64, "summary_sha256": "b" * 64, "command": "c"}
        files = {"raw": "a" * 64, "summary.csv": "b" * 64}
        self.assertEqual(read_metadata(SVG.format(json.dumps(old)))["files"], files)

    def test_a_figure_without_its_origin_is_refused(self) -> None:
        """Not SVG, cut off, no source, a source that is no JSON, not an object, or lacks a fact."""
        for text in (
            "",
            "no figure",
            SVG.format(source_text(SOURCE))[:-10],
            "<svg/>",
            SVG.format(""),
            SVG.format("drawn by hand"),
            SVG.format('["m1"]'),
            SVG.format('{"experiment": "m1", "raw_sha256": "", "summary_sha256": ""}'),
            SVG.format(source_text({**SOURCE, "command": 3})),
            SVG.format(source_text({**SOURCE, "files": {}})),
            SVG.format(source_text({**SOURCE, "files": {"raw.csv": 3}})),
            SVG.format("[" * 100_000),
        ):
            with self.subTest(text), self.assertRaisesRegex(RecordError, r"\Ais (no whole )?SVG[^\n]*\Z"):
                read_metadata(text)

    def test_reading_needs_no_matplotlib(self) -> None:
        """`explain` starts fast: the reader imports nothing that draws."""
        code = "import sys, inference_lab.records.forms; print('matplotlib' in sys.modules)"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.strip(), "False")

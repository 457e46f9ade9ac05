"""The figure of tokens per GiB."""

import re
import unittest
from typing import Any
from xml.etree import ElementTree

from inference_lab.analysis.summary_table import View
from inference_lab.config.sections import read_measure
from inference_lab.errors import RecordError
from inference_lab.experiments.capacity import rows
from inference_lab.figures.capacity import draw
from inference_lab.records.record import Record
from inference_lab.records.svg import read_metadata
from tests.checkout import judge_of

SECTION: Any = read_measure(
    {
        "by": "capacity",
        "vary": {"dtype": ["float32", "float16", "bfloat16"]},
        "fixed": {"block_size": 16, "sequence_length": 1000},
    },
    "a test",
)
SOURCE = {
    "experiment": "m2_capacity",
    "files": {"raw.csv": "c" * 64, "summary.csv": "e" * 64},
    "command": "rebuild it",
}


def drawn(summary: list[dict[str, str]]) -> str:
    """The figure of these rows."""
    return draw(View(Record("m2_capacity", {}, None, None, summary), summary, judge_of(), SOURCE))


def places(svg: str, gid: str) -> list[float]:
    """The x of every mark of one dtype, bottom to top."""
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        if group.get("id") == gid:
            return [float(use.get("x", "nan")) for use in group.iter("{http://www.w3.org/2000/svg}use")]
    raise AssertionError(f"no group {gid}")


class CapacityFigureTest(unittest.TestCase):
    """What a reader sees."""

    def test_one_mark_a_model_in_order_and_doubling(self) -> None:
        """Marks rise from the model of fewest tokens; float16 stands one octave right of float32."""
        svg = drawn(rows(SECTION))
        one, half = (places(svg, f"tokens-{name}") for name in ("float32", "float16-bfloat16"))
        self.assertEqual(len(one), 11)
        self.assertEqual(one, sorted(one))
        shifts = [b - a for a, b in zip(one, half, strict=True)]
        self.assertGreater(min(shifts), 0)
        self.assertLess(max(shifts) - min(shifts), 0.5)  # floor() moves a mark by far less than a point

    def test_words(self) -> None:
        """Models with their layers, heads and width, dtypes that share a mark, and the origin."""
        svg = drawn(rows(SECTION))
        words = " ".join(re.findall("<!-- (.*?) -->", svg))
        for said in ("Gemma-2B   18 · 1 · 256", "float16, bfloat16", "tokens of keys and values in one GiB"):
            self.assertIn(said, words)
        self.assertIn("c" * 64, str(read_metadata(svg)))

    def test_same_rows_same_bytes(self) -> None:
        """Drawn twice, byte for byte the same."""
        self.assertEqual(drawn(rows(SECTION)), drawn(rows(SECTION)))

    def test_a_model_without_a_dtype_is_refused(self) -> None:
        """A row missing from the summary is named, not drawn around."""
        with self.assertRaisesRegex(RecordError, "model phi-4 has dtypes float32, float16, the first"):
            drawn(rows(SECTION)[:-1])


if __name__ == "__main__":
    unittest.main()

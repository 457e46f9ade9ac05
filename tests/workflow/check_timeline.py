"""The timeline: every request of a record, where it waited, and both sides' counts below."""

import re
import unittest
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.figures.timeline import MOST_TICKS, draw
from inference_lab.records.record import Record
from inference_lab.records.svg import read_metadata
from tests.checkout import judge_of
from tests.loads import MS, record, request, session

SOURCE = {
    "experiment": "p2",
    "files": {"raw.csv": "c" * 64, "summary.csv": "e" * 64},
    "command": "rebuild it",
}
SVG = "{http://www.w3.org/2000/svg}"


def drawn(found: Record, **judge: Any) -> str:
    """The figure of a record."""
    return draw(
        View(
            found, summary_rows(summarise(found, judge_of(**judge)), "summary.csv"), judge_of(**judge), SOURCE
        )
    )


def group(svg: str, gid: str) -> ElementTree.Element | None:
    """What was drawn under a name."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return next((each for each in groups if each.get("id") == gid), None)


def lines(svg: str, gid: str) -> int:
    """How many separate lines were drawn under a name."""
    found = group(svg, gid)
    assert found is not None, gid
    return sum(path.get("d", "").count("M") for path in found.iter(f"{SVG}path"))


def marks(svg: str, gid: str) -> int:
    """How many marks were drawn under a name."""
    found = group(svg, gid)
    return 0 if found is None else len(list(found.iter(f"{SVG}use")))


def words(svg: str) -> str:
    """The text of a figure, which is drawn as paths."""
    return " ".join(re.findall("<!-- (.*?) -->", svg))


class TestTimeline(unittest.TestCase):
    """What a reader sees."""

    def both(self) -> Record:
        """Two setups by simulation and HTTP, each with two requests and a step of two."""
        cells = [
            {"setup": setup, "transport": transport}
            for setup in ("one", "two")
            for transport in ("simulation", "http")
        ]
        names = ["-".join(cell.values()) for cell in cells]
        steps = [{**cell, "batch": "2", "started_ns": "0", "ended_ns": str(20 * MS)} for cell in cells]
        return record(
            [request(n, n, name=f"{name}/") for name in names for n in (0, 1)],
            *(session(f"{name}/", cell=cell) for name, cell in zip(names, cells, strict=True)),
            rows=steps,
        )

    def test_every_request_and_token_is_drawn(self) -> None:
        """In each cell: a line for each wait of each request, a tick a token, an end each."""
        svg = drawn(self.both(), window="all")
        for cell in ("one-simulation", "two-http"):
            counted = [lines(svg, f"{name}-{cell}") for name in ("gate", "sent", "stream", "tokens")]
            self.assertEqual(counted, [2, 2, 2, 6], cell)
            self.assertEqual((marks(svg, f"ok-{cell}"), marks(svg, f"failed-{cell}")), (2, 0))
            self.assertEqual(lines(svg, f"batch-{cell}"), 1)
            self.assertEqual(lines(svg, f"in-flight-{cell}"), 1)

    def test_a_request_is_drawn_as_far_as_it_came(self) -> None:
        """Refused at the gate: one line and a cross; failed before a token: two lines and a cross."""
        refused = request(0, tokens=(), admitted_ns=None, sent_ns=None, status="cancelled", http_status=None)
        failed = request(1, tokens=(), status="timeout")
        svg = drawn(record([refused, failed]))
        self.assertEqual([lines(svg, f"{name}-load") for name in ("gate", "sent")], [2, 1])
        self.assertEqual((marks(svg, "failed-load"), marks(svg, "ok-load")), (2, 0))

    def test_the_steady_window_is_shaded(self) -> None:
        """Where there is one; a run too short for one says so instead."""
        requests: Sequence[Any] = [request(n, 10 * n) for n in range(6)]
        self.assertIsNotNone(group(drawn(record(requests, session(concurrency=2))), "window-load"))
        short = drawn(record(requests, session(concurrency=6)))
        self.assertIsNone(group(short, "window-load"))
        self.assertIn("too short for a steady window", words(short))
        self.assertIsNone(group(drawn(record(requests, session(concurrency=2)), window="all"), "window-load"))

    def test_flags_are_told(self) -> None:
        """A flagged record says that its times make no claim."""
        svg = drawn(record([request(0, max_read_lag_ns=30 * MS)]), max_client_lag_ms=10)
        self.assertIn("no claim about times is made: client-limited", words(svg))

    def test_a_long_load_shows_streams_without_tokens(self) -> None:
        """Too many tokens to tell apart are left out; the streams stay."""
        svg = drawn(record([request(0, tokens=range(1, MOST_TICKS + 2))]))
        self.assertEqual((lines(svg, "stream-load"), group(svg, "tokens-load")), (1, None))

    def test_it_names_its_origin(self) -> None:
        """The metadata of the figure is the source it was drawn from."""
        self.assertEqual(read_metadata(drawn(self.both())), SOURCE)

"""The timeline: every request of a record, where it waited, and both sides' counts below."""

import math
import unittest
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.errors import ConfigError
from inference_lab.figures.timeline import END, FAILED, MOST_TICKS, draw
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.figures.views import SOURCE, words
from tests.loads import MS, record, request, session


def drawn(found: Record, **judge: Any) -> Figure:
    """The figure of a record."""
    rows = summary_rows(summarise(found, judge_of(**judge)), "summary.csv")
    return draw.figure(View(found, rows, judge_of(**judge), SOURCE))


def pieces(panel: Axes) -> list[int]:
    """How many separate lines there are of waiting at the gate, sent, streams, and tokens where drawn."""
    counts: list[int] = []
    for line in panel.get_lines():
        if line.get_marker() == "None":
            ys = [float(y) for y in list(line.get_ydata())]  # pyright: ignore
            counts.append(sum(math.isnan(y) for y in ys))
    return counts


def ends(panel: Axes) -> tuple[int, int]:
    """How many requests ended with and without success."""
    ok, failed = (
        sum(len(list(line.get_xdata())) for line in panel.get_lines() if line.get_marker() == mark.marker)  # pyright: ignore
        for mark in (END, FAILED)
    )
    return ok, failed


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
        """In each cell: a line for each wait of each request, a tick per token, an end each; both counts."""
        panels = drawn(self.both(), window="all").axes
        requests, counts = panels[:1] + panels[4:5] + panels[2:3] + panels[6:7], panels[1:2]
        for panel in requests:
            self.assertEqual((pieces(panel), ends(panel)), ([2, 2, 2, 6], (2, 0)))
        in_flight, batch = ([float(y) for y in list(x.get_ydata())] for x in counts[0].get_lines())  # pyright: ignore
        self.assertEqual((max(in_flight), batch), (2, [2, 2]))

    def test_a_request_is_drawn_as_far_as_it_came(self) -> None:
        """Refused at the gate: one line and a cross; failed before a token: two lines and a cross."""
        refused = request(0, tokens=(), admitted_ns=None, sent_ns=None, status="cancelled", http_status=None)
        failed = request(1, tokens=(), status="timeout")
        panel = drawn(record([refused, failed])).axes[0]
        self.assertEqual((pieces(panel)[:2], ends(panel)), ([2, 1], (0, 2)))

    def test_the_steady_window_is_shaded(self) -> None:
        """Where there is one; a run too short for one says so instead."""
        requests: Sequence[Any] = [request(n, 10 * n) for n in range(6)]
        for concurrency, judge, shaded in ((2, {}, 1), (6, {}, 0), (2, {"window": "all"}, 0)):
            figure = drawn(record(requests, session(concurrency=concurrency)), **judge)
            self.assertEqual(len(figure.axes[0].patches), shaded)
            self.assertEqual("too short for a steady window" in words(figure), concurrency == 6)

    def test_flags_are_named(self) -> None:
        """A flagged record says that its times make no claim."""
        figure = drawn(record([request(0, max_read_lag_ns=30 * MS)]), max_client_lag_ms=10)
        self.assertIn("no claim about times is made: client-limited", words(figure))

    def test_a_long_load_shows_streams_without_tokens(self) -> None:
        """Too many tokens to tell apart are left out; the streams stay."""
        panel = drawn(record([request(0, tokens=range(1, MOST_TICKS + 2))])).axes[0]
        self.assertEqual(pieces(panel), [1, 1, 1])

    def test_one_load_alone(self) -> None:
        """`judge.shown` leaves the first load of that value; a value that was not loaded is refused."""
        names = {1: "a/", 2: "b/", 3: "b2/"}
        cells = [session(name, cell={"concurrency": min(n, 2)}) for n, name in names.items()]
        made = record([request(n, name=name) for name in names.values() for n in range(3)], *cells)
        figure = drawn(made, shown={"concurrency": 2}, window="all")
        self.assertEqual((len(figure.axes), pieces(figure.axes[0])[0]), (2, 3))
        with self.assertRaisesRegex(ConfigError, "judge.shown is .*'3'"):
            drawn(made, shown={"concurrency": 3})

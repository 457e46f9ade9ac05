"""The figure of the calibration: errors, lateness and cost over the number of streams."""

import unittest
from typing import Any

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.errors import RecordError
from inference_lab.figures.client_error import draw
from inference_lab.figures.style import MARKS
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.figures.views import SOURCE, estimates, words
from tests.loads import record, request, session, truth


def calibrated(**judge: Any) -> View:
    """Two paths at 1 and 4 streams; the user's stamps are later by a changing 1 ms."""
    requests, written, sessions = [], [], []
    for path, late in (("kernel", (0.01, 0.02, 0.03)), ("user", (1.0, 0.5, 1.5))):
        for streams in (1, 4):
            name = f"{path}/{streams}/"
            seen = request(0, name=name)
            requests.append(seen)
            written.append(truth(seen, late=late, received=0.02))
            cell = {"path": path, "streams": streams}
            sessions.append(session(name, cell=cell, client_cpu_ns=60_000))
    found: Record = record(requests, *sessions, truth=written)
    return View(
        found, summary_rows(summarise(found, judge_of(**judge)), "summary.csv"), judge_of(**judge), SOURCE
    )


class TestClientError(unittest.TestCase):
    """What a reader sees."""

    def test_a_mark_for_every_cell(self) -> None:
        """Each metric that was measured has a panel with a mark per path and number of streams."""
        panels = {panel.get_ylabel().split("\n")[0]: panel for panel in draw.figure(calibrated()).axes}
        self.assertEqual(list(panels), ["ITL error", "TTFT error", "read late", "coalesced", "CPU"])
        for name, panel in panels.items():
            marks = [estimates(panel, mark) for mark in MARKS[:2]]
            self.assertEqual([len(places) for places in marks], [2, 2], name)
        kernel, user = ([y for _, y in estimates(panels["ITL error"], mark)] for mark in MARKS[:2])
        self.assertGreater(min(user), max(kernel))

    def test_words(self) -> None:
        """Units, what the paths are, and flags where there are any."""
        said = words(draw.figure(calibrated()))
        for text in ("ITL error", "ms, log scale", "µs per token", "stamps of the read", "streams at once"):
            self.assertIn(text, said)
        self.assertNotIn("flagged", said)
        flagged = words(draw.figure(calibrated(max_client_lag_ms=0.001)))
        self.assertIn("flagged, no claim is made: client-limited", flagged)

    def test_only_a_calibration_can_be_drawn(self) -> None:
        """A summary over anything else is refused."""
        found = record([request(0)])
        view = View(found, summary_rows(summarise(found, judge_of()), "summary.csv"), judge_of(), SOURCE)
        with self.assertRaisesRegex(RecordError, "no columns path and streams"):
            draw(view)

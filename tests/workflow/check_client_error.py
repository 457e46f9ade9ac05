"""The figure of the calibration: errors, lateness and cost over the number of streams."""

import re
import unittest
from typing import Any
from xml.etree import ElementTree

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.errors import RecordError
from inference_lab.figures.client_error import draw
from inference_lab.records.record import Record
from tests.checkout import judge_of
from tests.loads import record, request, session, truth

SOURCE = {"experiment": "c", "files": {"raw.csv": "c" * 64, "summary.csv": "e" * 64}, "command": "rebuild it"}


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


def heights(svg: str, metric: str) -> dict[str, float]:
    """How high each mark of a metric stands, by path and streams."""
    found: dict[str, float] = {}
    for group in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        if (name := group.get("id", "")).startswith(f"{metric}-"):
            (mark,) = group.iter("{http://www.w3.org/2000/svg}use")
            found[name.removeprefix(f"{metric}-")] = -float(mark.get("y", "nan"))
    return found


class TestClientError(unittest.TestCase):
    """What a reader sees."""

    def test_a_mark_for_every_cell(self) -> None:
        """Each metric that was measured has a mark a path and number of streams; a larger error is higher."""
        svg = draw(calibrated())
        for metric in ("token_error", "ttft_error", "client_lag", "client_cpu_a_token"):
            self.assertEqual(set(heights(svg, metric)), {"kernel-1", "kernel-4", "user-1", "user-4"}, metric)
        errors = heights(svg, "token_error")
        self.assertGreater(errors["user-4"], errors["kernel-4"])
        self.assertEqual(heights(svg, "slip"), {})

    def test_words(self) -> None:
        """Units, what the paths are, and flags where there are any."""
        said = " ".join(re.findall("<!-- (.*?) -->", draw(calibrated())))
        for words in ("ITL error", "ms, log scale", "µs a token", "stamps of the read", "streams at once"):
            self.assertIn(words, said)
        self.assertNotIn("flagged", said)
        flagged = " ".join(re.findall("<!-- (.*?) -->", draw(calibrated(max_client_lag_ms=0.001))))
        self.assertIn("flagged, no claim is made: client-limited", flagged)

    def test_only_a_calibration_can_be_drawn(self) -> None:
        """A summary over anything else is refused."""
        found = record([request(0)])
        view = View(found, summary_rows(summarise(found, judge_of()), "summary.csv"), judge_of(), SOURCE)
        with self.assertRaisesRegex(RecordError, "no columns path and streams"):
            draw(view)

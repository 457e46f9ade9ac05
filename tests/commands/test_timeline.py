"""Is the trace that Perfetto opens what was recorded, request by request?"""

import unittest
from collections import defaultdict

from inference_lab.commands.timeline import Event, trace
from tests import loads


class TraceTest(unittest.TestCase):
    """Made-up loads whose times are known, in ms."""

    def setUp(self) -> None:
        """Two requests that overlap, one after them, one that failed before it was sent."""
        failed = loads.request(3, 300, tokens=(), status="connect_error", sent_ns=None)
        requests = [loads.request(0, 10), loads.request(1, 20), loads.request(2, 200), failed]
        self.events = trace(loads.record(requests, loads.session()))

    def of(self, kind: str) -> list[Event]:
        """The events of a kind: X spans, C counters, M names."""
        return [event for event in self.events if event["ph"] == kind]

    def test_phases_fill_a_request(self) -> None:
        """Queue, connect, prefill and decode follow each other to the end; what was not sent has no more."""
        phases = {"queue": (0, 1), "connect": (1, 1), "prefill": (2, 30), "decode": (32, 21)}
        first = {
            e["name"]: (e["ts"] / 1e3, e["dur"] / 1e3)
            for e in self.of("X")
            if e["ts"] < 40e3 and e["tid"] == 1
        }
        self.assertEqual(first, {"r000000": (0, 53), **phases})
        self.assertEqual([e["name"] for e in self.of("X") if e["ts"] >= 290e3], ["r000003", "queue"])

    def test_no_two_requests_share_a_lane_at_once(self) -> None:
        """A request takes the lowest lane that is free."""
        lanes = defaultdict[int, list[str]](list)
        for event in self.of("X"):
            if event["name"].startswith("r0"):
                lanes[event["tid"]].append(event["name"])
        self.assertEqual(dict(lanes), {1: ["r000000", "r000002", "r000003"], 2: ["r000001"]})

    def test_how_many_are_in_flight(self) -> None:
        """The counter goes up at each admission and down at each end, to 0."""
        self.assertEqual([e["args"]["value"] for e in self.of("C")], [1, 2, 1, 0, 1, 0, 1, 0])

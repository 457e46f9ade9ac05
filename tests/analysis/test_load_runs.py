"""Who belongs to a run, which of its requests are measured, and how many were in flight."""

import unittest
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.analysis.load_runs import in_flight_over_time, peak_in_flight, runs_of, steady_window
from inference_lab.errors import RecordError
from tests.loads import MS, record, request, session


class TestRuns(unittest.TestCase):
    """Requests and their sessions."""

    def test_a_request_belongs_to_the_longest_name(self) -> None:
        """A session whose name begins another's takes none of its requests; cells are text."""
        sessions = (session("a/", cell={"streams": 1}), session("a/b/", cell={"streams": 16}))
        made = [request(0, name="a/"), request(0, name="a/b/"), request(1, name="a/b/")]
        first, second = runs_of(record(made, *sessions), steady=False)
        self.assertEqual([r.request_id for r in first.requests], ["a/000000"])
        self.assertEqual(len(second.requests), 2)
        self.assertEqual((first.cell, second.cell), ({"streams": "1"}, {"streams": "16"}))
        with self.assertRaisesRegex(RecordError, "request c000000 is of no session"):
            runs_of(record([request(0, name="c")], *sessions), steady=False)

    def test_what_of_a_run_counts(self) -> None:
        """An attempt made again is measured by its last one; a failure is measured and has not succeeded."""
        failed = request(0, tokens=(), status="http_error", http_status=500)
        (run,) = runs_of(record([failed, replace(request(0), attempt=2)]), steady=False)
        self.assertEqual((len(run.attempts), [r.attempt for r in run.requests]), (2, [2]))
        (run,) = runs_of(record([request(0), request(1, 5, status="truncated")]), steady=False)
        self.assertEqual((len(run.measured), len(run.succeeded)), (2, 1))
        (run,) = runs_of(record([]), steady=True)
        self.assertEqual((run.measured, run.span, run.duration_s), ([], None, None))

    def test_a_request_lies_in_the_time_of_its_session(self) -> None:
        """One that arrived before its client was launched, or ended after it did, is of no such load."""
        client = session(launched_ns=0, start_ns=9 * MS, end_ns=99 * MS)
        for arrival in (0, 46):  # each request is 53 ms long
            runs_of(record([request(0, arrival)], client), steady=False)
        for arrival in (-1, 47):
            with self.assertRaisesRegex(RecordError, "r000000 lies outside of its session"):
                runs_of(record([request(0, arrival)], client), steady=False)
        # What a killed session of a load recorded stays, and only the session that went on is known.
        runs_of(record([request(0, 0)], session(start_ns=50 * MS, end_ns=52 * MS)), steady=False)


class TestWindow(unittest.TestCase):
    """From the first time the gate is full to the last new arrival."""

    def test_the_steady_window(self) -> None:
        """It begins with the admission that fills the gate and holds what arrives from then on."""
        requests = [request(n, 10 * n) for n in range(6)]  # each 53 ms long: 2 in flight from 11 ms on
        self.assertEqual(steady_window(requests, 2), ((11 * MS, 50 * MS), ""))
        (run,) = runs_of(record(requests, session(concurrency=2)), steady=True)
        self.assertEqual(len(run.measured), 4)
        self.assertEqual(run.duration_s, (run.measured[-1].finish_ns - 20 * MS) / 1e9)
        (run,) = runs_of(record(requests, session(concurrency=2)), steady=False)
        self.assertEqual(len(run.measured), 6)

    def test_all_requests_are_the_window(self) -> None:
        """Without a gate; and, with a note, where it never fills or for fewer arrivals than it holds."""
        self.assertEqual(steady_window([request(n, n) for n in range(3)], None), ((0, 2 * MS), ""))
        for gate, count in ((7, 6), (2, 2)):
            window, note = steady_window([request(n, 10 * n) for n in range(count)], gate)
            self.assertEqual(window, (0, 10 * (count - 1) * MS))
            self.assertIn("too short for a steady window", note)


class TestInFlight(unittest.TestCase):
    """Requests between admission and end."""

    def test_an_end_frees_the_gate_for_an_admission_of_the_same_ns(self) -> None:
        """Two requests that touch in one ns were never in flight together."""
        first = request(0, 0)
        second = request(1, first.finish_ns / MS - 1)
        self.assertEqual(second.admitted_ns, first.finish_ns)
        self.assertEqual(peak_in_flight([first, second]), 1)
        self.assertEqual(peak_in_flight([request(0, tokens=(), admitted_ns=None, sent_ns=None)]), 0)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=12))
    def test_against_counting(self, made: list[tuple[int, int]]) -> None:
        """At every event the number is that of the requests whose span holds it, counted one by one."""
        requests = [request(n, at, tokens=(length,)) for n, (at, length) in enumerate(made)]
        spans = [(r.admitted_ns or 0, r.finish_ns) for r in requests]
        last = dict(in_flight_over_time(requests))
        for at, now in last.items():
            self.assertEqual(now, sum(begin <= at < end for begin, end in spans))
        most = max((sum(b <= at < e for b, e in spans) for at, _ in spans), default=0)
        self.assertEqual(peak_in_flight(requests), most)

"""Client and server of one load, held against each other and against themselves."""

import re
import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from inference_lab.analysis.summary_table import CODES, SummaryRow
from inference_lab.analysis.two_sides import CLOCK_NS
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.stream_load.requests import RequestRecord
from tests.checkout import ROOT
from tests.loads import MS, flags, record, request, row, rows_of, session, step, truth

S = 1000.0
Rows = Sequence[SummaryRow]


def stream(number: int = 0, arrival: float = 0, *, pause: float = 0, **changes: Any) -> RequestRecord:
    """20 tokens, 10 ms apart after 30, with a pause after the tenth."""
    tokens = [30 + 10 * n + (pause if n >= 10 else 0) for n in range(20)]
    return request(number, arrival, tokens=tokens, **changes)


def whole(found: Record) -> Rows:
    """The summary of a load, all of whose requests are measured."""
    return rows_of(found, window="all")


class TwoSides(unittest.TestCase):
    """Rows with the flags they deserve."""

    def assert_flags(self, rows: Rows, cell: Mapping[str, str] | None = None, **expected: str) -> None:
        """Each of these metrics has this flag, "" for none."""
        found = {metric: row(rows, metric, **(cell or {}))["flags"] for metric in expected}
        self.assertEqual(found, expected)


class ClientTest(TwoSides):
    """What the client's record says against itself."""

    def test_tokens_that_lay_unread_flag_their_times(self) -> None:
        """First tokens read with the second ones flag TTFT, not ITL; later ones the other way round."""
        late = {"censored_chunks": (0, 2), "coalesced_reads": 1}
        made = [stream(n, 500 * n) for n in range(20)]
        made += [request(n, 500 * n, tokens=(40, 40, 50), **late) for n in range(20, 22)]
        rows = whole(record(made))
        self.assert_flags(rows, ttft="client-limited", itl="", ok="")
        self.assertIn("9.09% of the first tokens lay unread", row(rows, "ttft")["advice"])
        late = {"censored_chunks": (1,), "coalesced_reads": 1}
        made = [request(n, 99 * n, tokens=(30, 50, 50), **late) for n in range(9)]
        self.assert_flags(whole(record(made)), itl="client-limited", ttft="")
        # The last token is always read with the end of its stream, and that is no lateness.
        alone = [request(n, 500 * n, censored_chunks=(2,)) for n in range(9)]
        self.assertEqual(flags(whole(record(alone))), set())

    def test_a_client_that_stood_still_once(self) -> None:
        """One read that came more than a second late is flagged, whatever is allowed and however rare."""
        for lag, expected in ((900, set[str]()), (20_000, {"client-limited"})):
            made = [stream(n, 500 * n, max_read_lag_ns=(lag if n == 7 else 1) * MS) for n in range(300)]
            self.assertEqual(flags(whole(record(made))), expected)

    def test_an_end_before_its_events_is_no_record(self) -> None:
        """A request that ends before it arrived, was sent or got its last token cannot be read or written."""
        end, order = "before its last event", "schedule, arrival, admission, sending must follow"
        for wrong, message in (
            ({"end": -100.0}, end),
            ({"end": -0.001}, end),
            ({"tokens": (), "status": "timeout", "finish_ns": 1}, end),
            ({"scheduled_ns": 1}, order),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(RecordError, message):
                request(0, **wrong)
        request(0, end=0)


class CalibrationTest(TwoSides):
    """What two records of the same tokens say of each other."""

    def calibrated(
        self, late: Mapping[tuple[int, int], float], written: Sequence[Any] = (), rows: Sequence[Any] = ()
    ) -> Rows:
        """Two cells of three rounds; in those named the client's first token is late by so many ms."""
        requests: list[RequestRecord] = []
        told, sessions = list(written), list[dict[str, Any]]()
        for streams, round_ in ((streams, round_) for streams in (1, 16) for round_ in range(3)):
            name, cell = f"kernel/{streams}/{round_}/", {"path": "kernel", "streams": streams}
            seen = [stream(number, 1000 * number, name=name) for number in range(4)]
            requests += seen
            by = [late.get((streams, round_), 0.02), *[0.02] * 19]
            told += [truth(one, late=by) for one in seen]
            sessions.append(session(name, cell=cell, start_ns=0, end_ns=9000 * MS))
        vary = {"by": "calibration", "vary": {"streams": [1, 16]}, "fixed": {"ttft_ms": 20, "itl_ms": 10}}
        return whole(record(requests, *sessions, truth=told, rows=rows, conditions=vary))

    def test_a_run_that_stands_out_is_named(self) -> None:
        """An error far from that of the runs beside it flags the error's rows, and names the run."""
        rows = self.calibrated({(16, 1): 12})
        out = ("ttft_error", "ttft_error_p99", "ttft_error_mean", "token_error")
        self.assert_flags(rows, {"streams": "16"}, **dict.fromkeys(out, "stands-out"), ttft="")
        advice = row(rows, "ttft_error", streams="16")["advice"]
        self.assertIn("kernel/16/1/ has a P99 of ttft_error of 12", advice)
        self.assertEqual({each["flags"] for each in rows if each["streams"] == "1"}, {""})

    def test_what_all_have_stands_out_nowhere(self) -> None:
        """An error that every run beside it has too is a finding; one below a millisecond is none."""
        every = {(streams, number): 12.0 for streams in (1, 16) for number in range(3)}
        self.assertEqual(flags(self.calibrated(every)), set())
        self.assertEqual(flags(self.calibrated({(16, 1): 0.9})), set())

    def test_nothing_arrives_before_it_was_written(self) -> None:
        """By more than clocks may differ it is a contradiction, by less it is not."""
        for early, expected in ((2 * CLOCK_NS / MS, "two-sides"), (CLOCK_NS / MS / 2, "")):
            rows = self.calibrated({(1, 0): -early})
            self.assert_flags(rows, {"streams": "1"}, itl=expected)
            self.assert_flags(rows, {"streams": "16"}, itl="")

    def test_requests_of_others_in_the_truth(self) -> None:
        """What the server wrote of a request that no client made flags the cells of that time."""
        rows = self.calibrated({}, written=[{"request_id": "", "received_ns": 5, "token_ns": [6]}])
        self.assertEqual({each["flags"] for each in rows}, {"two-sides"})
        self.assertIn("wrote of 1 requests that no client of this record made", rows[0]["advice"])

    def test_a_server_behind_its_schedule(self) -> None:
        """Steps later than a step flag times and rates; how far the two sides are apart stays a finding."""
        for lasts, late in ((19, ""), (21, "server-late")):
            steps = [step(n, lasts, path="kernel", streams=s) for n in range(50) for s in ("1", "16")]
            rows = self.calibrated({}, rows=steps)
            expected = {"itl": late, "requests_per_s": late, "token_error": "", "server_itl": ""}
            self.assert_flags(rows, {"streams": "16"}, **expected)

    def test_other_stamps_than_the_cell_is_about(self) -> None:
        """A calibration of the kernel's stamps whose requests bear those of the read claims no time."""
        made = [stream(n, 500 * n, clock="user") for n in range(3)]
        facts = session(cell={"path": "kernel"}, clock={"asked": "kernel", "stamps": "user"})
        self.assert_flags(whole(record(made, facts)), itl="stamps", ok="")


class SilenceTest(TwoSides):
    """A side that stood still."""

    def silent(self, pause: float, steps: Sequence[dict[str, str]] = ()) -> Rows:
        """A load of four streams, all of which paused in their middle."""
        made = [stream(n, n, pause=pause, name="a/") for n in range(4)]
        return whole(record(made, session("a/"), rows=steps))

    def test_a_stopped_server_is_flagged(self) -> None:
        """20 s without anything for anybody flag times and rates, and no count; half a second does not."""
        rows = self.silent(20 * S)
        self.assert_flags(rows, itl="server-late", output_tokens_per_s="server-late", ok="")
        for words in ("got anything for 20 s, 10 times", "the server, or the way to it, stood still"):
            self.assertIn(words, row(rows, "itl")["advice"])
        self.assertEqual(flags(self.silent(0.5 * S)), set())

    def test_steps_tell_who_stood_still(self) -> None:
        """An engine that went on meanwhile says that it was the client; one with the same gap, the server."""
        before = [step(10 * n, load="a/") for n in range(13)]
        rows = self.silent(20 * S, [*before, step(20_130, load="a/")])
        self.assertIn("; the server stood still", row(rows, "itl")["advice"])
        rows = self.silent(20 * S, [*before, *(step(130 + 10 * n, load="a/") for n in range(99))])
        self.assert_flags(rows, itl="client-limited")
        self.assertIn("the client stood still", row(rows, "itl")["advice"])

    def test_slow_is_not_silent(self) -> None:
        """A server that always takes long, for first tokens or for all, or a client that rests: no flag."""
        for made in (
            [request(n, 6000 * n, tokens=(5000, 5010, 5020)) for n in range(4)],
            [request(n, n, tokens=[30, *(30 + 2000 * t for t in range(1, 9))]) for n in range(4)],
            [stream(n, 60_000 * n) for n in range(4)],
            [request(0, tokens=(5000, 5010, 5020))],  # one silence has nothing to be longer than
        ):
            self.assertEqual(flags(whole(record(made))), set())
        made = [stream(n, 1000 * n) for n in range(9)]  # where others waited 30 ms
        made.append(request(9, 9000, tokens=(20_000, 20_010)))
        self.assertEqual(flags(whole(record(made))), {"server-late"})


class CountsTest(TwoSides):
    """What the server's own counters say of a load."""

    def scraped(
        self, grown: Mapping[str, float] | None, *, kind: str = "vllm", batch: int = 2, **changes: Any
    ) -> Rows:
        """A load of two requests with three tokens each; counters began at 100 and grew so much."""
        made = [request(n, name="a/", **{"usage": {"completion_tokens": 3}, **changes}) for n in (0, 1)]
        lines = [
            {"load": "a/", "cell": {}, "phase": phase, "at_ns": at * MS}
            | {"metrics": None if grown is None else {name: 100 + times * by for name, by in grown.items()}}
            for phase, at, times in (("before", 0, 0), ("after", 100, 1))
        ]
        facts = session("a/", server=0, requests_before=0)
        servers = [{"server": 0, "settings": {}, "facts": {"kind": kind}}]
        steps = [step(decodes=batch, load="a/")]
        return whole(record(made, facts, server=lines, rows=steps, servers=servers))

    def test_both_sides_count_the_same(self) -> None:
        """Equal counts are no doubt; more than the client sent or got are others', less is another server."""
        finished, tokens = "request_success_total", "generation_tokens_total"
        for grown, words in (
            ({finished: 2, tokens: 6}, None),
            ({}, None),
            ({finished: 3}, "finished 3 requests, this client sent 2: requests of others"),
            ({finished: 1}, "finished 1 requests, this client saw 2 succeed: its counters began anew"),
            ({finished: -90}, "its counters began anew"),
            ({tokens: 7}, "counted 7 tokens, this client got 6: requests of others"),
            ({tokens: 5}, "counted 5 tokens, this client got 6: its counters began anew"),
        ):
            with self.subTest(grown):
                rows = self.scraped(grown)
                self.assertEqual({each["flags"] for each in rows}, {"two-sides" if words else ""})
                self.assertIn(words or "", row(rows, "ttft")["advice"])

    def test_usage_is_what_the_server_counted(self) -> None:
        """Tokens that it did not show are in its usage and its counters; without usage nobody knows."""
        for usage in (*({"completion_tokens": tokens} for tokens in (40, "40", 40.5)), None):
            self.assertEqual(flags(self.scraped({"generation_tokens_total": 80}, usage=usage)), set())

    def test_what_a_client_gave_up_may_have_been_finished(self) -> None:
        """Of failed requests, and of those sent twice, the server may count more, and no more than sent."""
        failed, twice = {"status": "timeout", "tokens": ()}, {"resent": 1}
        for how, most, expected in (
            *((failed, 2, ""), (failed, 0, ""), (failed, 3, "two-sides")),
            *((twice, 4, ""), (twice, 5, "two-sides")),
        ):
            rows = self.scraped({"request_success_total": most}, **how)
            self.assertEqual({each["flags"] for each in rows}, {expected})

    def test_a_step_with_more_than_were_in_flight(self) -> None:
        """Three in a step, of two that were sent, are requests of others."""
        rows = self.scraped({}, batch=3)
        self.assertIn("a step held 3 requests, and at most 2 were in flight here", row(rows, "ok")["advice"])
        self.assertEqual({each["flags"] for each in rows}, {"two-sides"})

    def test_pages_that_are_missing(self) -> None:
        """A server of ours that answered no page is flagged; one that has no such page has a note."""
        self.assertEqual({each["flags"] for each in self.scraped(None)}, {"unscraped"})
        rows = self.scraped(None, kind="external")
        self.assertEqual(flags(rows), set())
        self.assertIn("what the server counted is not known", row(rows, "measured")["advice"])

    def test_a_gap_in_the_scrapes(self) -> None:
        """Pages much farther apart than asked leave peaks unknown, and nothing else."""
        made = [stream(n, name="a/") for n in (0, 1)]
        for last, expected in ((4.9, ""), (5.1, "unscraped")):
            at_s = ((0, "before"), (0.5, "sample"), (0.5 + last, "after"))
            page = {"load": "a/", "metrics": {"num_requests_waiting": 1}}
            lines = [{**page, "phase": phase, "at_ns": round(at * S * MS)} for at, phase in at_s]
            conditions = {"vary": {}, "sample_s": 0.5}
            rows = whole(record(made, session("a/"), server=lines, conditions=conditions))
            self.assert_flags(rows, peak_waiting=expected, itl="")

    def test_every_flag_has_its_place(self) -> None:
        """A code that the table does not know would vanish; what each means is in the glossary."""
        rules = (ROOT / "src/inference_lab/analysis/two_sides.py").read_text()
        given = set(re.findall(r'Flag\(\s*"([a-z-]+)"', rules)) | {"stamps", "server-late"}
        self.assertEqual(len(given), 6)
        glossary = (ROOT / "docs/glossary.md").read_text()
        for code in given:
            self.assertIn(code, CODES)
            self.assertIn(f"| `{code}` |", glossary)

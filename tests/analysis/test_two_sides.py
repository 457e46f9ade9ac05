"""Client and server of one load, held against each other and against themselves."""

import re
import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import CODES, SummaryRow, pick, summary_rows
from inference_lab.analysis.two_sides import CLOCK_NS
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.stream_load.requests import RequestRecord
from tests.checkout import ROOT, judge_of
from tests.loads import MS, record, request, session, step, truth

S = 1000.0
Rows = Sequence[Mapping[str, str]]


def rows_of(found: Record, **judge: Any) -> list[dict[str, str]]:
    """The summary of a whole load."""
    return summary_rows(summarise(found, judge_of(**{"window": "all", **judge})), "summary.csv")


def row(rows: Rows, metric: str, **cell: str) -> SummaryRow:
    """The row of a metric."""
    found = pick(rows, {"metric": metric, **cell}, "test")
    assert found is not None
    return found


def flags(rows: Rows) -> set[str]:
    """Every flag of a summary."""
    return {code for each in rows for code in each["flags"].split()}


def stream(number: int = 0, arrival: float = 0, *, pause: float = 0, **changes: Any) -> RequestRecord:
    """20 tokens, 10 ms apart after 30, with a pause after the tenth."""
    tokens = [30 + 10 * n + (pause if n >= 10 else 0) for n in range(20)]
    return request(number, arrival, tokens=tokens, **changes)


class ClientTest(unittest.TestCase):
    """What the client's record says against itself."""

    def test_tokens_that_lay_unread_flag_their_times(self) -> None:
        """First tokens read with the second ones stand at the time of those: TTFT is flagged, not ITL."""
        late = {"censored_chunks": (0, 2), "coalesced_reads": 1}
        made = [stream(n, 500 * n) for n in range(20)]
        made += [request(n, 500 * n, tokens=(40, 40, 50), **late) for n in range(20, 22)]
        rows = rows_of(record(made))
        self.assertEqual(row(rows, "ttft")["flags"], "client-limited")
        self.assertIn("9.09% of the first tokens lay unread", row(rows, "ttft")["advice"])
        self.assertEqual((row(rows, "itl")["flags"], row(rows, "ok")["flags"]), ("", ""))
        # The last token is always read with the end of its stream, and that is no lateness.
        alone = [request(n, 500 * n, censored_chunks=(2,)) for n in range(9)]
        self.assertEqual(flags(rows_of(record(alone))), set())

    def test_later_tokens_that_lay_unread(self) -> None:
        """Other tokens read together flag ITL, and TTFT stays."""
        made = [
            request(n, 99 * n, tokens=(30, 50, 50), censored_chunks=(1,), coalesced_reads=1) for n in range(9)
        ]
        rows = rows_of(record(made))
        self.assertEqual((row(rows, "itl")["flags"], row(rows, "ttft")["flags"]), ("client-limited", ""))

    def test_a_client_that_stood_still_once(self) -> None:
        """One read that came more than a second late is flagged, whatever is allowed and however rare."""
        for lag, expected in ((900, set[str]()), (20_000, {"client-limited"})):
            made = [stream(n, 500 * n, max_read_lag_ns=(lag if n == 7 else 1) * MS) for n in range(300)]
            self.assertEqual(flags(rows_of(record(made))), expected)

    def test_an_end_before_its_events_is_no_record(self) -> None:
        """A request that ends before it arrived, was sent or got its last token cannot be read or written."""
        for end in (-100.0, -0.001):
            with self.assertRaisesRegex(RecordError, "before its last event"):
                request(0, end=end)
        with self.assertRaisesRegex(RecordError, "before its last event"):
            request(0, tokens=(), status="timeout", finish_ns=1)
        with self.assertRaisesRegex(RecordError, "admission, sending must follow"):
            request(0, scheduled_ns=1)
        request(0, end=0)


class CalibrationTest(unittest.TestCase):
    """What two records of the same tokens say of each other."""

    def calibrated(self, late: Mapping[tuple[int, int], float], **more: Any) -> Rows:
        """Two cells of three rounds; in those named the client's first token is late by so many ms."""
        requests: list[RequestRecord] = []
        written: list[dict[str, Any]] = []
        sessions: list[dict[str, Any]] = []
        for streams in (1, 16):
            for round_number in range(3):
                name = f"kernel/{streams}/{round_number}/"
                for number in range(4):
                    seen = stream(number, 1000 * number, name=name)
                    requests.append(seen)
                    by = [late.get((streams, round_number), 0.02), *[0.02] * 19]
                    written.append(truth(seen, late=by))
                cell = {"path": "kernel", "streams": streams}
                sessions.append(session(name, cell=cell, start_ns=0, end_ns=9000 * MS))
        found = record(requests, *sessions, truth=[*written, *more.pop("written", ())], **more)
        vary = {"by": "calibration", "vary": {"streams": [1, 16]}, "fixed": {"ttft_ms": 20, "itl_ms": 10}}
        return rows_of(
            Record(
                "calibration",
                {**found.manifest, "conditions": vary},
                (),
                (),
                found.rows,
                requests,
                found.truth,
            )
        )

    def test_a_run_that_stands_out_is_named(self) -> None:
        """An error far from that of the runs beside it flags the error's rows, and names the run."""
        rows = self.calibrated({(16, 1): 12})
        for metric in ("ttft_error", "ttft_error_p99", "ttft_error_mean", "token_error"):
            self.assertEqual(row(rows, metric, streams="16")["flags"], "stands-out", metric)
        self.assertIn(
            "kernel/16/1/ has a P99 of ttft_error of 12", row(rows, "ttft_error", streams="16")["advice"]
        )
        self.assertEqual(row(rows, "ttft", streams="16")["flags"], "")
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
            self.assertEqual(row(rows, "itl", streams="1")["flags"], expected)
            self.assertEqual(row(rows, "itl", streams="16")["flags"], "")

    def test_requests_of_others_in_the_truth(self) -> None:
        """What the server wrote of a request that no client made flags the cells of that time."""
        strange = {"request_id": "", "received_ns": 5, "token_ns": [6]}
        rows = self.calibrated({}, written=[strange])
        self.assertEqual({each["flags"] for each in rows}, {"two-sides"})
        self.assertIn("wrote of 1 requests that no client of this record made", rows[0]["advice"])

    def test_a_server_behind_its_schedule(self) -> None:
        """Steps later than a step flag times and rates; how far the two sides are apart stays a finding."""
        for lasts, expected in ((19, ""), (21, "server-late")):
            steps = [step(n, lasts, path="kernel", streams=s) for n in range(50) for s in ("1", "16")]
            rows = self.calibrated({}, rows=steps)
            self.assertEqual(row(rows, "itl", streams="16")["flags"], expected)
            self.assertEqual(row(rows, "requests_per_s", streams="16")["flags"], expected)
            self.assertEqual(row(rows, "token_error", streams="16")["flags"], "")
            self.assertEqual(row(rows, "server_itl", streams="16")["flags"], "")

    def test_other_stamps_than_the_cell_is_about(self) -> None:
        """A calibration of the kernel's stamps whose requests bear those of the read claims no time."""
        made = [stream(n, 500 * n, clock="user") for n in range(3)]
        facts = session(cell={"path": "kernel"}, clock={"asked": "kernel", "stamps": "user"})
        rows = rows_of(record(made, facts))
        self.assertEqual((row(rows, "itl")["flags"], row(rows, "ok")["flags"]), ("stamps", ""))


class SilenceTest(unittest.TestCase):
    """A side that stood still."""

    def silent(self, pause: float, steps: Sequence[dict[str, str]] = ()) -> Rows:
        """A load of four streams, all of which paused in their middle."""
        made = [stream(n, n, pause=pause, name="a/") for n in range(4)]
        return rows_of(record(made, session("a/"), rows=steps))

    def test_a_stopped_server_is_flagged(self) -> None:
        """20 s without anything for anybody flag times and rates, and no count; half a second does not."""
        rows = self.silent(20 * S)
        self.assertEqual(row(rows, "itl")["flags"], "server-late")
        self.assertEqual(row(rows, "output_tokens_per_s")["flags"], "server-late")
        self.assertEqual(row(rows, "ok")["flags"], "")
        self.assertIn("got anything for 20 s, 10 times what is usual", row(rows, "itl")["advice"])
        self.assertIn("the server, or the way to it, stood still", row(rows, "itl")["advice"])
        self.assertEqual(flags(self.silent(0.5 * S)), set())

    def test_steps_tell_who_stood_still(self) -> None:
        """An engine that went on meanwhile says that it was the client; one with the same gap, the server."""
        before = [step(10 * n, load="a/") for n in range(13)]
        rows = self.silent(20 * S, [*before, step(20_130, load="a/")])
        self.assertIn("; the server stood still", row(rows, "itl")["advice"])
        rows = self.silent(20 * S, [*before, *(step(130 + 10 * n, load="a/") for n in range(99))])
        self.assertEqual(row(rows, "itl")["flags"], "client-limited")
        self.assertIn("the client stood still", row(rows, "itl")["advice"])

    def test_slow_is_not_silent(self) -> None:
        """A server that always takes long, for first tokens or for all, or a client that rests: no flag."""
        prompts = [request(n, 6000 * n, tokens=(5000, 5010, 5020)) for n in range(4)]
        tokens = [request(n, n, tokens=[30, *(30 + 2000 * t for t in range(1, 9))]) for n in range(4)]
        rests = [stream(n, 60_000 * n) for n in range(4)]
        for made in (prompts, tokens, rests):
            self.assertEqual(flags(rows_of(record(made))), set())

    def test_a_stop_before_a_first_token(self) -> None:
        """One first token that took 20 s where others took 30 ms is a silence, too."""
        made = [stream(n, 1000 * n) for n in range(9)]
        made.append(request(9, 9000, tokens=(20_000, 20_010)))
        self.assertEqual(flags(rows_of(record(made))), {"server-late"})

    def test_a_lonely_silence_is_compared_with_nothing(self) -> None:
        """One request whose only first token is slow has nothing to be slower than."""
        self.assertEqual(flags(rows_of(record([request(0, tokens=(5000, 5010, 5020))]))), set())


class CountsTest(unittest.TestCase):
    """What the server's own counters say of a load."""

    def scraped(
        self, grown: Mapping[str, float] | None, *, kind: str = "vllm", batch: int = 2, **changes: Any
    ) -> Rows:
        """A load of two requests with three tokens each; counters began at 100 and grew so much."""
        usage = {"usage": {"completion_tokens": 3}}
        made = [request(n, name="a/", **usage | changes) for n in (0, 1)]
        lines = [
            {"load": "a/", "cell": {}, "phase": phase, "at_ns": at * MS}
            | {"metrics": None if grown is None else {name: 100 + times * by for name, by in grown.items()}}
            for phase, at, times in (("before", 0, 0), ("after", 100, 1))
        ]
        facts = session("a/", server=0, requests_before=0)
        found = record(made, facts, server=lines, rows=[step(decodes=batch, load="a/")])
        told = {"server": 0, "settings": {}, "facts": {"kind": kind}}
        manifest = {**found.manifest, "servers": [told]}
        return rows_of(Record("x", manifest, None, None, found.rows, made, (), lines))

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
                if words:
                    self.assertIn(words, row(rows, "ttft")["advice"])

    def test_usage_is_what_the_server_counted(self) -> None:
        """Tokens that it did not show are in its usage and its counters; without usage nobody knows."""
        for usage in (
            {"completion_tokens": 40},
            {"completion_tokens": "40"},
            {"completion_tokens": 40.5},
            None,
        ):
            rows = self.scraped({"generation_tokens_total": 80}, usage=usage)
            self.assertEqual(flags(rows), set())

    def test_what_a_client_gave_up_may_have_been_finished(self) -> None:
        """Of failed requests the server may count more than the client, and no more than it sent."""
        for grown, expected in ((2, ""), (0, ""), (3, "two-sides")):
            rows = self.scraped({"request_success_total": grown}, status="timeout", tokens=())
            self.assertEqual({each["flags"] for each in rows}, {expected})
        for grown, expected in ((4, ""), (5, "two-sides")):  # each of two went twice
            rows = self.scraped({"request_success_total": grown}, resent=1)
            self.assertEqual({each["flags"] for each in rows}, {expected})

    def test_a_step_with_more_than_were_in_flight(self) -> None:
        """Three in a step, of two that were sent, are requests of others."""
        rows = self.scraped({}, batch=3)
        self.assertIn("a step held 3 requests, and at most 2 were in flight here", row(rows, "ok")["advice"])
        self.assertEqual({each["flags"] for each in rows}, {"two-sides"})

    def test_pages_that_are_missing(self) -> None:
        """A server of ours that answered no page is flagged; one that has no such page, which is told."""
        self.assertEqual({each["flags"] for each in self.scraped(None)}, {"unscraped"})
        rows = self.scraped(None, kind="external")
        self.assertEqual(flags(rows), set())
        self.assertIn("what the server counted is not known", row(rows, "measured")["advice"])

    def test_a_gap_in_the_scrapes(self) -> None:
        """Pages much farther apart than asked leave peaks unknown, and nothing else."""
        made = [stream(n, name="a/") for n in (0, 1)]
        for last, expected in ((4.9, ""), (5.1, "unscraped")):
            lines = [
                {
                    "load": "a/",
                    "phase": phase,
                    "at_ns": round(at * S * MS),
                    "metrics": {"num_requests_waiting": 1},
                }
                for at, phase in ((0, "before"), (0.5, "sample"), (0.5 + last, "after"))
            ]
            found = record(made, session("a/"), server=lines)
            manifest = {**found.manifest, "conditions": {"vary": {}, "sample_s": 0.5}}
            rows = rows_of(Record("x", manifest, None, None, (), made, (), lines))
            self.assertEqual((row(rows, "peak_waiting")["flags"], row(rows, "itl")["flags"]), (expected, ""))

    def test_every_flag_has_its_place(self) -> None:
        """A code that the table does not know would vanish; what each means stands in the glossary."""
        rules = (ROOT / "src/inference_lab/analysis/two_sides.py").read_text()
        given = set(re.findall(r'Flag\(\s*"([a-z-]+)"', rules)) | {"stamps"}
        self.assertEqual(len(given), 6)
        glossary = (ROOT / "docs/glossary.md").read_text()
        for code in given:
            self.assertIn(code, CODES)
            self.assertIn(f"| `{code}` |", glossary)


if __name__ == "__main__":
    unittest.main()

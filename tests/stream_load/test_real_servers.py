"""What real servers send gives the right record, through the command's own entry and event loop."""

import contextlib
import io
import re
import tempfile
import unittest
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from inference_lab.stream_load.cli import main
from inference_lab.stream_load.requests import RequestRecord, read_requests
from tests.stream_load.scripted import CLOSE, Actions, scripted
from tests.stream_load.server_cases import CASES, Case

Cut = Callable[[bytes], Iterable[bytes]]
_GAP_S = 0.001


def answers(case: Case, cut: Cut | None) -> Actions:
    """The answer of a case and the end of its connection: its writes apart in time, or the whole cut."""
    head = [f"HTTP/1.1 {case.code}", "Connection: close", "Transfer-Encoding: chunked", *case.headers, "", ""]
    chunks = [b"%x\r\n%s\r\n" % (len(write), write) for write in case.writes if write]
    writes = ["\r\n".join(head).encode(), *chunks, b"0\r\n\r\n"]
    if cut is not None:
        yield from cut(b"".join(writes))
    else:
        for write in writes:
            yield write
            yield _GAP_S
    yield CLOSE


def recorded(cases: Sequence[Case], cut: Cut | None = None) -> list[RequestRecord]:
    """The record of each case, all in one load; the case is that of the request's number."""

    def script(connection: int, number: int) -> Actions:
        (sent,) = (sent for one, other, sent in server.seen if (one, other) == (connection, number))
        named = re.search(rb"X-Request-Id: r(\d+)", sent)
        assert named
        return answers(cases[int(named[1])], cut)

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        with scripted(script) as server:
            words = [
                "--base-url",
                server.url,
                "--output",
                f"{folder}/run",
                "--model",
                "m",
                "--endpoint",
                "chat",
            ]
            words += [
                "--requests",
                str(len(cases)),
                "--concurrency",
                "2",
                "--output-tokens",
                "8",
            ]
            main([*words, "--max-failure-share", "1", "--name", "r", "--between-tokens-timeout", "20"])
        records = read_requests(Path(folder, "run", "requests.jsonl"))
    return sorted(records, key=lambda record: record.request_id)


class CaseTable(unittest.TestCase):
    """How a record is held against its case."""

    def check(self, case: Case, record: RequestRecord) -> None:
        """Status, tokens, words and notes are those of the table."""
        self.assertEqual(
            (record.status, record.error if case.status == "ok" else None), (case.status, None), record
        )
        self.assertEqual(record.http_status, int(case.code[:3]))
        self.assertEqual(record.chunk_tokens, case.chunks)
        self.assertEqual(record.output_tokens, sum(case.chunks))
        counted = record.output_tokens if case.counted is None else case.counted
        self.assertEqual(record.counted_tokens, counted)
        self.assertEqual(record.hidden_tokens, case.hidden)
        for words in case.says:
            self.assertIn(words, record.error or "")
        self.assertLessEqual(len(record.error or ""), 300)
        self.assertLessEqual(len(record.notes), 10)
        self.assertEqual(bool(record.notes), bool(case.notes), record.notes)
        for words in case.notes:
            self.assertIn(words, " | ".join(record.notes))


class TestRealServers(CaseTable):
    """The table, each write as it is."""

    def test_every_case(self) -> None:
        """Status, tokens, the first token's time, hidden tokens, error and notes."""
        for case, record in zip(CASES, recorded(CASES), strict=True):
            with self.subTest(case.name):
                self.check(case, record)
                if case.chunks and len(case.writes) < 20:
                    assert record.first_token_ns is not None
                    assert record.sent_ns is not None
                    waited_s = (record.first_token_ns - record.sent_ns) / 1e9
                    self.assertGreaterEqual(waited_s, _GAP_S * (case.first + 1))

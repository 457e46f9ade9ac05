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
from tests.stream_load.server_cases import CASES, DONE, Case, delta, texts

Cut = Callable[[bytes], Iterable[bytes]]
_GAP_S = 0.001
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(write: bytes) -> bytes:
    """One chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(write), write)


def answers(case: Case, cut: Cut | None = None) -> Actions:
    """The answer of a case and the end of its connection: its writes apart in time, or the whole cut."""
    head = [f"HTTP/1.1 {case.code}", "Connection: close", "Transfer-Encoding: chunked", *case.headers, "", ""]
    writes = ["\r\n".join(head).encode(), *(chunk(write) for write in case.writes if write), b"0\r\n\r\n"]
    if cut is not None:
        yield from cut(b"".join(writes))
    else:
        for write in writes:
            yield write
            yield _GAP_S
    yield CLOSE


def recorded(scripts: Sequence[Actions], *more: str) -> list[RequestRecord]:
    """The record of each answer, all in one load; the answer is that of the request's number."""

    def script(connection: int, number: int) -> Actions:
        (sent,) = (sent for one, other, sent in server.seen if (one, other) == (connection, number))
        named = re.search(rb"X-Request-Id: r(\d+)", sent)
        assert named
        return scripts[int(named[1])]

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        with scripted(script) as server:
            words = (
                f"--base-url {server.url} --output {folder}/run --model m --endpoint chat --output-tokens 8"
            )
            words += f" --requests {len(scripts)} --concurrency 4 --max-failure-share 1 --name r"
            main([*words.split(), "--between-tokens-timeout", "20", *more])
        records = read_requests(Path(folder, "run", "requests.jsonl"))
    return sorted(records, key=lambda record: record.request_id)


class CaseTable(unittest.TestCase):
    """How a record is held against its case."""

    def check(self, case: Case, record: RequestRecord) -> None:
        """Status, tokens, words and notes are those of the table."""
        error = record.error if case.status == "ok" else None
        self.assertEqual((record.status, error), (case.status, None), record)
        self.assertEqual((record.http_status, record.chunk_tokens), (int(case.code[:3]), case.chunks))
        self.assertEqual(record.output_tokens, sum(case.chunks))
        counted = record.output_tokens if case.counted is None else case.counted
        self.assertEqual((record.counted_tokens, record.hidden_tokens), (counted, case.hidden))
        for words in case.says:
            self.assertIn(words, record.error or "")
        self.assertLessEqual(len(record.error or ""), 300)
        self.assertNotIn("\n", record.error or "")
        self.assertLessEqual(len(record.notes), 10)
        self.assertEqual(bool(record.notes), bool(case.notes), record.notes)
        for words in case.notes:
            self.assertIn(words, " | ".join(record.notes))


class TestRealServers(CaseTable):
    """The table, each write as it is."""

    def test_every_case(self) -> None:
        """Status, tokens, the first token's time, hidden tokens, error and notes."""
        for case, record in zip(CASES, recorded([answers(case) for case in CASES]), strict=True):
            with self.subTest(case.name):
                self.check(case, record)
                if case.chunks and len(case.writes) < 20:
                    assert record.first_token_ns is not None
                    assert record.sent_ns is not None
                    waited_s = (record.first_token_ns - record.sent_ns) / 1e9
                    self.assertGreaterEqual(waited_s, _GAP_S * (case.first + 1))

    def test_every_end(self) -> None:
        """However an answer ends, or does not, the tokens before stay and the end has its name."""
        three = [_CHUNKED, *map(chunk, texts(3, finish=None)), 0.02]
        comments = [chunk(b": ping\n\n"), 0.02] * 25
        no_length = [_HEAD + b"\r\n", *texts(3, finish=None)]
        table: list[tuple[str, list[bytes | float | None], str, int, str]] = [
            ("clean", [*three, b"0\r\n\r\n"], "truncated", 3, "before a finish_reason"),
            ("[DONE] alone", [*three, chunk(DONE), b"0\r\n\r\n"], "truncated", 3, "[DONE] before a finish_"),
            ("closed", [*three, CLOSE], "truncated", 3, "before a finish_reason"),
            ("closed, no length", [*no_length, CLOSE], "truncated", 3, "before a finish_reason"),
            ("whole, no length", [*no_length, delta("stop", content="w"), DONE, CLOSE], "ok", 4, ""),
            ("reset", [*three, None], "truncated", 3, "reset"),
            ("reset at once", [_CHUNKED, 0.02, None], "truncated", 0, "no event"),
            ("nothing", [_CHUNKED, b"0\r\n\r\n"], "truncated", 0, "no event"),
            ("silence", [_CHUNKED, 0.5], "timeout", 0, "no first token after 0.25 s"),
            ("silence later", [*three, 0.5], "timeout", 3, "no token for 0.25 s"),
            ("comments alone", [*three, *comments], "timeout", 3, "no token for 0.25 s"),
            ("closed before a header", [CLOSE], "connect_error", 0, "closed"),
            ("reset before a header", [0.02, None], "connect_error", 0, "reset"),
        ]
        limits = ("--between-tokens-timeout", "0.25", "--first-token-timeout", "0.25")
        records = recorded([actions for _, actions, *_ in table], *limits)
        for (name, _, *expected, words), record in zip(table, records, strict=True):
            with self.subTest(name):
                self.assertEqual([record.status, record.output_tokens], expected, record.error)
                self.assertIn(words, record.error or "")

    def test_reads_of_several_tokens(self) -> None:
        """Tokens that came with later ones in one read are marked; the last of a read is exact."""
        first, second = (b"".join(map(chunk, texts(count, finish=None))) for count in (5, 3))
        end = b"".join(map(chunk, (delta("stop", content="w"), DONE))) + b"0\r\n\r\n"
        (record,) = recorded([[_CHUNKED, 0.02, first, 0.02, second, 0.02, end]])
        self.assertEqual((record.status, record.output_tokens, record.coalesced_reads), ("ok", 9, 2))
        self.assertEqual(record.censored_chunks, (0, 1, 2, 3, 5, 6, 8))  # [DONE] came with the last token

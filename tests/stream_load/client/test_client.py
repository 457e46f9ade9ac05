"""Every behaviour of the table "what servers send", through real HTTP on the loopback."""

import asyncio
import json
import socket
import tempfile
import unittest
from pathlib import Path
from typing import Any

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.client.stream import Timeouts
from tests.stream_load.quirks import MANNERS
from tests.stream_load.support import STALL_TIMEOUTS, ask, ask_once, misbehaving, record_of, serving

# manner -> (status, tokens, chunks, a part of the error)
COMPLETIONS = {
    "good": ("ok", 6, 6, None),
    "empty-text": ("ok", 6, 6, None),
    "whitespace": ("ok", 6, 6, None),
    "special-token": ("ok", 6, 6, None),
    "multi-byte": ("ok", 6, 6, None),
    "comments": ("ok", 6, 6, None),
    "other-fields": ("ok", 6, 6, None),
    "several-tokens": ("ok", 6, 2, None),
    "several-tokens-usage-in-every-chunk": ("ok", 6, 2, None),
    "usage-in-last-chunk": ("ok", 6, 6, None),
    "usage-in-every-chunk": ("ok", 6, 6, None),
    "no-usage": ("ok", 6, 6, None),
    "bare-finish": ("ok", 6, 6, None),
    "several-events-a-write": ("ok", 6, 6, None),
    "bytewise": ("ok", 6, 6, None),
    "crlf": ("ok", 6, 6, None),
    "crlf-bytewise": ("ok", 6, 6, None),
    "cr": ("ok", 6, 6, None),
    "no-space": ("ok", 6, 6, None),
    "no-done": ("ok", 6, 6, None),
    "no-done-no-usage": ("ok", 6, 6, None),
    "not-chunked": ("ok", 6, 6, None),
    "no-finish-reason": ("truncated", 6, 6, "before a finish_reason"),
    "done-without-finish-reason": ("truncated", 6, 6, "[DONE] before a finish_reason"),
    "clean-end": ("truncated", 3, 3, "before a finish_reason"),
    "fin": ("truncated", 3, 3, "before a finish_reason"),
    "fin-not-chunked": ("truncated", 3, 3, "before a finish_reason"),
    "reset": ("truncated", 3, 3, "reset"),
    "reset-before-first": ("truncated", 0, 0, "no event"),
    "error-first": ("stream_error", 0, 0, "asked to fail"),
    "error-later": ("stream_error", 3, 3, "asked to fail"),
    "no-chunk": ("truncated", 0, 0, "no event"),
    "stall-first": ("timeout", 0, 0, "no first token"),
    "stall-later": ("timeout", 3, 3, "no token for"),
    "stall-with-comments": ("timeout", 3, 3, "no token for"),
    "429-json": ("http_error", 0, 0, "HTTP 429: asked to fail"),
    "500-html": ("http_error", 0, 0, "HTTP 502: <html>"),
    "500-empty": ("http_error", 0, 0, "HTTP 500: empty body"),
    "200-json-error": ("stream_error", 0, 0, "asked to fail"),
    "fin-before-header": ("connect_error", 0, 0, "closed"),
    "reset-before-header": ("connect_error", 0, 0, "reset"),
}
ELSEWHERE = {"reasoning"}  # chat alone


def request_truth(path: Path) -> dict[str, Any]:
    """The server's line about the only request."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return next(line for line in lines if line["kind"] == "request")


class TestWhatServersSend(unittest.TestCase):
    """Each manner of the misbehaving server and the record it must become."""

    def test_no_manner_is_left_out(self) -> None:
        """A manner added to the server needs its row here."""
        self.assertEqual(set(COMPLETIONS) | ELSEWHERE, set(MANNERS))

    def test_completions(self) -> None:
        """Status, tokens and chunks of every manner are those of the table."""
        for manner, (status, tokens, chunks, error) in COMPLETIONS.items():
            with self.subTest(manner=manner):
                stalls = STALL_TIMEOUTS if "stall" in manner else None
                record = ask_once(manner=manner, timeouts=stalls)
                self.assertEqual((record.status, record.output_tokens), (status, tokens), record.error)
                self.assertEqual(len(record.chunk_tokens), chunks)
                self.assertEqual(record.first_token_ns is None, tokens == 0)
                self.assertIn(error or "", record.error or "")
                if error is not None:
                    self.assertIsNotNone(record.error)

    def test_chat(self) -> None:
        """A role-only first chunk is no token and has no time; text, empty text and reasoning are."""
        messages = [{"role": "user", "content": "one two"}]

        async def run(manner: str) -> None:
            async with misbehaving() as (server, client):
                asked = {"manner": manner, "prompt": None, "messages": messages}
                record = record_of(await ask(client, "/chat/completions", **asked))
                self.assertEqual((record.status, record.output_tokens), ("ok", 6))
                assert record.first_token_ns is not None
                self.assertGreaterEqual(record.first_token_ns, server.written_ns[0])

        for manner in ("good", "empty-text", "reasoning", "several-tokens", "bare-finish", "no-usage"):
            with self.subTest(manner=manner):
                asyncio.run(run(manner))

    def test_several_tokens_a_chunk_by_ids(self) -> None:
        """Without usage, a chunk's token ids say how many tokens it has."""
        asked = {"manner": "several-tokens", "return_token_ids": True, "stream_options": {}}
        record = ask_once(max_tokens=10, **asked)
        self.assertEqual(record.chunk_tokens, (4, 4, 2))
        self.assertIsNone(record.usage)

    def test_times_do_not_depend_on_the_clock_chosen(self) -> None:
        """With user stamps the record is the same but for its clock, and names it."""
        record = ask_once(kernel=False)
        self.assertEqual((record.status, record.output_tokens, record.clock), ("ok", 6, "user"))
        self.assertIsNone(record.max_read_lag_ns)

    def test_refused(self) -> None:
        """A port where nobody listens is a connect_error with the reason."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]

        async def run() -> None:
            async with serving(url=f"http://127.0.0.1:{port}") as (_, client):
                record = record_of(await ask(client))
                self.assertEqual((record.status, record.sent_ns), ("connect_error", None))
                self.assertIn("refused", (record.error or "").lower())

        asyncio.run(run())

    def test_connect_timeout(self) -> None:
        """A host that never answers the handshake is a connect_error after the connect time-out."""
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            address = listener.getsockname()
            with socket.create_connection(address), socket.socket() as second:
                second.setblocking(False)
                second.connect_ex(address)  # fills the queue of a listener that never accepts

                async def run() -> None:
                    url = f"http://127.0.0.1:{address[1]}"
                    async with serving(Timeouts(connect_s=0.05), url=url) as (_, client):
                        record = record_of(await ask(client))
                        self.assertEqual(record.status, "connect_error")
                        self.assertIn("no connection in 0.05 s", record.error or "")

                asyncio.run(run())

    def test_total_timeout(self) -> None:
        """A stream that goes on for too long is a timeout that keeps its tokens."""
        timeouts = Timeouts(total_s=0.3)
        record = ask_once(max_tokens=100_000, timeouts=timeouts)
        self.assertEqual(record.status, "timeout")
        self.assertGreater(record.output_tokens, 0)

    def test_cancelled(self) -> None:
        """A cancelled request is returned with what had arrived."""

        async def run() -> None:
            async with serving() as (_, client):
                task = asyncio.create_task(ask(client, max_tokens=100_000))
                while client.live_events < 3:  # noqa: ASYNC110  (the client has no event for it)
                    await asyncio.sleep(0.001)
                task.cancel()
                record = record_of(await task)
                self.assertEqual(record.status, "cancelled")
                self.assertGreaterEqual(record.output_tokens, 3)

        asyncio.run(run())

    def test_tokens_are_stamped_when_they_were_written(self) -> None:
        """Against the server's truth, kernel stamps follow every write and never come before it."""
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.jsonl"
            record = ask_once(truth=truth, max_tokens=30)
            written = request_truth(truth)["token_ns"]
        seen = [record.first_token_ns, *record.token_times_ns]
        self.assertEqual(len(seen), len(written))
        stamped_by_kernel = set(range(30)) - set(record.user_stamped_chunks)
        self.assertTrue(stamped_by_kernel)
        for index in stamped_by_kernel:
            self.assertGreaterEqual(seen[index], written[index])

    def test_reads_of_several_tokens_are_counted_and_marked(self) -> None:
        """Tokens that came with later ones in one read are marked; the last of a read is exact."""
        record = ask_once(manner="several-events-a-write", max_tokens=11)
        self.assertEqual(record.coalesced_reads, 2)
        # writes of 5, 5 and 1 token; the last token comes together with usage and [DONE]
        self.assertEqual(record.censored_chunks, (0, 1, 2, 3, 5, 6, 7, 8, 10))


class TestConnections(unittest.TestCase):
    """Connections are opened before they are needed and used again."""

    def test_a_kept_connection_is_used_again(self) -> None:
        """Ten requests one after another need one connection."""

        async def run() -> None:
            async with serving() as (server, client):
                await client.pool.prepare(1)
                for _ in range(10):
                    self.assertEqual(record_of(await ask(client, max_tokens=1)).status, "ok")
                self.assertEqual(len(server.peers), 1)

        asyncio.run(run())

    def test_after_a_failed_stream_the_connection_is_not_used_again(self) -> None:
        """What a stalled or cancelled stream may still send cannot get into the next answer."""

        async def run() -> None:
            async with misbehaving(STALL_TIMEOUTS) as (_, client):
                first = record_of(await ask(client, manner="stall-with-comments"))
                second = record_of(await ask(client))
                self.assertEqual((first.status, second.status), ("timeout", "ok"))
                self.assertEqual(second.output_tokens, 6)

        asyncio.run(run())

    def test_discovery(self) -> None:
        """The model is the one the server lists; a server without one is refused in words."""

        async def run() -> None:
            async with serving(model="tiny") as (server, client):
                self.assertEqual(await client.discover_model(), "tiny")
                elsewhere = server.base_url.replace("/v1", "/other")
                async with serving(url=elsewhere) as (_, lost):
                    with self.assertRaisesRegex(MeasurementRefused, "404.*no such endpoint"):
                        await lost.discover_model()

        asyncio.run(run())

    def test_an_echoed_key_is_not_kept(self) -> None:
        """Whatever text a server sends back, the API key is taken out of it."""

        async def run() -> None:
            async with serving(api_key="sk-secret") as (_, client):
                self.assertEqual(client.redact("bad key sk-secret!"), "bad key [key]!")

        asyncio.run(run())

    def test_base_urls(self) -> None:
        """A base URL is a scheme, a host and a path; what is refused stands in test_real_transports."""
        self.assertEqual(Endpoint.parse("https://h/v1/"), Endpoint("https", "h", 443, "/v1"))
        self.assertEqual(Endpoint.parse("http://[::1]:8000/v1").host, "::1")

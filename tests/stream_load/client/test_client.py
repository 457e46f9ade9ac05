"""One request at a time through a client: connections, time-outs, stamps, the model."""

import asyncio
import json
import socket
import tempfile
import unittest
from pathlib import Path

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.client.stream import Timeouts
from tests.stream_load.scripted import scripted, stream
from tests.stream_load.support import ask, record_of, serving


class TestClient(unittest.IsolatedAsyncioTestCase):
    """Against a reference server in this event loop, unless told."""

    async def test_user_stamps(self) -> None:
        """With user stamps the record is the same but for its clock, and names it."""
        async with serving(kernel=False) as (_, client):
            record = record_of(await ask(client), client.clock_name)
        self.assertEqual((record.status, record.output_tokens, record.clock), ("ok", 6, "user"))
        self.assertIsNone(record.max_read_lag_ns)

    async def test_no_connection(self) -> None:
        """A port where nobody listens, and one that never answers the handshake: a connect_error with why."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            closed = listener.getsockname()
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
            silent = listener.getsockname()
            with socket.create_connection(silent), socket.socket() as second:
                second.setblocking(False)
                second.connect_ex(silent)  # fills the queue of a listener that never accepts
                for (host, port), why in (
                    (closed, "Connection refused"),
                    (silent, "no connection in 0.05 s"),
                ):
                    async with serving(Timeouts(connect_s=0.05), url=f"http://{host}:{port}") as (_, client):
                        record = record_of(await ask(client))
                    self.assertEqual((record.status, record.sent_ns), ("connect_error", None))
                    self.assertEqual(record.error, why)

    async def test_total_timeout(self) -> None:
        """A stream that goes on for too long is a timeout that keeps its tokens."""
        async with serving(Timeouts(total_s=0.1)) as (_, client):
            record = record_of(await ask(client, max_tokens=100_000))
        self.assertEqual(record.status, "timeout")
        self.assertGreater(record.output_tokens, 0)

    async def test_cancelled(self) -> None:
        """A cancelled request is returned with what had arrived."""
        async with serving() as (_, client):
            task = asyncio.create_task(ask(client, max_tokens=100_000))
            while client.live_events < 3:  # noqa: ASYNC110  (the client has no event for it)
                await asyncio.sleep(0.001)
            task.cancel()
            record = record_of(await task)
        self.assertEqual(record.status, "cancelled")
        self.assertGreaterEqual(record.output_tokens, 3)

    async def test_tokens_are_stamped_when_they_were_written(self) -> None:
        """Against the server's truth, kernel stamps follow every write and never come before it."""
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.jsonl"
            async with serving(truth=truth) as (_, client):
                record = record_of(await ask(client, max_tokens=30), client.clock_name)
            lines = map(json.loads, truth.read_text().splitlines())
            (written,) = (line["token_ns"] for line in lines if line["kind"] == "request")
        seen = [record.first_token_ns or 0, *record.token_times_ns]
        self.assertEqual(len(seen), len(written))
        self.assertTrue(by_kernel := set(range(30)) - set(record.user_stamped_chunks))
        for index in by_kernel:
            self.assertGreaterEqual(seen[index], written[index])

    async def test_a_kept_connection_is_used_again(self) -> None:
        """Ten requests one after another need one connection."""
        async with serving() as (server, client):
            await client.pool.prepare(1)
            for _ in range(10):
                self.assertEqual(record_of(await ask(client, max_tokens=1)).status, "ok")
            self.assertEqual(len(server.peers), 1)

    async def test_after_a_failed_stream_the_connection_is_not_used_again(self) -> None:
        """What a stalled stream may still send cannot get into the next answer."""
        with scripted(
            lambda n, _m: [stream()[:-60], 0.3, stream()[-60:]] if n == 0 else [stream()]
        ) as server:
            async with serving(Timeouts(between_tokens_s=0.1), url=server.url) as (_, client):
                first, second = [record_of(await ask(client)) for _ in range(2)]
        self.assertEqual((first.status, second.status, second.output_tokens), ("timeout", "ok", 3))
        self.assertEqual([seen[:2] for seen in server.seen], [(0, 0), (1, 0)])

    async def test_discovery(self) -> None:
        """The model is the one the server lists; a server without one is refused in words."""
        async with serving(model="tiny") as (server, client):
            self.assertEqual(await client.discover_model(), "tiny")
            async with serving(url=server.base_url.replace("/v1", "/other")) as (_, lost):
                with self.assertRaisesRegex(MeasurementRefused, "404.*no such endpoint"):
                    await lost.discover_model()

"""The reference server's other pages, its refusals, and its truth about requests that went wrong."""

import asyncio
import contextlib
import errno
import io
import json
import re
import socket
import tempfile
import unittest
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from unittest import mock

from prometheus_client.parser import text_string_to_metric_families

from inference_lab.stream_load.client.client import Client
from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.reference import request_reader
from inference_lab.stream_load.reference import server as reference_server
from inference_lab.stream_load.reference.scheduler import EngineSettings
from inference_lab.stream_load.reference.server import ReferenceServer
from tests.stream_load.support import QUICK, ask, body, record_of, serving


async def get(client: Client, page: str) -> Capture:
    """The answer to a GET."""
    request = f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    return await client.send(request, keep_body_bytes=1 << 16)


def run(test: Coroutine[Any, Any, object]) -> None:
    """Run what a test does, for at most 20 s."""
    asyncio.run(asyncio.wait_for(test, 20))


async def events(client: Client, count: int) -> None:
    """Wait until the streams that run have brought so many events."""
    while client.live_events < count:  # noqa: ASYNC110  (the client has no event for it)
        await asyncio.sleep(0.001)


class TestReferenceServer(unittest.TestCase):
    """What it answers and what it writes down."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.truth = Path(self.enterContext(tempfile.TemporaryDirectory())) / "truth.jsonl"

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The lines of the truth of this kind."""
        lines = map(json.loads, self.truth.read_text().splitlines())
        return [line for line in lines if line["kind"] == kind]

    def test_pages(self) -> None:
        """Health, version and models answer; another page is a 404."""

        async def test() -> None:
            async with serving(model="tiny") as (_, client):
                models = await get(client, "/v1/models")
                self.assertEqual(json.loads(models.body_start)["data"][0]["id"], "tiny")
                for page, status in (("/health", 200), ("/version", 200), ("/v2/models", 404)):
                    self.assertEqual((await get(client, page)).http_status, status)

        run(test())

    def test_metrics(self) -> None:
        """Prometheus text under vLLM's names counts what was served and shows what runs."""
        found: dict[str, float] = {}

        async def test() -> None:
            async with serving() as (_, client):
                await ask(client)
                running = asyncio.create_task(ask(client, max_tokens=100_000))
                await events(client, 1)
                page = await get(client, "/metrics")
                running.cancel()
                await running
                for family in text_string_to_metric_families(page.body_start.decode()):
                    found.update({one.name.removeprefix("vllm:"): one.value for one in family.samples})

        run(test())
        parts = ("request_queue_time", "request_prefill_time", "request_decode_time")
        expected = {"num_requests_running": 1, "num_requests_waiting": 0, "request_success_total": 1}
        expected |= {"prompt_tokens_total": 8, "time_to_first_token_seconds_count": 1}
        unused = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
        expected |= {f"{name}_total": 0 for name in unused} | {f"{name}_seconds_count": 1 for name in parts}
        self.assertEqual({name: found[name] for name in expected}, expected)
        self.assertGreaterEqual(found["generation_tokens_total"], 7)
        # of the first request 5, and one less than each other token of the second
        self.assertEqual(found["inter_token_latency_seconds_count"], found["generation_tokens_total"] - 2)
        self.assertGreaterEqual(found["inter_token_latency_seconds_sum"], 0.0045)
        whole_s = sum(found[f"{name}_seconds_sum"] for name in parts)
        self.assertAlmostEqual(found["e2e_request_latency_seconds_sum"], whole_s, delta=0.001)

    def test_refusals(self) -> None:
        """What cannot be served is refused with the status and message a client can record."""
        wrong: tuple[tuple[str, Any, str], ...] = (
            ("model", "other", "HTTP 404: The model `other` does not exist."),
            ("model", None, "HTTP 404: The model `None` does not exist."),
            ("stream", False, "HTTP 400: stream is False"),
            ("max_tokens", "many", "HTTP 400: max_tokens is many: "),
            ("max_tokens", True, "HTTP 400: max_tokens is True"),
            ("max_tokens", 0, "HTTP 400: max_tokens is 0"),
            ("max_completion_tokens", [1], "HTTP 400: max_completion_tokens is [1]: "),
            ("max_tokens", 10**9, "HTTP 400: 4 tokens of prompt and 1000000000 of answer are asked"),
            ("n", 2, "HTTP 400: n is 2: "),
            ("stream_options", [1], "HTTP 400: stream_options is [1]: "),
            ("prompt", None, "HTTP 400: prompt is null"),
            ("prompt", ["one", "two"], "HTTP 400: prompt is ['one', 'two']: "),
            ("messages", None, "HTTP 400: messages is null"),
            ("messages", "hi", "HTTP 400: messages is hi: "),
            ("messages", [], "HTTP 400: messages is []: "),
            ("messages", ["hi"], "HTTP 400: messages is hi: "),
            ("messages", [{"content": 5}], "HTTP 400: messages is 5: "),
            ("messages", [{"content": ["x"]}], "HTTP 400: messages is ['x']: "),
        )

        async def test() -> None:
            async with serving() as (_, client):
                for name, value, says in wrong:
                    with self.subTest(says):
                        path = "/chat/completions" if name == "messages" else "/completions"
                        record = record_of(await ask(client, path, **{name: value}))
                        self.assertEqual(record.status, "http_error")
                        self.assertIn(says, record.error or "")

        run(test())

    def test_truth_of_what_went_wrong(self) -> None:
        """A request whose client left and one cut by the end each have their line."""

        async def test() -> None:
            async with serving(truth=self.truth) as (_, client):
                left = asyncio.create_task(ask(client, request_id="left", max_tokens=100_000))
                await events(client, 2)
                left.cancel()
                await left
                cut = asyncio.create_task(ask(client, request_id="cut", max_tokens=100_000))
                await events(client, 2)
                self.assertFalse(cut.done())  # the client leaves it to the server's end

        run(test())
        ends = {line["request_id"]: line["ended"] for line in self.lines("request")}
        self.assertEqual(ends["left"], "client gone")
        self.assertIn(ends["cut"], ("server stopped", "client gone"))
        self.assertEqual({line["batch"] for line in self.lines("step")}, {1})

    def test_steps_hold_several_requests(self) -> None:
        """Requests that come while a step runs share the next one."""

        async def test() -> None:
            async with serving(truth=self.truth) as (_, client):
                asked = (ask(client, request_id=f"r{i}", max_tokens=20) for i in range(3))
                statuses = [record_of(capture).status for capture in await asyncio.gather(*asked)]
                self.assertEqual(statuses, ["ok"] * 3)

        run(test())
        self.assertEqual(max(line["batch"] for line in self.lines("step")), 3)

    def test_a_client_that_does_not_read(self) -> None:
        """Its stream is ended, and only tokens whose bytes were taken by the kernel have a time."""
        model = "m" * 20_000  # in every chunk: the kernel's buffers are soon full

        async def test() -> None:
            quick = EngineSettings(ttft_ms=0.01, itl_ms=0.01)
            async with ReferenceServer(quick, model=model, truth=self.truth) as server:
                port = int(server.base_url.split(":")[2].split("/")[0])
                _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
                writer.write(post(body(model=model, max_tokens=900_000)))
                for is_there in (False, True):
                    while bool(server.peers) is is_there:  # noqa: ASYNC110  (the server has no event for it)
                        await asyncio.sleep(0.01)
                writer.close()

        run(test())
        (request,) = self.lines("request")
        self.assertEqual(request["ended"], "client does not read")
        self.assertTrue(0 < len(request["token_ns"]) < len(self.lines("step")))


async def talk(url: str, *parts: bytes, until: bytes = b"") -> bytes:
    """What a server answers to these bytes, until it ends the connection or has said `until`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        said = b""
        while piece := await reader.read(1 << 16):
            said += piece
            if until and until in said:
                break
        return said
    finally:
        writer.close()


def post(content: bytes, *headers: str, path: str = "/v1/completions") -> bytes:
    """A POST with this body."""
    head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + content


class TestPeers(unittest.TestCase):
    """Whatever a peer sends has an answer, or a bound."""

    def talk(self, *parts: bytes, until: bytes = b"") -> str:
        """The answer of a reference server of this test's own."""

        async def run() -> bytes:
            async with ReferenceServer(QUICK) as server:
                return await asyncio.wait_for(talk(server.base_url, *parts, until=until), 20)

        return asyncio.run(run()).decode()

    def test_what_is_no_request(self) -> None:
        """Deep JSON, no HTTP, another HTTP, endless heads and bodies: answered in words, connection ended."""
        long, many = b"x" * (1 << 16), "may hold 262144 bytes"
        self.enterContext(mock.patch.object(request_reader, "MAX_BYTES", 1 << 18))
        for parts, status, words in (
            ([post(b"[" * 100_000, "Connection: close")], 400, "Invalid JSON"),
            ([post(b"[1]", "Connection: close")], 400, "the body is [1]: "),
            ([post(b"\xff", "Connection: close")], 400, "Invalid JSON"),
            ([b"hello\r\n\r\n"], 400, "this is no request of HTTP/1.1"),
            ([b"GET /health HTTP/1.0\r\n\r\n"], 505, "only HTTP/1.1"),
            ([b"GET / HTTP/1.1\r\nA: ", *[long] * 9], 413, many),
            ([b"GET /", *[long] * 9], 413, many),
            ([post(b"")[:-5] + b"999999999\r\n\r\n", *[long] * 9], 413, many),
            ([post(b"")[:-5] + b"1" + b"0" * 14 + b"\r\n\r\n"], 413, many),
            ([b"GET /v1/models HTTP/1.1\r\n\r\n" * 9000], 400, "more than 100 requests wait"),
            ([post(b"{}", "X-Request-Id: " + "n" * 300, "Connection: close")], 400, "256 characters"),
            ([b"HEAD /health HTTP/1.1\r\n\r\n"], 404, ""),
            ([b"GET /health HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"], 200, "plain\r\n"),
        ):
            with self.subTest(words, start=parts[0][:20]):
                answer = self.talk(*parts, until=words.encode())  # other answers may come before
                self.assertEqual(re.findall(r"HTTP/1\.1 (\d{3}) ", answer)[-1], str(status))
                self.assertIn("Connection: close\r\n", answer)
                self.assertIn(words, answer)

    def test_pipelined_answers_follow_each_other(self) -> None:
        """Requests sent at once are answered whole, in their order, the last one ending the connection."""
        streams = [post(body(max_tokens=count), f"X-Request-Id: r{count}") for count in (3, 1, 2)]
        last = b"GET /version HTTP/1.1\r\nConnection: close\r\n\r\n"
        said = self.talk(b"".join([*streams, last]))
        names = [part[:2] for part in said.split('"id":"')[1:]]
        self.assertEqual(names, ["r3"] * 4 + ["r1"] * 2 + ["r2"] * 3)  # with a chunk of usage each
        self.assertEqual([said.count("[DONE]"), said.count("HTTP/1.1 200 OK")], [3, 4])
        self.assertTrue(said.endswith('{"version": "reference"}'), said[-100:])

    def test_a_body_in_pieces(self) -> None:
        """A body is the same whole and byte by byte; a request without a name gets one."""
        whole = post(body(max_tokens=2), "Connection: close")
        said = self.talk(*(whole[start : start + 1] for start in range(len(whole))))
        self.assertEqual(said, self.talk(whole))
        self.assertIn('"id":"cmpl-1"', said)

    def test_out_of_descriptors(self) -> None:
        """It says so once, accepts nothing for a while, and then those that waited."""
        accept, refused = socket.socket.accept, OSError(errno.EMFILE, "Too many open files")
        results: list[Any] = [refused, refused]

        def failing(listener: socket.socket) -> Any:
            if results:
                raise results.pop()
            return accept(listener)

        errors = io.StringIO()
        with (
            mock.patch.object(reference_server, "_ACCEPT_AGAIN_S", 0.01),
            mock.patch.object(socket.socket, "accept", failing),
            contextlib.redirect_stderr(errors),
        ):
            said = self.talk(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        self.assertTrue(said.startswith("HTTP/1.1 200 OK"), said)
        self.assertEqual(errors.getvalue().count("\n"), 1)
        self.assertIn("no connection can be accepted now (Too many open files)", errors.getvalue())

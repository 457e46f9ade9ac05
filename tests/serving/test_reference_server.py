"""The reference server's other pages, its refusals, and its truth about requests that went wrong."""

import asyncio
import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from inference_lab.errors import InputError
from inference_lab.serving.client import Client
from inference_lab.serving.exchange import Exchange
from inference_lab.serving.reference_server import ReferenceServer
from tests.serving.support import ask, record_of, serving


async def get(client: Client, url: str, page: str) -> Exchange:
    """The answer to a GET."""
    host = url.split("/")[2]
    return await client.send(f"GET {page} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


class TestReferenceServer(unittest.TestCase):
    """What it answers and what it writes down."""

    def test_pages(self) -> None:
        """Health, version and models answer; another page is a 404."""

        async def run() -> None:
            async with serving(model="tiny") as (server, client):
                models = await get(client, server.base_url, "/v1/models")
                self.assertEqual(json.loads(models.body_start)["data"][0]["id"], "tiny")
                for page, status in (("/health", 200), ("/version", 200), ("/v2/models", 404)):
                    self.assertEqual((await get(client, server.base_url, page)).http_status, status)

        asyncio.run(run())

    def test_metrics(self) -> None:
        """Prometheus text under vLLM's names counts what was served and shows what runs."""

        async def run() -> dict[str, float]:
            async with serving() as (server, client):
                await ask(client)
                running = asyncio.create_task(ask(client, max_tokens=100_000))
                while client.live_events < 1:  # noqa: ASYNC110  (the client has no event for it)
                    await asyncio.sleep(0.001)
                page = await get(client, server.base_url, "/metrics")
                running.cancel()
                await running
                families = text_string_to_metric_families(page.body_start.decode())
                return {sample.name: sample.value for family in families for sample in family.samples}

        found = asyncio.run(run())
        self.assertEqual(found["vllm:num_requests_running"], 1)
        self.assertEqual(found["vllm:num_requests_waiting"], 0)
        self.assertEqual(found["vllm:request_success_total"], 1)
        self.assertEqual(found["vllm:prompt_tokens_total"], 4)
        self.assertGreaterEqual(found["vllm:generation_tokens_total"], 6)

    def test_refusals(self) -> None:
        """What cannot be served is refused with the status and message a client can record."""
        wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({"model": "other"}, "HTTP 404: The model `other` does not exist."),
            ({"stream": False}, "HTTP 400: only streams"),
            ({"manner": "strange"}, "HTTP 400: manner 'strange'"),
            ({"max_tokens": "many"}, "HTTP 400: the body must be"),
        )

        async def run() -> None:
            async with serving() as (_, client):
                for extra, says in wrong:
                    with self.subTest(says):
                        record = record_of(await ask(client, **extra))
                        self.assertEqual(record.status, "http_error")
                        self.assertIn(says, record.error or "")

        asyncio.run(run())
        with self.assertRaisesRegex(InputError, "manner is 'strange', must be one of good"):
            ReferenceServer(manner="strange")

    def test_truth_of_what_went_wrong(self) -> None:
        """A request whose client left, one that failed and one cut by the end each have their line."""
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.jsonl"

            async def run() -> None:
                async with serving(truth=truth) as (_, client):
                    await ask(client, request_id="failed", manner="error-later")
                    for name in ("left", "cut"):
                        task = asyncio.create_task(ask(client, request_id=name, max_tokens=100_000))
                        while client.live_events < 2:  # noqa: ASYNC110
                            await asyncio.sleep(0.001)
                        if name == "left":
                            task.cancel()
                            await task
                    # the client leaves the second one to the server's end

            asyncio.run(run())
            lines = [json.loads(line) for line in truth.read_text().splitlines()]
        ends = {line["request_id"]: line["ended"] for line in lines if line["kind"] == "request"}
        self.assertEqual(ends["failed"], "error")
        self.assertEqual(ends["left"], "client gone")
        self.assertIn(ends["cut"], ("server stopped", "client gone"))
        batches = [line["batch"] for line in lines if line["kind"] == "step"]
        self.assertEqual(set(batches), {1})

    def test_steps_hold_several_requests(self) -> None:
        """Requests that come while a step runs share the next one."""
        with tempfile.TemporaryDirectory() as folder:
            truth = Path(folder) / "truth.jsonl"

            async def run() -> None:
                async with serving(truth=truth) as (_, client):
                    asked = (ask(client, request_id=f"r{i}", max_tokens=20) for i in range(3))
                    statuses = [record_of(exchange).status for exchange in await asyncio.gather(*asked)]
                    self.assertEqual(statuses, ["ok"] * 3)

            asyncio.run(run())
            lines = [json.loads(line) for line in truth.read_text().splitlines()]
        self.assertEqual(max(line["batch"] for line in lines if line["kind"] == "step"), 3)

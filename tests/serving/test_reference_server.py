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
from inference_lab.serving.exposition import Exposition
from inference_lab.serving.reference_server import ReferenceServer
from inference_lab.serving.scheduler import EngineSettings, Scheduler
from tests.serving.support import ask, record_of, serving


async def get(client: Client, url: str, page: str, keep_body_bytes: int = 4096) -> Exchange:
    """The answer to a GET."""
    host = url.split("/")[2]
    request = f"GET {page} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    return await client.send(request, keep_body_bytes=keep_body_bytes)


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
            async with serving(block_size=4, num_gpu_blocks=100_000) as (server, client):
                await ask(client)
                running = asyncio.create_task(ask(client, max_tokens=100_000))
                while client.live_events < 1:  # noqa: ASYNC110  (the client has no event for it)
                    await asyncio.sleep(0.001)
                page = await get(client, server.base_url, "/metrics", keep_body_bytes=1 << 16)
                running.cancel()
                await running
                families = text_string_to_metric_families(page.body_start.decode())
                return {sample.name: sample.value for family in families for sample in family.samples}

        found = {name.removeprefix("vllm:"): value for name, value in asyncio.run(run()).items()}
        self.assertEqual(found["num_requests_running"], 1)
        self.assertEqual(found["num_requests_waiting"], 0)
        self.assertEqual(found["request_success_total"], 1)
        self.assertEqual(found["prompt_tokens_total"], 8)
        self.assertGreaterEqual(found["generation_tokens_total"], 7)
        self.assertEqual(found["cache_config_info"], 1)
        self.assertGreaterEqual(found["kv_cache_usage_perc"], 2 / 100_000)  # 4 and 1 tokens in blocks of 4
        for name in ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits"):
            self.assertEqual(found[f"{name}_total"], 0)
        for name in ("queue_time", "prefill_time", "decode_time"):
            self.assertEqual(found[f"request_{name}_seconds_count"], 1)
        self.assertEqual(found["time_to_first_token_seconds_count"], 1)
        # of the first request 5, and one less than each other token of the second
        self.assertEqual(found["inter_token_latency_seconds_count"], found["generation_tokens_total"] - 2)
        self.assertGreaterEqual(found["inter_token_latency_seconds_sum"], 0.0045)
        queue_prefill_decode = ("queue_time", "prefill_time", "decode_time")
        parts = sum(found[f"request_{name}_seconds_sum"] for name in queue_prefill_decode)
        self.assertAlmostEqual(found["e2e_request_latency_seconds_sum"], parts, delta=0.001)

    def test_without_a_cache_nothing_is_said_of_one(self) -> None:
        """The families of a KV cache are left out; a size that no cache has is refused."""
        page = Exposition(Scheduler(EngineSettings()), "m", block_size=None, num_gpu_blocks=None).text()
        self.assertNotIn(b"cache_config_info", page)
        self.assertNotIn(b"kv_cache_usage", page)
        with self.assertRaisesRegex(InputError, "block_size is 0 and num_gpu_blocks None"):
            Exposition(Scheduler(EngineSettings()), "m", block_size=0, num_gpu_blocks=None)

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

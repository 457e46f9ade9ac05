"""What the serving tests share: one request against a reference server, in one event loop."""

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from inference_lab.stream_load.client.client import Client
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.client.outcome import Attempt, request_record
from inference_lab.stream_load.client.stream import Capture, Timeouts
from inference_lab.stream_load.clock import ArrivalClock
from inference_lab.stream_load.reference.scheduler import EngineSettings
from inference_lab.stream_load.reference.server import ReferenceServer
from inference_lab.stream_load.requests import RequestRecord
from inference_lab.stream_load.servers.start import start_server

QUICK = EngineSettings(ttft_ms=2.0, itl_ms=1.0)


@contextmanager
def reference_server(place: Path | None = None, **settings: Any) -> Generator[str]:
    """The base URL of a reference server in a process of its own; server.truth.jsonl is in `place`."""
    with TemporaryDirectory() as folder:
        log = (place or Path(folder)) / "server.log"
        with start_server({"kind": "reference", **settings}, log) as server:
            yield server.base_url


def record_of(capture: Capture, clock: str = "kernel") -> RequestRecord:
    """The record of a capture that was sent as soon as it was wanted."""
    at_ns = capture.sent_ns or 0
    return request_record(Attempt("r0", 1, at_ns, at_ns, at_ns, capture), clock=clock)


def body(**extra: Any) -> bytes:
    """A completion request for 6 tokens after a prompt of 4, changed by `extra`."""
    asked = {"model": "reference", "prompt": [5, 6, 7, 8], "max_tokens": 6, "stream": True}
    return json.dumps(asked | {"stream_options": {"include_usage": True}} | extra).encode()


async def ask(client: Client, path: str = "/completions", request_id: str = "r0", **extra: Any) -> Capture:
    """The capture of one request through this client."""
    return await client.send(client.request(path, body(**extra), request_id))


@asynccontextmanager
async def serving(
    timeouts: Timeouts = Timeouts(),  # noqa: B008  (it is frozen)
    *,
    kernel: bool = True,
    url: str = "",
    api_key: str | None = None,
    **settings: Any,
) -> AsyncGenerator[tuple[ReferenceServer, Client]]:
    """A reference server and a client of it (or of `url`)."""
    clock = ArrivalClock(kernel=kernel)
    try:
        async with ReferenceServer(QUICK, **settings) as server:
            target = Endpoint.parse(url or server.base_url)
            async with Client(target, clock=clock, timeouts=timeouts, api_key=api_key) as client:
                yield server, client
    finally:
        clock.close()


def lives(pid: int) -> bool:
    """Whether a process is there and runs; one that only waits to be waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

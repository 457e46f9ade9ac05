"""A server whose truth is known: OpenAI-compatible streams from a scheduler that only keeps time.

It writes when it received each request, when it wrote each token and what each step held, all on one
monotonic clock, so that a client can be measured against it. No weights, no tokenizer.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections import deque
from pathlib import Path
from time import monotonic_ns
from typing import Any, BinaryIO

import httptools

from inference_lab.errors import InputError
from inference_lab.serving.alarm import Alarm
from inference_lab.serving.arrival_clock import ArrivalClock
from inference_lab.serving.channel import Channel, Inbox
from inference_lab.serving.exposition import Exposition
from inference_lab.serving.manner import MANNERS, Manner, StreamWriter, http_response, prompt_tokens
from inference_lab.serving.scheduler import EngineSettings, Job, Scheduler, Step, run_engine

_FLUSH_NS = 200_000_000
_COMMENT_EVERY_S = 0.02


class _Stream:
    """One request: its job in the engine, its manner of writing, its line of the truth."""

    def __init__(self, server: "ReferenceServer", peer: "_Peer", request: dict[str, Any], path: str):
        self._server = server
        self._peer = peer
        self._manner: Manner = MANNERS[request.get("manner", server.manner)]
        is_chat = path.endswith("/chat/completions")
        self._writer = StreamWriter(self._manner, request, is_chat=is_chat, name=peer.request_id)
        self._held_tokens = 0
        self._events = 0
        self._unsent = b""
        self._unsent_tokens = 0
        output_tokens = request.get("max_completion_tokens") or request.get("max_tokens") or 16
        self.job = Job(prompt_tokens(request), int(output_tokens), self._emit)
        self.truth: dict[str, Any] = {
            "kind": "request",
            "request_id": peer.request_id,
            "received_ns": peer.received_ns,
            "prompt_tokens": self.job.prompt_tokens,
            "token_ns": [],
        }

    def start(self) -> None:
        """Answer at once if the manner says so, else send the header and join the waiting line."""
        instead = self._manner.instead
        if instead is None:
            self._peer.send(self._writer.head(), self._manner.bytes_a_write)
            self._server.submit(self.job)
        elif isinstance(instead, str):
            self.finish(instead)
            self._peer.close(reset=instead == "reset")
        else:
            status, content_type, body = instead
            self.finish(f"http {status}")
            self._peer.send(http_response(status, content_type, body.encode()))

    def _emit(self, number: int) -> None:
        manner = self._manner
        if manner.tokens_until is not None and number > manner.tokens_until:
            self._end_early()
            return
        last = number == self.job.output_tokens
        self._held_tokens += 1
        if self._held_tokens < manner.tokens_a_chunk and not last:
            return
        held, self._held_tokens = self._held_tokens, 0
        self._unsent += self._writer.tokens(held, number - held, last=last)
        self._unsent_tokens += held
        self._events += 1
        if self._events % manner.events_a_write == 0 or last:
            data, self._unsent = self._unsent, b""
            self.truth["token_ns"] += [monotonic_ns()] * self._unsent_tokens
            self._unsent_tokens = 0
            self._peer.send(data, manner.bytes_a_write)
        if last:
            self.finish("whole")
            if not manner.chunked:
                self._peer.close()

    def _end_early(self) -> None:
        ending = self._manner.ending
        self.job.is_aborted = True
        if ending == "exit":
            os._exit(3)
        if ending == "stall":
            self._stall()
            return
        self.finish(ending)
        if ending == "clean":
            self._peer.send(self._writer.end(done=False))
        elif ending == "error":
            self._peer.send(self._writer.error())
        else:
            self._peer.close(reset=ending == "reset")

    def _stall(self) -> None:
        """Write nothing more, or comments alone, for as long as the client stays."""
        if self._manner.comments and self._peer.stream is self:
            self._peer.send(self._writer.comment())
            asyncio.get_running_loop().call_later(_COMMENT_EVERY_S, self._stall)

    def finish(self, ended: str) -> None:
        """Write this request's line of the truth, once."""
        self.job.is_aborted = self.job.is_aborted or ended != "whole"
        if self._peer.stream is self:
            self._peer.stream = None
            over = {"started_ns": self.job.started_ns, "finished_ns": monotonic_ns(), "ended": ended}
            self._server.finish(self.truth | over)


class _Peer:
    """One connection of a client: requests in, whole answers or streams out."""

    def __init__(self, server: "ReferenceServer", sock: socket.socket) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._at_ns = 0
        self.request_id = ""
        self.received_ns = 0
        self.stream: _Stream | None = None
        self._pieces: deque[bytes] = deque()
        self._channel: Channel | None = Channel(sock, server.inbox, self._receive, self._lose)

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self.request_id = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        """Called by the parser: answer the request."""
        path, body = self._url.decode("latin-1").partition("?")[0], self._body
        self._url = self._body = b""
        self.received_ns = self._at_ns
        method = self._parser.get_method()
        if method == b"POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._begin(path, body)
        elif method == b"GET" and (answer := self._server.page(path)) is not None:
            self.send(http_response(200, *answer))
        else:
            self._refuse(404, f"no such endpoint: {path}")
        self.request_id = ""

    def _begin(self, path: str, body: bytes) -> None:
        try:
            request = json.loads(body)
            manner = request.get("manner", self._server.manner)
            output_tokens = int(request.get("max_tokens") or 16)
        except (ValueError, AttributeError, TypeError) as error:
            self._refuse(400, f"the body must be a JSON object: {error}")
            return
        if request.get("model") != self._server.model:
            self._refuse(404, f"The model `{request.get('model')}` does not exist.")
        elif not request.get("stream"):
            self._refuse(400, "only streams are timed here: ask with stream true")
        elif manner not in MANNERS or output_tokens < 1:
            self._refuse(400, f"manner {manner!r} or max_tokens {output_tokens} cannot be")
        else:
            self.stream = _Stream(self._server, self, request, path)
            self.stream.start()

    def _refuse(self, status: int, message: str) -> None:
        error = {"error": {"message": message, "type": "invalid_request_error", "code": status}}
        self.send(http_response(status, "application/json", json.dumps(error).encode()))

    def _receive(self, data: bytes, at_ns: int, _: int | None) -> None:
        self._at_ns = at_ns
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def send(self, data: bytes, bytes_a_write: int | None = None) -> None:
        """Write at once, or in pieces with turns of the event loop between them."""
        if self._channel is None:
            return
        if bytes_a_write is None:
            self._channel.send(data)
            return
        if not self._pieces:
            asyncio.get_running_loop().call_soon(self._send_piece)
        starts = range(0, len(data), bytes_a_write)
        self._pieces += [data[start : start + bytes_a_write] for start in starts]

    def _send_piece(self) -> None:
        if self._channel is None:
            return
        self._channel.send(self._pieces.popleft())
        loop = asyncio.get_running_loop()
        if self._pieces:
            loop.call_soon(loop.call_soon, self._send_piece)  # a reader in this loop comes between

    def _lose(self, _: str) -> None:
        self._channel = None
        self._server.peers.discard(self)
        if self.stream is not None:
            self.stream.finish("client gone")

    def close(self, *, reset: bool = False) -> None:
        """End the connection from this side."""
        channel, self._channel = self._channel, None
        self._server.peers.discard(self)
        if channel is not None:
            channel.close(reset=reset)


class ReferenceServer:
    """The HTTP front of the scheduler. Use as an async context manager; `base_url` is then known."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "reference",
        manner: str = "good",
        truth: Path | None = None,
        block_size: int | None = None,
        num_gpu_blocks: int | None = None,
    ) -> None:
        if manner not in MANNERS:
            raise InputError(f"manner is {manner!r}, must be one of {', '.join(MANNERS)}")
        self.settings = settings or EngineSettings()
        self.model = model
        self.manner = manner
        self.base_url = ""
        self.peers: set[_Peer] = set()
        self._where = (host, port)
        self._truth_path = truth
        self._truth: BinaryIO | None = None
        self._flushed_ns = 0
        self._scheduler = Scheduler(self.settings)
        self._work = asyncio.Event()
        self._exposition = Exposition(
            self._scheduler, model, block_size=block_size, num_gpu_blocks=num_gpu_blocks
        )

    async def __aenter__(self) -> "ReferenceServer":
        self._listener = socket.create_server(self._where, backlog=1024)
        self._listener.setblocking(False)
        host, port = self._listener.getsockname()[:2]
        self.base_url = f"http://{host}:{port}/v1"
        self.clock = ArrivalClock()
        self.inbox = Inbox(self.clock)
        self.clock.enable(self._listener)  # accepted sockets inherit it
        self._alarm = Alarm()
        if self._truth_path is not None:
            self._truth = self._truth_path.open("xb")
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)
        engine = run_engine(
            self._scheduler,
            has_work=self._has_work,
            now_ns=monotonic_ns,
            sleep_until=self._alarm.sleep_until,
            on_step=self._on_step,
        )
        self._engine = asyncio.create_task(engine)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        self._engine.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._engine
        for peer in tuple(self.peers):
            if peer.stream is not None:
                peer.stream.finish("server stopped")
            peer.close()
        self.inbox.close()
        self._alarm.close()
        self.clock.close()
        if self._truth is not None:
            self._write({"kind": "end", "clock": self.clock.conditions()})
            self._truth.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.peers.add(_Peer(self, sock))

    async def _has_work(self) -> None:
        self._flush()
        self._work.clear()
        await self._work.wait()

    def submit(self, job: Job) -> None:
        """Give a job to the engine."""
        self._scheduler.submit(job)
        self._work.set()

    def finish(self, truth: dict[str, Any]) -> None:
        """Keep the truth of one request that is over."""
        self._exposition.add_request(truth)
        self._write(truth)

    def _on_step(self, step: Step, tokens: int) -> None:
        ended_ns = monotonic_ns()
        self._exposition.add_step(step, ended_ns, tokens)
        self._write({"kind": "step", **step.row(ended_ns)})

    def _write(self, line: dict[str, Any]) -> None:
        if self._truth is not None:
            self._truth.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            if monotonic_ns() - self._flushed_ns > _FLUSH_NS:
                self._flush()

    def _flush(self) -> None:
        self._flushed_ns = monotonic_ns()
        if self._truth is not None:
            self._truth.flush()

    def page(self, path: str) -> tuple[str, bytes] | None:
        """(content type, body) of a GET endpoint, or None if there is no such one."""
        if path == "/v1/models":
            model = {"id": self.model, "object": "model", "created": 0, "owned_by": "inference_lab"}
            return "application/json", json.dumps({"object": "list", "data": [model]}).encode()
        if path == "/health":
            return "text/plain", b""
        if path == "/version":
            return "application/json", json.dumps({"version": "reference"}).encode()
        if path == "/metrics":
            return "text/plain; version=0.0.4", self._exposition.text()
        return None

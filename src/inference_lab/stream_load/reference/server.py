"""The reference server: OpenAI-compatible streams whose true times it logs, from a scheduler without a model.

Its log has the time it received each request, the time it wrote each token, and what each step held, all on
one monotonic clock, so that a client can be measured against it. No weights, no tokenizer, no faults.
"""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus
from io import FileIO
from itertools import count
from pathlib import Path
from time import monotonic_ns

from inference_lab.errors import InputError, MeasurementRefused, RecordError
from inference_lab.stream_load.clock import ArrivalClock, PreciseTimer
from inference_lab.stream_load.connection import Connection, SocketReader
from inference_lab.stream_load.reference.completion import Asked, answer_to, asked_in
from inference_lab.stream_load.reference.metrics import MetricsPage
from inference_lab.stream_load.reference.request_reader import Request, RequestReader
from inference_lab.stream_load.reference.scheduler import EngineSettings, EngineStep, Job, Scheduler

_MAX_UNREAD_BYTES = 1 << 18  # of a stream, beyond what the kernel holds
_MAX_NAME = 256
_LINGER_S = 5.0  # a close while the peer still sends would take the answer from it
_ACCEPT_AGAIN_S = 0.5


class _Stream:
    """One request: its job in the engine, its answer, its line of the truth."""

    def __init__(self, server: "ReferenceServer", peer: "_Peer", asked: Asked, request: Request):
        self._server = server
        self._peer = peer
        self._request = request
        self._answer = answer_to(asked, request.name)
        self._unwritten = self._unwritten_bytes = 0
        self._token_ns: list[int] = []
        self._job = Job(asked.prompt_tokens, asked.output_tokens, self._emit)

    def start(self) -> None:
        """Send the header and join the waiting line."""
        self._peer.connection.send(self._answer.head)
        self._server.scheduler.submit(self._job)

    def _emit(self, number: int) -> None:
        data = self._answer.last if number == self._job.output_tokens else self._answer.token
        self._unwritten += 1
        self._unwritten_bytes += len(data)
        self._peer.connection.send(data, self._written)
        if self._unwritten_bytes > _MAX_UNREAD_BYTES:
            self.finish("client does not read")
            self._peer.close(reset=True)

    def _written(self, sent_ns: int) -> None:
        """Record the time right before the call of send() that took all there was.

        Sending wakes the client, which may run at once on this very core: a stamp after the call could be
        later than the client's own. The bytes are on their way 5 to 50 µs after it.
        """
        self._token_ns += [sent_ns] * self._unwritten
        self._unwritten = self._unwritten_bytes = 0
        if self._job.is_over:
            self.finish("whole")
            self._peer.answered(keep=self._request.keep)

    def finish(self, ended: str) -> None:
        """Log this request's line of the truth, once."""
        self._job.is_aborted = self._job.is_aborted or ended != "whole"
        if self._peer.stream is self:
            self._peer.stream = None
            received_ns, started_ns = self._request.received_ns, self._job.started_ns
            self._server.metrics.add_request(received_ns, started_ns, self._token_ns, ended)
            line = {
                "kind": "request",
                "request_id": self._request.name,
                "received_ns": received_ns,
                "prompt_tokens": self._job.prompt_tokens,
                "token_ns": self._token_ns,
                "started_ns": started_ns,
                "finished_ns": monotonic_ns(),
                "ended": ended,
            }
            self._server.log(line)


class _Peer:
    """One connection of a client: its requests are answered one after the other."""

    def __init__(self, server: "ReferenceServer", sock: socket.socket) -> None:
        self._server = server
        self._reader = RequestReader()
        self._is_answering = False
        self.stream: _Stream | None = None
        self.connection = Connection(sock, server.reader, self._on_data, self._on_close)

    def _on_data(self, data: bytes, at_ns: int, _: int | None) -> None:
        self._reader.feed(data, at_ns)
        self._answer_next()

    def _answer_next(self) -> None:
        waiting = self._reader.waiting
        while waiting and not self._is_answering and self in self._server.peers:
            self._is_answering = True
            self._answer(waiting.popleft())

    def _answer(self, request: Request) -> None:
        path = request.url.decode("latin-1").partition("?")[0]
        if request.refusal is not None:
            self._refuse(request, *request.refusal)
        elif len(request.name) > _MAX_NAME:
            self._refuse(request, 400, f"x-request-id may have {_MAX_NAME} characters")
        elif request.method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._complete(request, is_chat=path.startswith("/v1/chat/"))
        elif request.method == "GET" and (page := self._server.page(path)) is not None:
            self._respond(request, 200, *page)
        else:
            self._refuse(request, 404, f"no such endpoint: {request.method} {path[:_MAX_NAME]}")

    def _complete(self, request: Request, *, is_chat: bool) -> None:
        try:
            asked = asked_in(request.body, is_chat=is_chat)
        except InputError as error:
            self._refuse(request, 400, str(error))
            return
        if asked.model != self._server.model:
            self._refuse(request, 404, f"The model `{str(asked.model)[:_MAX_NAME]}` does not exist.")
            return
        request.name = request.name or f"{'chatcmpl' if is_chat else 'cmpl'}-{next(self._server.numbers)}"
        self.stream = _Stream(self._server, self, asked, request)
        self.stream.start()

    def _refuse(self, request: Request, status: int, message: str) -> None:
        kind = "NotFoundError" if status == 404 else "BadRequestError"
        error = {"error": {"message": message, "type": kind, "param": None, "code": status}}
        self._respond(request, status, "application/json", json.dumps(error).encode())

    def _respond(self, request: Request, status: int, content_type: str, body: bytes) -> None:
        head = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {content_type}\r\n"
        head += f"Content-Length: {len(body)}\r\n" + ("" if request.keep else "Connection: close\r\n")
        data = f"{head}\r\n".encode() + (b"" if request.method == "HEAD" else body)
        self.connection.send(data, lambda _: self.answered(keep=request.keep))

    def answered(self, *, keep: bool) -> None:
        """After an answer: end the connection unless it is kept, else go on to the next request."""
        self._is_answering = False
        loop = asyncio.get_running_loop()
        if keep:
            loop.call_soon(self._answer_next)  # other tokens of this step are written first
        elif self._reader.is_broken:
            loop.call_later(_LINGER_S, self.close)
        else:
            self.close()

    def _on_close(self, _: str) -> None:
        self.close()
        if self.stream is not None:
            self.stream.finish("client gone")

    def close(self, *, reset: bool = False) -> None:
        """End the connection from this side."""
        self._server.peers.discard(self)
        self.connection.close(reset=reset)


class ReferenceServer:
    """The HTTP front of the scheduler. Use as an async context manager; `base_url` is then known."""

    def __init__(
        self,
        settings: EngineSettings | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        model: str = "reference",
        truth: Path | None = None,
    ) -> None:
        self.model = model
        self.peers: set[_Peer] = set()
        self.scheduler = Scheduler(settings or EngineSettings())
        self.metrics = MetricsPage(self.scheduler, model)
        self.numbers = count(1)  # of requests whose client gave them no name
        self._where = (host, port)
        self._truth_path = truth
        self._truth: FileIO | None = None
        self._unwritten_lines: list[Mapping[str, object]] = []
        self._accept_again: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> "ReferenceServer":
        if self._truth_path is not None:
            try:
                self._truth = self._truth_path.open("xb", buffering=0)
            except OSError as error:
                words = f"truth {self._truth_path}: cannot be made ({error.strerror}); name a new file"
                raise InputError(words) from None
        host, port = self._where
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=1024)
        except (OSError, OverflowError) as error:
            raise MeasurementRefused(f"cannot serve on {host}:{port}: {error}; choose another") from None
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.base_url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
        self.clock = ArrivalClock()
        self.reader = SocketReader(self.clock)
        self.clock.enable(self._listener)  # accepted sockets inherit it
        self._alarm = PreciseTimer()
        self._listen()
        engine = self.scheduler.run(
            now_ns=monotonic_ns,
            sleep_until=self._alarm.sleep_until,
            on_step=self._on_step,
            on_idle=self._write_lines,
        )
        self.engine = asyncio.create_task(engine)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._accept_again is not None:
            self._accept_again.cancel()
        asyncio.get_running_loop().remove_reader(self._listener.fileno())
        self._listener.close()
        self.engine.cancel()
        for peer in tuple(self.peers):
            if peer.stream is not None:
                peer.stream.finish("server stopped")
            peer.close()
        self.reader.close()
        self.clock.close()
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self.engine
            self.log({"kind": "end", "clock": self.clock.conditions()})
            self._write_lines()
        finally:
            self._alarm.close()
            if self._truth is not None:
                self._truth.close()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: those that wait are kept by the kernel
                if self._accept_again is None:
                    words = f"no connection can be accepted now ({error.strerror}); trying again and again"
                    print(words, file=sys.stderr, flush=True)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener.fileno())
                self._accept_again = loop.call_later(_ACCEPT_AGAIN_S, self._listen)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.peers.add(_Peer(self, sock))

    def log(self, line: Mapping[str, object]) -> None:
        """Keep a line of the truth; it is written when the tokens of this step are."""
        self._unwritten_lines.append(line)

    def _on_step(self, step: EngineStep, tokens: int) -> None:
        ended_ns = monotonic_ns()
        self.metrics.add_step(step, ended_ns, tokens)
        self.log({"kind": "step", **step.row(ended_ns)})
        self._write_lines()

    def _write_lines(self) -> None:
        """Write the lines of the log so far. Raises RecordError when they cannot be written."""
        lines, self._unwritten_lines = self._unwritten_lines, []
        if self._truth is None:
            return
        data = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines).encode()
        try:
            while data:
                data = data[self._truth.write(data) :]
        except OSError as error:
            words = f"truth {self._truth_path}: cannot be written ({error.strerror})"
            raise RecordError(f"{words}; free the disk and run again") from None

    def page(self, path: str) -> tuple[str, bytes] | None:
        """(content type, body) of a GET endpoint, or None if there is no such one."""
        model = {"id": self.model, "object": "model", "created": 0, "owned_by": "inference_lab"}
        match path:
            case "/v1/models":
                return "application/json", json.dumps({"object": "list", "data": [model]}).encode()
            case "/version":
                return "application/json", b'{"version": "reference"}'
            case "/health":
                return "text/plain", b""
            case "/metrics":
                return "text/plain; version=0.0.4", self.metrics.text()
            case _:
                return None

"""A streaming client of one OpenAI-compatible server: prepared bytes in, exchanges out.

Connections are opened before they are needed and used again while the server keeps them. Nothing is
parsed as JSON while a stream runs, except to learn whether a time-out is due to a missing first token.
"""

import asyncio
import json
import os
import socket
import ssl
from collections import deque
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any
from urllib.parse import urlsplit

import httptools

from inference_lab.errors import InputError, MeasurementRefused
from inference_lab.serving.arrival_clock import ArrivalClock
from inference_lab.serving.channel import Channel, TlsChannel, connect
from inference_lab.serving.exchange import DONE, Exchange, Reading, error_text
from inference_lab.serving.sse import EventScanner

_IDLE_NS = 3_000_000_000  # servers close idle connections after 5 s or more: do not race with them
_DONE_GRACE_NS = 250_000_000  # after [DONE] the message should end; a server that waits is not waited for


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long to wait, in seconds: for a connection, and, from sending on, for what a stream owes."""

    connect_s: float = 10.0
    first_token_s: float = 300.0
    between_tokens_s: float = 60.0
    total_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in ("connect_s", "first_token_s", "between_tokens_s", "total_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"time-out {name} is {getattr(self, name)}, must be positive")


@dataclass(frozen=True, slots=True)
class Target:
    """Where the server is, read from a base URL such as http://127.0.0.1:8000/v1."""

    scheme: str
    host: str
    port: int
    prefix: str

    @classmethod
    def parse(cls, base_url: str) -> "Target":
        """The target of a base URL; raises InputError naming what is wrong with it."""
        try:
            url = urlsplit(base_url)
            port = url.port or (443 if url.scheme == "https" else 80)
        except ValueError as error:
            raise InputError(f"base URL {base_url!r}: {error}") from None
        if url.username or url.password:
            raise InputError("base URL holds a user or password; records would keep it: use a key")
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise InputError(f"base URL {base_url!r}: must be like http://127.0.0.1:8000/v1")
        return cls(url.scheme, url.hostname, port, url.path.rstrip("/"))

    def request(
        self, method: str, path: str, body: bytes = b"", *, request_id: str = "", key: str | None = None
    ) -> bytes:
        """The whole HTTP request as bytes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}"]
        lines += ["Accept: text/event-stream, application/json", f"Content-Length: {len(body)}"]
        lines += ["Content-Type: application/json"] if body else []
        lines += [f"X-Request-Id: {request_id}"] if request_id else []
        lines += [f"Authorization: Bearer {key}"] if key else []
        return "\r\n".join([*lines, "", ""]).encode() + body


class _Response:
    """Feeds one HTTP response into an exchange, and says when it is over."""

    __slots__ = (
        "_done_ns",
        "_is_over",
        "_keep_body_bytes",
        "_parser",
        "_peeked",
        "_peeking",
        "_scanner",
        "exchange",
        "finished",
        "reusable",
    )

    def __init__(self, exchange: Exchange, keep_body_bytes: int) -> None:
        self.exchange = exchange
        self._keep_body_bytes = keep_body_bytes
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._scanner = EventScanner()
        exchange.payloads = self._scanner.payloads
        self._is_over = False
        self._done_ns: int | None = None
        self._peeking = Reading()
        self._peeked = 0

    def on_headers_complete(self) -> None:
        if self._parser is not None and (status := self._parser.get_status_code()) >= 200:
            self.exchange.http_status = status

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a piece of the body, chunk sizes removed."""
        exchange = self.exchange
        if exchange.http_status == 200:
            self._scanner.feed(body)
            if exchange.payloads:
                return
        if len(exchange.body_start) < self._keep_body_bytes:
            exchange.body_start += body[: self._keep_body_bytes]

    def on_message_complete(self) -> None:
        if self._parser is not None and self.exchange.http_status is not None:
            self._is_over = True
            self.reusable = self._parser.should_keep_alive()

    def receive(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Take the bytes of one read."""
        if self._parser is None:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.exchange.stamp(at_ns, lag_ns)
            self.finish("broken", at_ns, f"not HTTP: {error}")
            return
        self.exchange.stamp(at_ns, lag_ns)
        if self._is_over:
            self.finish("complete", at_ns)
        elif self._done_ns is None and self.exchange.payloads[-1:] == [DONE]:
            self._done_ns = at_ns

    def finish(self, ended: str, at_ns: int, detail: str | None = None) -> None:
        """The exchange is over: nothing more will be read into it."""
        self.exchange.end(ended, at_ns, detail)
        self._parser = None  # it refers to this object: no cycle is left for the collector
        if not self.finished.done():
            self.finished.set_result(None)

    def expire(self, now_ns: int, timeouts: Timeouts) -> None:
        """End the exchange if it owes something for too long."""
        exchange = self.exchange
        if self._done_ns is not None:
            if now_ns - self._done_ns > _DONE_GRACE_NS:
                self.finish("complete", self._done_ns)
            return
        if exchange.sent_ns is None:
            return
        while not self._peeking.saw_token and self._peeked < len(exchange.payloads):
            self._peeking.add(exchange.payloads[self._peeked])
            self._peeked += 1
        if now_ns - exchange.sent_ns > timeouts.total_s * 1e9:
            self.finish("timeout", now_ns, f"not over {timeouts.total_s:g} s after it was sent")
        elif self._peeking.saw_token:
            if now_ns - exchange.stamps_ns[-1] > timeouts.between_tokens_s * 1e9:
                self.finish("timeout", now_ns, f"no token for {timeouts.between_tokens_s:g} s")
        elif now_ns - exchange.sent_ns > timeouts.first_token_s * 1e9:
            self.finish("timeout", now_ns, f"no first token after {timeouts.first_token_s:g} s")


class _Connection:
    """A connection that carries one response at a time, or none."""

    def __init__(self) -> None:
        self.channel: Channel | TlsChannel | None = None
        self.response: _Response | None = None
        self.is_open = True
        self.idle_since_ns: int | None = None

    def receive(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Bytes nobody asked for end the connection."""
        if self.response is None:
            self.close()
        else:
            self.response.receive(data, at_ns, lag_ns)

    def lose(self, reason: str) -> None:
        """The peer or the network ended the connection."""
        self.is_open = False
        if self.response is not None:
            self.response.finish("closed", monotonic_ns(), f"connection lost ({reason})")

    def start(self, request: bytes, response: _Response) -> None:
        """Send a request whose answer goes to `response`."""
        self.response = response

        def sent(at_ns: int) -> None:
            response.exchange.sent_ns = at_ns

        if self.channel is not None:
            self.channel.send(request, sent)

    def close(self) -> None:
        """End the connection."""
        self.is_open = False
        if self.channel is not None:
            self.channel.close()

    def is_ready(self) -> bool:
        """Whether a request may be sent on it."""
        fresh = self.idle_since_ns is None or monotonic_ns() - self.idle_since_ns < _IDLE_NS
        return self.is_open and fresh


class Client:
    """Connections to one server. Use as an async context manager.

    `api_key` goes into the Authorization header and nowhere else. `spare` connections beyond those in
    use are kept open, so that a request that is due finds one.
    """

    def __init__(
        self,
        target: Target,
        *,
        clock: ArrivalClock,
        timeouts: Timeouts | None = None,
        api_key: str | None = None,
        spare: int = 0,
    ) -> None:
        self._target = target
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._api_key = api_key
        self._spare = spare
        self._tls = ssl.create_default_context() if target.scheme == "https" else None
        self._addresses: list[tuple[socket.AddressFamily, Any]] = []
        self._ready: deque[_Connection] = deque()
        self._live: set[_Response] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Client":
        self._watch = asyncio.create_task(self._watch_timeouts())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for task in self._opening:
            task.cancel()
        for connection in self._ready:
            connection.close()

    @property
    def clock_name(self) -> str:
        """The clock of the stamps, as records name it."""
        return "kernel" if self._clock.kernel and self._tls is None else "user"

    @property
    def live_events(self) -> int:
        """How many events the running streams have brought so far."""
        return sum(len(response.exchange.payloads) for response in self._live)

    def request(self, path: str, body: bytes, request_id: str) -> bytes:
        """The bytes of a POST, ready to be sent."""
        key = self._api_key
        return self._target.request("POST", path, body, request_id=request_id, key=key)

    def redact(self, text: str) -> str:
        """The text without the API key, should a server have echoed it."""
        return text.replace(self._api_key, "[key]") if self._api_key else text

    async def prepare(self, connections: int) -> None:
        """Open that many connections; what cannot be opened is found out by the request that needs it."""
        for _ in range(connections):
            self._open_ahead()
        if self._opening:
            await asyncio.wait(self._opening)

    def top_up(self) -> None:
        """See to it that `spare` usable connections are open, or opening."""
        stale = [connection for connection in self._ready if not connection.is_ready()]
        for connection in stale:
            self._ready.remove(connection)
            connection.close()
        for _ in range(self._spare - len(self._ready) - len(self._opening)):
            self._open_ahead()

    def _open_ahead(self) -> None:
        async def open_one() -> None:
            try:
                self._ready.append(await self._open())
            except (OSError, TimeoutError):
                return  # the request that needs a connection will meet the same error and record it

        task = asyncio.create_task(open_one())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self) -> _Connection:
        if not self._addresses:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._target.host, self._target.port, type=socket.SOCK_STREAM
            )
            self._addresses = [(family, address) for family, _, _, _, address in found]
        for address in tuple(self._addresses):
            connection = _Connection()
            try:
                async with asyncio.timeout(self._timeouts.connect_s):
                    connection.channel = await connect(
                        address,
                        self._clock,
                        connection.receive,
                        connection.lose,
                        tls=self._tls,
                        server_name=self._target.host,
                    )
                return connection
            except (OSError, TimeoutError):
                if len(self._addresses) == 1:
                    raise
                self._addresses.remove(address)
        raise OSError("no address of the host answers")

    async def send(self, request: bytes, *, keep_body_bytes: int = 4096) -> Exchange:
        """Send prepared bytes and return what became of them; a cancelled exchange is returned, too."""
        exchange = Exchange()
        connection: _Connection | None = None
        response: _Response | None = None
        try:
            while self._ready and connection is None:
                connection = self._ready.pop()
                if not connection.is_ready():
                    connection.close()
                    connection = None
            connection = connection or await self._open()
            response = _Response(exchange, keep_body_bytes)
            self._live.add(response)
            connection.start(request, response)
            await response.finished
        except TimeoutError:
            exchange.end("connect", monotonic_ns(), f"no connection in {self._timeouts.connect_s:g} s")
        except OSError as error:
            why = str(error)
            if isinstance(error, ConnectionError) and error.errno:
                why = os.strerror(error.errno)  # asyncio's own message names the address alone
            exchange.end("connect", monotonic_ns(), why)
        except asyncio.CancelledError:
            exchange.end("cancelled", monotonic_ns(), "cancelled")
        finally:
            if response is not None:
                self._live.discard(response)
            if connection is not None:
                self._give_back(connection, response)
        return exchange

    def _give_back(self, connection: _Connection, response: _Response | None) -> None:
        connection.response = None
        if connection.is_open and response is not None and response.reusable:
            connection.idle_since_ns = monotonic_ns()
            self._ready.append(connection)
        else:
            connection.close()
            if response is not None and response.exchange.ended in ("complete", "closed"):
                self._open_ahead()  # this server keeps no connection: have the next one ready

    async def _watch_timeouts(self) -> None:
        limits = self._timeouts
        shortest_s = min(limits.first_token_s, limits.between_tokens_s, limits.total_s)
        period_s = min(max(shortest_s / 20, 0.001), 0.1)
        while True:
            before_ns = monotonic_ns()
            await asyncio.sleep(period_s)
            now_ns = monotonic_ns()
            if now_ns - before_ns < (period_s + 0.1) * 1e9:  # else this process stood still: read first
                for response in tuple(self._live):
                    response.expire(now_ns, limits)

    async def discover_model(self) -> str:
        """The first model the server lists; raises MeasurementRefused when it lists none."""
        where = f"{self._target.scheme}://{self._target.host}:{self._target.port}{self._target.prefix}/models"
        request = self._target.request("GET", "/models", key=self._api_key)
        exchange = await self.send(request, keep_body_bytes=1 << 22)
        way_out = "start the server, correct --base-url, or name --model"
        if exchange.http_status is None:
            raise MeasurementRefused(f"{where}: no answer ({exchange.detail}); {way_out}")
        try:
            said = json.loads(exchange.body_start)
            if exchange.http_status != 200:
                raise MeasurementRefused(
                    self.redact(f"{where}: HTTP {exchange.http_status}: {error_text(said)}; {way_out}")
                )
            return str(said["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise MeasurementRefused(
                f"{where}: HTTP {exchange.http_status} lists no model; {way_out}"
            ) from None

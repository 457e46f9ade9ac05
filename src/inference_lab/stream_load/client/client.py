"""A streaming client of one OpenAI-compatible server: prepared bytes in, exchanges out.

Connections are opened before they are needed and used again while the server keeps them.
"""

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections import deque
from time import monotonic_ns
from typing import Any

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.client.outcome import answer_text
from inference_lab.stream_load.client.redaction import redacting
from inference_lab.stream_load.client.stream import Capture, Response, Timeouts
from inference_lab.stream_load.clock import ArrivalClock
from inference_lab.stream_load.connection import Channel, SocketReader, TlsChannel, connect, tls_context

_IDLE_NS = 3_000_000_000  # servers close idle connections after 5 s or more: do not race with them


_Address = tuple[socket.AddressFamily, Any]


class _Connection:
    """A connection that carries one response at a time, or none."""

    def __init__(self) -> None:
        self.channel: Channel | TlsChannel | None = None
        self.response: Response | None = None
        self.is_open = True
        self.is_kept = False  # it has carried an answer before
        self.idle_since_ns = monotonic_ns()

    def receive(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Bytes nobody asked for end the connection."""
        if self.response is None:
            self.close()
        else:
            self.response.receive(data, at_ns, lag_ns)

    def lose(self, reason: str) -> None:
        """The peer or the network ended the connection.

        A kept one that ends before any byte of an answer was at its end when the request went: servers close
        idle connections when they like. The response is withdrawn then, and its capture has no end.
        """
        self.is_open = False
        if self.response is None:
            return
        if self.is_kept and not self.response.began:
            self.response.withdraw()
        else:
            self.response.finish("closed", monotonic_ns(), f"connection lost ({reason})")

    def start(self, request: bytes, response: Response) -> None:
        """Send a request whose answer goes to `response`."""
        self.response = response

        def sent(at_ns: int) -> None:
            response.capture.sent_ns = at_ns

        if self.channel is not None:
            self.channel.send(request, sent)

    def close(self) -> None:
        """End the connection."""
        self.is_open = False
        if self.channel is not None:
            self.channel.close()

    def is_ready(self) -> bool:
        """Whether a request may be sent on it."""
        return self.is_open and monotonic_ns() - self.idle_since_ns < _IDLE_NS


class Client:
    """Connections to one server. Use as an async context manager.

    `api_key` goes into its one header and nowhere else. `spare` connections beyond those in use are kept
    open, so that a request that is due finds one. No proxy is used, whatever the environment names, and no
    redirect is followed. `opened` and `resent` count connections, and requests that went over a second one.
    """

    def __init__(
        self,
        target: Endpoint,
        *,
        clock: ArrivalClock,
        timeouts: Timeouts | None = None,
        api_key: str | None = None,
        spare: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._target = target
        self._clock = clock
        self._timeouts = timeouts or Timeouts()
        self._api_key = api_key
        self.redact = redacting(api_key)
        self._spare = spare
        self._tls = (tls or tls_context()) if target.scheme == "https" else None
        self._addresses: list[_Address] = []
        self.opened = self.resent = 0
        self._ready: deque[_Connection] = deque()
        self._live: set[Response] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Client":
        self._inbox = SocketReader(self._clock)
        self.read = self._inbox.read
        self._watch = asyncio.create_task(self._watch_timeouts())
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._opening:
            task.cancel()
        for connection in self._ready:
            connection.close()
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        self._inbox.close()

    @property
    def clock_name(self) -> str:
        """The clock of the stamps, as records name it."""
        return "kernel" if self._clock.kernel and self._target.is_plain_tcp else "user"

    @property
    def live_events(self) -> int:
        """How many events the running streams have brought so far."""
        return sum(len(response.capture.stamps_ns) for response in self._live)

    def request(self, path: str, body: bytes, request_id: str) -> bytes:
        """The bytes of a POST, ready to be sent."""
        key = self._api_key
        return self._target.request("POST", path, body, request_id=request_id, key=key)

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
            except OSError:
                return  # the request that needs a connection will meet the same error and record it

        task = asyncio.create_task(open_one())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self) -> _Connection:
        """A new connection to the first of the host's addresses that takes one, the last good one first.

        They share the time there is for it. When none takes one, the name is looked up again next time.
        """
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._timeouts.connect_s
        if not (addresses := self._addresses):
            async with asyncio.timeout_at(give_up_s):
                addresses = self._addresses = await self._look_up()
        errors: list[OSError] = []
        for address in addresses:
            connection = _Connection()
            share_s = (give_up_s - loop.time()) / (len(addresses) - len(errors))
            try:
                async with asyncio.timeout(share_s):
                    connection.channel = await connect(
                        address,
                        self._inbox,
                        connection.receive,
                        connection.lose,
                        tls=self._tls,
                        server_name=self._target.host,
                    )
            except OSError as error:  # TimeoutError is one
                errors.append(error)
                continue
            self.opened += 1
            connection.idle_since_ns = monotonic_ns()
            self._addresses = [address, *(other for other in addresses if other != address)]
            return connection
        self._addresses = []
        if len(errors) == 1:
            raise errors[0]
        said = zip(addresses, errors, strict=True)
        raise OSError("; ".join(f"{where[0]}: {self._why(error)}" for (_, where), error in said))

    async def _look_up(self) -> list[_Address]:
        target = self._target
        if target.unix_socket is not None:
            return [(socket.AF_UNIX, str(target.unix_socket))]
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((family, address) for family, _, _, _, address in found))

    def _why(self, error: OSError) -> str:
        """Why there is no connection, in words."""
        if isinstance(error, TimeoutError) and not error.errno:
            return f"no connection in {self._timeouts.connect_s:g} s"
        if isinstance(error, ssl.SSLError) or not error.errno:
            return str(error)
        if isinstance(error, socket.gaierror):
            return f"{self._target.host}: {error.strerror}"
        where = f"{self._target.unix_socket}: " if self._target.unix_socket else ""
        return where + os.strerror(error.errno)  # asyncio's own message names the address alone

    async def _take(self) -> _Connection:
        """A connection that waits and has not ended meanwhile, or a new one."""
        while self._ready:
            connection = self._ready.pop()
            if connection.is_ready() and connection.channel and connection.channel.is_quiet():
                return connection
            connection.close()
        return await self._open()

    async def send(self, request: bytes, *, keep_body_bytes: int = 4096) -> Capture:
        """Send prepared bytes and return what became of them; a cancelled capture is returned, too.

        A request whose kept connection ended before any byte of an answer goes once more over a new one.
        """
        capture = Capture(request)
        connection: _Connection | None = None
        response: Response | None = None
        try:
            connection = await self._take()
            while True:
                response = Response(capture, keep_body_bytes)
                self._live.add(response)
                connection.start(request, response)
                await response.finished
                if capture.ended is not None:
                    break
                self._live.discard(response)
                capture.resent += 1
                capture.sent_ns = None
                self.resent += 1
                connection.close()
                connection = response = None
                connection = await self._open()
        except OSError as error:
            capture.end("connect", monotonic_ns(), self._why(error))
        except asyncio.CancelledError:
            capture.end("cancelled", monotonic_ns(), "cancelled")
        finally:
            if response is not None:
                self._live.discard(response)
            if connection is not None:
                self._give_back(connection, response)
        return capture

    def _give_back(self, connection: _Connection, response: Response | None) -> None:
        connection.response = None
        if connection.is_open and response is not None and response.reusable:
            connection.is_kept = True
            connection.idle_since_ns = monotonic_ns()
            self._ready.append(connection)
        else:
            connection.close()
            if response is not None and response.capture.ended in ("complete", "closed"):
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
        capture = await self.send(request, keep_body_bytes=1 << 22)
        way_out = "start the server, correct --base-url, or name --model"
        if capture.http_status is None:
            raise MeasurementRefused(f"{where}: no answer ({capture.detail}); {way_out}")
        answer = f"{where}: HTTP {capture.http_status}"
        if not 200 <= capture.http_status < 300:
            raise MeasurementRefused(self.redact(f"{answer}: {answer_text(capture)}; {way_out}"))
        try:
            return str(json.loads(capture.body_start)["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise MeasurementRefused(f"{answer} lists no model; {way_out}") from None

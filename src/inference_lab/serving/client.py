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
from inference_lab.serving.arrival_clock import ArrivalClock
from inference_lab.serving.channel import Channel, Inbox, TlsChannel, connect
from inference_lab.serving.exchange import Exchange, error_text
from inference_lab.serving.response import Response, Timeouts
from inference_lab.serving.target import Target

_IDLE_NS = 3_000_000_000  # servers close idle connections after 5 s or more: do not race with them


class _Connection:
    """A connection that carries one response at a time, or none."""

    def __init__(self) -> None:
        self.channel: Channel | TlsChannel | None = None
        self.response: Response | None = None
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

    def start(self, request: bytes, response: Response) -> None:
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
        self._live: set[Response] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Client":
        self._inbox = Inbox(self._clock)
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
                        self._inbox,
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
        response: Response | None = None
        try:
            while self._ready and connection is None:
                connection = self._ready.pop()
                if not connection.is_ready():
                    connection.close()
                    connection = None
            connection = connection or await self._open()
            response = Response(exchange, keep_body_bytes)
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

    def _give_back(self, connection: _Connection, response: Response | None) -> None:
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

"""Connections to one server: opened before they are needed, used again while the server keeps them."""

import asyncio
import contextlib
import os
import socket
from collections import deque
from functools import partial
from ssl import SSLContext, SSLError
from time import monotonic_ns
from typing import Any

from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.client.stream import Response
from inference_lab.stream_load.clock import ArrivalClock
from inference_lab.stream_load.connection import Connection, SocketReader, TlsConnection, tls_context

_IDLE_NS = 3_000_000_000  # servers close idle connections after 5 s or more: do not race with them

_Address = tuple[socket.AddressFamily, Any]


class Line:
    """A connection that carries one response at a time, or none."""

    connection: Connection | TlsConnection

    def __init__(self) -> None:
        self.response: Response | None = None
        self.is_open = True
        self._is_kept = False  # it has carried an answer before
        self._idle_since_ns = 0

    def on_data(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Hand on bytes of the answer; bytes that nobody asked for end the connection."""
        if self.response is None:
            self.close()
        else:
            self.response.receive(data, at_ns, lag_ns)

    def on_close(self, reason: str) -> None:
        """The peer or the network ended the connection.

        A kept one that ends before any byte of an answer had ended when the request was sent: servers close
        idle connections when they like. Its response is withdrawn, and the capture has no end yet.
        """
        self.is_open = False
        if self.response is not None and self._is_kept and not self.response.began:
            self.response.withdraw()
        elif self.response is not None:
            self.response.finish("closed", monotonic_ns(), f"connection lost ({reason})")

    def start(self, request: bytes, response: Response) -> None:
        """Send a request whose answer goes to `response`."""
        self.response = response
        self.connection.send(request, partial(setattr, response.capture, "sent_ns"))

    def rest(self) -> None:
        """Wait for the next request."""
        self._is_kept, self.response = self.response is not None, None
        self._idle_since_ns = monotonic_ns()

    def is_ready(self) -> bool:
        """Whether a request may be sent on it, unless its end came meanwhile."""
        return self.is_open and monotonic_ns() - self._idle_since_ns < _IDLE_NS

    def close(self) -> None:
        """End the connection."""
        self.is_open, self.response = False, None
        self.connection.close()


class ConnectionPool:
    """Lines to one server. No proxy is used, whatever the environment names.

    `spare` lines beyond those in use are kept open, so that a request that is due finds one.
    """

    def __init__(
        self, endpoint: Endpoint, clock: ArrivalClock, connect_s: float, spare: int, tls: SSLContext | None
    ) -> None:
        self._endpoint, self._connect_s, self._spare = endpoint, connect_s, spare
        self._tls = (tls or tls_context()) if endpoint.scheme == "https" else None
        self._addresses: list[_Address] = []
        self._ready: deque[Line] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._reader = SocketReader(clock)
        self.read = self._reader.read
        self.opened = 0

    def close(self) -> None:
        """Open and read nothing more."""
        for task in self._opening:
            task.cancel()
        for line in self._ready:
            line.close()
        self._reader.close()

    async def prepare(self, lines: int) -> None:
        """Open that many; what cannot be opened is found out by the request that needs it."""
        for _ in range(lines):
            self.open_ahead()
        if self._opening:
            await asyncio.wait(self._opening)

    def top_up(self) -> None:
        """See to it that `spare` usable lines are open, or opening."""
        for line in [line for line in self._ready if not line.is_ready()]:
            self._ready.remove(line)
            line.close()
        for _ in range(self._spare - len(self._ready) - len(self._opening)):
            self.open_ahead()

    def open_ahead(self) -> None:
        """Begin to open a line for a later request."""

        async def open_one() -> None:
            with contextlib.suppress(OSError):  # the request that needs a connection will record the same
                self.give_back(await self.open())

        task = asyncio.create_task(open_one())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def take(self) -> Line:
        """A line that waits and has not ended meanwhile, or a new one. Raises OSError when there is none."""
        while self._ready:
            line = self._ready.pop()
            if line.is_ready() and line.connection.is_quiet():
                return line
            line.close()
        return await self.open()

    def give_back(self, line: Line) -> None:
        """Keep a line for the next request: a new one, or one whose answer was whole."""
        line.rest()
        self._ready.append(line)

    async def open(self) -> Line:
        """A new line to the first of the host's addresses that takes one, the last good one first."""
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self._connect_s
        if not self._addresses:
            async with asyncio.timeout_at(give_up_s):
                self._addresses = await self._look_up()
        addresses, errors = self._addresses, list[OSError]()
        for address in addresses:
            share_s = (give_up_s - loop.time()) / (len(addresses) - len(errors))
            try:
                async with asyncio.timeout(share_s):
                    line = await self._connect(*address)
            except OSError as error:  # TimeoutError is one
                errors.append(error)
                continue
            self.opened += 1
            self._addresses = sorted(addresses, key=lambda other: other != address)
            return line
        self._addresses = []  # the name is looked up again next time
        if len(errors) == 1:
            raise errors[0]
        tried = zip(addresses, errors, strict=True)
        raise OSError("; ".join(f"{where[0]}: {self.why(error)}" for (_, where), error in tried))

    async def _look_up(self) -> list[_Address]:
        endpoint = self._endpoint
        if endpoint.unix_socket is not None:
            return [(socket.AF_UNIX, str(endpoint.unix_socket))]
        loop = asyncio.get_running_loop()
        infos = await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))

    async def _connect(self, family: socket.AddressFamily, where: Any) -> Line:
        """A new line to this address. Raises OSError (SSLError is one) when there is none."""
        loop = asyncio.get_running_loop()
        line = Line()
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is None:
                self._reader.clock.enable(sock)
            await loop.sock_connect(sock, where)
            if self._tls is None:
                line.connection = Connection(sock, self._reader, line.on_data, line.on_close)
            else:
                line.connection = over = TlsConnection(line.on_data, line.on_close)
                host = self._endpoint.host
                await loop.create_connection(lambda: over, sock=sock, ssl=self._tls, server_hostname=host)
            return line
        except BaseException:
            sock.close()
            raise

    def why(self, error: OSError) -> str:
        """Why there is no connection, in words."""
        if isinstance(error, TimeoutError) and not error.errno:
            return f"no connection in {self._connect_s:g} s"
        if isinstance(error, SSLError) or not error.errno:
            return str(error)
        if isinstance(error, socket.gaierror):
            return f"{self._endpoint.host}: {error.strerror}"
        where = f"{self._endpoint.unix_socket}: " if self._endpoint.unix_socket else ""
        return where + os.strerror(error.errno)  # asyncio's own message names the address alone

"""Bytes in and out of one TCP connection, each read with the time of its arrival.

Plain sockets are read here and not by an event loop's transport: only `recvmsg` shows the kernel's
stamp, and a write goes out at the call and not at the end of a loop turn. TLS needs the transport.
"""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import Callable
from time import monotonic_ns

from inference_lab.serving.arrival_clock import ANCILLARY_BYTES, ArrivalClock

_READ_BYTES = 1 << 16
_LINGER_ZERO = struct.pack("ii", 1, 0)

Received = Callable[[bytes, int, int | None], None]
"""Takes bytes, when they arrived, and how long the kernel held them (None: that is the read's time)."""
Lost = Callable[[str], None]
"""Takes "closed" (the peer ended its side) or the error that broke the connection."""


class Channel:
    """A connected plain socket. After `lost` was called, or `close`, nothing is called any more."""

    __slots__ = ("_clock", "_fd", "_loop", "_lost", "_pending", "_received", "_sent", "_sock")

    def __init__(self, sock: socket.socket, clock: ArrivalClock, received: Received, lost: Lost) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._clock = clock
        self._received = received
        self._lost = lost
        self._pending = memoryview(b"")
        self._sent: Callable[[int], None] | None = None
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        clock = self._clock
        try:
            if clock.kernel:
                data, ancillary, _, _ = self._sock.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
            else:
                data, ancillary = self._sock.recv(_READ_BYTES), ()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        read_ns = monotonic_ns()
        if not data:
            self._end("closed")
            return
        arrival_ns = clock.arrival_ns(ancillary, read_ns) if clock.kernel else None
        if arrival_ns is None:
            self._received(data, read_ns, None)
        else:
            self._received(data, arrival_ns, read_ns - arrival_ns)

    def send(self, data: bytes, sent: Callable[[int], None] | None = None) -> None:
        """Write now what the kernel takes, the rest when it can; `sent` hears when the last went."""
        if self._fd < 0:
            return
        self._sent = sent
        if self._pending:
            self._pending = memoryview(bytes(self._pending) + data)
            return
        self._pending = memoryview(data)
        self._write()
        if self._pending and self._fd >= 0:
            self._loop.add_writer(self._fd, self._write_more)

    def _write(self) -> None:
        # Stamped before the call: waking the peer may cost this process the core before it returns.
        sent_ns = monotonic_ns()
        try:
            self._pending = self._pending[self._sock.send(self._pending) :]
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error.strerror or str(error))
            return
        if not self._pending and self._sent is not None:
            sent, self._sent = self._sent, None
            sent(sent_ns)

    def _write_more(self) -> None:
        self._write()
        if not self._pending and self._fd >= 0:
            self._loop.remove_writer(self._fd)

    def _end(self, reason: str) -> None:
        self.close()
        self._lost(reason)

    def close(self, *, reset: bool = False) -> None:
        """End the connection, with RST instead of FIN if asked."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._fd = -1
        if reset:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._sock.close()


class TlsChannel(asyncio.Protocol):
    """A connected TLS stream behind the same two calls; its stamps are those of the read."""

    def __init__(self, received: Received, lost: Lost) -> None:
        self._received = received
        self._lost: Lost | None = lost
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop once the handshake is done."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with decrypted bytes."""
        self._received(data, monotonic_ns(), None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop once, when the stream ended or broke."""
        lost, self._lost = self._lost, None
        if lost is not None:
            lost("closed" if exc is None else str(exc))

    def send(self, data: bytes, sent: Callable[[int], None] | None = None) -> None:
        """Hand the bytes to the transport; `sent` hears when that was."""
        assert self._transport is not None
        self._transport.write(data)
        if sent is not None:
            sent(monotonic_ns())

    def close(self, *, reset: bool = False) -> None:
        """End the stream."""
        self._lost = None
        if self._transport is not None:
            self._transport.abort() if reset else self._transport.close()


async def connect(
    address: tuple[socket.AddressFamily, tuple[str, int]],
    clock: ArrivalClock,
    received: Received,
    lost: Lost,
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str = "",
) -> Channel | TlsChannel:
    """A new connection to `address`; raises OSError (ssl.SSLError is one) when there is none."""
    loop = asyncio.get_running_loop()
    family, where = address
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is None:
            clock.enable(sock)
        await loop.sock_connect(sock, where)
        if tls is None:
            return Channel(sock, clock, received, lost)
        _, channel = await loop.create_connection(
            lambda: TlsChannel(received, lost), sock=sock, ssl=tls, server_hostname=server_name
        )
        return channel
    except BaseException:
        sock.close()
        raise

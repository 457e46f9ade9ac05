"""Bytes in and out of one TCP connection, each read with the time of its arrival.

Plain sockets are read here and not by an event loop's transport: only `recvmsg` shows the kernel's
stamp, and a write goes out at the call and not at the end of a loop turn. TLS needs the transport.
"""

import asyncio
import contextlib
import selectors
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic_ns
from typing import cast

from inference_lab.errors import InputError
from inference_lab.stream_load.clock import ANCILLARY_BYTES, Ancillary, ArrivalClock

_READ_BYTES = 1 << 16
_SLICE_NS = 200_000  # of interpreting, before timers and requests to be sent have their turn
_LINGER_ZERO = struct.pack("ii", 1, 0)

# Takes bytes, when they arrived, and how long the kernel held them (None: that is the read's time).
OnData = Callable[[bytes, int, int | None], None]
OnClose = Callable[[str], None]  # takes "closed" (the peer ended its side) or what broke the connection


class SocketReader:
    """Reads the connections of one event loop: first every socket that has bytes, then what they mean.

    So no read waits for the interpretation of another; a turn of the loop costs the same for any number.
    """

    def __init__(self, clock: ArrivalClock) -> None:
        self.clock = clock
        self._loop = asyncio.get_running_loop()
        self.selector = selectors.DefaultSelector()
        self._unread: deque[tuple[Connection, bytes, int, int | None]] = deque()
        self._again: asyncio.Handle | None = None
        self._loop.add_reader(self.selector.fileno(), self._turn)

    def read(self) -> None:
        """Read and stamp now what has arrived; it is interpreted in the next turn."""
        self._read()
        if self._unread and self._again is None:
            self._again = self._loop.call_soon(self._turn)

    def _read(self) -> None:
        clock, is_kernel = self.clock, self.clock.kernel
        reads: list[tuple[Connection, bytes, Sequence[Ancillary], int]] = []
        for key, _ in self.selector.select(0):
            sock = key.fileobj
            assert isinstance(sock, socket.socket)
            ancillary: Sequence[Ancillary] = ()
            try:
                if is_kernel:
                    data, ancillary, _, _ = sock.recvmsg(_READ_BYTES, ANCILLARY_BYTES)
                else:
                    data = sock.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                continue
            except OSError as error:
                key.data.close_reason = error.strerror or str(error)
                data = b""
            if not data:
                self.selector.unregister(sock)
            reads.append((key.data, data, ancillary, monotonic_ns()))
        if is_kernel:
            clock.compare()
        for connection, data, ancillary, read_ns in reads:
            arrival_ns = clock.arrival_ns(ancillary, read_ns)
            lag_ns = None if arrival_ns is None else read_ns - arrival_ns
            self._unread.append((connection, data, arrival_ns or read_ns, lag_ns))

    def _turn(self) -> None:
        """Read, then interpret for as long as nothing else in this event loop is kept waiting."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._read()
        unread = self._unread
        until_ns = monotonic_ns() + _SLICE_NS
        while unread:
            connection, data, at_ns, lag_ns = unread.popleft()
            connection.deliver(data, at_ns, lag_ns)
            if monotonic_ns() > until_ns and unread:
                self._again = self._loop.call_soon(self._turn)
                return

    def close(self) -> None:
        """Read nothing more."""
        if self._again is not None:
            self._again.cancel()
        self._loop.remove_reader(self.selector.fileno())
        self.selector.close()


class Connection:
    """A connected plain socket. After `on_close` was called, or `close`, nothing is called any more."""

    def __init__(self, sock: socket.socket, reader: SocketReader, on_data: OnData, on_close: OnClose) -> None:
        self._sock = sock
        self._reader = reader
        self._on_data = on_data
        self._on_close = on_close
        self._unsent = memoryview(b"")
        self._on_sent: Callable[[int], None] | None = None
        self._is_open = True
        self.close_reason = "closed"
        reader.selector.register(sock, selectors.EVENT_READ, self)

    def deliver(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Hand on what was read; no bytes are the end."""
        if self._is_open:
            if data:
                self._on_data(data, at_ns, lag_ns)
            else:
                self._fail(self.close_reason)

    def send(self, data: bytes, on_sent: Callable[[int], None] | None = None) -> None:
        """Write now what the kernel takes, the rest when it can; `on_sent` takes when the last of it went."""
        if not self._is_open:
            return
        self._on_sent = on_sent
        if self._unsent:
            self._unsent = memoryview(bytes(self._unsent) + data)
            return
        self._write(memoryview(data))
        if self._unsent and self._is_open:
            asyncio.get_running_loop().add_writer(self._sock, self._write_more)

    def is_quiet(self) -> bool:
        """Whether nothing waits to be read: neither bytes nor the peer's end."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def _write(self, data: memoryview) -> None:
        # Stamped before the call: waking the peer may cost this process the core before it returns.
        sent_ns = monotonic_ns()
        try:
            count = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._fail(error.strerror or str(error))
            return
        self._unsent = data[count:]
        if not self._unsent and self._on_sent is not None:
            on_sent, self._on_sent = self._on_sent, None
            on_sent(sent_ns)

    def _write_more(self) -> None:
        self._write(self._unsent)
        if not self._unsent and self._is_open:
            asyncio.get_running_loop().remove_writer(self._sock)

    def _fail(self, reason: str) -> None:
        self.close()
        self._on_close(reason)

    def close(self, *, reset: bool = False) -> None:
        """End the connection, with RST instead of FIN if asked."""
        if not self._is_open:
            return
        self._is_open = False
        with contextlib.suppress(KeyError):  # its end was read, or the reader is closed
            self._reader.selector.unregister(self._sock)
        if self._unsent:
            asyncio.get_running_loop().remove_writer(self._sock)
        if reset:
            with contextlib.suppress(OSError):
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._sock.close()


class TlsConnection(asyncio.Protocol):
    """A connected TLS stream behind the same calls; its stamps are those of the read."""

    _transport: asyncio.Transport

    def __init__(self, on_data: OnData, on_close: OnClose) -> None:
        self._on_data = on_data
        self._on_close: OnClose | None = on_close

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop once the handshake is done."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is none of its subclasses

    def data_received(self, data: bytes) -> None:
        """Called by the event loop with decrypted bytes."""
        self._on_data(data, monotonic_ns(), None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop once, when the stream ended or broke."""
        if self._on_close is not None:
            self._on_close("closed" if exc is None else str(exc))

    def send(self, data: bytes, on_sent: Callable[[int], None] | None = None) -> None:
        """Hand the bytes to the transport; `on_sent` takes when that was."""
        self._transport.write(data)
        if on_sent is not None:
            on_sent(monotonic_ns())

    def is_quiet(self) -> bool:
        """Whether the peer has not ended the stream, as far as the event loop has heard."""
        return not self._transport.is_closing()

    def close(self) -> None:
        """End the stream."""
        self._on_close = None
        self._transport.close()


def tls_context(ca_file: Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """What a server's certificate is held against: the system's authorities, one file, or nothing at all.

    Raises InputError when the file holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        why = "it holds none" if isinstance(error, ssl.SSLError) else error.strerror
        raise InputError(f"{ca_file}: no certificate can be read ({why}); give a PEM file") from None
    context.set_alpn_protocols(["http/1.1"])
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

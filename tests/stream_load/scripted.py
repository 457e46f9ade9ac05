"""A server that answers as a test says, byte for byte, and remembers what it was sent."""

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path

Actions = Iterable[bytes | float | None]
"""Bytes are written, a number is slept in s, None resets the connection; the end closes nothing."""
CLOSE = b""  # written last, it closes the connection


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer that keeps the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def stream(tokens: int = 3, **usage: object) -> bytes:
    """A whole good stream of so many tokens, chat or completion."""
    chunks = [{"choices": [{"text": "a", "delta": {"content": "a"}}]} for _ in range(tokens - 1)]
    chunks.append({"choices": [{"text": "a", "delta": {"content": "a"}, "finish_reason": "stop"}]})
    if usage:
        chunks.append({"choices": [], "usage": usage})  # pyright: ignore
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks] + ["data: [DONE]\n\n"]
    return answer("".join(events).encode(), "200 OK", "Content-Type: text/event-stream")


@dataclass
class Scripted:
    """Where it listens, and the (connection, request on it, bytes) that it was sent, in order."""

    url: str
    seen: list[tuple[int, int, bytes]] = field(default_factory=list[tuple[int, int, bytes]])
    ended: list[int] = field(default_factory=list[int])  # the connections that are closed by now


@contextlib.contextmanager
def scripted(
    script: Callable[[int, int], Actions],
    *,
    tls: ssl.SSLContext | None = None,
    at: tuple[str, int] | Path = ("127.0.0.1", 0),
) -> Generator[Scripted]:
    """A server whose answer to the m-th request on its n-th connection is `script(n, m)`, from 0."""
    if isinstance(at, Path):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(at))
        listener.listen(64)
        server = Scripted("http://localhost/v1")
    else:
        listener = socket.create_server(at, backlog=256)
        host, port = listener.getsockname()[:2]
        server = Scripted(f"{'https' if tls else 'http'}://{host}:{port}/v1")

    def serve(connection: socket.socket, number: int) -> None:
        converse(connection, number)
        server.ended.append(number)

    def converse(connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection:
            served = tls.wrap_socket(connection, server_side=True) if tls else connection
            with served:
                for count in range(1 << 30):
                    if not (request := _request(served)):
                        return
                    server.seen.append((number, count, request))
                    for action in script(number, count):
                        if action is None:
                            served.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                            return
                        if action == CLOSE:
                            return
                        if isinstance(action, bytes):
                            served.sendall(action)
                        else:
                            time.sleep(action)

    def accept() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection, number), daemon=True).start()
            number += 1

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        listener.close()


def _request(connection: socket.socket) -> bytes:
    """The bytes of the next request, nothing when the peer has ended."""
    data = b""
    while b"\r\n\r\n" not in data:
        if not (piece := connection.recv(65536)):
            return b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    missing = sum(int(line.partition(b":")[2]) for line in lengths) - len(body)
    while missing > 0:
        piece = connection.recv(65536)
        data += piece
        missing -= len(piece)
    return data

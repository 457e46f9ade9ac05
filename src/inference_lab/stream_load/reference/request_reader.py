"""Parses the bytes of one connection into whole HTTP requests, within bounds. Does no I/O."""

from collections import deque
from dataclasses import dataclass, field

import httptools

MAX_BYTES = 8 << 20  # of one request with its framing, and of all that wait for their turn
MAX_WAITING = 100  # requests that came before the answer to an earlier one had ended


@dataclass(slots=True)
class Request:
    """One request. `refusal` is (status, message) of a bad one; nothing is read after it.

    `keep`: the connection stays open after the answer.
    """

    url: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    method: str = ""
    name: str = ""
    received_ns: int = 0
    keep: bool = False
    refusal: tuple[int, str] | None = None


class RequestReader:
    """Puts every request that is whole at the end of `waiting`; the reader takes them from its start."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._request = Request()
        self._fed_bytes = self._announced_bytes = 0
        self._at_ns = 0
        self.waiting: deque[Request] = deque()
        self.is_broken = False

    def feed(self, data: bytes, at_ns: int) -> None:
        """Read on; `at_ns` is when the bytes arrived. What follows a refusal is dropped."""
        if self.is_broken:
            return
        self._at_ns = at_ns
        self._fed_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_broken = True  # answered as HTTP/1.1, as HTTP allows; what follows is of another protocol
            self.waiting[-1].keep = False
        except httptools.HttpParserError as error:
            self._refuse(400, f"this is no request of HTTP/1.1 ({error})")
        waiting_bytes = sum(len(request.url) + len(request.body) for request in self.waiting)
        if max(self._fed_bytes, waiting_bytes, self._announced_bytes) > MAX_BYTES:
            self._refuse(413, f"the requests of a connection may hold {MAX_BYTES} bytes")
        elif len(self.waiting) > MAX_WAITING:
            self._refuse(400, f"more than {MAX_WAITING} requests wait on this connection")

    def _refuse(self, status: int, words: str) -> None:
        if not self.is_broken:
            self.is_broken = True
            self._request = Request(refusal=(status, words))
            self.waiting.append(self._request)

    def on_message_begin(self) -> None:
        """Called by the parser."""
        self._request = Request()

    def on_url(self, url: bytes) -> None:
        """Called by the parser with a piece of it."""
        self._request.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.lower() == b"x-request-id":
            self._request.name = value.decode("latin-1")
        elif name.lower() == b"content-length" and value.strip().isdigit():  # else the parser objects
            self._announced_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a piece of it."""
        self._request.body += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        request, self._fed_bytes, self._announced_bytes = self._request, 0, 0
        request.received_ns = self._at_ns
        request.method = self._parser.get_method().decode("latin-1")
        request.keep = self._parser.should_keep_alive() and request.method in ("GET", "POST")
        if self._parser.get_http_version() != "1.1":
            request.refusal = (505, "only HTTP/1.1 is spoken here")
        self.waiting.append(request)

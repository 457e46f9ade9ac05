"""One HTTP response on its way into an exchange, and how long it may take.

Nothing is parsed as JSON while a stream runs, except to learn whether its first token has come.
"""

import asyncio
import math
from dataclasses import dataclass
from time import monotonic_ns

import httptools

from inference_lab.errors import InputError
from inference_lab.stream_load.client.exchange import Exchange
from inference_lab.stream_load.client.reading import DONE, Reading
from inference_lab.stream_load.client.sse import EventScanner

_KEPT_HEADERS = frozenset({"content-encoding", "content-type", "location", "retry-after"})
_DONE_BYTES = 32  # no chunk is shorter
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
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"time-out {name} is {getattr(self, name)}, must be positive and finite")


class Response:
    """Feeds one HTTP response into an exchange, and says when it is over."""

    __slots__ = (
        "_between_events",
        "_done_ns",
        "_ended_chunk",
        "_is_over",
        "_is_stream",
        "_keep_body_bytes",
        "_parser",
        "_peeked",
        "_peeking",
        "_scanner",
        "_started_ns",
        "began",
        "exchange",
        "finished",
        "reusable",
    )

    def __init__(self, exchange: Exchange, keep_body_bytes: int) -> None:
        self.exchange = exchange
        self._keep_body_bytes = keep_body_bytes
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self.began = False  # whether a byte of it has come
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._scanner = EventScanner()
        exchange.payloads, exchange.errors = self._scanner.payloads, self._scanner.errors
        self._is_stream = False
        self._is_over = False
        self._ended_chunk = False
        self._between_events = False
        self._started_ns = monotonic_ns()
        self._done_ns: int | None = None
        self._peeking = Reading()
        self._peeked = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser with each header."""
        if (known := name.decode("latin-1").lower()) in _KEPT_HEADERS:
            self.exchange.headers[known] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        """Called by the parser when the header is whole."""
        if self._parser is None:
            return
        headers, status = self.exchange.headers, self._parser.get_status_code()
        if status < 200:  # the answer is yet to come
            headers.clear()
            return
        self.exchange.http_status = status
        self._is_stream = status < 300 and headers.get("content-encoding", "identity") == "identity"

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a piece of the body, chunk sizes removed."""
        exchange = self.exchange
        if self._is_stream:
            self._scanner.feed(body)
            if exchange.payloads:
                return
        if len(exchange.body_start) < self._keep_body_bytes:
            exchange.body_start += body[: self._keep_body_bytes]

    def on_chunk_header(self) -> None:
        """Called by the parser after the size of a chunk."""
        self._ended_chunk = False

    def on_chunk_complete(self) -> None:
        """Called by the parser after the line end that follows a chunk."""
        self._ended_chunk = True

    def on_message_complete(self) -> None:
        """Called by the parser when the body has ended as its framing says."""
        if self._parser is not None and self.exchange.http_status is not None:
            self._is_over = True
            self.reusable = self._parser.should_keep_alive()

    def receive(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Take the bytes of one read."""
        exchange = self.exchange
        if self._between_events and (payload := _whole_event(data)) is not None:
            exchange.payloads.append(payload)
            exchange.stamp(at_ns, lag_ns)
            if len(payload) < _DONE_BYTES and payload.strip() == DONE:
                self._done_ns = self._done_ns or at_ns
            return
        self.began = True
        if self._parser is None:
            self.reusable = False
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            exchange.stamp(at_ns, lag_ns)
            self.finish("broken", at_ns, f"not HTTP: {error}")
            return
        exchange.stamp(at_ns, lag_ns)
        # Of a size line the parser tells only when it is whole, and then no chunk was the last it ended.
        self._between_events = self._ended_chunk and data[-1:] == b"\n" and self._scanner.is_between_events
        if self._is_over:
            self.finish("complete", at_ns)
        elif self._done_ns is None and exchange.payloads and exchange.payloads[-1].strip() == DONE:
            self._done_ns = at_ns

    def finish(self, ended: str, at_ns: int, detail: str | None = None) -> None:
        """The exchange is over: nothing more will be read into it."""
        exchange = self.exchange
        exchange.end(ended, at_ns, detail)
        if exchange.payloads:
            exchange.body_start = self._scanner.left[: self._keep_body_bytes]
        self.withdraw()

    def withdraw(self) -> None:
        """Nothing more is read into the exchange by this response; another one may go on with it."""
        self._between_events = False
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
        sent_ns = exchange.sent_ns or self._started_ns  # a server that takes no request owes one, too
        stamps = exchange.stamps_ns
        if now_ns - sent_ns < min(timeouts.first_token_s, timeouts.total_s) * 1e9 and (
            not stamps or now_ns - stamps[-1] < timeouts.between_tokens_s * 1e9
        ):
            return  # nothing can be owed yet: no need to know whether the first token has come
        while not self._peeking.saw_token and self._peeked < len(exchange.payloads):
            self._peeking.add(exchange.payloads[self._peeked])
            self._peeked += 1
        if now_ns - sent_ns > timeouts.total_s * 1e9:
            self.finish("timeout", now_ns, f"not over {timeouts.total_s:g} s after it was sent")
        elif self._peeking.saw_token:
            if now_ns - stamps[-1] > timeouts.between_tokens_s * 1e9:
                self.finish("timeout", now_ns, f"no token for {timeouts.between_tokens_s:g} s")
        elif now_ns - sent_ns > timeouts.first_token_s * 1e9:
            self.finish("timeout", now_ns, f"no first token after {timeouts.first_token_s:g} s")


def _whole_event(data: bytes) -> bytes | None:
    """The payload of a read that is one chunk of HTTP that is one event; None for any other bytes.

    Nearly every read of a real stream is. Where parser and scanner are between two of them, such a read
    leaves both as they were, so neither needs to see it.
    """
    size, _, event = data.partition(b"\r\ndata: ")
    payload = event[:-4]
    if (
        event[-4:] == b"\n\n\r\n"
        and size == b"%x" % (len(payload) + 8)
        and b"\n" not in payload
        and b"\r" not in payload
    ):
        return payload
    return None

"""One HTTP response on its way into a capture, and how long it may take.

Nothing is parsed as JSON while a stream runs, except to learn whether its first token has come.
"""

import asyncio
import math
from dataclasses import dataclass, field
from time import monotonic_ns

import httptools

from inference_lab.errors import InputError
from inference_lab.stream_load.client.sse import EventScanner
from inference_lab.stream_load.client.tokens import DONE, TokenCounter

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


@dataclass(slots=True)
class Capture:
    """The bytes sent and what came back. `stamps_ns[i]` is when the read that completed payload i arrived.

    `ended` is how it ended: "complete" (the HTTP message did), "closed", "timeout", "cancelled",
    "connect" (there was no connection), or "broken"; `detail` says more in words. `resent` counts how often
    the request went again because a kept connection had ended before any byte of an answer; `sent_ns` is
    that of the last time. `headers` are those of the answer that mean something here, by lower-case name.
    `errors` are events that are errors by their name, `body_start` is what is outside of events: the start
    of a body without any, else what came after the last. `notes` are odd things that decide nothing.
    """

    request: bytes = b""
    sent_ns: int | None = None
    resent: int = 0
    http_status: int | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    payloads: list[bytes] = field(default_factory=list[bytes])
    errors: list[bytes] = field(default_factory=list[bytes])
    stamps_ns: list[int] = field(default_factory=list[int])
    shared_reads: list[range] = field(default_factory=list[range])
    user_stamped: set[int] = field(default_factory=set[int])
    max_read_lag_ns: int | None = None
    body_start: bytes = b""
    ended: str | None = None
    end_ns: int | None = None
    detail: str | None = None
    notes: list[str] = field(default_factory=list[str])

    def stamp(self, at_ns: int, lag_ns: int | None) -> None:
        """Give the payloads completed by the latest read its time (never before the one before)."""
        stamps = self.stamps_ns
        new = len(self.payloads) - len(stamps)
        if lag_ns is None:
            self.user_stamped.update(range(len(stamps), len(stamps) + new))
        elif self.max_read_lag_ns is None or lag_ns > self.max_read_lag_ns:
            self.max_read_lag_ns = lag_ns
        if stamps and at_ns < stamps[-1]:
            at_ns = stamps[-1]
        if new > 1:
            self.shared_reads.append(range(len(stamps), len(stamps) + new))
            stamps.extend([at_ns] * new)
        elif new:
            stamps.append(at_ns)

    def end(self, ended: str, at_ns: int, detail: str | None = None) -> None:
        """Say how and when it ended (never before what came of it); only the first word counts."""
        if self.ended is None:
            last_ns = max(at_ns, self.sent_ns or at_ns, *self.stamps_ns[-1:])
            self.ended, self.end_ns, self.detail = ended, last_ns, detail


class Response:
    """Feeds one HTTP response into a capture, and says when it is over."""

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
        "capture",
        "finished",
        "reusable",
    )

    def __init__(self, capture: Capture, keep_body_bytes: int) -> None:
        self.capture = capture
        self._keep_body_bytes = keep_body_bytes
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self.began = False  # whether a byte of it has come
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._scanner = EventScanner()
        capture.payloads, capture.errors = self._scanner.payloads, self._scanner.errors
        self._is_stream = False
        self._is_over = False
        self._ended_chunk = False
        self._between_events = False
        self._started_ns = monotonic_ns()
        self._done_ns: int | None = None
        self._peeking = TokenCounter()
        self._peeked = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser with each header."""
        if (known := name.decode("latin-1").lower()) in _KEPT_HEADERS:
            self.capture.headers[known] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        """Called by the parser when the header is whole."""
        if self._parser is None:
            return
        headers, status = self.capture.headers, self._parser.get_status_code()
        if status < 200:  # the answer is yet to come
            headers.clear()
            return
        self.capture.http_status = status
        self._is_stream = status < 300 and headers.get("content-encoding", "identity") == "identity"

    def on_body(self, body: bytes) -> None:
        """Called by the parser with a piece of the body, chunk sizes removed."""
        capture = self.capture
        if self._is_stream:
            self._scanner.feed(body)
            if capture.payloads:
                return
        if len(capture.body_start) < self._keep_body_bytes:
            capture.body_start += body[: self._keep_body_bytes]

    def on_chunk_header(self) -> None:
        """Called by the parser after the size of a chunk."""
        self._ended_chunk = False

    def on_chunk_complete(self) -> None:
        """Called by the parser after the line end that follows a chunk."""
        self._ended_chunk = True

    def on_message_complete(self) -> None:
        """Called by the parser when the body has ended as its framing says."""
        if self._parser is not None and self.capture.http_status is not None:
            self._is_over = True
            self.reusable = self._parser.should_keep_alive()

    def receive(self, data: bytes, at_ns: int, lag_ns: int | None) -> None:
        """Take the bytes of one read."""
        capture = self.capture
        if self._between_events and (payload := _whole_event(data)) is not None:
            capture.payloads.append(payload)
            capture.stamp(at_ns, lag_ns)
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
            capture.stamp(at_ns, lag_ns)
            self.finish("broken", at_ns, f"not HTTP: {error}")
            return
        capture.stamp(at_ns, lag_ns)
        # Of a size line the parser tells only when it is whole, and then no chunk was the last it ended.
        self._between_events = self._ended_chunk and data[-1:] == b"\n" and self._scanner.is_between_events
        if self._is_over:
            self.finish("complete", at_ns)
        elif self._done_ns is None and capture.payloads and capture.payloads[-1].strip() == DONE:
            self._done_ns = at_ns

    def finish(self, ended: str, at_ns: int, detail: str | None = None) -> None:
        """The capture is over: nothing more will be read into it."""
        capture = self.capture
        capture.end(ended, at_ns, detail)
        if capture.payloads:
            capture.body_start = self._scanner.left[: self._keep_body_bytes]
        self.withdraw()

    def withdraw(self) -> None:
        """Nothing more is read into the capture by this response; another one may go on with it."""
        self._between_events = False
        self._parser = None  # it refers to this object: no cycle is left for the collector
        if not self.finished.done():
            self.finished.set_result(None)

    def expire(self, now_ns: int, timeouts: Timeouts) -> None:
        """End the capture if it owes something for too long."""
        capture = self.capture
        if self._done_ns is not None:
            if now_ns - self._done_ns > _DONE_GRACE_NS:
                self.finish("complete", self._done_ns)
            return
        sent_ns = capture.sent_ns or self._started_ns  # a server that takes no request owes one, too
        stamps = capture.stamps_ns
        if now_ns - sent_ns < min(timeouts.first_token_s, timeouts.total_s) * 1e9 and (
            not stamps or now_ns - stamps[-1] < timeouts.between_tokens_s * 1e9
        ):
            return  # nothing can be owed yet: no need to know whether the first token has come
        while not self._peeking.saw_token and self._peeked < len(capture.payloads):
            self._peeking.add(capture.payloads[self._peeked])
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

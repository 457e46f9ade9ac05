"""One answer: from the bytes of each read to events with the time of their arrival.

The kernel's stamps are taken before anything here runs (connection.py), so the work below moves no time.
"""

import asyncio
import math
import re
from dataclasses import asdict, dataclass, field
from time import monotonic_ns

import httptools

from inference_lab.errors import InputError
from inference_lab.stream_load.client.sse import EventScanner
from inference_lab.stream_load.client.tokens import Shown, TokenCounter

_KEPT_HEADERS = frozenset({"content-encoding", "content-type", "location", "retry-after"})
_DONE_GRACE_NS = 250_000_000  # after [DONE] the message should end; a server that waits is not waited for
# The inside of a JSON string in valid UTF-8.
_STRING = (
    rb"(?:[ !#-\[\]-\x7f]++|\\(?:[\"\\/bfnrt]|u[0-9a-fA-F]{4})|[\xc2-\xdf][\x80-\xbf]"
    rb"|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*+"
)
_is_string = re.compile(_STRING).fullmatch
_find_text = re.compile(rb'"(?:text|content)": ?"(' + _STRING + rb')"').search


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How many seconds to wait for a connection, and from sending on for the parts of the answer."""

    connect_s: float = 10.0
    first_token_s: float = 300.0
    between_tokens_s: float = 60.0
    total_s: float = 1800.0

    def __post_init__(self) -> None:
        for name, seconds in asdict(self).items():
            if not 0 < seconds < math.inf:
                raise InputError(f"time-out {name} is {seconds}, must be positive and finite")


@dataclass(slots=True)
class Capture:
    """The bytes sent and what came back. `stamps_ns[i]` is when the read that completed event i arrived.

    `ended` is how it ended: "complete" (the HTTP message did), "closed", "timeout", "cancelled", "connect"
    (there was no connection), or "broken"; `detail` explains it in words. `resent`: see RequestRecord.
    `headers` has those of the answer that matter here, by lower-case name. `errors` are events named error;
    `body_start` is what is outside of events: the start of a body that has none, else what came after the
    last. `notes` are oddities that change no status.
    """

    request: bytes = b""
    sent_ns: int | None = None
    resent: int = 0
    http_status: int | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    counter: TokenCounter = field(default_factory=TokenCounter)
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

    def stamp(self, events: int, at_ns: int, lag_ns: int | None) -> None:
        """Record when the read arrived that completed so many events (never before the previous one)."""
        stamps = self.stamps_ns
        if lag_ns is None:
            self.user_stamped.update(range(len(stamps), len(stamps) + events))
        elif self.max_read_lag_ns is None or lag_ns > self.max_read_lag_ns:
            self.max_read_lag_ns = lag_ns
        if stamps and at_ns < stamps[-1]:
            at_ns = stamps[-1]
        if events == 1:
            stamps.append(at_ns)
        elif events:
            self.shared_reads.append(range(len(stamps), len(stamps) + events))
            stamps.extend([at_ns] * events)

    def add(self, payload: bytes, at_ns: int, lag_ns: int | None = None) -> None:
        """Take an event that had a read of its own."""
        self.counter.add(payload)
        self.stamp(1, at_ns, lag_ns)

    def end(self, ended: str, at_ns: int, detail: str | None = None) -> None:
        """Record how and when it ended, never before its last event; only the first call counts."""
        if self.ended is None:
            last_ns = max(at_ns, self.sent_ns or at_ns, *self.stamps_ns[-1:])
            self.ended, self.end_ns, self.detail = ended, last_ns, detail


class Response:
    """Feeds the reads of one HTTP response into a capture, and knows when it is over.

    The fast path. Nearly every read of a stream is one HTTP chunk that holds one event, and its JSON differs
    from the JSON before it in one text alone. When such a read was parsed in full, `_repeat` keeps the bytes
    around its text and what it showed. The next read is counted without being parsed if its chunk size is
    right, it begins and ends with the same bytes, and has the inside of a JSON string between them. This is
    safe because nothing asks more of that text than whether it is empty, and because parser and scanner are
    between two events before such a read and after it, so they need not see it.
    """

    def __init__(self, capture: Capture, keep_body_bytes: int) -> None:
        self.capture = capture
        self._keep_body_bytes = keep_body_bytes
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.reusable = False
        self.began = False  # whether a byte of it has come
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._scanner = EventScanner()
        capture.errors = self._scanner.errors
        self._is_stream = self._is_over = self._ended_chunk = False
        self._repeat: tuple[bytes, bytes, dict[bool, Shown]] | None = None
        self._started_ns = monotonic_ns()
        self._done_ns: int | None = None

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
            if capture.stamps_ns or self._scanner.payloads:
                return
        if len(capture.body_start) < self._keep_body_bytes:
            capture.body_start += body[: self._keep_body_bytes]

    def on_chunk_header(self) -> None:
        """Called by the parser after the size of a chunk, when its whole line has come."""
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
        if self._repeat is not None and self._repeats(data):
            capture.stamp(1, at_ns, lag_ns)
            return
        self.began = True
        if self._parser is None:
            self.reusable = False
            return
        error = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as broken:
            error = f"not HTTP: {broken}"
        scanner = self._scanner
        payloads, scanner.payloads = scanner.payloads, []
        alike = [self._add(payload) for payload in payloads]
        capture.stamp(len(payloads), at_ns, lag_ns)
        is_between = self._ended_chunk and data[-1:] == b"\n" and scanner.is_between_events
        if not is_between or None in alike:
            self._repeat = None
        elif alike and (shown := alike[-1]):
            self._remember(payloads[-1], shown)
        if error:
            self.finish("broken", at_ns, error)
        elif self._is_over:
            self.finish("complete", at_ns)
        elif capture.counter.done and self._done_ns is None:
            self._done_ns = at_ns

    def _remember(self, payload: bytes, shown: Shown) -> None:
        """Keep what surrounds the text of an event."""
        text = _find_text(payload)
        if text and b"\n" not in payload:  # which several data lines leave
            start, end = text.span(1)
            around = payload[:start], payload[end:] + b"\n\n\r\n"
            known = self._repeat[2] if self._repeat and self._repeat[:2] == around else {}
            self._repeat = *around, known | {start == end: shown}

    def _known(self, event: bytes) -> Shown | None:
        """What an event shows that is like the remembered one but for its text; None for any other."""
        if self._repeat is None:
            return None
        before, after, known = self._repeat
        start, end = len(before), len(event) - len(after)
        if event.startswith(before) and event.endswith(after):
            shown = known.get(start == end)
            return shown if shown and _is_string(event, start, end) else None
        return None

    def _repeats(self, data: bytes) -> bool:
        """Whether a read is one chunk with a known event; if so, count its tokens."""
        size, _, event = data.partition(b"\r\ndata: ")
        if not ((shown := self._known(event)) and size == b"%x" % (len(event) + 4)):
            return False
        self.capture.counter.add_alike(len(event) - 4, shown)
        return True

    def _add(self, payload: bytes) -> Shown | None:
        """Count an event that came with others or in parts; one that is not like the rest ends the memory."""
        counter = self.capture.counter
        if shown := self._known(payload + b"\n\n\r\n"):
            counter.add_alike(len(payload), shown)
        elif (shown := counter.add(payload)) is None:
            self._repeat = None
        return shown

    def finish(self, ended: str, at_ns: int, detail: str | None = None) -> None:
        """End the capture: nothing more will be read into it."""
        self.capture.end(ended, at_ns, detail)
        if self.capture.stamps_ns:
            self.capture.body_start = self._scanner.left[: self._keep_body_bytes]
        self.withdraw()

    def withdraw(self) -> None:
        """Read nothing more into the capture; another response may go on with it."""
        self._repeat = None
        self._parser = None  # it refers to this object: no cycle is left for the collector
        if not self.finished.done():
            self.finished.set_result(None)

    def expire(self, now_ns: int, timeouts: Timeouts) -> None:
        """End the capture if one of its timeouts has expired."""
        capture, saw_token = self.capture, self.capture.counter.saw_token
        # A server that does not even take the request is waited for from the start.
        waited_s = (now_ns - (capture.sent_ns or self._started_ns)) / 1e9
        if self._done_ns is not None:
            if now_ns - self._done_ns > _DONE_GRACE_NS:
                self.finish("complete", self._done_ns)
        elif waited_s > timeouts.total_s:
            self.finish("timeout", now_ns, f"not over {timeouts.total_s:g} s after it was sent")
        elif not saw_token and waited_s > timeouts.first_token_s:
            self.finish("timeout", now_ns, f"no first token after {timeouts.first_token_s:g} s")
        elif saw_token and now_ns - capture.stamps_ns[-1] > timeouts.between_tokens_s * 1e9:
            self.finish("timeout", now_ns, f"no token for {timeouts.between_tokens_s:g} s")

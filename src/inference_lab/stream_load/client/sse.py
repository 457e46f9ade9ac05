"""Where events end in a stream of bytes (server-sent events, WHATWG HTML section 9.2.6).

Answers only: which `data` payloads are complete by now? Bytes in, bytes out: neither UTF-8 nor JSON
is looked at, so a cut inside a character, a line end or a field name cannot matter.
"""

import re

_LINE_END = re.compile(rb"\r\n|\r|\n")
_PASSED_OVER = (b"", b"id", b"retry")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventScanner:
    """Collects the payload of every completed event in `payloads`, however the bytes are cut.

    An event is complete at its blank line: one that the stream never finished is not an event. An event
    named error, and what some servers write as a field `error`, goes to `errors`. Comments and the fields
    `id`, `retry` are passed over.
    """

    __slots__ = ("_data", "_is_error", "_rest", "_skip_line_feed", "_started", "_stray", "errors", "payloads")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.errors: list[bytes] = []
        self._data: list[bytes] = []
        self._rest: list[bytes] = []
        self._is_error = False
        self._skip_line_feed = False
        self._started = False
        self._stray = b""

    @property
    def is_between_events(self) -> bool:
        """Whether a stream that started could go on here with a new event as well as end."""
        return self._started and not (self._rest or self._data or self._is_error or self._skip_line_feed)

    @property
    def left(self) -> bytes:
        """What came after the events: one that was not finished, or the last line of no known field."""
        unfinished = [*self._data, b"".join(self._rest).removeprefix(b"data:")]
        return b"\n".join(unfinished).strip() or self._stray

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the stream; append the payloads that they complete."""
        if not piece:
            return
        if self._skip_line_feed and piece[0] == 0x0A:
            piece = piece[1:]
        self._skip_line_feed = piece[-1:] == b"\r"  # a following line feed belongs to it
        first, *lines = _LINE_END.split(piece)
        if first:
            self._rest.append(first)
        if lines:
            self._take(b"".join(self._rest))
            *lines, last = lines
            self._rest = [last] if last else []
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        if not self._started:
            self._started = True
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            if self._data:
                (self.errors if self._is_error else self.payloads).append(b"\n".join(self._data))
                self._data.clear()
            self._is_error = False
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._is_error = value.strip() == b"error"
        elif field == b"error":
            self.errors.append(value.strip())
        elif field not in _PASSED_OVER:
            self._stray = line

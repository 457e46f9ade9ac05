"""One request as it went over the wire, and what the answer means.

`Exchange` holds facts: payloads and their times, how the connection ended. `Reading` interprets them
once the stream is over: which chunks are tokens, how many, and with which status the request ended.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inference_lab.records.requests import RequestRecord
from inference_lab.serving.redaction import Redact, redacted

DONE = b"[DONE]"
_CONTENT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
_ERROR_CHARACTERS = 300
_TEXT = re.compile(rb'"(?:text|content)": ?"([^"\\\x00-\x1f]*)"')
_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
_raw_decode = json.JSONDecoder().raw_decode


@dataclass(slots=True)
class Exchange:
    """What was sent and what came back. `stamps_ns[i]` is when the read that completed payload i arrived.

    `ended` is how it ended: "complete" (the HTTP message did), "closed", "timeout", "cancelled",
    "connect" (there was no connection), or "broken"; `detail` says more in words. `resent` counts how often
    the request went again because a kept connection had ended before any byte of an answer; `sent_ns` is
    that of the last time. `headers` are those of the answer that mean something here, by lower-case name.
    `notes` are odd things about it that decide nothing.
    """

    sent_ns: int | None = None
    resent: int = 0
    http_status: int | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    payloads: list[bytes] = field(default_factory=list[bytes])
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


@dataclass(frozen=True, slots=True)
class Attempt:
    """One exchange and when the load wanted, created and admitted its request."""

    request_id: str
    attempt: int
    scheduled_ns: int
    arrival_ns: int
    admitted_ns: int | None
    exchange: Exchange


@dataclass(slots=True)
class _Chunk:
    event: int
    tokens: int
    is_empty: bool


class Reading:
    """Interprets the payloads of one stream in order.

    A chunk's tokens are counted from its `token_ids` where it has them, else it is one token, also
    when its text is empty; a first chat chunk with a role alone is none. Wherever the server says how
    many tokens there are by now (`usage`: in every chunk, in the last, in a chunk of its own) the
    chunks since it last said so get exactly that many.
    """

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False
        self._chunks: list[_Chunk] = []
        self._said_tokens = 0
        self._said_chunks = 0
        self._counted = 0
        self._events = 0
        self._before = self._after = b""
        self._alike: dict[bool, tuple[int, bool]] = {}

    @property
    def saw_token(self) -> bool:
        """Whether a chunk so far carried a token."""
        return any(chunk.tokens for chunk in self._chunks)

    def add(self, payload: bytes) -> None:
        """Take the next payload."""
        event, self._events = self._events, self._events + 1
        if (alike := self._look_alike(payload)) is not None:
            self._counted += alike[0]
            self._chunks.append(_Chunk(event, *alike))
            return
        if payload == DONE:
            self.done = True
            return
        if not payload.strip():
            return
        try:
            said = _parse(payload)
        except ValueError as error:  # bytes that are not UTF-8, too
            self._fail(f"event {event + 1} is not JSON: {error}")
            return
        if isinstance(said, dict) and (said.get("error") or said.get("object") == "error"):
            self._fail(error_text(said))
        elif _is_chunk(said):
            knew = len(self._chunks)
            self._add_chunk(event, said)
            # What is the same of every such chunk hangs neither on those before it nor on more than one.
            if knew and len(self._chunks) == knew + 1 and self.usage is None and self.finish_reason is None:
                self._remember(payload, self._chunks[-1])
        else:
            self._fail(f"event {event + 1} is no chunk: {payload.decode(errors='replace')}")

    def _remember(self, payload: bytes, chunk: _Chunk) -> None:
        """Keep what a chunk was, for those that differ from it in one text alone."""
        if (found := _TEXT.search(payload)) is None:
            return
        start, end = found.span(1)
        if (payload[:start], payload[end:]) != (self._before, self._after):
            self._before, self._after = payload[:start], payload[end:]
            self._alike.clear()
        self._alike[end > start] = (chunk.tokens, chunk.is_empty)

    def _look_alike(self, payload: bytes) -> tuple[int, bool] | None:
        """(tokens, is empty) of a chunk without parsing it, if one that was parsed is like it.

        `_before` ends with the quote that opens the value of a `text` or `content`, `_after` begins with
        the one that closes it. Any characters between that need no escape make the same JSON with another
        string there, and nothing asks more of that string than whether it is empty.
        """
        before, after = self._before, self._after
        start, end = len(before), len(payload) - len(after)
        if start <= end and payload.startswith(before) and payload.endswith(after):
            alike = self._alike.get(start < end)
            if alike is not None and _PLAIN.fullmatch(payload, start, end):
                return alike
        return None

    def _fail(self, error: str) -> None:
        self.error = self.error or error

    def _add_chunk(self, event: int, said: Mapping[str, Any]) -> None:
        for choice in said.get("choices") or ():
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
            if self.finish_reason in ("abort", "error"):
                self._fail(f"finish_reason {self.finish_reason}")
            tokens, is_empty = self._tokens(choice)
            if tokens:
                self._counted += tokens
                self._chunks.append(_Chunk(event, tokens, is_empty))
        usage = said.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
            total = usage.get("completion_tokens")
            if isinstance(total, int) and total >= self._said_tokens:
                since = self._chunks[self._said_chunks :]
                _share(since, total - self._said_tokens)
                if since or total == 0:
                    self._said_tokens, self._said_chunks = total, len(self._chunks)

    def _tokens(self, choice: Mapping[str, Any]) -> tuple[int, bool]:
        """How many tokens this choice shows, and whether its text is empty."""
        delta = choice.get("delta")
        if not delta and "text" in choice:
            text, carries = choice.get("text"), choice.get("text") is not None
        else:
            delta = delta or {}
            text = next((delta[key] for key in _CONTENT if delta.get(key)), None)
            carries = any(delta.get(key) is not None for key in _CONTENT)
            if "role" in delta and not text and not self._chunks:
                carries = False
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            return len(ids), not text
        return int(carries), not text

    def record(self, attempt: Attempt, *, clock: str, redact: Redact = str) -> RequestRecord:
        """The record of this attempt, all payloads of its exchange having been added.

        What the server wrote is redacted before anything is cut.
        """
        exchange = attempt.exchange
        chunks = [chunk for chunk in self._chunks if chunk.tokens]
        times = [exchange.stamps_ns[chunk.event] for chunk in chunks for _ in range(chunk.tokens)]
        place = {chunk.event: index for index, chunk in enumerate(chunks)}
        censored: list[int] = []
        coalesced = 0
        for read in exchange.shared_reads:
            inside = [place[event] for event in read if event in place]
            coalesced += len(inside) > 1
            censored += [index for index in inside if chunks[index].event != read[-1]]
        status, error = self._status(exchange)
        usage = self.usage or {}
        said_prompt = usage.get("prompt_tokens")
        assert exchange.end_ns is not None
        return RequestRecord(
            request_id=attempt.request_id,
            attempt=attempt.attempt,
            scheduled_ns=attempt.scheduled_ns,
            arrival_ns=attempt.arrival_ns,
            admitted_ns=attempt.admitted_ns,
            sent_ns=exchange.sent_ns,
            first_token_ns=times[0] if times else None,
            token_times_ns=tuple(times[1:]),
            chunk_tokens=tuple(chunk.tokens for chunk in chunks),
            finish_ns=exchange.end_ns,
            status=status,
            http_status=exchange.http_status,
            prompt_tokens=said_prompt if isinstance(said_prompt, int) else None,
            output_tokens=len(times),
            counted_tokens=self._counted,
            usage=redacted(self.usage, redact),
            error=None if error is None else " ".join(redact(error).split())[:_ERROR_CHARACTERS],
            clock=clock,
            coalesced_reads=coalesced,
            censored_chunks=tuple(censored),
            user_stamped_chunks=tuple(
                index
                for index, chunk in enumerate(chunks)
                if clock == "kernel" and chunk.event in exchange.user_stamped
            ),
            max_read_lag_ns=exchange.max_read_lag_ns,
            resent=exchange.resent,
            notes=tuple(redact(note) for note in exchange.notes),
        )

    def _status(self, exchange: Exchange) -> tuple[str, str | None]:
        """(status, error): what the end of the exchange amounts to."""
        ended, status = exchange.ended, exchange.http_status
        detail = exchange.detail
        if status is not None and status != 200:
            return "http_error", f"HTTP {status}: {answer_text(exchange)}"
        if status is None and ended not in ("cancelled", "timeout"):
            return "connect_error", detail
        if self.error is not None:
            return "stream_error", self.error
        if self.finish_reason is not None:
            return "ok", detail
        if ended in ("cancelled", "timeout"):
            return ended, detail
        if not exchange.payloads and _is_error_body(exchange.body_start):
            return "stream_error", _body_text(exchange.body_start)
        what = "[DONE]" if self.done else detail or "the stream ended"
        return "truncated", f"{what} before a finish_reason" if self._events else f"{what}: no event"


def _parse(payload: bytes) -> Any:
    """The JSON value of a payload; for an object and nothing else in half the time of `json.loads`."""
    text = payload.decode()
    if text.startswith("{"):
        said, end = _raw_decode(text)
        if end == len(text):
            return said
    return json.loads(text)


def _is_chunk(said: Any) -> bool:
    if not isinstance(said, dict):
        return False
    choices = said.get("choices") or []
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and isinstance(choice.get("delta") or {}, dict) for choice in choices
    )


def read_now(attempt: Attempt, *, clock: str, redact: Redact = str) -> RequestRecord:
    """The record of an attempt, all its payloads read at once."""
    reading = Reading()
    for payload in attempt.exchange.payloads:
        reading.add(payload)
    return reading.record(attempt, clock=clock, redact=redact)


def _share(chunks: Sequence[_Chunk], total: int) -> None:
    """Make the chunks' tokens sum to `total`, which the server said of them together.

    Too few are spread evenly, the earliest first: where a chunk holds several tokens nothing says
    which. Too many are taken from empty chunks first, from the end (a bare `finish_reason` is none).
    """
    missing = total - sum(chunk.tokens for chunk in chunks)
    if missing > 0 and chunks:
        each, more = divmod(missing, len(chunks))
        for index, chunk in enumerate(chunks):
            chunk.tokens += each + (index < more)
    elif missing < 0:
        last_first = list(reversed(chunks))
        for chunk in sorted(last_first, key=lambda chunk: not chunk.is_empty):
            taken = min(chunk.tokens, -missing)
            chunk.tokens -= taken
            missing += taken


def error_text(said: Any) -> str:
    """The message of an OpenAI-style error object, or the object itself as text."""
    error = said.get("error", said) if isinstance(said, dict) else said
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)


def answer_text(exchange: Exchange) -> str:
    """What an answer that is no stream says: the server's message, and where it points to."""
    location = exchange.headers.get("location")
    return _body_text(exchange.body_start) + (f"; Location: {location}" if location else "")


def _body_text(body: bytes) -> str:
    text = body.decode("utf-8", "replace").strip()
    try:
        return error_text(json.loads(text))
    except ValueError:
        return text or "empty body"


def _is_error_body(body: bytes) -> bool:
    try:
        said = json.loads(body)
    except ValueError:
        return False
    return isinstance(said, dict) and bool(said.get("error"))

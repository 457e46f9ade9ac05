"""One request as it went over the wire, and its record.

`Exchange` holds facts: payloads and their times, how the connection ended. `read_now` interprets them
once the stream is over: when which tokens came, and with which status and words the request ended.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inference_lab.records.requests import RequestRecord
from inference_lab.stream_load.client.reading import Reading, error_text, parse
from inference_lab.stream_load.client.redaction import Redact, redacted

_WORDS = 300  # characters of an error or a note
_READ_WORDS = 4096  # of which they are cut, so that no text a server wrote takes long to redact


@dataclass(slots=True)
class Exchange:
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


@dataclass(frozen=True, slots=True)
class Attempt:
    """One exchange and when the load of this name wanted, created and admitted its request."""

    request_id: str
    attempt: int
    scheduled_ns: int
    arrival_ns: int
    admitted_ns: int | None
    exchange: Exchange
    load: str = "r"


def read_now(attempt: Attempt, *, clock: str, redact: Redact = str) -> RequestRecord:
    """The record of an attempt, all its payloads read at once.

    What the server wrote is redacted before anything is cut.
    """
    exchange, reading = attempt.exchange, Reading()
    for payload in exchange.payloads:
        reading.add(payload)
    chunks, counted = reading.settle(lambda: _most_tokens(exchange))
    stamps_ns = exchange.stamps_ns
    times = [stamps_ns[event] for event, tokens in chunks for _ in range(tokens)]
    place = {event: index for index, (event, _) in enumerate(chunks)} if exchange.shared_reads else {}
    censored: list[int] = []
    coalesced = 0
    for read in exchange.shared_reads:
        inside = [place[event] for event in read if event in place]
        coalesced += len(inside) > 1
        censored += [index for index in inside if chunks[index][0] != read[-1]]
    user_stamped: list[int] = []
    if clock == "kernel" and exchange.user_stamped:
        user_stamped = [index for index, (event, _) in enumerate(chunks) if event in exchange.user_stamped]
    status, error = _status(exchange, reading)
    notes = [*exchange.notes, *reading.notes]
    if status == "ok" and not chunks:
        notes.append("the answer is whole and holds no token")

    def words(text: str, after: str = "") -> str:
        after = redact(after)[: _WORDS // 2]
        return " ".join(redact(text[:_READ_WORDS]).split())[: _WORDS - len(after)] + after

    assert exchange.end_ns is not None
    return RequestRecord(
        request_id=attempt.request_id,
        load=attempt.load,
        attempt=attempt.attempt,
        scheduled_ns=attempt.scheduled_ns,
        arrival_ns=attempt.arrival_ns,
        admitted_ns=attempt.admitted_ns,
        sent_ns=exchange.sent_ns,
        first_token_ns=times[0] if times else None,
        token_times_ns=tuple(times[1:]),
        chunk_tokens=tuple([tokens for _, tokens in chunks]),
        finish_ns=exchange.end_ns,
        status=status,
        http_status=exchange.http_status,
        prompt_tokens=reading.prompt_tokens,
        output_tokens=len(times),
        counted_tokens=counted,
        usage=_kept(reading.usage, redact),
        error=None if error is None else words(error, "" if exchange.payloads else _facts(exchange)),
        clock=clock,
        coalesced_reads=coalesced,
        censored_chunks=tuple(censored),
        user_stamped_chunks=tuple(user_stamped),
        max_read_lag_ns=exchange.max_read_lag_ns,
        resent=exchange.resent,
        hidden_tokens=reading.hidden_tokens,
        notes=tuple(map(words, notes)),
    )


def _most_tokens(exchange: Exchange) -> int:
    """The most tokens that a total may say: of its answer a byte each, and twice what was asked for.

    Twice, because a server that drafts several tokens a step may run over the end.
    """
    try:
        asked = parse(exchange.request.partition(b"\r\n\r\n")[2])
        limits = [asked.get(name) for name in ("max_tokens", "max_completion_tokens")]
    except (ValueError, AttributeError):
        limits = []
    received = sum(map(len, exchange.payloads))
    return min([received, *(2 * limit for limit in limits if isinstance(limit, int) and limit > 0)])


def _kept(usage: Mapping[str, Any] | None, redact: Redact) -> Any:
    """The usage for the record, unless it is nested so deeply that no reader could take it."""
    try:
        return redacted(usage, redact)
    except RecursionError:
        return None


def _status(exchange: Exchange, reading: Reading) -> tuple[str, str | None]:
    """(status, error): what the end of the exchange amounts to."""
    ended, status, detail = exchange.ended, exchange.http_status, exchange.detail
    if status is not None and not 200 <= status < 300:
        return "http_error", f"HTTP {status}: {_said(exchange)[0] or 'empty body'}"
    if status is None and ended not in ("cancelled", "timeout"):
        return "connect_error", detail
    if reading.error is not None:
        return "stream_error", reading.error
    if exchange.errors:
        return "stream_error", _text(exchange.errors[0])[0] or "an error without words"
    if reading.finish_reason is not None:
        return "ok", detail
    if ended in ("cancelled", "timeout"):
        return ended, detail
    said, is_error = _said(exchange)
    if is_error:
        return "stream_error", said
    if not exchange.payloads and said and _facts(exchange):
        return "stream_error", f"no stream of events: {said}"
    what = "[DONE]" if reading.done else detail or "the stream ended"
    what += " before a finish_reason" if exchange.payloads else ": no event"
    return "truncated", ": ".join(filter(None, (what, said, *reading.notes)))


def answer_text(exchange: Exchange) -> str:
    """What an answer that is no stream says: the server's message, and what its header tells."""
    return (_said(exchange)[0] or "empty body") + _facts(exchange)


def _facts(exchange: Exchange) -> str:
    """What the header says of an answer that is no plain stream of events, to stand behind its words."""
    headers, status = exchange.headers, exchange.http_status or 0
    kind = headers.get("content-type", "").partition(";")[0].strip()
    usual = ("", "text/event-stream", "application/json" if status >= 300 else "")  # as errors are
    facts = [] if kind in usual else [kind]
    if (encoding := headers.get("content-encoding", "identity")) != "identity":
        facts.append(f"Content-Encoding: {encoding}")
    if "location" in headers:
        facts.append(f"Location: {headers['location']}")
    return "".join(f"; {fact}" for fact in facts)


def _said(exchange: Exchange) -> tuple[str, bool]:
    """The words of a body outside of events, and whether they are those of an error object."""
    body = exchange.body_start
    if exchange.headers.get("content-encoding", "identity") != "identity":
        try:
            body = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, _READ_WORDS)
        except zlib.error:
            return "cannot be decoded", False
    return _text(body)


def _text(body: bytes) -> tuple[str, bool]:
    try:
        said = parse(body)
        if isinstance(said, dict) and (said.get("error") or said.get("message")):
            return error_text(said), bool(said.get("error"))
    except (ValueError, RecursionError):
        pass  # then its words are all that it says
    return body.decode("utf-8", "replace").strip(), False

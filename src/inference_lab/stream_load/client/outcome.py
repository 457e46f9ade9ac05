"""One request as it went over the wire, and its record.

`Capture` holds facts: payloads and their times, how the connection ended. `request_record` interprets them
once the stream is over: when which tokens came, and with which status and words the request ended.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inference_lab.stream_load.client.redaction import Redact, redacted
from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.client.tokens import TokenCounter, error_text, parse
from inference_lab.stream_load.requests import RequestRecord

_WORDS = 300  # characters of an error or a note
_READ_WORDS = 4096  # of which they are cut, so that no text a server wrote takes long to redact


@dataclass(frozen=True, slots=True)
class Attempt:
    """One capture and when the load of this name wanted, created and admitted its request."""

    request_id: str
    attempt: int
    scheduled_ns: int
    arrival_ns: int
    admitted_ns: int | None
    capture: Capture
    load: str = "r"


def request_record(attempt: Attempt, *, clock: str, redact: Redact = str) -> RequestRecord:
    """The record of an attempt, all its payloads read at once.

    What the server wrote is redacted before anything is cut.
    """
    capture, reading = attempt.capture, TokenCounter()
    for payload in capture.payloads:
        reading.add(payload)
    chunks, counted = reading.settle(lambda: _most_tokens(capture))
    stamps_ns = capture.stamps_ns
    times = [stamps_ns[event] for event, tokens in chunks for _ in range(tokens)]
    place = {event: index for index, (event, _) in enumerate(chunks)} if capture.shared_reads else {}
    censored: list[int] = []
    coalesced = 0
    for read in capture.shared_reads:
        inside = [place[event] for event in read if event in place]
        coalesced += len(inside) > 1
        censored += [index for index in inside if chunks[index][0] != read[-1]]
    user_stamped: list[int] = []
    if clock == "kernel" and capture.user_stamped:
        user_stamped = [index for index, (event, _) in enumerate(chunks) if event in capture.user_stamped]
    status, error = _status(capture, reading)
    notes = [*capture.notes, *reading.notes]
    if status == "ok" and not chunks:
        notes.append("the answer is whole and holds no token")

    def words(text: str, after: str = "") -> str:
        after = redact(after)[: _WORDS // 2]
        return " ".join(redact(text[:_READ_WORDS]).split())[: _WORDS - len(after)] + after

    assert capture.end_ns is not None
    return RequestRecord(
        request_id=attempt.request_id,
        load=attempt.load,
        attempt=attempt.attempt,
        scheduled_ns=attempt.scheduled_ns,
        arrival_ns=attempt.arrival_ns,
        admitted_ns=attempt.admitted_ns,
        sent_ns=capture.sent_ns,
        first_token_ns=times[0] if times else None,
        token_times_ns=tuple(times[1:]),
        chunk_tokens=tuple([tokens for _, tokens in chunks]),
        finish_ns=capture.end_ns,
        status=status,
        http_status=capture.http_status,
        prompt_tokens=reading.prompt_tokens,
        output_tokens=len(times),
        counted_tokens=counted,
        usage=_kept(reading.usage, redact),
        error=None if error is None else words(error, "" if capture.payloads else _facts(capture)),
        clock=clock,
        coalesced_reads=coalesced,
        censored_chunks=tuple(censored),
        user_stamped_chunks=tuple(user_stamped),
        max_read_lag_ns=capture.max_read_lag_ns,
        resent=capture.resent,
        hidden_tokens=reading.hidden_tokens,
        notes=tuple(map(words, notes)),
    )


def _most_tokens(capture: Capture) -> int:
    """The most tokens that a total may say: of its answer a byte each, and twice what was asked for.

    Twice, because a server that drafts several tokens a step may run over the end.
    """
    try:
        asked = parse(capture.request.partition(b"\r\n\r\n")[2])
        limits = [asked.get(name) for name in ("max_tokens", "max_completion_tokens")]
    except (ValueError, AttributeError):
        limits = []
    received = sum(map(len, capture.payloads))
    return min([received, *(2 * limit for limit in limits if isinstance(limit, int) and limit > 0)])


def _kept(usage: Mapping[str, Any] | None, redact: Redact) -> Any:
    """The usage for the record, unless it is nested so deeply that no reader could take it."""
    try:
        return redacted(usage, redact)
    except RecursionError:
        return None


def _status(capture: Capture, reading: TokenCounter) -> tuple[str, str | None]:
    """(status, error): what the end of the capture amounts to."""
    ended, status, detail = capture.ended, capture.http_status, capture.detail
    if status is not None and not 200 <= status < 300:
        return "http_error", f"HTTP {status}: {_said(capture)[0] or 'empty body'}"
    if status is None and ended not in ("cancelled", "timeout"):
        return "connect_error", detail
    if reading.error is not None:
        return "stream_error", reading.error
    if capture.errors:
        return "stream_error", _text(capture.errors[0])[0] or "an error without words"
    if reading.finish_reason is not None:
        return "ok", detail
    if ended in ("cancelled", "timeout"):
        return ended, detail
    said, is_error = _said(capture)
    if is_error:
        return "stream_error", said
    if not capture.payloads and said and _facts(capture):
        return "stream_error", f"no stream of events: {said}"
    what = "[DONE]" if reading.done else detail or "the stream ended"
    what += " before a finish_reason" if capture.payloads else ": no event"
    return "truncated", ": ".join(filter(None, (what, said, *reading.notes)))


def answer_text(capture: Capture) -> str:
    """What an answer that is no stream says: the server's message, and what its header tells."""
    return (_said(capture)[0] or "empty body") + _facts(capture)


def _facts(capture: Capture) -> str:
    """What the header says of an answer that is no plain stream of events, to stand behind its words."""
    headers, status = capture.headers, capture.http_status or 0
    kind = headers.get("content-type", "").partition(";")[0].strip()
    usual = ("", "text/event-stream", "application/json" if status >= 300 else "")  # as errors are
    facts = [] if kind in usual else [kind]
    if (encoding := headers.get("content-encoding", "identity")) != "identity":
        facts.append(f"Content-Encoding: {encoding}")
    if "location" in headers:
        facts.append(f"Location: {headers['location']}")
    return "".join(f"; {fact}" for fact in facts)


def _said(capture: Capture) -> tuple[str, bool]:
    """The words of a body outside of events, and whether they are those of an error object."""
    body = capture.body_start
    if capture.headers.get("content-encoding", "identity") != "identity":
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

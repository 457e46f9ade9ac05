"""What became of one attempt: when which tokens came, and the status and words that its end amounts to.

An API key is taken out of texts that a server wrote: whole, in part, or spelt in another way.
"""

import html
import json
import re
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.client.tokens import error_text, parse
from inference_lab.stream_load.client.usage import whole
from inference_lab.stream_load.requests import RequestRecord

_WORDS = 300  # characters of an error or a note
_PART = 8  # so many characters of a key in a row are told as one
_READ_WORDS = 4096  # of which they are cut, so that no text a server wrote takes long to redact

Redact = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one request captured, and when its load scheduled, created and admitted it."""

    request_id: str
    attempt: int
    scheduled_ns: int
    arrival_ns: int
    admitted_ns: int | None
    capture: Capture
    load: str = "r"


def request_record(attempt: Attempt, *, clock: str, redact: Redact = str) -> RequestRecord:
    """The record of an attempt. What the server wrote is redacted before anything is cut."""
    capture, counter = attempt.capture, attempt.capture.counter
    chunks, counted = counter.settle(lambda received_bytes: _most_tokens(capture.request, received_bytes))
    times = [capture.stamps_ns[event] for event, tokens in chunks for _ in range(tokens)]
    coalesced, censored = _shared(capture, chunks)
    by_user = capture.user_stamped if clock == "kernel" else ()
    status, error = _status(capture)
    notes = [*capture.notes, *counter.notes]
    if status == "ok" and not chunks:
        notes.append("the answer is whole and holds no token")

    def words(text: str, after: str = "") -> str:
        after = redact(after)[: _WORDS // 2]
        return " ".join(redact(text[:_READ_WORDS]).split())[: _WORDS - len(after)] + after

    try:
        usage = redacted(counter.usage, redact)
    except RecursionError:
        usage = None  # nested so deeply that no reader of the record could take it
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
        prompt_tokens=whole((counter.usage or {}).get("prompt_tokens")),
        output_tokens=len(times),
        counted_tokens=counted,
        usage=usage,
        error=None if error is None else words(error, "" if capture.stamps_ns else _header_facts(capture)),
        clock=clock,
        coalesced_reads=coalesced,
        censored_chunks=_indices(chunks, censored),
        user_stamped_chunks=_indices(chunks, by_user),
        max_read_lag_ns=capture.max_read_lag_ns,
        resent=capture.resent,
        hidden_tokens=counter.hidden_tokens,
        notes=tuple(map(words, notes)),
    )


def _shared(capture: Capture, chunks: list[tuple[int, int]]) -> tuple[int, set[int]]:
    """How many reads held several chunks, and the events that were not the last one of their read."""
    if not capture.shared_reads:
        return 0, set()
    held = {event for event, _ in chunks}
    coalesced = sum(sum(event in held for event in events) > 1 for events in capture.shared_reads)
    return coalesced, {event for events in capture.shared_reads for event in events[:-1]}


def _indices(chunks: list[tuple[int, int]], events: Collection[int]) -> tuple[int, ...]:
    """The chunks that are one of these events."""
    return tuple([index for index, (event, _) in enumerate(chunks) if event in events]) if events else ()


def _most_tokens(request: bytes, received_bytes: int) -> int:
    """The largest total to be believed: one token per byte of the answer, and twice what was asked for.

    Twice, because a server that drafts several tokens per step may run over the end.
    """
    try:
        asked = parse(request.partition(b"\r\n\r\n")[2])
        limits = [asked.get(name) for name in ("max_tokens", "max_completion_tokens")]
    except (ValueError, AttributeError):
        limits = []
    return min([received_bytes, *(2 * limit for limit in limits if isinstance(limit, int) and limit > 0)])


def _status(capture: Capture) -> tuple[str, str | None]:
    """(status, error): what the end of the capture amounts to."""
    counter, has_events = capture.counter, bool(capture.stamps_ns)
    ended, status, detail = capture.ended, capture.http_status, capture.detail
    if status is not None and not 200 <= status < 300:
        return "http_error", f"HTTP {status}: {_body_text(capture)[0] or 'empty body'}"
    if status is None and ended not in ("cancelled", "timeout"):
        return "connect_error", detail
    if counter.error is not None:
        return "stream_error", counter.error
    if capture.errors:
        return "stream_error", _text(capture.errors[0])[0] or "an error without words"
    if counter.finish_reason is not None:
        return "ok", detail
    if ended in ("cancelled", "timeout"):
        return ended, detail
    text, is_error = _body_text(capture)
    if is_error:
        return "stream_error", text
    if not has_events and text and _header_facts(capture):
        return "stream_error", f"no stream of events: {text}"
    what = "[DONE]" if counter.done else detail or "the stream ended"
    what += " before a finish_reason" if has_events else ": no event"
    return "truncated", ": ".join(filter(None, (what, text, *counter.notes)))


def answer_text(capture: Capture) -> str:
    """The words of an answer that is no stream: the server's message, and what its header adds."""
    return (_body_text(capture)[0] or "empty body") + _header_facts(capture)


def _header_facts(capture: Capture) -> str:
    """What is unusual in the header of an answer that is no plain stream of events, to follow its words."""
    headers, status = capture.headers, capture.http_status or 0
    kind = headers.get("content-type", "").partition(";")[0].strip()
    usual = ("", "text/event-stream", "application/json" if status >= 300 else "")  # as errors are
    facts = "" if kind in usual else f"; {kind}"
    if (encoding := headers.get("content-encoding", "identity")) != "identity":
        facts += f"; Content-Encoding: {encoding}"
    return facts + (f"; Location: {headers['location']}" if "location" in headers else "")


def _body_text(capture: Capture) -> tuple[str, bool]:
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
        value = parse(body)
        if isinstance(value, dict) and (value.get("error") or value.get("message")):
            return error_text(value), bool(value.get("error"))
    except (ValueError, RecursionError):
        pass  # then its words are all there is
    return body.decode("utf-8", "replace").strip(), False


def redacting(key: str | None) -> Redact:
    """What gives a text without the key: `[key]` stands for every 8 or more characters of it in a row.

    So an echo that was cut, masked in the middle, or escaped for a URL, HTML or JSON does not survive. Of a
    key shorter than that only the whole is told. Works on whole texts: cut afterwards, never before.
    """
    if not key:
        return str
    if len(key) < _PART:
        return lambda text: text.replace(key, "[key]")
    spellings = (key, quote(key, safe=""), html.escape(key), json.dumps(key))
    parts = {spelt[at : at + _PART] for spelt in spellings for at in range(len(spelt) - _PART + 1)}
    # All characters at which a part begins, and the rest of the last part.
    run = rf"(?:(?={'|'.join(map(re.escape, parts))}).)+.{{{_PART - 1}}}"
    find = re.compile(run, re.IGNORECASE | re.ASCII | re.DOTALL)
    return lambda text: find.sub("[key]", text)


def redacted(value: Any, redact: Redact) -> Any:
    """A JSON value with every text in it redacted, names of fields too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redacted(each, redact) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {redact(name): redacted(each, redact) for name, each in value.items()}  # pyright: ignore
    return value

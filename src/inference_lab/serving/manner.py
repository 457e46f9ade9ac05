"""How a server may write its stream: one well-behaved manner and every other one that has been seen.

Bytes only. The reference server takes a manner by name, so that a client can be shown each of them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Manner:
    """The manner of one stream; the defaults are those of a good server.

    `usage` stands in a chunk of its "own", in the "last" token's chunk, in "every" chunk or "never".
    `bytes_a_write` cuts the whole answer, framing included. After `tokens_until` tokens comes what
    `ending` says: "whole" (to the end), "clean" (the message ends), "fin", "reset", "stall", "error"
    (an error object in the stream), "exit" (the server dies). `instead` is answered at once: (status,
    content type, body), and "fin" or "reset" close before any header.
    """

    text: str = " t"
    reasoning: bool = False
    tokens_a_chunk: int = 1
    usage: str = "own"
    line_end: str = "\n"
    space: str = " "
    comments: bool = False
    other_fields: bool = False
    events_a_write: int = 1
    bytes_a_write: int | None = None
    bare_finish: bool = False
    done: bool = True
    finish_reason: str | None = "length"
    chunked: bool = True
    tokens_until: int | None = None
    ending: str = "whole"
    instead: tuple[int, str, str] | str | None = None


_ERROR = json.dumps({"error": {"message": "asked to fail", "type": "server_error", "code": 500}})
_HTML = "<html><body><h1>Bad gateway</h1></body></html>"

MANNERS: dict[str, Manner] = {
    "good": Manner(),
    "empty-text": Manner(text=""),
    "whitespace": Manner(text=" \n"),
    "special-token": Manner(text="<|im_end|>"),
    "multi-byte": Manner(text="é漢🙂"),
    "reasoning": Manner(reasoning=True),
    "comments": Manner(comments=True),
    "other-fields": Manner(other_fields=True),
    "several-tokens": Manner(tokens_a_chunk=4),
    "several-tokens-usage-in-every-chunk": Manner(tokens_a_chunk=3, usage="every"),
    "usage-in-last-chunk": Manner(usage="last"),
    "usage-in-every-chunk": Manner(usage="every"),
    "no-usage": Manner(usage="never"),
    "bare-finish": Manner(bare_finish=True),
    "several-events-a-write": Manner(events_a_write=5),
    "bytewise": Manner(bytes_a_write=1, text="é漢🙂"),
    "crlf": Manner(line_end="\r\n"),
    "crlf-bytewise": Manner(line_end="\r\n", bytes_a_write=1),
    "cr": Manner(line_end="\r"),
    "no-space": Manner(space=""),
    "no-done": Manner(done=False),
    "no-done-no-usage": Manner(done=False, usage="never"),
    "not-chunked": Manner(chunked=False),
    "no-finish-reason": Manner(finish_reason=None, done=False),
    "done-without-finish-reason": Manner(finish_reason=None),
    "clean-end": Manner(tokens_until=3, ending="clean"),
    "fin": Manner(tokens_until=3, ending="fin"),
    "fin-not-chunked": Manner(tokens_until=3, ending="fin", chunked=False),
    "reset": Manner(tokens_until=3, ending="reset"),
    "reset-before-first": Manner(tokens_until=0, ending="reset"),
    "error-first": Manner(tokens_until=0, ending="error"),
    "error-later": Manner(tokens_until=3, ending="error"),
    "no-chunk": Manner(tokens_until=0, ending="clean"),
    "stall-first": Manner(tokens_until=0, ending="stall"),
    "stall-later": Manner(tokens_until=3, ending="stall"),
    "stall-with-comments": Manner(tokens_until=3, ending="stall", comments=True),
    "exit": Manner(tokens_until=3, ending="exit"),
    "429-json": Manner(instead=(429, "application/json", _ERROR)),
    "500-html": Manner(instead=(502, "text/html", _HTML)),
    "500-empty": Manner(instead=(500, "text/plain", "")),
    "200-json-error": Manner(instead=(200, "application/json", _ERROR)),
    "fin-before-header": Manner(instead="fin"),
    "reset-before-header": Manner(instead="reset"),
}


def http_response(status: int, content_type: str, body: bytes) -> bytes:
    """A whole HTTP response."""
    head = f"HTTP/1.1 {status} -\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


class StreamWriter:
    """Renders one answer of `output_tokens` tokens: header, token chunks, end."""

    def __init__(self, manner: Manner, request: dict[str, Any], *, is_chat: bool, name: str) -> None:
        self._manner = manner
        self._is_chat = is_chat
        self._name = name
        self._model = request.get("model")
        options = request.get("stream_options") or {}
        self._wants_usage = bool(options.get("include_usage")) and manner.usage != "never"
        self._usage_in_every = manner.usage == "every" or bool(options.get("continuous_usage_stats"))
        self._wants_ids = bool(request.get("return_token_ids"))
        self._prompt_tokens = prompt_tokens(request)
        self._plain = self._token_event(1, 0, last=False) if self._is_plain() else b""

    def _is_plain(self) -> bool:
        """Whether every token chunk but the last has the same bytes."""
        counts = self._usage_in_every and self._wants_usage
        return not counts and not self._wants_ids and self._manner.tokens_a_chunk == 1

    def head(self) -> bytes:
        """The HTTP header, and what a server writes before the first token."""
        framing = "Transfer-Encoding: chunked" if self._manner.chunked else "Connection: close"
        data = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{framing}\r\n\r\n".encode()
        if self._is_chat and (self._manner.tokens_until, self._manner.ending) != (0, "clean"):
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            data += self._event(self._chunk([role], completion_tokens=0))
        return data

    def tokens(self, count: int, emitted: int, *, last: bool) -> bytes:
        """The chunk with the next `count` tokens after `emitted` others; the whole end if they are last."""
        if not last:
            return self._plain or self._token_event(count, emitted, last=False)
        manner = self._manner
        total = emitted + count
        data = self._token_event(count, emitted, last=not manner.bare_finish)
        if manner.bare_finish:
            data += self._event(self._chunk([self._choice(None, manner.finish_reason, 0)]))
        if self._wants_usage and manner.usage == "own":
            data += self._event(self._chunk([], completion_tokens=total))
        return data + self.end(done=manner.done)

    def end(self, *, done: bool) -> bytes:
        """The end of the message."""
        data = self._event(b"[DONE]") if done else b""
        return data + (b"0\r\n\r\n" if self._manner.chunked else b"")

    def error(self) -> bytes:
        """An error object inside the stream, then the end as a server that goes on writes it."""
        return self._event(_ERROR.encode()) + self.end(done=True)

    def comment(self) -> bytes:
        """A comment that keeps the connection alive."""
        return self._frame(f": ping{self._manner.line_end * 2}".encode())

    def _token_event(self, count: int, emitted: int, *, last: bool) -> bytes:
        manner = self._manner
        reason = manner.finish_reason if last else None
        choice = self._choice(manner.text * count, reason, count)
        total = emitted + count
        told = self._usage_in_every or (manner.usage == "last" and last)
        return self._event(self._chunk([choice], completion_tokens=total if told else None))

    def _choice(self, text: str | None, reason: str | None, count: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        if self._is_chat:
            key = "reasoning_content" if self._manner.reasoning else "content"
            choice["delta"] = {} if text is None else {key: text}
        else:
            choice["text"] = text or ""
        if self._wants_ids:
            choice["token_ids"] = list(range(3, 3 + count))
        return choice

    def _chunk(self, choices: Sequence[dict[str, Any]], *, completion_tokens: int | None = None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self._name,
            "object": "chat.completion.chunk" if self._is_chat else "text_completion",
            "created": 0,
            "model": self._model,
            "choices": choices,
        }
        if (
            completion_tokens is not None
            and self._wants_usage
            and (completion_tokens or self._usage_in_every)
        ):
            chunk["usage"] = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": completion_tokens,
                "total_tokens": self._prompt_tokens + completion_tokens,
            }
        return json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode()

    def _event(self, payload: bytes) -> bytes:
        manner = self._manner
        end = manner.line_end
        before = f": ping{end}{end}" if manner.comments else ""
        before += f"event: message{end}id: 7{end}retry: 1000{end}" if manner.other_fields else ""
        start = f"{before}data:{manner.space}".encode()
        return self._frame(start + payload + (end * 2).encode())

    def _frame(self, data: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(data), data) if self._manner.chunked else data


def prompt_tokens(request: dict[str, Any]) -> int:
    """How long a prompt is here: token ids as they are counted, text by its words."""
    prompt = request.get("prompt")
    if isinstance(prompt, list):
        return max(len(prompt), 1)
    texts = [str(message.get("content", "")) for message in request.get("messages") or ()]
    return max(len(" ".join([str(prompt or ""), *texts]).split()), 1)

"""How a server may write its stream: one well-behaved manner, every other one that has been seen, and a
server that answers each request in the manner which its body names.
"""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any


@dataclass(frozen=True, slots=True)
class Manner:
    """The manner of one stream; the defaults are those of a good server.

    `usage` stands in a chunk of its "own", in the "last" token's chunk, in "every" chunk or "never".
    `bytes_a_write` cuts the whole answer, framing included. After `tokens_until` tokens comes what
    `ending` says: "whole" (to the end), "clean" (the message ends), "fin", "reset", "stall", or
    "error" (an error object in the stream). `instead` is answered at once: (status,
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
        self._prompt_tokens = len(request.get("prompt") or "t")
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


class MisbehavingServer:
    """A server on the loopback for `async with`; `written_ns` is when it wrote the last answer's tokens."""

    async def __aenter__(self) -> "MisbehavingServer":
        self.written_ns: list[int] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].split()[0])
                request = json.loads(await reader.readexactly(length))
                ending = await self._answer(writer, request, is_chat=b"/chat/" in head.split()[1])
                if ending == "reset":
                    linger_zero = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, linger_zero
                    )
                if ending in ("fin", "reset"):
                    return

    async def _answer(self, writer: asyncio.StreamWriter, request: dict[str, Any], *, is_chat: bool) -> str:
        """Answer one request; how that ended."""
        manner = MANNERS[request.get("manner", "good")]
        if isinstance(manner.instead, str):
            return manner.instead
        if manner.instead is not None:
            status, content_type, body = manner.instead
            writer.write(http_response(status, content_type, body.encode()))
            return "whole"
        answer = StreamWriter(manner, request, is_chat=is_chat, name="cmpl-1")
        await _send(writer, answer.head(), manner)
        unsent, held, unsent_tokens, events = b"", 0, 0, 0
        self.written_ns = []
        total = request["max_tokens"]
        for number in range(1, total + 1):
            await asyncio.sleep(0.001)
            if manner.tokens_until is not None and number > manner.tokens_until:
                return await _end_early(writer, answer, manner)
            held += 1
            if held < manner.tokens_a_chunk and number < total:
                continue
            unsent += answer.tokens(held, number - held, last=number == total)
            unsent_tokens += held
            held, events = 0, events + 1
            if events % manner.events_a_write == 0 or number == total:
                self.written_ns += [monotonic_ns()] * unsent_tokens
                await _send(writer, unsent, manner)
                unsent, unsent_tokens = b"", 0
        return "whole" if manner.chunked else "fin"


async def _end_early(writer: asyncio.StreamWriter, answer: StreamWriter, manner: Manner) -> str:
    if manner.ending == "clean":
        await _send(writer, answer.end(done=False), manner)
    elif manner.ending == "error":
        await _send(writer, answer.error(), manner)
    while manner.ending == "stall":  # nothing more, or comments alone, for as long as the client stays
        await asyncio.sleep(0.02)
        if manner.comments:
            await _send(writer, answer.comment(), manner)
    return manner.ending


async def _send(writer: asyncio.StreamWriter, data: bytes, manner: Manner) -> None:
    """Write at once, or in pieces with turns of the event loop between them."""
    size = manner.bytes_a_write or len(data)
    for start in range(0, len(data), size):
        writer.write(data[start : start + size])
        await writer.drain()
        if manner.bytes_a_write:
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # a reader in this loop comes between

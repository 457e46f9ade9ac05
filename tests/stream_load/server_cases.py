"""What servers of the world send, and the record each must give: one row a case, all of 8 tokens asked.

A case is a list of writes, apart in time. `first` is the write that brings the first token. However the
bytes of an answer are cut, the record is the same but for its times.
"""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Writes = tuple[bytes, ...]
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Case:
    """An answer in writes, and what its record says; `says` are words of its error, `notes` of its notes."""

    name: str
    writes: Sequence[bytes]
    status: str = "ok"
    chunks: tuple[int, ...] = (1,) * 8
    first: int = 0
    counted: int | None = None
    hidden: int | None = None
    says: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    code: str = "200 OK"
    headers: tuple[str, ...] = ("Content-Type: text/event-stream",)


def event(value: Any) -> bytes:
    """One event with this JSON value."""
    return f"data: {json.dumps(value)}\n\n".encode()


def delta(finish: str | None = None, usage: int | None = None, **fields: Any) -> bytes:
    """A chat chunk; `usage` beside it as a number of tokens."""
    chunk: dict[str, Any] = {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}
    return event(chunk if usage is None else {**chunk, "usage": total(usage)})


def total(usage: int, **details: int) -> dict[str, Any]:
    """A usage of so many tokens, of which `details`."""
    said = {"prompt_tokens": 5, "completion_tokens": usage, "total_tokens": 5 + usage}
    return said | ({"completion_tokens_details": details} if details else {})


def usage(tokens: int, **details: int) -> bytes:
    """A chunk of its own that says how many tokens there were."""
    return event({"choices": [], "usage": total(tokens, **details)})


def texts(count: int = 8, key: str = "content", finish: str | None = "stop") -> Writes:
    """Deltas with text, the last of which ends the answer."""
    return (*(delta(**{key: f"w{n}"}) for n in range(count - 1)), delta(finish, **{key: "last"}))


ROLE = delta(role="assistant", content="")
EMPTY = delta(content="")
BARE = delta("stop")
_NESTED = b'data: {"choices": ' + b"[" * 50_000 + b"]" * 50_000 + b"}\n\n"
_LONG = "x" * 2_000_000
_ERROR = {"error": {"message": "no memory left", "code": 500}}
_HTML = b"<html><body>Bad gateway</body></html>"
_PAGE = (_HTML + b"\n") * 100
_PLAIN_COMPLETION = json.dumps({"choices": [{"message": {"content": "all at once"}}]}).encode()


def _with_usage(said: Sequence[int], finish: str = "stop") -> Writes:
    ends = [None] * (len(said) - 1) + [finish]
    return tuple(delta(end, total, content="w") for end, total in zip(ends, said, strict=True))


def _choice(index: int, finish: str | None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": "w"}, "finish_reason": finish, **fields}]}


_GOOD = (*texts(), usage(8), DONE)

# fmt: off
USAGE = (
    Case("zeros in every chunk but the last", (*_with_usage([0] * 7 + [8]), DONE)),
    Case("zeros in every chunk", (*_with_usage([0] * 8), DONE), notes=("usage says 0 tokens",)),
    Case("zeros, and empty texts between", (delta(None, 0, content="w"),
        *(delta(None, 0, content="") for _ in range(6)), delta("stop", 8, content="w"), DONE)),
    Case("usage one chunk behind", (ROLE, *_with_usage(range(8)), usage(8), DONE), first=1),
    Case("usage two chunks behind", (*_with_usage([0, 0, 1, 2, 3, 4, 5, 6]), usage(8), DONE)),
    Case("usage in every chunk", (delta(None, 0, role="assistant", content=""), *_with_usage(range(1, 9)),
        usage(8), DONE), first=1),
    Case("usage in every chunk, several tokens each", (*_with_usage([3, 4, 8]), DONE), chunks=(3, 1, 4),
        counted=3),
    Case("usage in every chunk, an empty one without", (delta(None, 3, content="w"),
        delta(None, 3, content=""), delta("stop", 8, content="w"), DONE), chunks=(3, 5), counted=3),
    Case("all of it said in every chunk", (*_with_usage([8] * 8), DONE)),
    Case("usage of the answer without streamed reasoning", (*texts(4, "reasoning_content", None), *texts(4),
        usage(4), DONE), notes=("usage says 4 tokens",)),
    Case("reasoning streamed and said", (*texts(4, "reasoning_content", None), *texts(4),
        usage(8, reasoning_tokens=4), DONE), hidden=0),
    Case("hidden reasoning in the total", (ROLE, *texts(), usage(408, reasoning_tokens=400), DONE), first=1,
        hidden=400),
    Case("hidden reasoning beside the total", (*texts(),
        event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 413,
        "reasoning_tokens": 400}}), DONE), hidden=400),
    Case("hidden reasoning that is told encrypted",
        (delta(reasoning=None, reasoning_details=[{"type": "reasoning.encrypted", "data": "x"}]), *texts(7),
        usage(408, reasoning_tokens=400), DONE), hidden=400, notes=("'reasoning_details'",)),
    Case("rejected predictions", (*texts(), usage(20, rejected_prediction_tokens=12), DONE), hidden=12),
    Case("ten million tokens", (*texts(), usage(10**7), DONE),
        notes=("usage says 10000000 tokens, more than can be",)),
    Case("300 million tokens", (*texts(), usage(3 * 10**8), DONE), notes=("usage says 300000000 tokens",)),
    Case("totals that are none", (*texts(),
        event({"usage": {"completion_tokens": True, "prompt_tokens": -1}}), DONE)),
    Case("300,000 token ids", (*(event(_choice(0, None, token_ids=[1] * 100_000)) for _ in range(3)),
        *texts(5), DONE), notes=("token_ids say 300005 tokens, more than can be",)),
    Case("two choices", (*(event(_choice(index, None)) for _ in range(7) for index in (0, 1)),
        event({"choices": [_choice(n, "stop")["choices"][0] for n in (1, 0)]}), usage(16), DONE),
        notes=("a choice of index 1 is not timed",)),
    Case("several tokens a chunk", (*texts(4), usage(8), DONE), chunks=(2, 2, 2, 2), counted=4),
    Case("the end's own token", (*texts(7, finish=None), BARE, usage(8), DONE), counted=7),
    Case("a bare end", (*texts(8, finish=None), BARE, usage(8), DONE)),
)
OPENING = (
    Case("two empty deltas", (EMPTY, EMPTY, *texts(), DONE), first=2),
    Case("two empty deltas, and usage", (EMPTY, EMPTY, *texts(), usage(8), DONE), first=2),
    Case("two empty deltas that are tokens", (EMPTY, EMPTY, *texts(6), usage(8), DONE), counted=6),
    Case("two roles", (ROLE, ROLE, *texts(), DONE), first=2),
    Case("content filter before all", (event({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]}),
        ROLE, *texts(), DONE), first=2),
    Case("comments before all", (b": OPENROUTER PROCESSING\n\n", b": OPENROUTER PROCESSING\n\n", *_GOOD),
        first=2),
    Case("a role in every delta",
        tuple(w.replace(b'{"content"', b'{"role": "assistant", "content"') for w in _GOOD)),
)
OUTPUT = (
    *(
        Case(f"{key} deltas", (ROLE, *(delta(**{key: value}) for _ in range(7)), delta("stop", content="."),
            DONE), first=1, notes=(repr(key),) * told)
        for key, value, told in (("thinking", "hm", True), ("audio", {"data": "UklG"}, True), ("images",
            [{"url": "data:"}], True), ("reasoning_details", [{"text": "hm"}], True), ("reasoning", "hm",
            False), ("refusal", "no", False), ("tool_calls", [{"index": 0, "function": {"arguments": "{"}}],
            False))
    ),
    Case("empty lists beside", (delta(role="assistant", content=None, tool_calls=[], reasoning_details=[]),
        delta(tool_calls=[]), *texts(), DONE), first=2),
    Case("flags beside", (ROLE, delta(end_turn=False, index=3), *texts(), delta(end_turn=True), DONE),
        first=2),
    Case("nothing at all", (ROLE, BARE, DONE), chunks=(), notes=("holds no token",)),
    Case("NaN among logprobs",
        tuple(w.replace(b'"index": 0', b'"logprobs": [NaN, -Infinity]') for w in _GOOD)),
)
FRAMING = (
    Case("[DONE] with spaces", (*texts(), usage(8), b"data:  [DONE] \t\n\n")),
    Case("[DONE] without the space", (*texts(), usage(8), b"data:[DONE]\r\n\r\n")),
    Case("a ping after the end", (*texts(), b"data: ping\n\n", DONE), notes=("ping",)),
    Case("null after the end", (*texts(), b"data: null\n\n"), notes=("null",)),
    Case("other words after the end", (*texts(), b'data: 17\n\ndata: [1]\n\ndata: {"cho\n\n'), notes=("17",
        "[1]", "not JSON")),
    Case("a ping between", (delta(content="w"), b"data: ping\n\n", *texts(7), DONE), notes=("ping",)),
    Case("pings without end", (*texts(), *(f"data: {n}\n\n".encode() for n in range(40))), notes=("0",)),
    Case("pings of other kinds", (b"event: ping\ndata: {}\n\n", event({"type": "ping"}), b"data:\n\n",
        b"id: 1\nretry: 3000\n\n", *_GOOD), first=4),
    Case("CR LF", tuple(write.replace(b"\n", b"\r\n") for write in _GOOD)),
    Case("CR", tuple(write.replace(b"\n", b"\r") for write in _GOOD)),
    Case("no space", tuple(write.replace(b"data: ", b"data:") for write in _GOOD)),
    Case("comments and other fields", tuple(b": c\nid: 7\nretry: 9\nevent: m\n" + write for write in _GOOD)),
    Case("no [DONE]", (*texts(), usage(8))),
    Case("neither [DONE] nor usage", texts()),
    Case("no finish_reason", texts(finish=None), "truncated", says=("ended before a finish_reason",)),
    Case("texts of all kinds", (*(delta(content=text) for text in (" \n", "<|im_end|>", "é漢🙂", "")),
        *texts(4), usage(8), DONE)),
    Case("half a chunk", (*texts(7, finish=None), b'data: {"choices": [\n\n', BARE, DONE), "stream_error",
        (1,) * 7, says=("not JSON",)),
    Case("an end without its blank line", (*texts(7, finish=None), delta("stop", content="w")[:-1]),
        "truncated", (1,) * 7, says=("the stream ended before a finish_reason", '"finish_reason": "stop"')),
    Case("201", _GOOD, code="201 Created"),
    Case("206 without a content type", _GOOD, code="206 Partial Content", headers=()),
)
ERRORS = (
    Case("an error object", (*texts(2, finish=None), event(_ERROR), DONE), "stream_error", (1, 1),
        says=("no memory left",)),
    Case("an error field", (*texts(2, finish=None), b'error: {"code": 500, "message": "no memory left"}\n\n'),
        "stream_error", (1, 1), says=("no memory left",)),
    Case("an event named error", (*texts(2, finish=None), b"event: error\n", b"data: no memory left\n\n",
        DONE), "stream_error", (1, 1), says=("no memory left",)),
    Case("an error event at once", (b'event: error\ndata: {"message": "no memory left"}\n\n',),
        "stream_error", (), says=("no memory left",)),
    Case("an error object outside of events", (*texts(2, finish=None), json.dumps(_ERROR).encode()),
        "stream_error", (1, 1), says=("no memory left",)),
    Case("words outside of events", (*texts(2, finish=None), b"upstream timed out\n"), "truncated", (1, 1),
        says=("upstream timed out",)),
    Case("an object of its own and no end", (event({"detail": "boom detail"}), DONE), "truncated", (),
        says=("[DONE] before a finish_reason", "boom detail"), notes=("boom detail",)),
    Case("an object of its own between", (delta(content="w"), event({"detail": "boom detail"}), *texts(7),
        DONE), notes=("boom detail",)),
    Case("a bare word and no end", (delta(content="w"), b"data: overloaded\n\n"), "truncated", (1,),
        says=("overloaded",), notes=("overloaded",)),
    *(
        Case(f"{name} instead of a stream", (body,), "stream_error", (), says=said, headers=headers)
        for name, body, said, headers in (
            ("an error", json.dumps(_ERROR).encode(), ("no memory left",),
                ("Content-Type: application/json",)),
            ("JSON", _PLAIN_COMPLETION, ("no stream of events", "all at once", "application/json"),
                ("Content-Type: application/json",)),
            ("HTML", _HTML, ("no stream of events", "Bad gateway", "text/html"),
                ("Content-Type: text/html; charset=utf-8",)),
            ("gzip", gzip.compress(_HTML), ("Bad gateway", "text/html", "gzip"), ("Content-Type: text/html",
                "Content-Encoding: gzip")),
            ("a packed stream", gzip.compress(b"".join(_GOOD)), ("w0", "gzip"),
                ("Content-Type: text/event-stream", "Content-Encoding: gzip")),
            ("brotli", b"\x8b\x02\x80<\x03", ("cannot be decoded", "br"), ("Content-Encoding: br",)),
        )
    ),
    *(
        Case(code, (body,), "http_error", (), says=(f"HTTP {code[:3]}: ", *said), code=code, headers=headers)
        for code, body, said, headers in (
            ("400 Bad Request", json.dumps(_ERROR).encode(), ("no memory left",),
                ("Content-Type: application/json",)),
            ("404 Not Found", b'{"detail": "Not Found"}', ("Not Found",), ()),
            ("422 Unprocessable", b"[" * 3000, ("[[[",), ()),
            ("500 Internal Server Error", b"", ("empty body",), ()),
            ("502 Bad Gateway", _PAGE, ("Bad gateway", "text/html"), ("Content-Type: text/html",)),
            ("503 Service Unavailable", gzip.compress(json.dumps(_ERROR).encode()), ("no memory left",
                "gzip"), ("Content-Encoding: gzip",)),
            ("504 Gateway Timeout", b"not packed", ("cannot be decoded", "gzip"),
                ("Content-Encoding: gzip",)),
            ("307 Temporary Redirect", b"", ("http://other/v1",), ("Location: http://other/v1",)),
        )
    ),
)
ENDS = (
    Case("an end before the answer", (delta("stop", role="assistant", content=""), *texts(), usage(8), DONE),
        first=1, notes=("output came after a finish_reason",)),
    Case("a content filter's own chunk after the end", (*texts(),
        event({"choices": [{"finish_reason": None, "content_filter_results": {}}]}), DONE)),
    Case("an empty finish_reason until the end",
        (*(w.replace(b'"finish_reason": null', b'"finish_reason": ""') for w in texts()), usage(8), DONE)),
    Case("an empty finish_reason at the end, too", (*texts(finish=""), DONE), "truncated",
        says=("[DONE] before a finish_reason",)),
    Case("usage null until the end", (*(w[:-3] + b', "usage": null}\n\n' for w in texts()), usage(8), DONE)),
)
SIZES = (
    Case("arrays in arrays", (delta(content="w"), _NESTED, *texts(7)), "stream_error",
        says=("nested too deeply",)),
    Case("arrays in arrays after the end", (*texts(), _NESTED), notes=("nested too deeply",)),
    Case("arrays in an error", (event(_ERROR).replace(b'"no memory left"', b"[" * 900 + b"]" * 900),),
        "stream_error", ()),
    Case("arrays in usage", (*texts(),
        b'data: {"usage": {"completion_tokens": 8, "x": ' + b"[" * 900 + b"]" * 900 + b"}}\n\n")),
    Case("one event of 2 MB", (delta(content=_LONG), *texts(7), usage(8), DONE)),
    Case("a number of 5000 digits", (*texts(),
        b'data: {"usage": {"completion_tokens": ' + b"9" * 5000 + b"}}\n\n"), notes=("not JSON",)),
)
CASES = (*USAGE, *OPENING, *OUTPUT, *FRAMING, *ERRORS, *ENDS, *SIZES)

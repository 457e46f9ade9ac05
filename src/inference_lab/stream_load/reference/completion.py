"""Completion requests as the reference server reads them, and the bytes of its answers.

Of a prompt only the length matters here; every token is the same word.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_lab.errors import InputError

MAX_TOKENS = 1_000_000  # of a prompt and its answer together: what is asked never decides the memory used
_DEFAULT_TOKENS = 16
_TEXT = " t"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request for a stream of `output_tokens` tokens after a prompt of `prompt_tokens`."""

    is_chat: bool
    model: Any
    prompt_tokens: int
    output_tokens: int
    wants_usage: bool = False
    wants_usage_in_every: bool = False
    wants_ids: bool = False


def asked_in(body: bytes | bytearray, *, is_chat: bool) -> Asked:
    """Parse the JSON body of a request. Raises InputError with the message for its client."""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"the body is not JSON: {error}") from None
    if not isinstance(request, dict):
        raise InputError(f"the body must be a JSON object, is {_short(request)}")
    if request.get("stream") is not True:
        raise InputError("only streams are timed here: ask with stream true")
    if request.get("n") not in (None, 1):
        raise InputError(f"n is {_short(request['n'])}, must be 1: one answer a request is timed")
    options = request.get("stream_options")
    if not isinstance(options, dict | None):
        raise InputError(f"stream_options is {_short(options)}, must be an object")
    options = options or {}
    prompt_tokens, output_tokens = _prompt_tokens(request, is_chat=is_chat), _output_tokens(request)
    if prompt_tokens + output_tokens > MAX_TOKENS:
        raise InputError(
            f"{prompt_tokens} tokens of prompt and {output_tokens} of answer are asked;"
            f" this server's maximum context length is {MAX_TOKENS} tokens"
        )
    return Asked(
        is_chat=is_chat,
        model=request.get("model"),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        wants_usage=options.get("include_usage") is True,
        wants_usage_in_every=options.get("continuous_usage_stats") is True,
        wants_ids=request.get("return_token_ids") is True,
    )


def _output_tokens(request: Mapping[str, Any]) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        if (value := request.get(name)) is not None:
            if type(value) is not int or value < 1:
                raise InputError(f"{name} is {_short(value)}, must be a whole number, at least 1")
            return value
    return _DEFAULT_TOKENS


def _prompt_tokens(request: Mapping[str, Any], *, is_chat: bool) -> int:
    """Return the length of a prompt: its token ids, or the words of its text."""
    if not is_chat:
        prompt = request.get("prompt")
        if isinstance(prompt, str):
            return max(len(prompt.split()), 1)
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return len(prompt)
        raise InputError(f"prompt is {_short(prompt)}, must be one text or one list of token ids")
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise InputError(f"messages is {_short(messages)}, must be a list of objects, at least one")
    return max(sum(map(_message_tokens, messages)), 1)


def _message_tokens(message: Any) -> int:
    content = message.get("content") if isinstance(message, dict) else 0
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        content = " ".join(str(part["text"]) for part in content if isinstance(part.get("text"), str))
    if not isinstance(content, str | None):
        raise InputError(
            f"a message is {_short(message)}: it must be an object whose content is text or parts"
        )
    return len((content or "").split())


def _short(value: Any) -> str:
    """Return a value as an error names it: short, whatever it is."""
    is_plain = isinstance(value, str | int | float | None)
    return (
        json.dumps(value)[:60] if is_plain else f"a JSON {'array' if isinstance(value, list) else 'object'}"
    )


class AnswerWriter:
    """Renders one answer: its header, a chunk for each token, its end."""

    def __init__(self, asked: Asked, name: str) -> None:
        self._asked = asked
        self._name = name
        counts = asked.wants_usage and asked.wants_usage_in_every
        self._plain = b"" if counts or asked.wants_ids else self._token(1)

    def head(self) -> bytes:
        """Return the HTTP header, and what a server writes before the first token."""
        data = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        if self._asked.is_chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            data += self._chunk([role], tokens=0 if self._asked.wants_usage_in_every else None)
        return data

    def token(self, number: int) -> bytes:
        """Return the chunk of token `number`, counted from 1; with the last one the end of the answer."""
        if number < self._asked.output_tokens:
            return self._plain or self._token(number)
        data = self._token(number, reason="length")
        if self._asked.wants_usage:
            data += self._chunk([], tokens=number)
        return data + _event(b"[DONE]") + b"0\r\n\r\n"

    def _token(self, number: int, reason: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        choice |= {"delta": {"content": _TEXT}} if self._asked.is_chat else {"text": _TEXT}
        if self._asked.wants_ids:
            choice["token_ids"] = [3]
        return self._chunk([choice], tokens=number if self._asked.wants_usage_in_every else None)

    def _chunk(self, choices: Sequence[Mapping[str, Any]], *, tokens: int | None) -> bytes:
        chunk: dict[str, Any] = {
            "id": self._name,
            "object": "chat.completion.chunk" if self._asked.is_chat else "text_completion",
            "created": 0,
            "model": self._asked.model,
            "choices": choices,
        }
        if tokens is not None and self._asked.wants_usage:
            prompt_tokens = self._asked.prompt_tokens
            chunk["usage"] = {
                "prompt_tokens": prompt_tokens,
                "completion_tokens": tokens,
                "total_tokens": prompt_tokens + tokens,
            }
        return _event(json.dumps(chunk, separators=(",", ":")).encode())


def _event(payload: bytes) -> bytes:
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)

"""Completion requests as the reference server reads them, and the bytes of its answers.

Of a prompt only the length matters here; every token is the same word.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from inference_lab.errors import InputError

MAX_TOKENS = 1_000_000  # of a prompt and its answer together: what is asked never decides the memory used
_DEFAULT_TOKENS = 16
_TEXT = " t"
_Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    text: str = ""


class _Message(BaseModel):
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return " ".join(part.text for part in self.content)
        return self.content or ""


class _StreamOptions(BaseModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Asked(BaseModel):
    """One request for a stream of tokens. Only streams are timed here, and one answer per request."""

    model_config = ConfigDict(strict=True)
    model: Any = None
    prompt: str | Annotated[list[int], Field(min_length=1)] | None = None
    messages: Annotated[list[_Message], Field(min_length=1)] | None = None
    stream: Literal[True]
    n: Literal[1] | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    stream_options: _StreamOptions | None = None
    return_token_ids: bool | None = None

    @property
    def prompt_tokens(self) -> int:
        """The length of the prompt: its token ids, or the words of its text."""
        text = self.prompt or " ".join(message.text for message in self.messages or ())
        return max(len(text.split()), 1) if isinstance(text, str) else len(text)

    @property
    def output_tokens(self) -> int:
        """The length of the answer."""
        return self.max_completion_tokens or self.max_tokens or _DEFAULT_TOKENS


def asked_in(body: bytes | bytearray, *, is_chat: bool) -> Asked:
    """Parse the JSON body of a request. Raises InputError with the message for its client."""
    try:
        asked = Asked.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, value = first["loc"][0] if first["loc"] else "the body", str(first["input"])[:60]
        raise InputError(f"{where} is {value}: {first['msg']}") from None
    asked.prompt, asked.messages = (None, asked.messages) if is_chat else (asked.prompt, None)
    if asked.prompt is None and asked.messages is None:
        raise InputError(f"{'messages' if is_chat else 'prompt'} is null: there must be one")
    if asked.prompt_tokens + asked.output_tokens > MAX_TOKENS:
        words = f"{asked.prompt_tokens} tokens of prompt and {asked.output_tokens} of answer are asked"
        raise InputError(f"{words}; this server's maximum context length is {MAX_TOKENS} tokens")
    return asked


class AnswerWriter:
    """Renders one answer: its header, a chunk for each token, its end."""

    def __init__(self, asked: Asked, name: str) -> None:
        options = asked.stream_options or _StreamOptions()
        self._asked = asked
        self._name = name
        self._is_chat = asked.messages is not None
        self._counts = (asked.prompt_tokens, asked.output_tokens)
        self._usage = options.include_usage
        self._usage_in_every = options.include_usage and options.continuous_usage_stats
        self._plain = b"" if self._usage_in_every or asked.return_token_ids else self._token(1)

    def head(self) -> bytes:
        """Return the HTTP header, and what a server writes before the first token."""
        data = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        if self._is_chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            data += self._chunk([role], tokens=0 if self._usage_in_every else None)
        return data

    def token(self, number: int) -> bytes:
        """Return the chunk of token `number`, counted from 1; with the last one the end of the answer."""
        if number < self._counts[1]:
            return self._plain or self._token(number)
        data = self._token(number, reason="length")
        if self._usage:
            data += self._chunk([], tokens=number)
        return data + _event(b"[DONE]") + b"0\r\n\r\n"

    def _token(self, number: int, reason: str | None = None) -> bytes:
        choice: dict[str, object] = {"index": 0, "finish_reason": reason}
        choice |= {"delta": {"content": _TEXT}} if self._is_chat else {"text": _TEXT}
        choice |= {"token_ids": [3]} if self._asked.return_token_ids else {}
        return self._chunk([choice], tokens=number if self._usage_in_every else None)

    def _chunk(self, choices: Sequence[Mapping[str, object]], *, tokens: int | None) -> bytes:
        kind = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = {
            "id": self._name,
            "object": kind,
            "created": 0,
            "model": self._asked.model,
            "choices": choices,
        }
        if tokens is not None:
            prompt = self._counts[0]
            counts = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            chunk["usage"] = counts
        return _event(json.dumps(chunk, separators=(",", ":")).encode())


def _event(payload: bytes) -> bytes:
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)

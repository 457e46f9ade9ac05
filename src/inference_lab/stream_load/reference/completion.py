"""Completion requests as the reference server reads them, and the bytes of its answers.

Of a prompt only the length matters here; every token is the same word.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of an answer: up to its first token, a token, its last token and end."""

    head: bytes
    token: bytes
    last: bytes


def answer_to(asked: Asked, name: str) -> Answer:
    """Render the answer to a request, of this id."""
    is_chat = asked.messages is not None
    common = {"id": name, "object": "chat.completion.chunk" if is_chat else "text_completion", "created": 0}
    common["model"] = asked.model

    def chunk(*choices: Mapping[str, object], **usage: object) -> bytes:
        return _event(json.dumps({**common, "choices": choices, **usage}, separators=(",", ":")).encode())

    def token(reason: str | None) -> bytes:
        text = {"delta": {"content": _TEXT}} if is_chat else {"text": _TEXT}
        return chunk({"index": 0, "finish_reason": reason, **text})

    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    if is_chat:
        head += chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
    last = token("length")
    if asked.stream_options and asked.stream_options.include_usage:
        prompt, own = asked.prompt_tokens, asked.output_tokens
        usage = {"prompt_tokens": prompt, "completion_tokens": own, "total_tokens": prompt + own}
        last += chunk(usage=usage)
    return Answer(head, token(None), last + _event(b"[DONE]") + b"0\r\n\r\n")


def _event(payload: bytes) -> bytes:
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)

"""What the events of one stream mean: which hold tokens and how many, which are errors, what is odd.

Interprets JSON; knows neither times nor HTTP. `add` takes whatever a server writes.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from inference_lab.stream_load.client.usage import correct, total
from inference_lab.stream_load.requests import JSON

_CONTENT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
_NOTES = 8  # of one stream; a server may be odd in every event
_WORD = re.compile(rb"[A-Za-z_-]+")  # such as ping or null: no part of a chunk that was torn
_raw_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode  # NaN is no JSON for a record


class Shown(NamedTuple):
    """The tokens that a chunk shows by itself, and whether its text is empty.

    0 tokens: it may hold one and shows none, as an empty delta before the first token, or a bare
    finish_reason.
    """

    tokens: int
    is_empty: bool


class TokenCounter:
    """Interprets the events of one stream in order.

    A chunk shows as many tokens as its `token_ids` list; without them it is one token, also when its text is
    empty. In a chat a role alone is none, and before the first token an empty delta is none unless the
    totals (`usage`: in every chunk, in the last, in a chunk of its own) say so; see `usage.correct`.
    """

    def __init__(self) -> None:
        self.usage: JSON | None = None
        self.finish_reason: Any = None
        self.error: str | None = None
        self.done = False
        self.saw_token = False
        self.notes: list[str] = []
        self._received_bytes = self._events = 0
        self._chunks: list[tuple[int, Shown]] = []
        self._usages: dict[int, JSON] = {}
        self._streams_reasoning = self._has_others = False

    def add(self, payload: bytes) -> Shown | None:
        """Take the next event. Return what it shows, if every event shows the same that differs in one text.

        Such a text is empty in both or in neither. None where events before it count, or more follows.
        """
        self._events += 1
        self._received_bytes += len(payload)
        before, saw_token = len(self._chunks), self.saw_token
        try:
            self._interpret(payload)
        except RecursionError:
            self._odd("is nested too deeply to be read")
        is_one = len(self._chunks) == before + 1
        if saw_token and is_one and self.usage is None and self.finish_reason is None:
            return self._chunks[-1][1]
        return None

    def add_alike(self, size: int, shown: Shown) -> None:
        """Take an event of this size of which `add` has said what it shows."""
        self._chunks.append((self._events, shown))
        self._events += 1
        self._received_bytes += size

    def _interpret(self, payload: bytes) -> None:
        word = payload.strip()
        if word == b"[DONE]":
            self.done = True
        elif _WORD.fullmatch(word):
            self._note(f"an event is no chunk: {word.decode()}")
        elif word:
            try:
                value = parse(payload)
            except ValueError as error:  # bytes that are not UTF-8, too
                self._odd(f"is not JSON ({error})", payload)
            else:
                self._interpret_json(value, payload)

    def _interpret_json(self, value: Any, payload: bytes) -> None:
        if not isinstance(value, dict):
            self._odd("is no chunk", payload)
        elif value.get("error") or value.get("object") == "error":
            self.error = self.error or error_text(value)
        elif value and not ("choices" in value or "usage" in value or value.get("type") == "ping"):
            self._note(f"an event is no chunk: {payload.decode()}")  # such as {"detail": ...}
        elif _is_chunk(value):
            self._add_chunk(value)
        else:
            self._odd("is no chunk", payload)

    def _odd(self, what: str, payload: bytes = b"") -> None:
        # What may be a lost part of the answer is an error; after the answer's end it is a note.
        text = f"event {self._events} {what}" + (f": {payload.decode(errors='replace')}" if payload else "")
        if self.finish_reason is None:
            self.error = self.error or text
        else:
            self._note(text)

    def _note(self, note: str) -> None:
        if len(self.notes) < _NOTES and note not in self.notes:
            self.notes.append(note)

    def _add_chunk(self, chunk: JSON) -> None:
        for choice in chunk.get("choices") or ():
            if index := choice.get("index"):
                self._has_others = True
                self._note(f"a choice of index {index} is not timed; usage, which counts it, is not used")
            else:
                self._add_choice(choice)
        if isinstance(usage := chunk.get("usage"), dict):
            self.usage = self._usages[len(self._chunks)] = usage

    def _add_choice(self, choice: JSON) -> None:
        finish = choice.get("finish_reason") or None
        if finish in ("abort", "error"):
            self.error = self.error or f"finish_reason {finish}"
        shown = self._shown(choice)
        if self.finish_reason is not None and shown is not None and not shown.is_empty:
            self._note("output came after a finish_reason")
        if finish is not None:
            self.finish_reason = finish
            shown = shown or Shown(0, True)  # the token that ended the answer may have come with it
        if shown is not None:
            self.saw_token = self.saw_token or shown.tokens > 0
            self._chunks.append((self._events - 1, shown))

    def _shown(self, choice: JSON) -> Shown | None:
        """What this choice shows; None where it has no place for output."""
        delta: JSON = choice.get("delta") or {}
        is_chat = bool(delta) or "text" not in choice
        if is_chat:
            is_empty = not self._output(delta)
            has_place = any(delta.get(key) == "" for key in _CONTENT)
        else:
            is_empty, has_place = not choice["text"], choice["text"] is not None
        ids = choice.get("token_ids")
        if isinstance(ids, list) and (ids or is_empty):
            return Shown(len(ids), is_empty) if ids else None
        if not is_empty:
            return Shown(1, False)
        if not has_place:
            return None
        if is_chat and not self.saw_token:
            return None if "role" in delta else Shown(0, True)
        return Shown(1, True)

    def _output(self, delta: JSON) -> bool:
        """Whether a delta holds output: a flag or a number is none. Notes which kind it is."""
        kinds = (str, list, dict)
        filled = [key for key, value in delta.items() if value and isinstance(value, kinds) and key != "role"]
        for key in filled:
            if key not in _CONTENT:
                self._note(f"delta key {key!r} is not known; what it holds counts as output")
            if ("reason" in key or "think" in key) and isinstance(delta[key], str):
                self._streams_reasoning = True
        return bool(filled)

    def settle(self, most: Callable[[int], int]) -> tuple[list[tuple[int, int]], int]:
        """(event, tokens) of the chunks that hold tokens, and how many tokens all chunks show by themselves.

        `most(received bytes)` is the largest total to be believed: no number that a server wrote decides how
        long a list grows.
        """
        chunks, streamed = self._chunks, self._streams_reasoning
        counted = sum([tokens for _, (tokens, _) in chunks])
        if counted > len(chunks) and counted > most(self._received_bytes):  # by `token_ids`
            self._note(f"token_ids say {counted} tokens, more than can be; the chunks are counted instead")
            chunks = [(event, Shown(min(tokens, 1), is_empty)) for event, (tokens, is_empty) in chunks]
            counted = sum([tokens for _, (tokens, _) in chunks])
        last = None if self._has_others else total(self.usage, streamed=streamed)
        texts = sum([not is_empty for _, (_, is_empty) in chunks])
        if last is None or last.visible == counted == texts:
            return [(event, tokens) for event, (tokens, _) in chunks if tokens], counted
        said = {upto: total(usage, streamed=streamed) for upto, usage in self._usages.items()}
        visible = {upto: total.visible for upto, total in said.items() if total}
        tokens = [tokens for _, (tokens, _) in chunks]
        is_empty = [is_empty for _, (_, is_empty) in chunks]
        if note := correct(tokens, is_empty, visible, lambda: most(self._received_bytes)):
            self._note(note)
        return [(event, some) for (event, _), some in zip(chunks, tokens, strict=True) if some], counted

    @property
    def hidden_tokens(self) -> int | None:
        """The tokens made that no chunk shows; None when the server reports none of that kind."""
        said = total(self.usage, streamed=self._streams_reasoning)
        return said and said.hidden


def parse(payload: bytes) -> Any:
    """Return the JSON value of a payload, NaN and infinities as None; raises ValueError when it is none."""
    text = payload.decode().strip()
    value, end = _raw_decode(text)
    if end != len(text):
        raise ValueError(f"more after the value, at character {end}")
    return value


def _is_chunk(value: JSON) -> bool:
    choices = value.get("choices") or []
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and isinstance(choice.get("delta") or {}, dict) for choice in choices
    )


def error_text(value: Any) -> str:
    """Return the message of an OpenAI-style error object, or the object itself as text."""
    error = value.get("error", value) if isinstance(value, dict) else value
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)

"""What the payloads of one stream say: which are chunks with output, which are errors, what is odd.

Interprets JSON; knows neither times nor HTTP. Whatever a server writes, `add` takes it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from inference_lab.stream_load.client.usage import Shown, Total, settle, whole

DONE = b"[DONE]"
_CONTENT = ("content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call")
_NOTES = 8  # of one stream; a server may be odd in every event
_TEXT = re.compile(rb'"(?:text|content)": ?"([^"\\\x00-\x1f]*)"')
_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
_WORD = re.compile(rb"[A-Za-z_-]+")  # such as ping or null: no part of a chunk that was torn
_raw_decode = json.JSONDecoder(parse_constant=lambda _: None).raw_decode  # NaN is no JSON for a record


class TokenCounter:
    """Interprets the payloads of one stream in order.

    A chunk shows as many tokens as its `token_ids` list; without them it is one token, also when its text is
    empty. In a chat a role alone is none, and before the first token an empty delta is none unless the
    totals (`usage`: in every chunk, in the last, in a chunk of its own) say so; see `tokens.settle`.
    """

    def __init__(self) -> None:
        self.usage: dict[str, Any] | None = None
        self.finish_reason: Any = None
        self.error: str | None = None
        self.done = False
        self.saw_token = False
        self.notes: list[str] = []
        self._chunks: list[Shown] = []
        self._usages: dict[int, Mapping[str, Any]] = {}
        self._streams_reasoning = self._has_others = False
        self._events = 0
        self._before = self._after = b""
        self._alike: dict[bool, tuple[int, bool]] = {}

    def add(self, payload: bytes) -> None:
        """Take the next payload."""
        event, self._events = self._events, self._events + 1
        if (alike := self._look_alike(payload)) is not None:
            self._chunks.append((event, alike[0], alike[1]))
            return
        try:
            self._interpret(event, payload)
        except RecursionError:
            self._odd(f"event {event + 1} is nested too deeply to be read")

    def _interpret(self, event: int, payload: bytes) -> None:
        word = payload.strip()
        if word == DONE:
            self.done = True
            return
        if not word:
            return
        if _WORD.fullmatch(word):
            self._note(f"an event is no chunk: {word.decode()}")
            return
        try:
            said = parse(payload)
        except ValueError as error:  # bytes that are not UTF-8, too
            self._odd(f"event {event + 1} is not JSON ({error}): {payload.decode(errors='replace')}")
            return
        if isinstance(said, dict) and (said.get("error") or said.get("object") == "error"):
            self._fail(error_text(said))
        elif _is_other(said):
            self._note(f"an event is no chunk: {payload.decode()}")
        elif _is_chunk(said):
            had, seen = len(self._chunks), self.saw_token
            self._add_chunk(event, said)
            # What is the same of every such chunk hangs neither on those before it nor on more than one.
            if seen and len(self._chunks) == had + 1 and self.usage is None and self.finish_reason is None:
                self._remember(payload, self._chunks[-1])
        else:
            self._odd(f"event {event + 1} is no chunk: {payload.decode(errors='replace')}")

    def _remember(self, payload: bytes, chunk: Shown) -> None:
        """Keep what a chunk was, for those that differ from it in one text alone."""
        if (found := _TEXT.search(payload)) is None:
            return
        start, end = found.span(1)
        if (payload[:start], payload[end:]) != (self._before, self._after):
            self._before, self._after = payload[:start], payload[end:]
            self._alike.clear()
        self._alike[end > start] = chunk[1], chunk[2]

    def _look_alike(self, payload: bytes) -> tuple[int, bool] | None:
        """(tokens, is empty) of a chunk without parsing it, if one that was parsed is like it.

        `_before` ends with the quote that opens the value of a `text` or `content`, `_after` begins with
        the one that closes it. Any characters between that need no escape make the same JSON with another
        string there, and nothing asks more of that string than whether it is empty.
        """
        before, after = self._before, self._after
        start, end = len(before), len(payload) - len(after)
        if start <= end and payload.startswith(before) and payload.endswith(after):
            alike = self._alike.get(start < end)
            if alike is not None and _PLAIN.fullmatch(payload, start, end):
                return alike
        return None

    def _fail(self, error: str) -> None:
        self.error = self.error or error

    def _odd(self, what: str) -> None:
        """What may be a lost part of the answer is an error; after the answer's end it is not."""
        if self.finish_reason is None:
            self._fail(what)
        else:
            self._note(what)

    def _note(self, note: str) -> None:
        if len(self.notes) < _NOTES and note not in self.notes:
            self.notes.append(note)

    def _add_chunk(self, event: int, said: Mapping[str, Any]) -> None:
        for choice in said.get("choices") or ():
            if index := choice.get("index"):
                self._has_others = True
                self._note(f"a choice of index {index} is not timed; usage, which counts it, is not used")
                continue
            finish = choice.get("finish_reason") or None
            if finish in ("abort", "error"):
                self._fail(f"finish_reason {finish}")
            shown = self._shown(choice)
            if self.finish_reason is not None and shown is not None and not shown[1]:
                self._note("output came after a finish_reason")
            if finish is not None:
                self.finish_reason = finish
                shown = shown or (0, True)  # the token that ended the answer may have come with it
            if shown is not None:
                self.saw_token = self.saw_token or shown[0] > 0
                self._chunks.append((event, shown[0], shown[1]))
        usage = said.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
            self._usages[len(self._chunks)] = usage

    def _shown(self, choice: Mapping[str, Any]) -> tuple[int, bool] | None:
        """(tokens, is empty) of what this choice shows; None where it has no place for output."""
        delta: Mapping[str, Any] = choice.get("delta") or {}
        is_chat = bool(delta) or "text" not in choice
        if is_chat:
            filled = [key for key, value in delta.items() if key != "role" and _is_output(value)]
            self._look_at(filled, delta)
            is_empty, has_place = not filled, any(delta.get(key) == "" for key in _CONTENT)
        else:
            is_empty, has_place = not choice["text"], choice["text"] is not None
        ids = choice.get("token_ids")
        if isinstance(ids, list) and (ids or is_empty):
            return (len(ids), is_empty) if ids else None
        if not is_empty:
            return 1, False
        if not has_place:
            return None
        if is_chat and not self.saw_token:
            return None if "role" in delta else (0, True)
        return 1, True

    def _look_at(self, filled: Sequence[str], delta: Mapping[str, Any]) -> None:
        """See what kind of output the keys of a delta are."""
        for key in filled:
            if key not in _CONTENT:
                self._note(f"delta key {key!r} is not known; what it holds counts as output")
            if ("reason" in key or "think" in key) and isinstance(delta[key], str):
                self._streams_reasoning = True

    def settle(self, most: Callable[[], int]) -> tuple[list[tuple[int, int]], int]:
        """(event, tokens) of the chunks that hold tokens, and how many all chunks show by themselves.

        `most` says what a total may be at most: no number that a server wrote decides how long a list grows.
        """
        shown, streamed = self._chunks, self._streams_reasoning
        counted = sum(tokens for _, tokens, _ in shown)
        if counted > len(shown) and counted > most():  # more than one a chunk: its `token_ids` say so
            self._note(f"token_ids say {counted} tokens, more than can be; the chunks are counted instead")
            shown = [(event, min(tokens, 1), is_empty) for event, tokens, is_empty in shown]
            counted = sum(tokens for _, tokens, _ in shown)
        last = None if self._has_others else Total.of(self.usage or {})
        texts = sum(not is_empty for _, _, is_empty in shown)
        if last is None or last.visible(streamed=streamed) == counted == texts:
            return [(event, tokens) for event, tokens, _ in shown if tokens], counted
        totals = {upto: Total.of(usage) for upto, usage in self._usages.items()}
        visible = {upto: total.visible(streamed=streamed) for upto, total in totals.items() if total}
        chunks, note = settle(shown, visible, most)
        if note:
            self._note(note)
        return chunks, counted

    @property
    def hidden_tokens(self) -> int | None:
        """The tokens made that no chunk shows; None when the server says nothing of such."""
        total = Total.of(self.usage or {})
        if total is None or (total.reasoning is None and not total.rejected):
            return None
        return total.hidden(streamed=self._streams_reasoning)

    @property
    def prompt_tokens(self) -> int | None:
        """The length of the prompt, if the server says it."""
        return whole((self.usage or {}).get("prompt_tokens"))


def parse(payload: bytes) -> Any:
    """The JSON value of a payload, NaN and infinities as None; raises ValueError when it is none."""
    text = payload.decode().strip()
    said, end = _raw_decode(text)
    if end != len(text):
        raise ValueError(f"more after the value, at character {end}")
    return said


def _is_output(value: Any) -> bool:
    """Whether a delta's value can be output: a flag or a number beside it is not."""
    return isinstance(value, str | list | dict) and bool(value)


def _is_other(said: Any) -> bool:
    """Whether an object says something that is no part of an answer, such as `detail`."""
    return (
        isinstance(said, dict)
        and bool(said)
        and not ("choices" in said or "usage" in said or said.get("type") == "ping")
    )


def _is_chunk(said: Any) -> bool:
    if not isinstance(said, dict):
        return False
    choices = said.get("choices") or []
    return isinstance(choices, list) and all(
        isinstance(choice, dict) and isinstance(choice.get("delta") or {}, dict) for choice in choices
    )


def error_text(said: Any) -> str:
    """The message of an OpenAI-style error object, or the object itself as text."""
    error = said.get("error", said) if isinstance(said, dict) else said
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or error)

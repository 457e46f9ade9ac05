"""The body of each request: a pure function of the workload and the request's index.

So a resumed run asks exactly what it would have asked. Knows no clock and no connection.
"""

import json
import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from inference_lab.errors import InputError

Endpoint = Literal["completions", "chat"]
ENDPOINTS: tuple[Endpoint, ...] = ("completions", "chat")
_COUNTS = ("max_tokens", "max_completion_tokens")
OF_REQUEST = (
    *(*_COUNTS, "min_tokens", "ignore_eos", "stop", "seed", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "response_format"),
    *("tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs"),
)
_WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "it", "for", "was", "on", "as", "with", "be"),
    *("by", "at", "from", "this", "have", "are", "not", "but", "had", "they", "which", "you", "one"),
)
_MOST = 10_000_000  # tokens of one request: beyond any model, and a slip would fill the memory
Body = dict[str, Any]  # of a request, or a part of one


@dataclass(frozen=True, slots=True)
class Length:
    """A number of tokens, drawn uniformly from `low` to `high`, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str) -> "Length":
        """Parse `N` or `LOW:HIGH`. Raises InputError for anything else."""
        low, _, high = text.partition(":")
        try:
            length = cls(int(low), int(high or low))
        except ValueError:
            length = cls(0, 0)
        if not 1 <= length.low <= length.high <= _MOST:
            raise InputError(f"length {text!r}: must be N or LOW:HIGH with 1 <= LOW <= HIGH <= {_MOST}")
        return length


@dataclass(frozen=True)
class Workload:
    """What the server is asked.

    `prompt` is "ids" (token-id lists: exactly as long as asked) or "text" (that many common words,
    near that many tokens). With `prefix_groups`, request i begins with the `prefix_tokens` that all
    requests of group i % prefix_groups share. `prompts_file` replaces generated prompts by the lines
    of a JSONL file, each {"prompt": text or ids} or {"messages": [...]}, and, for its
    own request alone, "output_tokens" (OpenAI's max_tokens) and OF_REQUEST.
    `extra_body` is added to every request and replaces what is there; null removes a key, because strict
    servers refuse a null.
    """

    model: str
    endpoint: Endpoint = "completions"
    prompt: Literal["text", "ids"] = "text"
    input_tokens: Length = Length(64, 64)
    output_tokens: Length = Length(64, 64)
    prefix_groups: int = 0
    prefix_tokens: int = 0
    vocab_size: int = 512
    ignore_eos: bool = False
    prompts_file: Path | None = None
    extra_body: Body = field(default_factory=Body)
    seed: int = 0

    def __post_init__(self) -> None:
        groups, shared, extra = self.prefix_groups, self.prefix_tokens, self.extra_body
        is_one_stream = extra.get("n") in (None, 1) and extra.get("stream", True) is True
        for is_wrong, rule in (
            (self.prompt == "ids" and self.is_chat, "a chat takes no token ids; use prompt text"),
            (bool(groups) != bool(shared) or shared < 0, "--prefix-groups, --prefix-tokens: both or none"),
            (groups and shared >= self.input_tokens.low, f"prefix_tokens is {shared}: as long as a prompt"),
            (self.vocab_size < 4, f"vocab_size is {self.vocab_size}, must be at least 4"),
            (not is_one_stream, "extra_body: n must be 1 and stream true; one answer a request is timed"),
        ):
            if is_wrong:
                raise InputError(rule)
        try:
            _check(extra)
        except InputError as error:
            raise InputError(f"extra_body: {error}") from None

    @property
    def is_chat(self) -> bool:
        """Whether messages are asked, not a prompt."""
        return self.endpoint == "chat"

    @cached_property
    def _lines(self) -> list[Body]:
        """The bodies in the file of prompts; none without one."""
        path = self.prompts_file
        if path is None:
            return []
        try:
            texts = path.read_text(encoding="utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read ({error}); give a JSONL of prompts") from None
        lines: list[Body] = []
        for number, text in enumerate(texts, start=1):
            try:
                lines += [_line(text, "messages" if self.is_chat else "prompt")] if text.strip() else []
            except InputError as error:
                raise InputError(f"{path} line {number}: {error}") from None
        if not lines:
            raise InputError(f"{path}: holds no prompt; each line is one JSON object")
        return lines

    def body(self, index: int) -> bytes:
        """Return the JSON body of request `index`."""
        chosen = random.Random(f"{self.seed}/{index}")
        input_tokens = chosen.randint(self.input_tokens.low, self.input_tokens.high)
        output_tokens = chosen.randint(self.output_tokens.low, self.output_tokens.high)
        line = self._lines[index % len(self._lines)] if self._lines else {}
        body: Body = {"model": self.model}
        if not set(_COUNTS) & {*line, *self.extra_body}:
            body["max_tokens"] = output_tokens
        if line:
            body |= line
        elif self.is_chat:
            body["messages"] = [{"role": "user", "content": self._prompt(index, input_tokens, chosen)}]
        else:
            body["prompt"] = self._prompt(index, input_tokens, chosen)
        body |= {"ignore_eos": True} if self.ignore_eos else {}
        body |= {"stream": True, "stream_options": {"include_usage": True}, **self.extra_body}
        asked = {key: value for key, value in body.items() if value is not None}
        return json.dumps(asked, separators=(",", ":")).encode()

    def _prompt(self, index: int, tokens: int, chosen: random.Random) -> str | list[int]:
        ids = range(3, self.vocab_size)  # the first are special in most vocabularies
        prefix: list[int] = []
        if self.prefix_groups:
            group = random.Random(f"{self.seed}/prefix/{index % self.prefix_groups}")
            prefix = group.choices(ids, k=self.prefix_tokens)
        own = chosen.choices(ids, k=tokens - len(prefix))
        if self.prompt == "ids":
            return prefix + own
        return " ".join(_WORDS[token % len(_WORDS)] for token in prefix + own)


def _line(text: str, wanted: str) -> Body:
    """Return what a line of a prompts file adds to its request's body. Raises InputError with the rule."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(line, dict) or line.get(wanted) is None:
        raise InputError(f"must be an object with {wanted!r}, which this endpoint asks for")
    if "output_tokens" in line:
        if "max_tokens" in line:
            raise InputError("output_tokens and max_tokens are the same; give one")
        line["max_tokens"] = line.pop("output_tokens")
    known = (wanted, "output_tokens", *OF_REQUEST)
    if unknown := sorted(set(line) - set(known)):
        more = f"known are {', '.join(known)}; --extra-body adds others to all"
        raise InputError(f"unknown key {unknown[0]!r}; {more}")
    _check(line)
    return line


def _check(asked: Body) -> None:
    """Raise InputError unless this part of a body is JSON and asks for one answer of valid length."""
    try:
        json.dumps(asked, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot be sent as JSON ({error})") from None
    for name in _COUNTS:
        if (count := asked.get(name)) is not None and (type(count) is not int or count < 1):
            raise InputError(f"{name} is {count!r}, must be a whole number, at least 1")
    prompt, messages = asked.get("prompt"), asked.get("messages")
    is_ids = isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt)
    if prompt is not None and (not prompt or not (isinstance(prompt, str) or is_ids)):
        raise InputError("prompt must be one text or one list of token ids: one answer a request is timed")
    is_chat = isinstance(messages, list) and all(isinstance(m, dict) and "role" in m for m in messages)
    if messages is not None and (not messages or not is_chat):
        raise InputError("messages must be a list of objects, each with a role, at least one")

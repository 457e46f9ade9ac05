"""How many tokens each chunk of a stream holds: what the chunks show against what the server's totals say.

Knows neither time nor JSON text. A chunk with text holds at least one token, whatever a total says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Shown = tuple[int, int, bool]
"""An event that shows output, the tokens it shows by itself, whether its text is empty.

0 tokens where it may hold one and shows none: an empty delta before the first, a bare finish_reason.
"""


@dataclass(slots=True)
class _Chunk:
    event: int
    tokens: int
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Total:
    """What one `usage` says: tokens made so far, and of these the ones that no chunk need show."""

    tokens: int
    reasoning: int | None
    rejected: int
    reasoning_is_extra: bool

    @classmethod
    def of(cls, usage: Mapping[str, Any]) -> "Total | None":
        """The total of a `usage`; None when it has none."""
        if (tokens := whole(usage.get("completion_tokens"))) is None:
            return None
        details = usage.get("completion_tokens_details")
        details = details if isinstance(details, dict) else {}
        reasoning = whole(details.get("reasoning_tokens", usage.get("reasoning_tokens")))
        apart = tokens + (whole(usage.get("prompt_tokens")) or 0) + (reasoning or 0)
        is_extra = bool(reasoning) and whole(usage.get("total_tokens")) == apart
        return cls(tokens, reasoning, whole(details.get("rejected_prediction_tokens")) or 0, is_extra)

    def hidden(self, *, streamed: bool) -> int:
        """The tokens that no chunk shows; reasoning is none of them when it was `streamed`."""
        return self.rejected + (0 if streamed else self.reasoning or 0)

    def visible(self, *, streamed: bool) -> int:
        """The tokens that the chunks so far should show; some servers count reasoning beside the others."""
        hidden = self.rejected if self.reasoning_is_extra else self.hidden(streamed=streamed)
        return self.tokens - hidden


def whole(value: Any) -> int | None:
    """A value as a number of tokens; None for anything else that a server may write there."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def settle(
    shown: Sequence[Shown], totals: Mapping[int, int], most: Callable[[], int]
) -> tuple[list[tuple[int, int]], str | None]:
    """(event, tokens) of every event that holds tokens, by the totals where they can be; words where not.

    `totals` say how many tokens there were when so many events had shown output. The last decides, unless
    it is more than `most` says or less than the events with text. Earlier ones decide how many came in
    between, unless one of them contradicts those events or a later one: servers send zeros, or lag behind.
    """
    chunks = [_Chunk(*each) for each in shown]
    note = _settle(chunks, totals, most) if totals and chunks else None
    return [(chunk.event, chunk.tokens) for chunk in chunks if chunk.tokens], note


def _settle(chunks: Sequence[_Chunk], totals: Mapping[int, int], most: Callable[[], int]) -> str | None:
    *_, (known, total) = totals.items()
    if total > most():
        return f"usage says {total} tokens, more than can be; the chunks are counted instead"
    if total < _texts(chunks[:known]):
        return f"usage says {total} tokens, fewer than the chunks with text; the chunks are counted instead"
    if not _agree(chunks, totals):
        totals = {known: total}
    before = told = 0
    for upto, said in totals.items():
        if upto > before:
            _share(chunks[before:upto], said - told)
            before, told = upto, said
    _take_away(chunks[:known], sum(chunk.tokens for chunk in chunks[:known]) - total)
    return None


def _texts(chunks: Sequence[_Chunk]) -> int:
    return sum(not chunk.is_empty for chunk in chunks)


def _agree(chunks: Sequence[_Chunk], totals: Mapping[int, int]) -> bool:
    if len(totals) == 1:
        return True
    texts = [0]
    for chunk in chunks:
        texts.append(texts[-1] + (not chunk.is_empty))
    enough = all(total >= texts[upto] for upto, total in totals.items())
    return enough and all(earlier <= later for earlier, later in pairwise(totals.values()))


def _share(chunks: Sequence[_Chunk], total: int) -> None:
    """Make the tokens of these chunks sum to `total`, which the server said of them together.

    Where exactly as many are missing as chunks may hold one unseen, those hold them. Else they are
    spread evenly, the earliest first: where a chunk holds several tokens nothing says which.
    """
    missing = total - sum(chunk.tokens for chunk in chunks)
    if missing <= 0:
        _take_away(chunks, -missing)
        return
    unseen = [chunk for chunk in chunks if not chunk.tokens]
    seen = [chunk for chunk in chunks if chunk.tokens] or unseen
    ends = [chunk for chunk in unseen if chunk is chunks[-1]]
    opens = [chunk for chunk in unseen if chunk is not chunks[-1]]
    into = next((some for some in (ends, opens, unseen) if len(some) == missing), seen)
    each, more = divmod(missing, len(into))
    for index, chunk in enumerate(into):
        chunk.tokens += each + (index < more)


def _take_away(chunks: Sequence[_Chunk], surplus: int) -> None:
    """Take tokens from empty chunks first, from the end; a chunk with text keeps one."""
    if surplus <= 0:
        return
    last_first = list(reversed(chunks))
    for chunk in sorted(last_first, key=lambda chunk: not chunk.is_empty):
        taken = min(chunk.tokens - (not chunk.is_empty), surplus)
        chunk.tokens -= taken
        surplus -= taken

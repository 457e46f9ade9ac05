"""What the totals of a server (`usage`) say against what its chunks show.

A chunk with text holds at least one token, whatever a total says.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any


@dataclass(slots=True)
class Chunk:
    """An event that has a place for output: the tokens in it, and whether its text is empty."""

    event: int
    tokens: int
    is_empty: bool

    def take(self, most: int) -> int:
        """Take up to so many tokens from it and return how many; one with text keeps one."""
        taken = min(self.tokens - (not self.is_empty), most)
        self.tokens -= taken
        return taken


@dataclass(frozen=True, slots=True)
class Total:
    """What one `usage` says: the tokens made so far, and those of them that no chunk need show."""

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


def correct(chunks: Sequence[Chunk], totals: Mapping[int, int], most: Callable[[], int]) -> str | None:
    """Make the chunks hold as many tokens as the totals say; return why, where they cannot be believed.

    `totals[n]` is how many tokens there were when n chunks had come. The last total decides, unless it is
    more than `most()` or fewer than the chunks with text. Earlier ones decide how many came in between,
    unless one of them contradicts those chunks or a later one: servers send zeros, or lag behind.
    """
    if not (chunks and totals):
        return None
    known, total = list(totals.items())[-1]
    texts = list(accumulate((not chunk.is_empty for chunk in chunks), initial=0))
    doubt = "more than can be" if total > most() else ""
    doubt = doubt or ("fewer than the chunks with text" if total < texts[known] else "")
    if doubt:
        return f"usage says {total} tokens, {doubt}; the chunks are counted instead"
    falls = any(later < earlier for earlier, later in pairwise(totals.values()))
    if falls or any(said < texts[upto] for upto, said in totals.items()):
        totals = {known: total}
    before = counted = 0
    for upto, said in totals.items():
        if upto > before:
            _share(chunks[before:upto], said - counted)
            before, counted = upto, said
    _take_away(chunks[:known], sum(chunk.tokens for chunk in chunks[:known]) - total)
    return None


def _share(chunks: Sequence[Chunk], total: int) -> None:
    """Make these chunks hold `total` tokens, which the server reported for them together.

    If exactly as many are missing as chunks may hold one unseen, those hold them. Otherwise they are spread
    evenly, the earliest first: where a chunk holds several tokens nothing says which.
    """
    missing = total - sum(chunk.tokens for chunk in chunks)
    if missing <= 0:
        _take_away(chunks, -missing)
        return
    *inner, last = chunks
    opens, ends = [chunk for chunk in inner if not chunk.tokens], [last] * (not last.tokens)
    unseen = [*opens, *ends]
    seen = [chunk for chunk in chunks if chunk.tokens] or unseen
    into = next((some for some in (ends, opens, unseen) if len(some) == missing), seen)
    each, more = divmod(missing, len(into))
    for index, chunk in enumerate(into):
        chunk.tokens += each + (index < more)


def _take_away(chunks: Sequence[Chunk], surplus: int) -> None:
    """Take tokens from empty chunks first, from the end."""
    last_first = chunks[::-1] if surplus > 0 else ()
    for chunk in sorted(last_first, key=lambda chunk: not chunk.is_empty):
        surplus -= chunk.take(surplus)

"""What the totals of a server (`usage`) say against what its chunks show.

A chunk with text holds at least one token, whatever a total says.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from inference_lab.stream_load.requests import JSON


class Total(NamedTuple):
    """The tokens made so far that the chunks should show, and those that no chunk shows (None: not said)."""

    visible: int
    hidden: int | None


def total(usage: JSON | None, *, streamed: bool) -> Total | None:
    """Return what one `usage` says; None without a total. Reasoning is hidden unless it was `streamed`."""
    if usage is None or (tokens := whole(usage.get("completion_tokens"))) is None:
        return None
    details = usage.get("completion_tokens_details")
    details = details if isinstance(details, dict) else {}
    reasoning = whole(details.get("reasoning_tokens", usage.get("reasoning_tokens")))
    rejected = whole(details.get("rejected_prediction_tokens")) or 0
    hidden = rejected + (0 if streamed else reasoning or 0)
    # Some servers count reasoning beside the other tokens.
    apart = tokens + (whole(usage.get("prompt_tokens")) or 0) + (reasoning or 0)
    is_beside = reasoning and whole(usage.get("total_tokens")) == apart
    visible = tokens - (rejected if is_beside else hidden)
    return Total(visible, None if reasoning is None and not rejected else hidden)


def whole(value: object) -> int | None:
    """Return a value as a number of tokens; None for anything else that a server may write there."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def correct(
    tokens: list[int], is_empty: Sequence[bool], totals: Mapping[int, int], most: Callable[[], int]
) -> str | None:
    """Make the chunks hold as many tokens as the totals say; return why, where those cannot be believed.

    `is_empty` says which chunks have no text; `totals[n]` is how many tokens there were when n chunks had
    come. The last total decides, unless it is more than `most()` or fewer than the chunks with text. Earlier
    ones decide how many came in between, unless one of them contradicts those chunks or a later one: servers
    send zeros, or lag behind.
    """
    if not (tokens and totals):
        return None
    known, last = list(totals.items())[-1]
    texts = list(accumulate((not empty for empty in is_empty), initial=0))
    wrong = "more than can be" * (last > most()) or "fewer than the chunks with text" * (last < texts[known])
    if wrong:
        return f"usage says {last} tokens, {wrong}; the chunks are counted instead"
    falls = any(later < earlier for earlier, later in pairwise(totals.values()))
    if falls or any(said < texts[upto] for upto, said in totals.items()):
        totals = {known: last}
    before = counted = 0
    for upto, said in totals.items():
        if upto > before:
            tokens[before:upto] = _shared(tokens[before:upto], is_empty[before:upto], said - counted)
            before, counted = upto, said
    tokens[:known] = _reduced(tokens[:known], is_empty, last)
    return None


def _shared(tokens: list[int], is_empty: Sequence[bool], total: int) -> list[int]:
    """Make these chunks hold `total` tokens, which the server reported for them together.

    If exactly as many are missing as chunks may hold one unseen, those hold them. Otherwise they are spread
    evenly, the earliest first: where a chunk holds several tokens nothing says which.
    """
    missing = total - sum(tokens)
    if missing <= 0:
        return _reduced(tokens, is_empty, total)
    *opens, end = range(len(tokens))
    opens, ends = [index for index in opens if not tokens[index]], [end] * (not tokens[end])
    unseen = [*opens, *ends]
    seen = [index for index, count in enumerate(tokens) if count] or unseen
    into = next((some for some in (ends, opens, unseen) if len(some) == missing), seen)
    each, more = divmod(missing, len(into))
    for number, index in enumerate(into):
        tokens[index] += each + (number < more)
    return tokens


def _reduced(tokens: list[int], is_empty: Sequence[bool], total: int) -> list[int]:
    """Take what is too many from empty chunks first, from the end; a chunk with text keeps a token."""
    surplus = sum(tokens) - total
    if surplus <= 0:
        return tokens
    for index in sorted(range(len(tokens)), key=lambda index: (not is_empty[index], -index)):
        taken = min(tokens[index] - (not is_empty[index]), surplus)
        tokens[index] -= taken
        surplus -= taken
    return tokens

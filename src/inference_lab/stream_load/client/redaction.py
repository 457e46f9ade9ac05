"""Takes an API key out of texts that a server wrote: whole, in part, or spelt in another way."""

import html
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

_PART = 8  # so many characters of a key in a row are told as one
Redact = Callable[[str], str]


def redacting(key: str | None) -> Redact:
    """What gives a text without the key: `[key]` stands for every 8 or more characters of it in a row.

    So an echo that was cut, masked in the middle, or escaped for a URL, HTML or JSON does not survive. Of a
    key shorter than that only the whole is told. Works on whole texts: cut afterwards, never before.
    """
    if not key:
        return str
    if len(key) < _PART:
        return lambda text: text.replace(key, "[key]")
    spellings = (key, quote(key, safe=""), html.escape(key), json.dumps(key))
    parts = {spelt[at : at + _PART] for spelt in spellings for at in range(len(spelt) - _PART + 1)}
    # All characters at which a part begins, and the rest of the last part.
    run = rf"(?:(?={'|'.join(map(re.escape, parts))}).)+.{{{_PART - 1}}}"
    find = re.compile(run, re.IGNORECASE | re.ASCII | re.DOTALL)
    return lambda text: find.sub("[key]", text)


def redacted(value: Any, redact: Redact) -> Any:
    """A JSON value with every text in it redacted, names of fields too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redacted(each, redact) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {redact(name): redacted(each, redact) for name, each in value.items()}  # pyright: ignore
    return value

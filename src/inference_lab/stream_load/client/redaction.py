"""Takes an API key out of texts that a server wrote: whole, in part, or spelt in another way."""

import html
import json
import string
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

_PART = 8  # so many characters of a key in a row are told as one
_SMALL = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)  # a letter stays one letter
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
    parts = {
        spelt[start : start + _PART]
        for spelt in (
            key.lower(),
            quote(key, safe="").lower(),
            html.escape(key).lower(),
            json.dumps(key).lower(),
        )
        for start in range(len(spelt) - _PART + 1)
    }

    def redact(text: str) -> str:
        lower = text.translate(_SMALL)
        kept: list[str] = []
        start = at = 0
        while at <= len(lower) - _PART:
            if lower[at : at + _PART] not in parts:
                at += 1
                continue
            kept += [text[start:at], "[key]"]
            while lower[at : at + _PART] in parts:
                at += 1
            start = at = at + _PART - 1
        return "".join([*kept, text[start:]])

    return redact


def redacted(value: Any, redact: Redact) -> Any:
    """A JSON value with every text in it redacted, names of fields too."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, list):
        return [redacted(each, redact) for each in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, dict):
        return {redact(name): redacted(each, redact) for name, each in value.items()}  # pyright: ignore
    return value

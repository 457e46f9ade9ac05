"""Tables, intervals and origins as Markdown text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inference_lab.analysis.statistics import with_interval
from inference_lab.errors import printable


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; inside a value a bar and a tag are escaped and a line break is a space."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_in_a_table, line)) + " |" for line in lines)


def _in_a_table(value: str) -> str:
    return plain(value).replace("|", "\\|")


def plain(value: str) -> str:
    """What a server or a record says, on one line: it begins no HTML and holds no control character."""
    return printable(re.sub(r"<(?=[A-Za-z/!?])", "&lt;", " ".join(value.splitlines())))


def verdict_value(verdict: Mapping[str, str]) -> str:
    """The value of a row of verdicts.csv with its interval; a range alone where there is no one value."""
    value, lo, hi = (verdict[name] for name in ("value", "lo", "hi"))
    if not value:
        return f"{lo} to {hi}" if lo else ""
    if not (lo or hi):
        return value
    return with_interval(float(value), (float(lo) if lo else None, float(hi) if hi else None))


def made_from(source: Mapping[str, Any]) -> str:
    """What a generated page was made from, with the first digits of each file's sha256, and how."""
    files = ", ".join(f"{name} `{digest[:12]}`" for name, digest in source["files"].items())
    return f"Made from {files} by `{source['command']}`."

"""What a figure says about its own origin: written into the SVG, read back without drawing anything."""

import json
from collections.abc import Mapping
from typing import Any, cast
from xml.etree import ElementTree

from inference_lab.errors import RecordError

SOURCE_KEYS = ("experiment", "files", "command")
_OLD_KEYS = ("experiment", "raw_sha256", "summary_sha256", "command")  # of figures before 2026-12-03
_DC_SOURCE = "{http://purl.org/dc/elements/1.1/}source"


def source_text(source: Mapping[str, Any]) -> str:
    """One line of JSON for the figure's `dc:source`: experiment, digest of every file behind it, command."""
    return json.dumps({key: source[key] for key in SOURCE_KEYS}, ensure_ascii=False)


def read_metadata(svg_text: str) -> dict[str, Any]:
    """The `source` a figure was drawn with, as `source_text` wrote it.

    An older figure names one raw file without saying which: its `files` has it under "raw". Raises
    RecordError, which the caller completes with the file, when the text is not SVG or does not name all of
    SOURCE_KEYS.
    """
    try:
        element = ElementTree.fromstring(svg_text).find(f".//{_DC_SOURCE}")
    except ElementTree.ParseError:
        raise RecordError("is no whole SVG") from None
    text = element.text if element is not None else None
    try:
        source = json.loads(text or "")
    except (json.JSONDecodeError, RecursionError):
        source = None
    if isinstance(source, dict):
        found = cast("dict[str, Any]", source)
        if set(_OLD_KEYS) <= set(found):
            found["files"] = {"raw": found["raw_sha256"], "summary.csv": found["summary_sha256"]}
        files = found.get("files")
        texts = [found.get("experiment"), found.get("command")]
        if isinstance(files, dict) and files:
            texts += [*files, *files.values()]
            if all(isinstance(text, str) for text in texts):
                return {key: found[key] for key in SOURCE_KEYS}
    says = "says nothing" if text is None else f"says {text[:80]!r}"
    raise RecordError(f"is SVG that {says} in dc:source, where a figure names {', '.join(SOURCE_KEYS)}")

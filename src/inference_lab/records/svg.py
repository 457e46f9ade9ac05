"""What a figure says about its own origin: written into the SVG, read back without drawing anything."""

import json
from collections.abc import Mapping
from xml.etree import ElementTree

from inference_lab.errors import RecordError

SOURCE_KEYS = ("experiment", "raw_sha256", "summary_sha256", "command")
_DC_SOURCE = "{http://purl.org/dc/elements/1.1/}source"


def source_text(source: Mapping[str, str]) -> str:
    """One line of JSON for the figure's `dc:source`: experiment, digests of raw and summary, command."""
    return json.dumps({key: source[key] for key in SOURCE_KEYS}, ensure_ascii=False)


def read_metadata(svg_text: str) -> dict[str, str]:
    """The `source` a figure was drawn with, as `source_text` wrote it.

    Raises RecordError, which the caller completes with the file, when the text is not SVG or does not name
    all of SOURCE_KEYS.
    """
    try:
        element = ElementTree.fromstring(svg_text).find(f".//{_DC_SOURCE}")
    except ElementTree.ParseError:
        raise RecordError("is no whole SVG") from None
    text = element.text if element is not None else None
    try:
        source = json.loads(text or "")
    except json.JSONDecodeError:
        source = None
    if not isinstance(source, dict) or any(not isinstance(source.get(key), str) for key in SOURCE_KEYS):
        says = "says nothing" if text is None else f"says {text[:80]!r}"
        raise RecordError(f"is SVG that {says} in dc:source, where a figure names {', '.join(SOURCE_KEYS)}")
    return {key: source[key] for key in SOURCE_KEYS}

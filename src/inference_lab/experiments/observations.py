"""What NumPy shares and what it copies, one row an observation: the experiment p0."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from inference_lab.ndarray_semantics import OBSERVATIONS, Observation
from inference_lab.records.record import Measurement, tabulated

COLUMNS = ("observation", *(field.name for field in fields(Observation)))


def rows() -> list[dict[str, str]]:
    """One row an observation, in the order of OBSERVATIONS, as text under COLUMNS.

    true or false; a shape or strides as numbers between blanks; empty where nothing is defined.
    """
    return [
        {"observation": look.__name__, **{name: _text(value) for name, value in asdict(look()).items()}}
        for look in OBSERVATIONS
    ]


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """Every observation, made now. The section has no condition to set: the arrays are part of the source."""
    found = rows()
    progress(len(found), len(found))
    return tabulated("observation", COLUMNS, found)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]  (of an Observation: ints)
    return str(value).lower() if isinstance(value, bool) else str(value)

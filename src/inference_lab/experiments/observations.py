"""What NumPy shares and what it copies, one row per observation: the experiment p0."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields

from inference_lab.config import sections
from inference_lab.errors import ConfigError
from inference_lab.mechanisms.numpy_semantics import OPERATIONS, Observation, observation
from inference_lab.records.record import Measurement, tabulated

COLUMNS = ("observation", *(field.name for field in fields(Observation)))


def rows(names: Sequence[str]) -> list[dict[str, str]]:
    """One row per operation, in the order named, as text under COLUMNS.

    true or false; a shape or strides as numbers between blanks; empty where nothing is defined. Raises
    ConfigError for a name that is none of OPERATIONS.
    """
    if unknown := [name for name in names if name not in OPERATIONS]:
        raise ConfigError(f"no observation {unknown[0]!r}; there are {', '.join(OPERATIONS)}")
    found = [{"observation": name, **asdict(observation(name))} for name in names]
    return [{column: _text(value) for column, value in row.items()} for row in found]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]  (of an Observation: ints)
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def measure(section: sections.Observations, progress: Callable[[int, int], None]) -> Measurement:
    """Every observation that the section names, made now."""
    found = rows(section.vary.observation)
    progress(len(found), len(found))
    return tabulated("observation", COLUMNS, found)

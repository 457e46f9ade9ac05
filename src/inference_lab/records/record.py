"""A recorded experiment in memory, and what a figure or page is drawn from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_lab.records.raw import Sample


@dataclass(frozen=True)
class Record:
    """One measurement as recorded: its manifest, its formal samples, its controls."""

    experiment: str
    manifest: Mapping[str, Any]
    samples: Sequence[Sample]
    controls: Sequence[Sample]


@dataclass(frozen=True)
class View:
    """Everything a figure or a generated page may read.

    `summary` holds the rows of summary.csv as text; `source` names experiment, raw_sha256,
    summary_sha256 and the command that rebuilds the file.
    """

    record: Record
    summary: Sequence[Mapping[str, str]]
    judge: Mapping[str, Any]
    source: Mapping[str, str]

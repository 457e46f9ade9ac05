"""A recorded experiment in memory, and what a figure or page is drawn from."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_lab.records.samples import Table, write_samples
from inference_lab.stream_load.requests import RequestRecord


@dataclass(frozen=True)
class Calibration:
    """The record of the load client against truth that another record leans on: its name, its summary."""

    name: str
    rows: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Record:
    """One measurement as recorded: its manifest and the rows of its raw files.

    Only a record of kind `timing` has samples and controls: tables with samples.CONTROL_COLUMNS, in the order
    of their files. The raw.csv of any other kind is in `rows`, as text. One of kind
    `serving` has what the client saw in `requests`, what the server wrote of them in `truth`, the
    server's steps in `rows`, and what stood on its /metrics in `server`.
    """

    experiment: str
    manifest: Mapping[str, Any]
    samples: Table = None
    controls: Table = None
    rows: Sequence[Mapping[str, str]] = ()
    requests: Sequence[RequestRecord] = ()
    truth: Sequence[Mapping[str, Any]] = ()
    server: Sequence[Mapping[str, Any]] = ()
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Measurement:
    """What a measurement found, ready to be recorded: text and row count of its files, facts, machine."""

    kind: str
    files: Mapping[str, str]
    rows: Mapping[str, int]
    facts: Mapping[str, Any]
    environment: Mapping[str, Any]


def tabulated(kind: str, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Measurement:
    """A measurement that timed nothing: its rows under their columns, and no controls."""
    files = {"raw.csv": csv_text(columns, rows), "controls.csv": write_samples((), controls=True)}
    return Measurement(kind, files, {"raw.csv": len(rows), "controls.csv": 0}, {"oracle": []}, {})


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows under these columns as the text of a CSV file; a column that a row lacks stays empty."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def varied(manifest: Mapping[str, Any]) -> tuple[str, Sequence[Any]]:
    """Return what was varied and its values; "" and nothing where nothing was, as in a load of one's own."""
    return next(iter(manifest["conditions"].get("vary", {}).items()), ("", ()))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines for a terminal, each column as wide as its widest value."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

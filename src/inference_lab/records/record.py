"""A recorded experiment in memory, and what a figure or page is drawn from."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_lab.records.files import JSON
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

    Of kind `timing` it has samples and controls, with CONTROL_COLUMNS; of any other `rows` is raw.csv as
    text. Of kind `serving` `rows` are the server's steps, `requests` is what the client saw, `truth` what the
    server wrote of them, `server` its /metrics.
    """

    experiment: str
    manifest: JSON
    samples: Table = None
    controls: Table = None
    rows: Sequence[Mapping[str, str]] = ()
    requests: Sequence[RequestRecord] = ()
    truth: Sequence[JSON] = ()
    server: Sequence[JSON] = ()
    calibration: Calibration | None = None


@dataclass(frozen=True)
class Measurement:
    """What a measurement found, ready to be recorded: text and row count of its files, facts, machine."""

    kind: str
    files: Mapping[str, str]
    rows: Mapping[str, int]
    facts: JSON
    environment: JSON


def tabulated(kind: str, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Measurement:
    """A measurement that timed nothing: its rows under their columns, and no controls."""
    files = {"raw.csv": csv_text(columns, rows), "controls.csv": write_samples((), controls=True)}
    return Measurement(kind, files, {"raw.csv": len(rows), "controls.csv": 0}, {"oracle": []}, {})


def csv_text(columns: Sequence[str], rows: Sequence[JSON]) -> str:
    """The rows under these columns as the text of a CSV file; a column that a row lacks stays empty."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()


def varied(manifest: JSON) -> tuple[str, Sequence[Any]]:
    """Return what was varied and its values; "" and nothing where nothing was, as in a load of one's own."""
    return next(iter(manifest["conditions"].get("vary", {}).items()), ("", ()))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines for a terminal, each column as wide as its widest value."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]

"""Two records of one experiment beside each other: what differs around them, what may be said of the times.

Rounds of two runs were never interleaved, so nothing pairs across records: absolute times stand side by
side with their intervals, and only ratios taken inside each run are compared.
"""

import csv
import io
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_lab import stages
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.records.store import load_record

_MACHINE = ("cpu_model", "cores", "kernel", "machine", "python", "blas")


def compare(one: str, other: str) -> str:
    """Conditions, machine and times of two records as text, and what cannot be claimed.

    A record is named by its folder (superseded ones too) or by a commit, as in HEAD~3:results/m1. Raises
    RecordError when one is not whole, or when the two are not of one experiment.
    """
    with tempfile.TemporaryDirectory() as temporary:
        a = _read(one, Path(temporary, "a"))
        b = _read(other, Path(temporary, "b"))
    if a.experiment != b.experiment:
        raise RecordError(
            f"{one} is a record of {a.experiment}, {other} of {b.experiment}; name two of one experiment"
        )
    conditions = _differences(a.manifest["conditions"], b.manifest["conditions"])
    machine = _differences(
        {key: a.manifest["environment"].get(key) for key in _MACHINE},
        {key: b.manifest["environment"].get(key) for key in _MACHINE},
    )
    pins = _differences(a.manifest["pins"], b.manifest["pins"])
    lines = [
        f"{a.experiment}: A = {one} ({a.manifest['started_at']}), B = {other} ({b.manifest['started_at']})",
        f"conditions: {_words(conditions)}",
        f"machine: {_words(machine)}",
        f"pins: {_words(pins)}",
        "",
        *_times(a, b),
        "",
        *_claims(conditions, machine, pins),
    ]
    return "\n".join(lines)


def _read(name: str, into: Path) -> Record:
    if Path(name, "manifest.json").is_file():
        return load_record(Path(name, "manifest.json"))
    commit, colon, folder = name.partition(":")
    if not colon:
        raise RecordError(
            f"{name}: no manifest.json there; name a record's folder or COMMIT:results/EXPERIMENT"
        )
    into.mkdir()
    wanted = ["manifest.json"]
    while wanted:
        file = wanted.pop()
        shown = subprocess.run(["git", "show", f"{commit}:{folder}/{file}"], capture_output=True, check=False)
        if shown.returncode:
            raise RecordError(
                f"{name}: {' '.join(shown.stderr.decode().split())}; name a commit that holds the record"
            )
        (into / file).write_bytes(shown.stdout)
        if file == "manifest.json":
            wanted += _files_of(into / file)
    return load_record(into / "manifest.json")


def _files_of(manifest: Path) -> list[str]:
    from inference_lab.records.chain import read_receipt

    return list(read_receipt(manifest)["outputs"])


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{key} {a.get(key)} -> {b.get(key)}" for key in sorted({**a, **b}) if a.get(key) != b.get(key)]


def _words(differences: list[str]) -> str:
    return "the same" if not differences else "; ".join(differences)


def _times(a: Record, b: Record) -> list[str]:
    axis = next(iter(a.manifest["conditions"]["vary"]))
    rows_a, rows_b = _rows(a, axis), _rows(b, axis)
    head = ("path", axis, "A p50 ms", "B p50 ms", "A ratio", "B ratio", "ratios differ by")
    table: list[tuple[str, ...]] = [head]
    for key in (key for key in rows_a if key in rows_b):
        x, y = rows_a[key], rows_b[key]
        moved = ""
        if x["ratio"] and y["ratio"]:
            moved = f"{100 * (float(y['ratio']) / float(x['ratio']) - 1):+.1f}%"
        table.append(
            (
                *key,
                _span(x, "p50", "_ms"),
                _span(y, "p50", "_ms"),
                _span(x, "ratio"),
                _span(y, "ratio"),
                moved,
            )
        )
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def _rows(record: Record, axis: str) -> dict[tuple[str, str], dict[str, str]]:
    judge = {"by": "timing", "figures": {}}
    text = stages.stage_module("analysis.timing").summarise(record, judge)
    return {(row["path"], row[axis]): row for row in csv.DictReader(io.StringIO(text))}


def _span(row: Mapping[str, str], name: str, unit: str = "") -> str:
    value, lo, hi = row[f"{name}{unit}"], row[f"{name}_lo{unit}"], row[f"{name}_hi{unit}"]
    if not value:
        return ""
    low, high = (f"{float(bound):.4g}" if bound else "open" for bound in (lo, hi))
    return f"{float(value):.4g} [{low}, {high}]"


def _claims(conditions: list[str], machine: list[str], pins: list[str]) -> list[str]:
    lines = [
        "The two runs were not interleaved: a difference between A and B in absolute time may be the",
        "machine's, and none is claimed. Each ratio was taken to the baseline inside its own run.",
    ]
    if machine or pins:
        lines.append(
            "Machine or pins differ: the records are not pooled, and ratios may differ for that reason alone."
        )
    if conditions:
        lines.append(
            "Conditions differ: cells are of different experiments; compare nothing but what is the same."
        )
    return lines

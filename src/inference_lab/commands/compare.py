"""Two records of one experiment beside each other: what differs around them, what may be said of the times.

Rounds of two runs were never interleaved, so nothing pairs across records: absolute times stand side by
side with their intervals, and only ratios taken inside each run are compared.
"""

import csv
import io
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from inference_lab.commands import run_stage
from inference_lab.config.judge import read_judge
from inference_lab.errors import RecordError
from inference_lab.records import history
from inference_lab.records.receipts import read_receipt
from inference_lab.records.record import Record, aligned, varied
from inference_lab.records.stages import is_own_load
from inference_lab.records.store import load_record

_WAY_OUT = "name a record's folder, or COMMIT:results/EXPERIMENT of a commit that holds it"
_NOT_INTERLEAVED = (
    "The two runs were not interleaved: a difference between A and B in absolute time may be the",
    "machine's, and none is claimed.",
)
_MACHINE = ("cpu_model", "cores", "kernel", "machine", "python", "blas")


Row = tuple[str, ...]
Values = Mapping[str, str]


def compare(one: str, other: str) -> str:
    """Conditions, machine and times of two records as text, and what cannot be claimed.

    A record is named by its folder (superseded ones too) or by a commit, as in HEAD~3:results/m1. Raises
    RecordError when one is not whole, or when the two are not of one experiment.
    """
    with tempfile.TemporaryDirectory() as temporary:
        a = _read(one, Path(temporary, "a"))
        b = _read(other, Path(temporary, "b"))
    if a.experiment != b.experiment and not (is_own_load(a.experiment) and is_own_load(b.experiment)):
        raise RecordError(
            f"{one} is a record of {a.experiment}, {other} of {b.experiment}; name two of one experiment"
        )
    if a.manifest["kind"] != b.manifest["kind"]:
        raise RecordError(f"{one} is of kind {a.manifest['kind']}, {other} of {b.manifest['kind']}")
    if a.manifest["digest"] == b.manifest["digest"]:
        return (
            f"{a.experiment}: {one} and {other} are one and the same record, measured"
            f" {a.manifest['started_at']} (manifest {a.manifest['digest'][:8]}): there is nothing to compare"
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
        *_beside(a, b),
        "",
        *_claims(a.manifest["kind"], conditions, machine, pins),
    ]
    return "\n".join(lines)


def _read(name: str, into: Path) -> Record:
    if Path(name, "manifest.json").is_file():
        return load_record(Path(name, "manifest.json"))
    commit, colon, folder = name.partition(":")
    if not colon:
        what = "no manifest.json there" if Path(name).is_dir() else "no such folder"
        raise RecordError(f"{name}: {what}; {_WAY_OUT}")
    into.mkdir()
    try:
        found = history.commit_of(commit)
        _copy_committed(found, folder.rstrip("/"), "manifest.json", into)
        for file in read_receipt(into / "manifest.json")["outputs"]:
            _copy_committed(found, folder.rstrip("/"), file, into)
    except history.NoHistory as error:
        raise RecordError(f"{name}: {error}; {_WAY_OUT}") from None
    return load_record(into / "manifest.json")


def _copy_committed(commit: str, folder: str, file: str, into: Path) -> None:
    if (data := history.blob(commit, f"{folder}/{file}")) is None:
        raise history.NoHistory(f"that commit holds no {folder}/{file}")
    (into / file).write_bytes(data)


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    return [f"{key} {a.get(key)} -> {b.get(key)}" for key in sorted({**a, **b}) if a.get(key) != b.get(key)]


def _words(differences: list[str]) -> str:
    return "the same" if not differences else "; ".join(differences)


def _beside(a: Record, b: Record) -> list[str]:
    """What was measured, A beside B, one line a cell; of a kind that estimates nothing, rows that differ."""
    kind = a.manifest["kind"]
    if kind == "timing":
        axis, _ = varied(a.manifest)
        head = ("path", axis, "A p50 ms", "B p50 ms", "A ratio", "B ratio", "ratios differ by")
        return _table(head, _rows(a, kind, ("path", axis)), _rows(b, kind, ("path", axis)), _timing_cell)
    if kind == "serving":
        rows = _rows(a, kind, ())[()], _rows(b, kind, ())[()]
        cell = tuple(list(rows[0])[: list(rows[0]).index("metric") + 1])
        head = (*cell, "unit", "A p50 or median", "B p50 or median")
        return _table(head, _rows(a, kind, cell), _rows(b, kind, cell), _serving_cell)
    one, other = ([",".join(row.values()) for row in record.rows] for record in (a, b))
    lines = [f"only in A: {row}" for row in one if row not in other]
    lines += [f"only in B: {row}" for row in other if row not in one]
    return lines or [f"all {len(one)} rows are the same"]


def _table(
    head: Row, a: Mapping[Row, Values], b: Mapping[Row, Values], cell: Callable[[Values, Values], Row]
) -> list[str]:
    return aligned([head, *((*key, *cell(a[key], b[key])) for key in a if key in b)])


def _rows(record: Record, kind: str, key: Row) -> dict[Row, Values]:
    """The rows of the record's summary by what they are about."""
    judge = read_judge({"by": kind, "figures": {}}, kind)
    text = run_stage.stage_module(f"analysis.{kind}").summarise(record, judge)
    return {tuple(row[name] for name in key): row for row in csv.DictReader(io.StringIO(text))}


def _timing_cell(x: Values, y: Values) -> Row:
    moved = f"{100 * (float(y['ratio']) / float(x['ratio']) - 1):+.1f}%" if x["ratio"] and y["ratio"] else ""
    return (_span(x, "p50", "_ms"), _span(y, "p50", "_ms"), _span(x, "ratio"), _span(y, "ratio"), moved)


def _serving_cell(x: Values, y: Values) -> Row:
    spans = ((_span(row, "p50", "_ms") or _span(row, "median")) for row in (x, y))
    return (x["unit"], *spans)


def _span(row: Values, name: str, unit: str = "") -> str:
    value, lo, hi = row[f"{name}{unit}"], row[f"{name}_lo{unit}"], row[f"{name}_hi{unit}"]
    if not value:
        return ""
    low, high = (f"{float(bound):.4g}" if bound else "open" for bound in (lo, hi))
    return f"{float(value):.4g} [{low}, {high}]"


def _claims(kind: str, conditions: list[str], machine: list[str], pins: list[str]) -> list[str]:
    lines: list[str] = [*_NOT_INTERLEAVED]
    if kind == "timing":
        lines.append("Each ratio was taken to the baseline inside its own run.")
    elif kind != "serving":
        lines = ["Nothing was timed: each row is exact, and a row that differs differs."]
    if machine or pins:
        lines.append(
            "Machine or pins differ: the records are not pooled, and ratios may differ for that reason alone."
        )
    if conditions:
        lines.append(
            "Conditions differ: cells are of different experiments; compare nothing but what is the same."
        )
    return lines

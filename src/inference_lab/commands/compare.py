"""Two records of one experiment beside each other: what differs around them, what may be said of the times.

Rounds of two runs were never interleaved, so nothing pairs across records: absolute times stand side by
side with their intervals, and only ratios taken inside each run are compared.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from inference_lab.analysis.summary_table import SummaryRow, summary_rows
from inference_lab.commands import run_stage
from inference_lab.config.judge import read_judge
from inference_lab.errors import RecordError
from inference_lab.records import history
from inference_lab.records.receipts import read_receipt
from inference_lab.records.record import Record, aligned, varied
from inference_lab.records.stages import is_own_load
from inference_lab.records.store import load_record

_WAY_OUT = "name a record's folder, or COMMIT:results/EXPERIMENT of a commit that holds it"
_NOT_INTERLEAVED = """\
The two runs were not interleaved: a difference between A and B in absolute time may be the
machine's, and none is claimed."""
_CLAIMS = {
    "timing": f"{_NOT_INTERLEAVED}\nEach ratio was taken to the baseline inside its own run.",
    "serving": _NOT_INTERLEAVED,
}
_UNTIMED = "Nothing was timed: each row is exact, and a row that differs differs."
_NOT_POOLED = (
    "Machine or pins differ: the records are not pooled, and ratios may differ for that reason alone."
)
_OTHER_CELLS = "Conditions differ: cells are of different experiments; compare nothing but what is the same."
_MACHINE = ("cpu_model", "cores", "kernel", "machine", "python", "blas")


def compare(one: str, other: str) -> str:
    """Conditions, machine and times of two records as text, and what cannot be claimed.

    A record is named by its folder (superseded ones too) or by a commit, as in HEAD~3:results/m1. Raises
    RecordError when one is not whole, or when the two are not of one experiment.
    """
    with tempfile.TemporaryDirectory() as temporary:
        a, b = _read(one, Path(temporary, "a")), _read(other, Path(temporary, "b"))
    x, y, kind = a.manifest, b.manifest, a.manifest["kind"]
    same = a.experiment == b.experiment or (is_own_load(a.experiment) and is_own_load(b.experiment))
    if not same or kind != y["kind"]:
        what = f"{one} is a record of {a.experiment} ({kind}), {other} of {b.experiment} ({y['kind']})"
        raise RecordError(f"{what}; name two of one experiment")
    if x["digest"] == y["digest"]:
        measured = f"measured {x['started_at']} (manifest {x['digest'][:8]})"
        both = f"{one} and {other} are one and the same record, {measured}"
        return f"{a.experiment}: {both}: there is nothing to compare"
    conditions = _differences(x["conditions"], y["conditions"])
    machine = _differences(*({key: each["environment"].get(key) for key in _MACHINE} for each in (x, y)))
    pins = _differences(x["pins"], y["pins"])
    lines = [
        f"{a.experiment}: A = {one} ({x['started_at']}), B = {other} ({y['started_at']})",
        f"conditions: {conditions or 'the same'}",
        f"machine: {machine or 'the same'}",
        f"pins: {pins or 'the same'}",
        "",
        *_beside(a, b, kind),
        "",
        _CLAIMS.get(kind, _UNTIMED),
        *[_NOT_POOLED] * bool(machine or pins),
        *[_OTHER_CELLS] * bool(conditions),
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


def _differences(a: Mapping[str, object], b: Mapping[str, object]) -> str:
    keys = (key for key in sorted({**a, **b}) if a.get(key) != b.get(key))
    return "; ".join(f"{key} {a.get(key)} -> {b.get(key)}" for key in keys)


def _beside(a: Record, b: Record, kind: str) -> list[str]:
    """What was measured, A beside B, one line a cell; of a kind that estimates nothing, rows that differ."""
    if kind not in _CLAIMS:
        one, other = ([",".join(row.values()) for row in record.rows] for record in (a, b))
        lines = [f"only in A: {row}" for row in one if row not in other]
        lines += [f"only in B: {row}" for row in other if row not in one]
        return lines or [f"all {len(one)} rows are the same"]
    judge = read_judge({"by": kind, "figures": {}}, kind)
    summarise = run_stage.stage_module(f"analysis.{kind}").summarise
    rows, others = (summary_rows(summarise(each, judge), each.experiment) for each in (a, b))
    if kind == "timing":
        key = ("path", varied(a.manifest)[0])
        head = ("A p50 ms", "B p50 ms", "A ratio", "B ratio", "ratios differ by")
    else:
        key = (*list(rows[0])[: list(rows[0]).index("metric") + 1], "unit")
        head = ("A p50 or median", "B p50 or median")
    there = {tuple(row[name] for name in key): row for row in others}
    pairs = ((row, there.get(tuple(row[name] for name in key))) for row in rows)
    cells = [(*(x[name] for name in key), *_cell(x, y, kind)) for x, y in pairs if y]
    return aligned([(*key, *head), *cells])


def _cell(x: SummaryRow, y: SummaryRow, kind: str) -> tuple[str, ...]:
    if kind == "serving":
        return tuple(_span(row, "p50_ms") or _span(row, "median") for row in (x, y))
    a, b = x.number("ratio"), y.number("ratio")
    moved = f"{100 * (b / a - 1):+.1f}%" if a and b else ""
    return (_span(x, "p50_ms"), _span(y, "p50_ms"), _span(x, "ratio"), _span(y, "ratio"), moved)


def _span(row: SummaryRow, column: str) -> str:
    """A value with its interval, whose bounds may be open."""
    low, high = ("open" if bound is None else f"{bound:.4g}" for bound in row.interval(column))
    return "" if (value := row.number(column)) is None else f"{value:.4g} [{low}, {high}]"

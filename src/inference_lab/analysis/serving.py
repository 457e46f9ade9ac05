"""summary.csv of a serving record: one row a cell and metric, with what the client's own times are worth.

Answers: what did these requests take, how far may it be believed? Does not know what was predicted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from inference_lab.analysis.flags import of_record
from inference_lab.analysis.load_runs import Run, Step, peak_in_flight, runs_of
from inference_lab.analysis.metrics import (
    AGAINST_TRUTH,
    OF_CELL,
    OF_RUN,
    TIMES,
    TOKEN_ERROR,
    TTFT_ERROR,
    Metric,
    goodput,
)
from inference_lab.analysis.server_side import OF_CACHE, OF_FRESH, OF_SERVER, STEPS
from inference_lab.analysis.statistics import Estimate, estimate
from inference_lab.analysis.summary_table import CODES, SEPARATOR
from inference_lab.analysis.two_sides import Doubt, doubts, is_timed, stamps_of
from inference_lab.records.record import Record, aligned, csv_text

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TIME_COLUMNS = tuple(f"{name}{end}_ms" for name in QUANTILES for end in ("", "_lo", "_hi"))
COLUMNS = (
    *("metric", "unit", "formula", "n", "value", "median", "median_lo", "median_hi"),
    *("mean_ms", *_TIME_COLUMNS, "min_ms", "max_ms", "flags", "advice"),
)
Row = dict[str, str]


def summarise(record: Record, judge: Mapping[str, Any]) -> str:
    """The text of summary.csv: a cell's own columns, then COLUMNS; a metric undefined in a cell has no row.

    Of a time, quantiles over all its values with order-statistic intervals; of a number of runs, `median`
    over the runs with its interval, and `value` where every run had the same.
    """
    cells: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for run in _runs(record, judge):
        cells.setdefault(tuple(run.cell.items()), []).append(run)
    keys = list(dict.fromkeys(key for cell in cells for key, _ in cell))
    vary: Mapping[str, Any] = record.manifest["conditions"].get("vary", {})
    of_all = [
        Doubt(flag, is_timed if flag.code == "busy" else lambda _: True)
        for flag in of_record(record, {"max_others_cpu": math.inf, **judge})
    ]
    rows: list[Row] = []
    for cell, runs in sorted(cells.items(), key=lambda item: _place(dict(item[0]), record)):
        fixed = [pair for pair in cell if pair[0] not in vary]
        beside = [run for other, runs in cells.items() if set(fixed) <= set(other) for run in runs]
        steps = [step for step in record.rows if all(step[key] == value for key, value in cell)]
        found = [*of_all, *doubts(runs, beside, steps, record, judge)]
        for row in _rows(runs, steps, record, judge):
            kept = [doubt.flag for doubt in found if doubt.concerns(row)]
            codes = {*row.get("flags", "").split(), *(flag.code for flag in kept)}
            advice = [*filter(None, [row.get("advice")]), *(flag.advice for flag in kept)]
            row["flags"] = " ".join(code for code in CODES if code in codes)
            rows.append({**dict(cell), **row, "advice": SEPARATOR.join(advice)})
    return csv_text([*keys, *COLUMNS], rows)


def calibrated(record: Record, judge: Mapping[str, Any]) -> list[Row]:
    """The rows of a record of one cell that say what its calibration says of the client's times."""
    return [{**dict.fromkeys(COLUMNS, ""), **row} for row in _calibrated(record, _runs(record, judge))]


def _runs(record: Record, judge: Mapping[str, Any]) -> list[Run]:
    return runs_of(record, steady=judge.get("window", "steady") == "steady")


def _place(cell: Mapping[str, str], record: Record) -> list[int]:
    """Where a cell stands: in the order in which the varied values were declared."""
    vary: Mapping[str, Sequence[Any]] = record.manifest["conditions"].get("vary", {})
    return [
        [str(value) for value in values].index(cell[axis]) for axis, values in vary.items() if axis in cell
    ]


def _rows(
    runs: Sequence[Run], steps: Sequence[Step], record: Record, judge: Mapping[str, Any]
) -> Iterator[Row]:
    for metric in (*TIMES, *AGAINST_TRUTH, *STEPS):
        if values := [value for run in runs for value in metric.values(run)]:
            yield {**_named(metric), **_of_times(values)}
    for metric in (*OF_RUN, goodput(judge.get("slo") or {}), *OF_SERVER):
        if found := [value for run in runs if (value := metric.of(run)) is not None]:
            notes = [run.note for run in runs if run.note] if metric.name == "measured" else []
            yield {**_named(metric), **_of_runs(found), "advice": SEPARATOR.join(dict.fromkeys(notes))}
    for metric in OF_CACHE:
        if values := metric.values(record, runs):
            yield {**_named(metric), **_of_runs(values)}
    for metric in OF_FRESH:
        if values := metric.values(runs):
            yield {**_named(metric), **_of_runs(values)}
    for metric in OF_CELL:
        if (value := metric.of(runs, steps)) is not None:
            yield {**_named(metric), **_of_runs([value])}
    yield from _calibrated(record, runs)


def _named(metric: Metric) -> Row:
    return {"metric": metric.name, "unit": metric.unit, "formula": metric.formula}


def _of_times(values: Sequence[float]) -> Row:
    """Columns of a time whose values are ns."""
    times = np.array(values)
    found = {name: estimate(times, quantile) for name, quantile in QUANTILES.items()}
    numbers = {
        "mean_ms": math.fsum(values) / len(values),
        **{key: value for name, each in found.items() for key, value in _with_bounds(f"{name}{{}}_ms", each)},
        "min_ms": min(values),
        "max_ms": max(values),
    }
    return {"n": str(len(values)), **{name: _text(number, 1e6) for name, number in numbers.items()}}


def _of_runs(values: Sequence[float]) -> Row:
    """Columns of a number that each run has one of."""
    found = _with_bounds("median{}", estimate(np.array(values, dtype=float), 0.5))
    same = values[0] if len(set(values)) == 1 else None
    return {"n": str(len(values)), "value": _text(same), **{name: _text(number) for name, number in found}}


def _with_bounds(name: str, found: Estimate) -> list[tuple[str, float | None]]:
    return [(name.format(end), number) for end, number in zip(("", "_lo", "_hi"), found.bounds, strict=True)]


def _text(number: float | None, per: float = 1) -> str:
    return "" if number is None else f"{number / per:.9g}"


def _calibrated(record: Record, runs: Sequence[Run]) -> Iterator[Row]:
    """The error of the client's own token times, as calibrated with the same stamps at as many streams."""
    calibration = record.calibration
    if calibration is None or not any("clock" in session for session in runs[0].sessions):
        return  # virtual time has no error
    clock = stamps_of(runs)
    of_clock = [row for row in calibration.rows if row["path"] == clock]
    known = [row for row in of_clock if row["metric"] == TOKEN_ERROR.name]
    if not known:
        return
    streams = peak_in_flight(request for run in runs for request in run.requests)
    enough = [row for row in known if int(row["streams"]) >= streams]
    leans = min(enough or known, key=lambda row: abs(int(row["streams"]) - streams))
    words = f"leans on {calibration.name}: {clock} stamps, {leans['streams']} streams"
    words += "" if enough else f", fewer than the {streams} in flight here: calibrate that many"
    beside = [row for row in of_clock if row["streams"] == leans["streams"] and row["flags"]]
    flagged = [row for row in beside if row["metric"].startswith((TOKEN_ERROR.name, TTFT_ERROR.name))]
    codes = dict.fromkeys(code for row in flagged for code in row["flags"].split())
    words += f"; that cell is flagged there: {', '.join(codes)}" if codes else ""
    kept = ("unit", "formula", "n", "mean_ms", *_TIME_COLUMNS, "min_ms", "max_ms", "flags")
    yield {"metric": f"calibrated_{TOKEN_ERROR.name}", **{n: leans[n] for n in kept}, "advice": words}


def as_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of one cell for a terminal: n, then the value or mean and quantiles; zeros are left out."""
    head = ("metric", "unit", "n", "value", "mean", "P50", "P90", "P95", "P99", "95% of P99")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        value = row["value"] or row["median"]
        if value == "0" and row["metric"] != "goodput_per_s":
            continue
        interval = f"{_short(row['p99_lo_ms'])} .. {_short(row['p99_hi_ms'])}" if row["p99_ms"] else ""
        times = (row[name] for name in ("mean_ms", *(f"{name}_ms" for name in QUANTILES)))
        lines.append((row["metric"], row["unit"], row["n"], *map(_short, (value, *times)), interval))
    notes = dict.fromkeys(note for row in rows for note in row["advice"].split(SEPARATOR) if note)
    flags = sorted({flag for row in rows for flag in row["flags"].split()})
    return "\n".join(
        [*aligned(lines), *(f"flag: {flag}" for flag in flags), *(f"note: {note}" for note in notes)]
    )


def _short(text: str) -> str:
    return f"{float(text):.5g}" if text else ""

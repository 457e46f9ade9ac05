"""summary.csv of a serving record: one row a cell and metric, with what the client's own times are worth.

Answers: what did these requests take, how far may it be believed? Does not know what was predicted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from inference_lab.analysis.flags import record_flags
from inference_lab.analysis.load_runs import Cell, cells_of, peak_in_flight
from inference_lab.analysis.metrics import (
    AGAINST_TRUTH,
    OF_CELL,
    OF_RUN,
    TIMES,
    TOKEN_ERROR,
    TTFT_ERROR,
    goodput,
)
from inference_lab.analysis.server_metrics import OF_CACHE, OF_FRESH, OF_SERVER, STEPS
from inference_lab.analysis.statistics import Estimate, estimate
from inference_lab.analysis.summary_table import CODES, SEPARATOR
from inference_lab.analysis.two_sides import Doubt, doubts, is_timed, stamps_of
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record, aligned, csv_text

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_TIME_COLUMNS = tuple(f"{name}{end}_ms" for name in QUANTILES for end in ("", "_lo", "_hi"))
COLUMNS = (
    *("metric", "unit", "formula", "n", "value", "median", "median_lo", "median_hi"),
    *("mean_ms", *_TIME_COLUMNS, "min_ms", "max_ms", "flags", "advice"),
)
Row = dict[str, str]


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv: a cell's own columns, then COLUMNS; a metric undefined in a cell has no row.

    Of a time, quantiles over all its values with order-statistic intervals; of a number of runs, `median`
    over the runs with its interval, and `value` where every run had the same.
    """
    cells = _cells(record, judge)
    vary: Mapping[str, Any] = record.manifest["conditions"].get("vary", {})
    of_all = [
        Doubt(flag, is_timed if flag.code == "busy" else lambda _: True)
        for flag in record_flags(record, {"max_others_cpu": math.inf, **judge.given()})
    ]
    rows: list[Row] = []
    for cell in cells:
        fixed = {pair for pair in cell.conditions.items() if pair[0] not in vary}
        beside = [run for other in cells if fixed <= set(other.conditions.items()) for run in other.runs]
        found = [*of_all, *doubts(cell, beside, record, judge)]
        for row in _rows(cell, record, judge):
            kept = [doubt.flag for doubt in found if doubt.concerns(row)]
            codes = {*row.get("flags", "").split(), *(flag.code for flag in kept)}
            advice = [*filter(None, [row.get("advice")]), *(flag.advice for flag in kept)]
            row["flags"] = " ".join(code for code in CODES if code in codes)
            rows.append({**cell.conditions, **row, "advice": SEPARATOR.join(advice)})
    return csv_text([*dict.fromkeys(key for cell in cells for key in cell.conditions), *COLUMNS], rows)


def calibrated(record: Record, judge: Judge) -> list[Row]:
    """The rows of a record of one cell with the error of the client's own times, from its calibration."""
    rows = [row for cell in _cells(record, judge) for row in _calibrated(record, cell)]
    return [{**dict.fromkeys(COLUMNS, ""), **row} for row in rows]


def _cells(record: Record, judge: Judge) -> list[Cell]:
    return cells_of(record, steady=judge.window == "steady")


def _rows(cell: Cell, record: Record, judge: Judge) -> Iterator[Row]:
    times = (*TIMES, *AGAINST_TRUTH, *STEPS)
    numbers = (*OF_RUN, goodput(judge.slo), *OF_SERVER, *OF_CACHE, *OF_FRESH, *OF_CELL)
    for metric in (*times, *numbers):
        if values := metric.values(cell):
            notes = [run.note for run in cell.runs if run.note] if metric.name == "measured" else []
            yield {
                **{"metric": metric.name, "unit": metric.unit, "formula": metric.formula},
                **(_of_times(values) if metric in times else _of_runs(values)),
                "advice": SEPARATOR.join(dict.fromkeys(notes)),
            }
    yield from _calibrated(record, cell)


def _of_times(values: Sequence[float]) -> Row:
    """Columns of a time whose values are ns."""
    times = np.array(values)
    numbers: dict[str, float | None] = {"mean_ms": math.fsum(values) / len(values)}
    for name, quantile in QUANTILES.items():
        numbers |= _with_bounds(f"{name}{{}}_ms", estimate(times, quantile))
    numbers |= {"min_ms": min(values), "max_ms": max(values)}
    return {"n": str(len(values)), **{name: _text(number, 1e6) for name, number in numbers.items()}}


def _of_runs(values: Sequence[float]) -> Row:
    """Columns of a number that each run has one of."""
    median = _with_bounds("median{}", estimate(np.array(values, dtype=float), 0.5))
    same = values[0] if len(set(values)) == 1 else None
    numbers = {"value": same, **median}
    return {"n": str(len(values)), **{name: _text(number) for name, number in numbers.items()}}


def _with_bounds(name: str, found: Estimate) -> dict[str, float | None]:
    return {name.format(end): number for end, number in zip(("", "_lo", "_hi"), found.bounds, strict=True)}


def _text(number: float | None, per: float = 1) -> str:
    return "" if number is None else f"{number / per:.9g}"


def _calibrated(record: Record, cell: Cell) -> Iterator[Row]:
    """The error of the client's own token times, as calibrated with the same stamps at as many streams."""
    calibration = record.calibration
    if calibration is None or not any("clock" in session for session in cell.runs[0].sessions):
        return  # virtual time has no error
    clock, streams = stamps_of(cell), peak_in_flight(cell.requests)
    of_clock = [row for row in calibration.rows if row["path"] == clock]
    known = [row for row in of_clock if row["metric"] == TOKEN_ERROR.name]
    if not known:
        return
    enough = [row for row in known if int(row["streams"]) >= streams]
    leans = min(enough or known, key=lambda row: abs(int(row["streams"]) - streams))
    words = (
        f"client timing error taken from {calibration.name}: {clock} timestamps, {leans['streams']} streams"
    )
    words += "" if enough else f", fewer than the {streams} in flight here: calibrate that many"
    errors = [row for row in of_clock if row["metric"].startswith((TOKEN_ERROR.name, TTFT_ERROR.name))]
    beside = [row["flags"] for row in errors if row["streams"] == leans["streams"]]
    codes = dict.fromkeys(" ".join(beside).split())
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

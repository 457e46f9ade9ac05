"""summary.csv of a serving record: one row a cell and metric, with what the client's own times are worth.

Answers: what did these requests take, how far may it be believed? Does not know what was predicted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from inference_lab.analysis import metrics, server_metrics
from inference_lab.analysis.flags import others_at_work
from inference_lab.analysis.load_runs import Cell, cells_of, peak_in_flight
from inference_lab.analysis.statistics import estimate
from inference_lab.analysis.summary_table import CODES, SEPARATOR, as_text, bounded, with_bounds
from inference_lab.analysis.two_sides import flags_of, stamps_of
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record, aligned, csv_text, varied

QUANTILES = {"p50_ms": 0.5, "p90_ms": 0.9, "p95_ms": 0.95, "p99_ms": 0.99}
_OF_A_TIME = ("mean_ms", *(name for column in QUANTILES for name in bounded(column)), "min_ms", "max_ms")
COLUMNS = ("metric", "unit", "formula", "n", "value", *bounded("median"), *_OF_A_TIME, "flags", "advice")
Row = dict[str, str]


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv: a cell's own columns, then COLUMNS; a metric undefined in a cell has no row.

    Of a time, quantiles over all its values with order-statistic intervals; of a number of runs, `median`
    over the runs with its interval, and `value` where every run had the same.
    """
    cells = _cells(record, judge)
    axis, _ = varied(record.manifest)
    of_all = list(others_at_work(record, judge.max_others_cpu or math.inf))
    rows: list[Row] = []
    for cell in cells:
        fixed = {pair for pair in cell.conditions.items() if pair[0] != axis}
        beside = [run for other in cells if fixed <= set(other.conditions.items()) for run in other.runs]
        found = [*of_all, *flags_of(cell, beside, record, judge)]
        for row in _rows(cell, record, judge):
            kept = [flag for flag in found if flag.concerns(row)]
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
    times = (*metrics.TIMES, *metrics.AGAINST_TRUTH, *server_metrics.STEPS)
    of_server = (*server_metrics.OF_SERVER, *server_metrics.OF_CACHE, *server_metrics.OF_FRESH)
    numbers = (*metrics.OF_RUN, metrics.goodput(judge.slo), *of_server, *metrics.OF_CELL)
    for metric in (*times, *numbers):
        if values := metric.values(cell):
            notes = [run.note for run in cell.runs if run.note] if metric.name == "measured" else []
            yield {
                **{
                    "metric": metric.name,
                    "unit": metric.unit,
                    "formula": metric.formula,
                    "n": str(len(values)),
                },
                **(_of_times(values) if metric in times else _of_runs(values)),
                "advice": SEPARATOR.join(dict.fromkeys(notes)),
            }
    yield from _calibrated(record, cell)


def _of_times(values: Sequence[float]) -> Row:
    """Columns of a time whose values are ns."""
    times = np.array(values)
    numbers: dict[str, float | None] = {"mean_ms": math.fsum(values) / len(values)}
    for column, quantile in QUANTILES.items():
        numbers |= with_bounds(column, estimate(times, quantile).bounds)
    numbers |= {"min_ms": min(values), "max_ms": max(values)}
    return {name: as_text(None if number is None else number / 1e6) for name, number in numbers.items()}


def _of_runs(values: Sequence[float]) -> Row:
    """Columns of a number that each run has one of."""
    median = with_bounds("median", estimate(np.array(values, dtype=float), 0.5).bounds)
    same = values[0] if len(set(values)) == 1 else None
    return {name: as_text(number) for name, number in {"value": same, **median}.items()}


def _calibrated(record: Record, cell: Cell) -> Iterator[Row]:
    """The error of the client's own token times, as calibrated with the same stamps at as many streams."""
    calibration = record.calibration
    if calibration is None or not any("clock" in session for session in cell.runs[0].sessions):
        return  # virtual time has no error
    clock, streams = stamps_of(cell), peak_in_flight(cell.requests)
    of_clock = [row for row in calibration.rows if row["path"] == clock]
    known = [row for row in of_clock if row["metric"] == metrics.TOKEN_ERROR.name]
    if not known:
        return
    enough = [row for row in known if int(row["streams"]) >= streams]
    nearest = min(enough or known, key=lambda row: abs(int(row["streams"]) - streams))
    source = f"{calibration.name}: {clock} timestamps, {nearest['streams']} streams"
    words = f"client timing error taken from {source}"
    words += "" if enough else f", fewer than the {streams} in flight here: calibrate that many"
    errors = (metrics.TOKEN_ERROR.name, metrics.TTFT_ERROR.name)
    beside = [row["flags"] for row in of_clock if row["streams"] == nearest["streams"]
              and row["metric"].startswith(errors)]  # fmt: skip
    codes = dict.fromkeys(" ".join(beside).split())
    words += f"; that cell is flagged there: {', '.join(codes)}" if codes else ""
    kept = {name: nearest[name] for name in ("unit", "formula", "n", *_OF_A_TIME, "flags")}
    yield {"metric": f"calibrated_{metrics.TOKEN_ERROR.name}", **kept, "advice": words}


def as_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of one cell for a terminal: n, then the value or mean and quantiles; zeros are left out."""
    head = ("metric", "unit", "n", "value", "mean", "P50", "P90", "P95", "P99", "95% of P99")
    lines: list[tuple[str, ...]] = [head]
    for row in rows:
        value = row["value"] or row["median"]
        if value == "0" and row["metric"] != "goodput_per_s":
            continue
        interval = f"{_short(row['p99_lo_ms'])} .. {_short(row['p99_hi_ms'])}" if row["p99_ms"] else ""
        numbers = map(_short, (value, row["mean_ms"], *(row[column] for column in QUANTILES)))
        lines.append((row["metric"], row["unit"], row["n"], *numbers, interval))
    notes = dict.fromkeys(note for row in rows for note in row["advice"].split(SEPARATOR) if note)
    flags = sorted({flag for row in rows for flag in row["flags"].split()})
    return "\n".join([*aligned(lines), *(f"flag: {f}" for f in flags), *(f"note: {note}" for note in notes)])


def _short(text: str) -> str:
    return f"{float(text):.5g}" if text else ""

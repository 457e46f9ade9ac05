"""verdicts.csv and analysis.md: what was asked, what came of it, and the numbers behind it."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.analysis.statistics import short
from inference_lab.analysis.summary_table import SEPARATOR, Row, View, in_words
from inference_lab.analysis.surroundings import environment_of
from inference_lab.analysis.verdicts import CHANGED, evaluate, verdicts_csv
from inference_lab.config.prediction import load_prediction
from inference_lab.pages.article import article
from inference_lab.pages.render import Markdown, interval, page, table
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS

OUTLIER = 3  # a sample this many times its cell's P50 is named
_MACHINE = (
    *("cpu_model", "cores", "affinity", "kernel", "governor", "python", "blas", "thread_variables"),
    *("others_used_cores", "unknown_looks", "steal_cores", "pressure_percent", "mhz"),
    *("load_before", "load_after", "waited_for_quiet_s"),
)


def pages(view: View, prediction_file: Path, *articles: Path) -> tuple[str, ...]:
    """Return the texts of verdicts.csv, analysis.md and of each article, by its template.

    A prediction that is not the one the manifest recorded is marked in both. Raises ConfigError when the
    prediction breaks its schema or asks for what no summary holds.
    """
    prediction = load_prediction(prediction_file)
    recorded = view.record.manifest.get("prediction") or {}
    changed = recorded.get("sha256") != hashlib.sha256(prediction_file.read_bytes()).hexdigest()
    verdicts = evaluate(prediction, view, prediction_changed=changed)
    conditions = view.record.manifest["conditions"]
    text = page(
        "analysis",
        view,
        prediction=prediction,
        prediction_changed=changed,
        CHANGED=CHANGED,
        verdicts=verdicts,
        counts=Counter(verdict["verdict"] for verdict in verdicts),
        kind=kind(view.summary),
        varied=next(iter(conditions.get("vary", {})), "nothing"),
        facts=_facts(view.record),
        oracle=list(_oracle(view.record)),
        anomalies=list(_anomalies(view)),
        result=_result(view),
    )
    return verdicts_csv(verdicts), text, *(article(template, view, verdicts) for template in articles)


def kind(rows: Sequence[Row]) -> str:
    """Return what a summary holds: metrics of loads (serving), timed cells (timing) or exact values."""
    return "serving" if "metric" in rows[0] else "timing" if "ratio_claimed" in rows[0] else "exact"


def _facts(record: Record) -> dict[str, Any]:
    """Return the conditions and the environment of a record by name."""
    manifest = record.manifest
    environment = environment_of(manifest)
    git = manifest.get("git") or {}
    commit = f"{git.get('commit', 'unknown')}{' with uncommitted changes' if git.get('dirty') else ''}"
    return {
        **manifest["conditions"],
        **{name: environment[name] for name in _MACHINE if name in environment},
        "packages": environment.get("packages"),
        "measured": f"{manifest['started_at']} to {manifest['finished_at']}",
        "source": commit,
    }


def _oracle(record: Record) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield each checked path, its number of checks, and the check nearest its tolerance."""
    checks: Sequence[Mapping[str, Any]] = record.manifest.get("oracle") or []
    for path in dict.fromkeys(check["path"] for check in checks):
        of_path = [check for check in checks if check["path"] == path]
        yield path, len(of_path), max(of_path, key=lambda check: check["max_abs_error"] / check["tolerance"])


def _result(view: View) -> str:
    rows = view.summary
    if "metric" in rows[0]:
        return _metrics(rows)
    if "ratio_claimed" not in rows[0]:
        columns = [name for name in rows[0] if name not in ("flags", "advice")]
        return table([[row[name] for name in columns] for row in rows], columns)
    keys = [name for name in CELL_COLUMNS if len({row[name] for row in rows}) > 1 or name == "path"]
    shown = ("p50_ms", "p95_ms", "positions_per_s", "ratio", "aa_ratio")
    head = [
        *keys,
        "n",
        "P50, ms",
        "P95, ms",
        "positions/s",
        f"time / {rows[0]['baseline']}",
        "A/A",
        "claimed",
        "flags",
    ]
    lines = [
        [
            *(row[name] for name in keys),
            row["n"],
            *(interval(row, name) for name in shown),
            row["ratio_claimed"],
            row["flags"],
        ]
        for row in rows
    ]
    return Markdown(
        "Each number with its 95% interval; `open` where n cannot bound it. Ratios are medians over rounds."
        f"\n\n{table(lines, head)}"
    )


def _metrics(rows: Sequence[Row]) -> str:
    """A table a cell: of each metric the number of runs, or mean and quantiles in ms; zeros are left out."""
    keys = list(rows[0])[: list(rows[0]).index("metric")]
    parts = [
        "Quantiles, and the median where there were several runs, with their 95% interval; `open` where n"
        " cannot bound it. What is not listed is zero or undefined; summary.csv has every formula."
    ]
    tables: dict[str, list[list[str]]] = {}
    for row in rows:
        cell = in_words({name: row[name] for name in keys})
        mean = row.number("mean_ms")
        middle = row["value"] or interval(row, "median")
        if middle != "0":
            numbers = [middle or short(mean or 0.0), *(interval(row, f"p{q}_ms") for q in (50, 95, 99))]
            tables.setdefault(cell, []).append([row["metric"], row["unit"], row["n"], *numbers, row["flags"]])
    head = ["metric", "unit", "n", "value, mean or median", "P50", "P95", "P99", "flags"]
    for cell, lines in tables.items():
        parts += [*([f"### {cell}"] if cell else []), table(lines, head)]
    return Markdown("\n\n".join(parts))


def _anomalies(view: View) -> Iterator[str]:
    yield from view.record.manifest.get("validity", {}).get("reasons", [])
    about = ("path", "transport", *view.record.manifest["conditions"].get("vary", {}))
    named: dict[str, list[str]] = {}
    for row in view.summary:
        cell = in_words({name: row[name] for name in about if name in row})
        for advice in filter(None, row.get("advice", "").split(SEPARATOR)):
            if cell not in (cells := named.setdefault(advice, [])) or "metric" not in row:
                cells.append(cell)
        if "metric" in row:
            continue  # a load's slowest times stand in its table
        most, p50 = (float(row.get(name) or 0) for name in ("max_ms", "p50_ms"))
        if p50 and most > OUTLIER * p50:
            yield f"{cell}: the slowest sample took {short(most)} ms, {short(most / p50)} x P50"
    for advice, cells in named.items():
        where = "every cell" if len(cells) == len(view.summary) else "; ".join(filter(None, cells))
        yield f"{where}: {advice}" if where else advice

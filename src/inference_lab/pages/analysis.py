"""analysis.md and verdicts.csv: what was asked, predicted, measured and found, in that order."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import SEPARATOR, View, bounds, in_words, number
from inference_lab.analysis.surroundings import environment_of
from inference_lab.analysis.verdicts import CHANGED, evaluate, verdicts_csv
from inference_lab.pages.render import made_from, plain, table, verdict_value
from inference_lab.records.prediction import load_prediction
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS

_TIMES = ("p50_ms", "p95_ms", "p99_ms")  # shown of a load's metric
_STAMPS = (  # of a load whose server wrote down its own times
    "- The server's stamps tell when it was about to write each token, and when the kernel had the request,"
    " on the client's clock: an error is of the client and of the way between.",
    "- They do not tell of a server that lost its core between a stamp and its write, which looks like a late"
    " client, nor of what held both up alike; a late step is in `server_itl` and in no error.",
    "- Tokens that lay unread until the next one came stand at its time (`coalesced`): how much earlier they"
    " came is not known, and where they are more than 1% the cell is flagged `client-limited`.",
)
OUTLIER = 3  # a sample this many times its cell's P50 is named
_MACHINE = ("cpu_model", "cores", "affinity", "kernel", "governor", "python", "blas", "thread_variables")
_WATCHED = (
    *("others_used_cores", "unknown_looks", "steal_cores", "pressure_percent", "mhz"),
    *("load_before", "load_after", "waited_for_quiet_s"),
)


def pages(view: View, prediction_file: Path) -> tuple[str, str]:
    """The texts of verdicts.csv and analysis.md.

    A prediction that is not the one the manifest recorded is marked in both. Raises ConfigError when the
    prediction breaks its schema or asks for what no summary holds, RecordError for a malformed summary.
    """
    prediction = load_prediction(prediction_file)
    recorded = view.record.manifest.get("prediction")
    found = hashlib.sha256(prediction_file.read_bytes()).hexdigest()
    changed = recorded is None or recorded["sha256"] != found
    verdicts = evaluate(prediction, view, prediction_changed=changed)
    return verdicts_csv(verdicts), analysis_md(view, prediction, verdicts, changed)


def analysis_md(
    view: View,
    prediction: Mapping[str, Any],
    verdicts: Sequence[Mapping[str, str]],
    prediction_changed: bool,
) -> str:
    """The text of analysis.md, from the question to what is not shown."""
    record = view.record
    changed = [f"**This {CHANGED}.** What stands here is not what was predicted then.", ""]
    parts: Sequence[tuple[str, Sequence[str]]] = (
        ("Question", [prediction["question"].strip()]),
        ("Prediction", [*(changed if prediction_changed else []), prediction["prediction"].strip()]),
        ("What was measured", [_conditions(record)]),
        ("Oracle", [_oracle(record)]),
        ("Result", [_result(view)]),
        ("Anomalies, kept and named", list(_anomalies(view))),
        ("Verdict", [*(changed if prediction_changed else []), _verdict(verdicts)]),
        ("Boundary: what this does not show", list(_boundary(view))),
    )
    lines = [f"# {record.experiment}", "", made_from(view.source), ""]
    for title, text in parts:
        lines += [f"## {title}", "", *text, ""]
    return "\n".join(lines)


def _conditions(record: Record) -> str:
    manifest = record.manifest
    environment = environment_of(manifest)
    git = manifest.get("git") or {}
    commit = f"{git.get('commit', 'unknown')}{' with uncommitted changes' if git.get('dirty') else ''}"
    facts = {
        **manifest["conditions"],
        **{name: environment[name] for name in (*_MACHINE, *_WATCHED) if name in environment},
        "packages": environment.get("packages"),
        "measured": f"{manifest['started_at']} to {manifest['finished_at']}",
        "source": commit,
    }
    return table(["", ""], [[name.replace("_", " "), _value(value)] for name, value in facts.items()])


def _value(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(each)}" for key, each in value.items())  # pyright: ignore
    if isinstance(value, list):
        return ", ".join(map(_value, value))  # pyright: ignore
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _oracle(record: Record) -> str:
    found: Sequence[Mapping[str, Any]] = record.manifest.get("oracle") or []
    if not found:
        return "No oracle was recorded with these rows."
    lines: list[list[str]] = []
    for path in dict.fromkeys(one["path"] for one in found):
        its = [one for one in found if one["path"] == path]
        worst = max(its, key=lambda one: one["max_abs_error"] / one["tolerance"])
        passed = "passed" if all(one["passed"] for one in its) else "FAILED"
        lines.append(
            [path, str(len(its)), f"{worst['max_abs_error']:.3g}", f"{worst['tolerance']:.3g}", passed]
        )
    head = ["path", "checks", "largest absolute error", "tolerance there", ""]
    return "Checked before anything was timed.\n\n" + table(head, lines)


def _result(view: View) -> str:
    rows = view.summary
    if "metric" in rows[0]:
        return _metrics(rows)
    if "ratio_claimed" not in rows[0]:
        columns = [name for name in rows[0] if name not in ("flags", "advice")]
        return table(columns, [[row[name] for name in columns] for row in rows])
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
    lines: list[list[str]] = []
    for row in rows:
        place = in_words({name: row[name] for name in keys})
        numbers = [with_interval(number(row, name, place), bounds(row, name, place)) for name in shown]
        lines.append([*(row[name] for name in keys), row["n"], *numbers, row["ratio_claimed"], row["flags"]])
    return (
        "Each number with its 95% interval; `open` where n cannot bound it. Ratios are medians over rounds."
        f"\n\n{table(head, lines)}"
    )


def _metrics(rows: Sequence[Mapping[str, str]]) -> str:
    """A table a cell: of each metric the number of runs, or mean and quantiles in ms; zeros are left out."""
    keys = list(rows[0])[: list(rows[0]).index("metric")]
    parts = [
        "Quantiles, and the median where there were several runs, with their 95% interval; `open` where n"
        " cannot bound it. What is not listed is zero or undefined; summary.csv has every formula."
    ]
    tables: dict[str, list[list[str]]] = {}
    for row in rows:
        cell = in_words({name: row[name] for name in keys})
        place = f"{cell} {row['metric']}"
        shown = [with_interval(number(row, name, place), bounds(row, name, place)) for name in _TIMES]
        mean = number(row, "mean_ms", place)
        middle = row["value"] or with_interval(number(row, "median", place), bounds(row, "median", place))
        if middle != "0":
            numbers = [middle or short(mean or 0.0), *shown]
            tables.setdefault(cell, []).append([row["metric"], row["unit"], row["n"], *numbers, row["flags"]])
    head = ["metric", "unit", "n", "value, mean or median", "P50", "P95", "P99", "flags"]
    for cell, lines in tables.items():
        parts += [*([f"### {cell}"] if cell else []), table(head, lines)]
    return "\n\n".join(parts)


def _anomalies(view: View) -> Iterator[str]:
    reasons: Sequence[str] = view.record.manifest.get("validity", {}).get("reasons", [])
    found = [f"- {reason}" for reason in reasons]
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
            found.append(f"- {cell}: the slowest sample took {short(most)} ms, {short(most / p50)} x P50")
    for advice, cells in named.items():
        where = "every cell" if len(cells) == len(view.summary) else "; ".join(filter(None, cells))
        found.append(f"- {where}: {advice}" if where else f"- {advice}")
    yield from map(plain, found or ["None was found."])


def _verdict(verdicts: Sequence[Mapping[str, str]]) -> str:
    counts = Counter(verdict["verdict"] for verdict in verdicts)
    lines = [
        [
            verdict["says"],
            f"**{verdict['verdict']}**",
            verdict_value(verdict),
            *(verdict[name] for name in ("n", "rows", "reason")),
        ]
        for verdict in verdicts
    ]
    head = ["claim", "verdict", "value", "n", "rests on", "reason"]
    return f"{', '.join(f'{n} {name}' for name, n in counts.items())}.\n\n{table(head, lines)}"


def _boundary(view: View) -> Iterator[str]:
    conditions = view.record.manifest["conditions"]
    varied = next(iter(conditions.get("vary", {})), "nothing")
    yield f"- Other conditions: {varied} was varied, everything else was fixed."
    if "metric" in view.summary[0]:
        yield "- Absolute times hold for this machine in this session, with client and server on its cores."
        yield "- Intervals take the values as independent; tokens of one request are not, so they are narrow."
        yield "- Another server, engine or load than that of the conditions above."
        yield from _STAMPS if view.record.truth else ()
        return
    if "ratio_claimed" not in view.summary[0]:
        yield "- Other versions and machines: these are the values found here, with the versions named above."
        return
    yield "- Absolute times hold for this machine in this session; ratios within rounds travel better."
    yield "- Intervals take the rounds as independent; whole processes were drawn again only as a check."
    if any(not row["p95_hi_ms"] for row in view.summary):
        yield f"- A P95 with both bounds: n = {view.summary[0]['n']} is too small, it needs 72."
    if not conditions["replica"]:
        yield "- Whether the measurement agrees with itself: the baseline was measured once a round (no A/A)."
    yield "- Serving: a timed call is NumPy on prepared inputs, without tokenizer, model, queue or network."

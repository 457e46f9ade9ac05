"""Tables of numbers: what a reader needs of a summary, with units. summary.csv has the rest."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import SummaryRow, bound_names
from inference_lab.pages.render import Markdown, interval, table
from inference_lab.records.samples import CELL_COLUMNS

_OF_LOADS = {  # what every page about loads shows: (metric, column of the summary), its name
    ("output_tokens_per_s", "median"): "output tokens",
    ("goodput_per_s", "median"): "goodput, requests",
    ("ttft", "p50_ms"): "TTFT P50",
    ("ttft", "p95_ms"): "TTFT P95",
    ("itl", "p50_ms"): "ITL P50",
    ("itl", "p95_ms"): "ITL P95",
    ("server_queue_mean", "median"): "mean time in the server's queue",
    ("peak_waiting", "median"): "most waiting at the server",
    ("peak_in_flight", "value"): "most in flight of one client",
    ("peak_step_batch", "value"): "largest batch of a step",
    ("mean_step_batch", "value"): "mean batch of a step",
    ("prefill_chunks_a_request", "median"): "steps per prompt",
    ("step", "p50_ms"): "step P50",
    ("prefix_cache_hits", "median"): "prompt tokens found in the prefix cache",
    ("preemptions", "median"): "preempted",
    ("warmup_ttft", "median"): "requests until TTFT is steady",
    ("warmup_itl", "median"): "requests until ITL is steady",
    ("kv_cache_tokens", "value"): "KV cache, reported by the server",
    ("kv_capacity_tokens", "value"): "KV cache, by the formula",
}

_OVER = {"median": "median of the loads", "value": "over all loads"}


def kind(rows: Sequence[SummaryRow]) -> str:
    """Return what a summary holds: metrics of loads (serving), timed cells (timing) or exact values."""
    return "serving" if "metric" in rows[0] else "timing" if "ratio_claimed" in rows[0] else "exact"


def numbers(rows: Sequence[SummaryRow], claims: Iterable[Mapping[str, Any]]) -> Markdown:
    """Return the numbers of a summary as tables."""
    if kind(rows) == "serving":
        return loads(rows, claims)
    return timings(rows) if kind(rows) == "timing" else exact(rows)


def timings(rows: Sequence[SummaryRow]) -> Markdown:
    """Return one line per timed cell; ratios are to the baseline in the same round."""
    keys = [name for name in CELL_COLUMNS if len({row[name] for row in rows}) > 1 or name == "path"]
    baseline, axis = rows[0]["baseline"], keys[-1]
    head = [*keys, "n", "P50, ms", "P95, ms", "positions/s", f"time / {baseline}", "claimed", "flags"]
    lines = [
        [
            *(row[name] for name in (*keys, "n")),
            *(interval(row, name) for name in ("p50_ms", "p95_ms", "positions_per_s")),
            *((interval(row, "ratio"), row["ratio_claimed"]) if row["ratio"] else ("1 (baseline)", "-")),
            row["flags"],
        ]
        for row in rows
    ]
    same = {f"{axis} {row[axis]}": interval(row, "aa_ratio") for row in rows if row["aa_ratio"]}
    words = "; ".join(f"{value} at {name}" for name, value in same.items())
    again = f"\n\nThe baseline over itself in the same round (A/A): {words}." if words else ""
    return Markdown(f"{compact(head, lines, kept=len(keys))}{again}")


def loads(rows: Sequence[SummaryRow], claims: Iterable[Mapping[str, Any]]) -> Markdown:
    """Return one table per value of the leading keys: a line per metric, a column per value of the last key.

    Shown are the metrics of every load, and those that the claims are about.
    """
    *groups, axis = list(rows[0])[: list(rows[0]).index("metric")]
    claimed = {
        (cell["metric"], str(claim["of"])): ""
        for claim in claims
        for cell in (claim.get("at", {}), claim.get("over", {}), *claim.get("cells", ()))
        if "metric" in cell and "of" in claim
    }
    wanted = {**_OF_LOADS, **{metric: "" for metric in claimed if metric not in _OF_LOADS}}
    tables: dict[str, list[SummaryRow]] = {}
    for row in rows:
        place = ", ".join(f"{name} {row[name]}" for name in groups)
        tables.setdefault(place, []).append(row)
    parts = [f"### {place}\n\n" * bool(place) + _load_table(of, axis, wanted) for place, of in tables.items()]
    return Markdown("\n\n".join(parts))


def _load_table(rows: Sequence[SummaryRow], axis: str, wanted: Mapping[tuple[str, str], str]) -> Markdown:
    values = list(dict.fromkeys(row[axis] for row in rows))
    found = {(row["metric"], row[axis]): row for row in rows}
    lines: list[list[str]] = []
    same: list[str] = []
    for (metric, column), name in wanted.items():
        of_metric = [row for value in values if (row := found.get((metric, value)))]
        cells = [_shown(found[metric, value], column) if (metric, value) in found else "" for value in values]
        if not any(cells):
            continue
        unit = of_metric[0]["unit"] if column in ("value", "median") else "ms"
        name = name or f"{metric.replace('_', ' ')}, {_OVER.get(column, column.removesuffix('_ms').upper())}"
        if len(values) > 1 and len(set(cells)) == 1 and "[" not in cells[0]:
            same.append(f"{name} {cells[0]} {unit}")
        else:
            counts = sorted({int(row["n"]) for row in of_metric})
            n = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
            lines.append([name, unit, n, *cells])
    flags = [
        " ".join(dict.fromkeys(r["flags"] for r in rows if r[axis] == value and r["flags"]))
        for value in values
    ]
    if any(flags):
        lines.append(["flags", "", "", *flags])
    head = ["", "unit", "n", *(f"{axis} {value}" for value in values)]
    words = f"\n\nThe same in every column: {'; '.join(same)}." if same else ""
    return Markdown(f"{table(lines, head)}{words}")


def _shown(row: SummaryRow, column: str) -> str:
    """Return a number with its interval where it has one that says more than the number."""
    value, (lo, hi) = row.number(column), row.interval(column)
    if value is None or (lo, hi) not in ((None, None), (value, value)):
        return with_interval(value, (lo, hi))
    return short(value)


def exact(rows: Sequence[SummaryRow]) -> Markdown:
    """Return counted or observed values; where the summary gives bounds, with these."""
    bounds = {bound for name in rows[0] for bound in bound_names(name)}
    hidden = ("flags", "advice", "config_repository", "config_path", "config_commit")
    columns = [name for name in rows[0] if name not in bounds and name not in hidden]
    lines = [[_exact(row, name) for name in columns] for row in rows]
    return compact(columns, lines, kept=1)


def _exact(row: SummaryRow, column: str) -> str:
    return interval(row, column) if bound_names(column)[0] in row else row[column]


def compact(head: Sequence[str], rows: Sequence[Sequence[str]], *, kept: int) -> Markdown:
    """Return a table without its constant columns, and a sentence that says what these hold.

    The first `kept` columns stay.
    """
    columns = list(zip(*rows, strict=True))
    constant = [
        at for at, column in enumerate(columns) if at >= kept and len(rows) > 1 and len(set(column)) == 1
    ]
    varied = [at for at in range(len(head)) if at not in constant]
    same = "; ".join(f"{head[at]} {columns[at][0] or 'none'}" for at in constant)
    text = table([[row[at] for at in varied] for row in rows], [head[at] for at in varied])
    return Markdown(f"{text}\n\nThe same in every row: {same}." if same else text)


def outliers(rows: Iterable[SummaryRow], about: Sequence[str], factor: float) -> list[str]:
    """Return, for each timed cell with a sample `factor` times its P50, which cell and how much."""
    found: list[str] = []
    for row in rows:
        most, p50 = (float(row[name] or 0) if name in row else 0.0 for name in ("max_ms", "p50_ms"))
        if "metric" not in row and p50 and most > factor * p50:
            cell = " ".join(f"{name}={row[name]}" for name in about if name in row)
            found.append(
                f"{cell}: the slowest sample took {short(most)} ms, {short(most / p50)} times the P50"
            )
    return found

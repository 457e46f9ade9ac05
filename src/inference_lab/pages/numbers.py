"""Tables of numbers: what a reader needs of a summary, with units. summary.csv has the rest."""

from collections.abc import Iterable, Mapping, Sequence

from inference_lab.analysis.statistics import short
from inference_lab.analysis.summary_table import SummaryRow, bound_names
from inference_lab.config.prediction import Claim
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


def numbers(rows: Sequence[SummaryRow], claims: Iterable[Claim]) -> Markdown:
    """Return the numbers of a summary as tables."""
    if kind(rows) == "serving":
        return loads(rows, claims)
    return timings(rows) if kind(rows) == "timing" else exact(rows)


def timings(rows: Sequence[SummaryRow]) -> Markdown:
    """Return one line per timed cell; ratios are to the baseline in the same round."""
    keys = [name for name in CELL_COLUMNS if len({row[name] for row in rows}) > 1 or name == "path"]
    axis = keys[-1]
    columns = {name: [row[name] for row in rows] for name in (*keys, "n")}
    for name, column in {"P50, ms": "p50_ms", "P95, ms": "p95_ms", "positions/s": "positions_per_s"}.items():
        columns[name] = [interval(row, column) for row in rows]
    columns[f"time / {rows[0]['baseline']}"] = [interval(row, "ratio") or "1 (baseline)" for row in rows]
    columns["claimed"] = [row["ratio_claimed"] if row["ratio"] else "-" for row in rows]
    columns["flags"] = [row["flags"] for row in rows]
    same = {f"{axis} {row[axis]}": interval(row, "aa_ratio") for row in rows if row["aa_ratio"]}
    words = "; ".join(f"{value} at {name}" for name, value in same.items())
    again = f"\n\nThe baseline over itself in the same round (A/A): {words}." if words else ""
    return Markdown(f"{compact(columns, kept=len(keys))}{again}")


def loads(rows: Sequence[SummaryRow], claims: Iterable[Claim]) -> Markdown:
    """Return one table per value of the leading keys: a line per metric, a column per value of the last key.

    Shown are the metrics of every load, and those that the claims are about.
    """
    *groups, axis = list(rows[0])[: list(rows[0]).index("metric")]
    wanted = dict(_OF_LOADS)
    for claim in claims:
        given = claim.given()
        for cell in (given.get("at", {}), given.get("over", {}), *given.get("cells", ())):
            if "metric" in cell and claim.of:
                wanted.setdefault((cell["metric"], claim.of), "")
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
        there = {value: row for value in values if (row := found.get((metric, value)))}
        cells = [_shown(there[value], column) if value in there else "" for value in values]
        if not any(cells):
            continue
        of_metric = list(there.values())
        unit = of_metric[0]["unit"] if column in _OVER else "ms"
        name = name or f"{metric.replace('_', ' ')}, {_OVER.get(column, column.removesuffix('_ms').upper())}"
        if len(values) > 1 and len(set(cells)) == 1 and "[" not in cells[0]:
            same.append(f"{name} {cells[0]} {unit}")
        else:
            counts = sorted({int(row["n"]) for row in of_metric})
            n = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
            lines.append([name, unit, n, *cells])
    flags = [{row["flags"]: None for row in rows if row[axis] == value and row["flags"]} for value in values]
    if any(flags):
        lines.append(["flags", "", "", *map(" ".join, flags)])
    head = ["", "unit", "n", *(f"{axis} {value}" for value in values)]
    words = f"\n\nThe same in every column: {'; '.join(same)}." if same else ""
    return Markdown(f"{table(lines, head)}{words}")


def _shown(row: SummaryRow, column: str) -> str:
    """Return a number with its interval where it has one that says more than the number."""
    value = row.number(column)
    if value is not None and row.interval(column) in ((None, None), (value, value)):
        return short(value)
    return interval(row, column)


def exact(rows: Sequence[SummaryRow]) -> Markdown:
    """Return counted or observed values; where the summary gives bounds, with these."""
    hidden = {"flags", "advice", "config_repository", "config_path", "config_commit"}
    hidden |= {bound for name in rows[0] for bound in bound_names(name)}
    columns = {
        name: [interval(row, name) if bound_names(name)[0] in row else row[name] for row in rows]
        for name in rows[0]
        if name not in hidden
    }
    return compact(columns, kept=1)


def compact(columns: Mapping[str, Sequence[str]], *, kept: int) -> Markdown:
    """Return a table without its constant columns, and a sentence that says what these hold.

    The first `kept` columns stay.
    """
    same = {
        name: column[0] or "none"
        for name, column in list(columns.items())[kept:]
        if len(column) > 1 and len(set(column)) == 1
    }
    varied = {name: column for name, column in columns.items() if name not in same}
    text = table(zip(*varied.values(), strict=True), list(varied))
    words = "; ".join(f"{name} {value}" for name, value in same.items())
    return Markdown(f"{text}\n\nThe same in every row: {words}." if same else text)

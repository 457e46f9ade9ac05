"""What client, server and engine each report over the varied axis of a served system, as small multiples.

Answers: what grows, what stays, and do both sides agree?
"""

from typing import NamedTuple

from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import READ_INTERVAL, Axis, Panel, Point, Series, draw_panels, estimate_of
from inference_lab.figures.style import INK, MARKS, Figure, Line, Mark, drawing, flag_lines
from inference_lab.records.record import varied


class _Metric(NamedTuple):
    """What a metric is called beside the panel, the mark of who reports it, its name and column."""

    label: str
    mark: Mark
    name: str
    column: str = "median"


class _Quantity(NamedTuple):
    """The metrics over one vertical axis, logarithmic if need be; `rare`: left out where all are 0."""

    label: str
    metrics: tuple[_Metric, ...]
    log: bool = False
    rare: bool = False


_CLIENT, _HIGH, _SERVER, _SCRAPED, _ENGINE, _MOST = MARKS
_QUANTITIES = (
    _Quantity("TTFT\nms", (_Metric("client: P50", _CLIENT, "ttft", "p50_ms"),
                           _Metric("client: P95", _HIGH, "ttft", "p95_ms"),
                           _Metric("server: mean", _SERVER, "server_ttft_mean")), log=True),
    _Quantity("ITL\nms", (_Metric("client: P50", _CLIENT, "itl", "p50_ms"),
                          _Metric("client: P95", _HIGH, "itl", "p95_ms"),
                          _Metric("server: mean", _SERVER, "server_itl_mean")), log=True),
    _Quantity("output\ntokens/s", (_Metric("client", _CLIENT, "output_tokens_per_s"),)),
    _Quantity("goodput\nrequests/s", (_Metric("client", _CLIENT, "goodput_per_s"),)),
    _Quantity("queue of\nserver, ms", (_Metric("server: mean", _SERVER, "server_queue_mean"),)),
    _Quantity("requests", (_Metric("client: most in flight", _HIGH, "peak_in_flight"),
                           _Metric("scrapes: most waiting", _SCRAPED, "peak_waiting"),
                           _Metric("engine: mean of its steps", _ENGINE, "mean_step_batch", "value"),
                           _Metric("engine: most in a step", _MOST, "peak_step_batch", "value"))),
    _Quantity("prefill\ntokens/step", (_Metric("engine: mean", _ENGINE, "step_prefill_tokens_mean"),
                                       _Metric("engine: most", _MOST, "step_prefill_tokens_peak"))),
    _Quantity("prefix hits\ntokens", (_Metric("server", _SERVER, "prefix_cache_hits"),), rare=True),
    _Quantity("step\nms", (_Metric("engine: P50", _ENGINE, "step", "p50_ms"),
                           _Metric("engine: P95", _MOST, "step", "p95_ms")), log=True),
)  # fmt: skip
_CACHE = (  # shown where the size of the cache is varied
    _Quantity("KV tokens", (_Metric("server's log", _SERVER, "kv_cache_tokens", "value"),
                            _Metric("capacity formula", Mark(INK, "x", ""), "kv_capacity_tokens", "value"))),
    _Quantity("preempted\nrequests", (_Metric("server", _SERVER, "preemptions"),), rare=True),
)  # fmt: skip


@drawing
def draw(view: View) -> Figure:
    """Draw a panel for each quantity, a column for each value of the axis, a mark for who reports it.

    Raises RecordError when the summary has nothing over the varied axis.
    """
    name, values = varied(view.record.manifest)
    columns = [str(value) for value in values]
    quantities = (*(_CACHE if name == "kv_cache_gib" else ()), *_QUANTITIES)
    panels = [panel for quantity in quantities if (panel := _panel(view, quantity, name, columns))]
    if not panels:
        raise RecordError(f"{view.record.experiment}: summary.csv has nothing to draw over {name}")
    conditions = view.record.manifest["conditions"]
    fixed = ", ".join(f"{of} {at}" for of, at in conditions["fixed"].items() if of not in (name, "seed"))
    loads = "1 load" if conditions["rounds"] == 1 else f"{conditions['rounds']} loads"
    foot = Line(f"{conditions['server']['kind']} server; {fixed}; {loads} per server.")
    flags = flag_lines(code for row in view.summary for code in row["flags"].split())
    head = "Times over all requests, tokens or steps of a value; other numbers: median over its loads."
    axis, title = (
        Axis(name, columns, range(len(columns)), spread=0.5),
        "what client, server and engine report",
    )
    return draw_panels(view, axis, panels, f"{title}, over {name}", f"{head} {READ_INTERVAL}", foot, *flags)[
        0
    ]


def _panel(view: View, quantity: _Quantity, axis: str, columns: list[str]) -> Panel | None:
    """The panel of a quantity; None where the summary has no number of it."""
    rows = {(row["metric"], row.get(axis)): row for row in view.summary}
    series: list[Series] = []
    for lane, metric in enumerate(quantity.metrics):
        found = [(column, rows.get((metric.name, value))) for column, value in enumerate(columns)]
        estimates = [(column, estimate_of(row, metric.column)) for column, row in found if row]
        if points := [(column, Point(estimate)) for column, estimate in estimates if estimate]:
            series.append(Series(metric.label, metric.mark, points, (lane, len(quantity.metrics))))
    numbers = Panel("", series, 0).values()
    if not (any(numbers) if quantity.rare else numbers):
        return None
    is_log = quantity.log and min(numbers) > 0
    return Panel(quantity.label, series, 86, log=None if is_log else False, also=[] if is_log else [1.0])

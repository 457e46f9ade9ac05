"""What client, server and engine each report over the varied axis of a served system, as small multiples.

Answers: what grows, what stays, and do both sides agree?
"""

from dataclasses import dataclass

from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import READ_INTERVAL, Axis, Panel, Point, Series, draw_panels, estimate_of
from inference_lab.figures.style import INK, MARKS, Figure, Line, Mark, drawing, flag_lines
from inference_lab.records.record import varied


@dataclass(frozen=True, slots=True)
class _Metric:
    """A column of a metric, and what it is called beside the panel; the mark shows who reports it."""

    label: str
    mark: Mark
    name: str
    column: str = "median"


@dataclass(frozen=True, slots=True)
class _Quantity:
    """The metrics over one vertical axis; `log` as in `style.scale`, `rare`: left out where all are 0."""

    label: str
    metrics: tuple[_Metric, ...]
    log: bool | None = False
    rare: bool = False


_CLIENT, _HIGH, _SERVER, _SCRAPED, _ENGINE, _MOST = MARKS
_FORMULA = Mark(INK, "x", "")
QUANTITIES = (
    _Quantity("TTFT\nms", (_Metric("client: P50", _CLIENT, "ttft", "p50_ms"),
                           _Metric("client: P95", _HIGH, "ttft", "p95_ms"),
                           _Metric("server: mean", _SERVER, "server_ttft_mean")), log=None),
    _Quantity("ITL\nms", (_Metric("client: P50", _CLIENT, "itl", "p50_ms"),
                          _Metric("client: P95", _HIGH, "itl", "p95_ms"),
                          _Metric("server: mean", _SERVER, "server_itl_mean")), log=None),
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
                           _Metric("engine: P95", _MOST, "step", "p95_ms")), log=None),
)  # fmt: skip
CACHE = (  # shown where the size of the cache is varied
    _Quantity("KV tokens", (_Metric("server's log", _SERVER, "kv_cache_tokens", "value"),
                            _Metric("capacity formula", _FORMULA, "kv_capacity_tokens", "value"))),
    _Quantity("preempted\nrequests", (_Metric("server", _SERVER, "preemptions"),), rare=True),
)  # fmt: skip


@drawing
def draw(view: View) -> Figure:
    """Draw a panel for each quantity, a column for each value of the axis, a mark for who reports it.

    Raises RecordError when the summary has nothing over the varied axis.
    """
    name, values = varied(view.record.manifest)
    columns = [str(value) for value in values]
    quantities = (*(CACHE if name == "kv_cache_gib" else ()), *QUANTITIES)
    panels = [panel for quantity in quantities if (panel := _panel(view, quantity, name, columns))]
    if not panels:
        raise RecordError(f"{view.record.experiment}: summary.csv has nothing to draw over {name}")
    head = (
        "Times over all requests, tokens or steps of a value; other numbers: median over its loads."
        f" {READ_INTERVAL}"
    )
    foot = [
        Line(_conditions(view, name)),
        *flag_lines(c for row in view.summary for c in row["flags"].split()),
    ]
    axis = Axis(name, columns, range(len(columns)), spread=0.5)
    title = f"what client, server and engine report, over {name}"
    figure, _ = draw_panels(view, axis, panels, title, head, *foot)
    return figure


def _panel(view: View, quantity: _Quantity, axis: str, columns: list[str]) -> Panel | None:
    """The panel of a quantity; None where the summary has no number of it."""
    rows = {(row["metric"], row.get(axis)): row for row in view.summary}
    series: list[Series] = []
    for lane, metric in enumerate(quantity.metrics):
        found = [(column, rows.get((metric.name, value))) for column, value in enumerate(columns)]
        estimates = [(column, estimate_of(row, metric.column)) for column, row in found if row]
        points = [Point(column, estimate) for column, estimate in estimates if estimate]
        if points:
            lanes = lane, len(quantity.metrics)
            series.append(Series(metric.label, metric.mark, points, lanes))
    panel = Panel(quantity.label, series, 86, quantity.log)
    if not any(panel.values()) if quantity.rare else not series:
        return None
    if quantity.log is None and min(panel.values()) > 0:
        return panel
    return Panel(quantity.label, series, 86, log=False, also=[1.0])


def _conditions(view: View, axis: str) -> str:
    conditions = view.record.manifest["conditions"]
    fixed = [f"{name} {value}" for name, value in conditions["fixed"].items() if name not in (axis, "seed")]
    loads = "1 load" if conditions["rounds"] == 1 else f"{conditions['rounds']} loads"
    return f"{conditions['server']['kind']} server; {', '.join(fixed)}; {loads} per server."

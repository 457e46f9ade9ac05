"""What client, server and engine each say over the varied axis of a served system, as small multiples.

Answers: what grows, what stays, and do both sides tell the same story?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inference_lab.analysis.summary_table import Row, View, bounds, number
from inference_lab.errors import RecordError
from inference_lab.figures.style import ALARM, INK, MARKS, SMALL, Axes, Line, Mark, page, scale, styled, svg


@dataclass(frozen=True, slots=True)
class Series:
    """A column of a metric, and as whose word it is drawn (a key of WHOSE)."""

    whose: str
    metric: str
    column: str = "median"


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn over one vertical axis; `log` as in `style.scale`, `rare`: left out when all is 0."""

    label: str
    series: tuple[Series, ...]
    log: bool | None = False
    rare: bool = False


WHOSE: dict[str, Mark] = dict(
    zip(
        ("client: P50 or median", "client: P95 or most in flight", "server: mean",
         "server: most waiting in a scrape",
         "engine: mean or P50 of its steps", "engine: most or P95 of its steps", "capacity formula"),
        (*MARKS, Mark(INK, "x", "")),
        strict=True,
    )
)  # fmt: skip
_MID, _HIGH, _SERVER, _SCRAPED, _STEPS, _MOST, _FORMULA = WHOSE
PANELS = (
    Panel("TTFT\nms", (Series(_MID, "ttft", "p50_ms"), Series(_HIGH, "ttft", "p95_ms"),
                       Series(_SERVER, "server_ttft_mean")), log=None),
    Panel("ITL\nms", (Series(_MID, "itl", "p50_ms"), Series(_HIGH, "itl", "p95_ms"),
                      Series(_SERVER, "server_itl_mean")), log=None),
    Panel("output\ntokens/s", (Series(_MID, "output_tokens_per_s"),)),
    Panel("goodput\nrequests/s", (Series(_MID, "goodput_per_s"),)),
    Panel("queue of\nserver, ms", (Series(_SERVER, "server_queue_mean"),)),
    Panel("requests", (Series(_HIGH, "peak_in_flight"),
                       Series(_SCRAPED, "peak_waiting"),
                       Series(_STEPS, "mean_step_batch", "value"),
                       Series(_MOST, "peak_step_batch", "value"))),
    Panel("prefill\ntokens/step", (Series(_STEPS, "step_prefill_tokens_mean"),
                                   Series(_MOST, "step_prefill_tokens_peak"))),
    Panel("prefix hits\ntokens", (Series(_SERVER, "prefix_cache_hits"),), rare=True),
    Panel("step\nms", (Series(_STEPS, "step", "p50_ms"), Series(_MOST, "step", "p95_ms")), log=None),
)  # fmt: skip
CACHE = (  # shown where the size of the cache is varied
    Panel("KV tokens", (Series(_SERVER, "kv_cache_tokens", "value"),
                               Series(_FORMULA, "kv_capacity_tokens", "value"))),
    Panel("preempted\nrequests", (Series(_SERVER, "preemptions"),), rare=True),
)  # fmt: skip
_TALL = 86

Cells = Mapping[tuple[str, str], Row]  # by metric and value of the axis


@styled()
def draw(view: View) -> str:
    """SVG: a panel a quantity, a column a value of the axis, a mark for whose word it is.

    Raises RecordError when the summary has no column of the varied axis.
    """
    vary: Mapping[str, Sequence[object]] = view.record.manifest["conditions"]["vary"]
    axis, values = next(iter(vary.items()))
    if axis not in view.summary[0]:
        raise RecordError(f"{view.record.experiment}: summary.csv has no column {axis}; draw a sweep")
    cells = {(row["metric"], row[axis]): row for row in view.summary}
    columns = [str(value) for value in values]
    shown = _known((*CACHE, *PANELS) if axis == "kv_cache_gib" else PANELS, cells, columns)
    if not shown:
        raise RecordError(f"{view.record.experiment}: summary.csv has nothing to draw over {axis}")
    named = {series.whose for panel in shown for series in panel.series}
    legend = {name: mark for name, mark in WHOSE.items() if name in named}
    head = (
        "Times over all requests, tokens or steps of a value; other numbers: median over its loads."
        " Bars: 95% interval; an end that n cannot bound is left open."
    )
    codes = dict.fromkeys(code for row in view.summary for code in row["flags"].split())
    foot = [Line(_conditions(view, axis))]
    foot += [Line(f"⚑ flagged, no claim is made: {', '.join(codes)}", SMALL, ALARM, "bold")] * bool(codes)
    figure, panels = page(
        view, legend, [_TALL] * len(shown), f"what client, server and engine say, over {axis}", head, *foot
    )
    for at, what in zip(panels, shown, strict=True):
        _draw(at, what, cells, columns)
        at.set_xticks(range(len(columns)), columns if at is panels[-1] else [""] * len(columns))
        at.set_xlim(-0.5, len(columns) - 0.5)
    panels[-1].set_xlabel(axis)
    return svg(figure, view)


def _known(panels: Sequence[Panel], cells: Cells, columns: Sequence[str]) -> list[Panel]:
    """The panels for which the summary has a number."""

    def has(panel: Panel) -> bool:
        rows = [cells.get((series.metric, value)) for series in panel.series for value in columns]
        numbers = [row[s.column] for s in panel.series for row in rows if row and row["metric"] == s.metric]
        return any(number and (number != "0" or not panel.rare) for number in numbers)

    return list(filter(has, panels))


def _conditions(view: View, axis: str) -> str:
    conditions = view.record.manifest["conditions"]
    says = [f"{name} {value}" for name, value in conditions["fixed"].items() if name not in (axis, "seed")]
    loads = "1 load" if conditions["rounds"] == 1 else f"{conditions['rounds']} loads"
    return f"{conditions['server']['kind']} server; {', '.join(says)}; {loads} a server."


def _draw(panel: Axes, what: Panel, cells: Cells, columns: Sequence[str]) -> None:
    seen: list[float] = []
    for place, series in enumerate(what.series):
        mark, xs, ys = WHOSE[series.whose], list[float](), list[float]()
        for at, value in enumerate(columns):
            row = cells.get((series.metric, value))
            where = f"{series.metric} at {value}"
            if row is None or (y := number(row, series.column, where)) is None:
                continue
            x = at + 0.16 * (place - (len(what.series) - 1) / 2)
            lo, hi = (y if end is None else end for end in bounds(row, series.column, where))
            panel.plot([x, x], [lo, hi], color=mark.color, linewidth=1.4)
            _point(panel, mark, x, y, f"{series.metric}-{series.column}-{value}")
            xs, ys, seen = [*xs, x], [*ys, y], [*seen, y, lo, hi]
        panel.plot(xs, ys, color=mark.color, linestyle=mark.line, linewidth=0.8, alpha=0.7)
    log = what.log if min(seen) > 0 else False
    scale(panel, [*seen, *([1.0] if log is False else [])], what.label, log=log)


def _point(panel: Axes, mark: Mark, x: float, y: float, gid: str) -> None:
    panel.plot([x], [y], mark.marker, color=mark.color, markersize=4.5, gid=gid)

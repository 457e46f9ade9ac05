"""Every request of fresh servers in order, from the first one on: what is warm-up, what the steady state?"""

from inference_lab.analysis.load_runs import runs_of
from inference_lab.analysis.metrics import ITL, TTFT
from inference_lab.analysis.server_metrics import STEADY_QUANTILE, by_fresh_server, steady_below, warmup
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import Axis, Panel, Point, Series, draw_panels
from inference_lab.figures.style import MARKS, Figure, Line, Mark, drawing


@drawing
def draw(view: View) -> Figure:
    """Draw TTFT and mean ITL of each request over how many its server had before, a mark for each server.

    Raises RecordError when no server was watched from its first request on, or more than marks tell apart.
    """
    runs = runs_of(view.record, steady=False)
    found = {metric.name: by_fresh_server(runs, metric) for metric in (TTFT, ITL)}
    servers = list(found["ttft"])
    if not 0 < len(servers) <= len(MARKS):
        watched = f"{len(servers)} servers were watched from their first request on"
        raise RecordError(f"{view.record.experiment}: {watched}, this figure shows 1 to {len(MARKS)}")
    marks = {server: Mark(mark.color, mark.marker, "") for server, mark in zip(servers, MARKS, strict=False)}
    panels: list[Panel] = []
    foot: list[Line] = []
    for (name, times), label in zip(found.items(), ("TTFT\nms", "mean ITL\nms"), strict=True):
        series = [
            Series("", marks[server], [(before, Point(samples=[ns / 1e6])) for before, ns in pairs])
            for server, pairs in times.items()
        ]
        is_log = all(ns > 0 for pairs in times.values() for _, ns in pairs)
        panels.append(Panel(label, series, 170, log=None if is_log else False))
        counts = {server: warmup([ns for _, ns in pairs]) for server, pairs in times.items()}
        words = ", ".join(f"server {server} {'?' if n is None else n}" for server, n in counts.items())
        foot.append(Line(f"warmup_{name}, requests of warm-up: {words}."))
    head = (
        f"Every request. Dotted: P{100 * STEADY_QUANTILE:.0f} of the second half of each server's requests;"
        " the first ones in a row above it are its warm-up."
    )
    numbers = range(1, 2 + max(before for pairs in found["ttft"].values() for before, _ in pairs))
    axis = Axis("request of the server, in order of arrival", numbers, numbers, spread=1, ticks=False)
    legend = {f"server {server}": mark for server, mark in marks.items()}
    title = "from the first request of a fresh server"
    figure, drawn = draw_panels(view, axis, panels, title, head, *foot, legend=legend)
    for axes, panel in zip(drawn, panels, strict=True):
        for series in panel.series:
            bound = steady_below([ms for _, point in series.points for ms in point.samples])
            if bound is not None:
                axes.axhline(bound, color=series.mark.color, linestyle=(0, (1, 2)), linewidth=0.9)
    return figure

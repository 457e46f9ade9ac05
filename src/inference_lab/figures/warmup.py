"""Every request of fresh servers in order, from the first one on: what is warm-up, what the steady state?"""

from collections.abc import Mapping

from inference_lab.analysis.load_runs import runs_of
from inference_lab.analysis.metrics import ITL, TTFT
from inference_lab.analysis.server_metrics import STEADY_QUANTILE, by_fresh_server, steady_below, warmup
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.style import MARKS, Line, Mark, page, scale, styled, svg

_LABELS = {"ttft": "TTFT\nms", "itl": "mean ITL\nms"}


@styled()
def draw(view: View) -> str:
    """SVG: TTFT and mean ITL of each request over how many its server had before, a mark a server.

    Raises RecordError when no server was watched from its first request on, or more than marks tell apart.
    """
    runs = runs_of(view.record, steady=False)
    metrics = (TTFT, ITL)
    found = {metric.name: by_fresh_server(runs, metric) for metric in metrics}
    servers = list(found["ttft"])
    if not 0 < len(servers) <= len(MARKS):
        raise RecordError(
            f"{view.record.experiment}: {len(servers)} servers were watched from their first request on,"
            f" this figure shows 1 to {len(MARKS)}"
        )
    legend: Mapping[str, Mark] = {
        f"server {server}": Mark(mark.color, mark.marker, "")
        for server, mark in zip(servers, MARKS, strict=False)
    }
    head = (
        f"Every request. Dotted: P{100 * STEADY_QUANTILE:.0f} of the second half of each server's requests;"
        " the first ones in a row above it are its warm-up."
    )
    foot = [
        Line(f"warmup_{metric.name}, requests of warm-up: {_warmups(found[metric.name])}.")
        for metric in metrics
    ]
    figure, panels = page(view, legend, [170, 170], "from the first request of a fresh server", head, *foot)
    for panel, metric in zip(panels, metrics, strict=True):
        seen: list[float] = []
        for (server, times), mark in zip(found[metric.name].items(), MARKS, strict=False):
            values = [value / 1e6 for _, value in times]
            panel.plot(
                [number + 1 for number, _ in times], values, mark.marker, color=mark.color, markersize=3,
                alpha=0.8, gid=f"{metric.name}-server-{server}",
            )  # fmt: skip
            if (bound := steady_below(values)) is not None:
                panel.axhline(bound, color=mark.color, linestyle=(0, (1, 2)), linewidth=0.9)
            seen += values
        scale(panel, seen, _LABELS[metric.name], log=None if min(seen) > 0 else False)
        if panel is not panels[-1]:
            panel.tick_params(labelbottom=False)
    panels[-1].set_xlabel("request of the server, in order of arrival")
    return svg(figure, view)


def _warmups(servers: Mapping[int, list[tuple[int, float]]]) -> str:
    counts = {server: warmup([value for _, value in times]) for server, times in servers.items()}
    return ", ".join(f"server {server} {'?' if n is None else n}" for server, n in counts.items())

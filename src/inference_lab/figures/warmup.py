"""Every request of fresh servers in order, from the first one on: what is warm-up, what the steady state?"""

from collections.abc import Iterable, Mapping, Sequence

from inference_lab.analysis.load_runs import runs_of
from inference_lab.analysis.metrics import ITL, TTFT
from inference_lab.analysis.server_metrics import STEADY_QUANTILE, by_fresh_server, steady_below, warmup
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import Axis, Panel, Point, Series, draw_panels
from inference_lab.figures.style import MARKS, Figure, Line, Mark, drawing

LABELS = {"ttft": "TTFT\nms", "itl": "mean ITL\nms"}
Pairs = Sequence[tuple[int, float]]  # requests that the server had before, ms


@drawing
def draw(view: View) -> Figure:
    """Draw TTFT and mean ITL of each request over how many its server had before, a mark for each server.

    Raises RecordError when no server was watched from its first request on, or more than marks tell apart.
    """
    runs = runs_of(view.record, steady=False)
    times = {
        metric.name: {
            server: [(before, ns / 1e6) for before, ns in pairs]
            for server, pairs in by_fresh_server(runs, metric).items()
        }
        for metric in (TTFT, ITL)
    }
    servers = list(times["ttft"])
    if not 0 < len(servers) <= len(MARKS):
        raise RecordError(
            f"{view.record.experiment}: {len(servers)} servers were watched from their first request on,"
            f" this figure shows 1 to {len(MARKS)}"
        )
    marks = {server: Mark(mark.color, mark.marker, "") for server, mark in zip(servers, MARKS, strict=False)}
    panels = [_panel(LABELS[name], of_servers, marks) for name, of_servers in times.items()]
    head = (
        f"Every request. Dotted: P{100 * STEADY_QUANTILE:.0f} of the second half of each server's requests;"
        " the first ones in a row above it are its warm-up."
    )
    foot = [
        Line(f"warmup_{name}, requests of warm-up: {_warmups(servers)}.") for name, servers in times.items()
    ]
    numbers = range(1, 2 + max(before for pairs in times["ttft"].values() for before, _ in pairs))
    axis = Axis("request of the server, in order of arrival", numbers, numbers, spread=1, ticks=False)
    legend = {f"server {server}": mark for server, mark in marks.items()}
    title = "from the first request of a fresh server"
    figure, drawn = draw_panels(view, axis, panels, title, head, *foot, legend=legend)
    for axes, of_servers in zip(drawn, times.values(), strict=True):
        for server, pairs in of_servers.items():
            if (bound := steady_below(_values([pairs]))) is not None:
                axes.axhline(bound, color=marks[server].color, linestyle=(0, (1, 2)), linewidth=0.9)
    return figure


def _panel(label: str, servers: Mapping[int, Pairs], marks: Mapping[int, Mark]) -> Panel:
    series = [
        Series(f"server {server}", marks[server], [Point(before, samples=[ms]) for before, ms in pairs])
        for server, pairs in servers.items()
    ]
    return Panel(label, series, 170, log=None if min(_values(servers.values())) > 0 else False)


def _values(servers: Iterable[Pairs]) -> list[float]:
    return [ms for pairs in servers for _, ms in pairs]


def _warmups(servers: Mapping[int, Pairs]) -> str:
    counts = {server: warmup(_values([pairs])) for server, pairs in servers.items()}
    return ", ".join(f"server {server} {'?' if n is None else n}" for server, n in counts.items())

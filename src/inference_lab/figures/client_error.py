"""How far the load client's times are from the server's, how late it is, and what a token costs it.

Answers: up to how many streams may its times be believed, and with which stamps?
"""

from collections.abc import Mapping, Sequence

from inference_lab.analysis.summary_table import Row, View, bounds, number
from inference_lab.errors import RecordError
from inference_lab.figures.style import ALARM, MARKS, SMALL, Axes, Line, Mark, page, scale, styled, svg

TIMES = {
    "token_error": "ITL error\nms",
    "ttft_error": "TTFT error\nms",
    "client_lag": "read late\nms",
    "slip": "sent late\nms",
}
OF_RUNS = {"coalesced": "coalesced\n% of chunks", "client_cpu_a_token": "CPU\nµs a token"}
PATHS = {
    "kernel": "stamps of the kernel",
    "user": "stamps of the read",
    "open_loop": "stamps of the kernel, open loop",
}
LEAST = 1e-6  # ms: one ns, where a logarithm asks for more than nothing

Cells = Mapping[tuple[str, str, int], Row]  # by metric, path, streams


@styled()
def draw(view: View) -> str:
    """SVG: one panel a metric, one column a number of streams, one mark a path.

    Raises RecordError when the summary is not of a calibration.
    """
    if not {"path", "streams"} <= set(view.summary[0]):
        raise RecordError(f"{view.record.experiment}: no columns path and streams; draw a calibration")
    cells = {(row["metric"], row["path"], int(row["streams"])): row for row in view.summary}
    streams = sorted({count for _, _, count in cells})
    measured = {path for _, path, _ in cells}
    marks = dict(zip([path for path in PATHS if path in measured], MARKS, strict=False))
    shown = [name for name in (*TIMES, *OF_RUNS) if any(metric == name for metric, _, _ in cells)]
    head = (
        "Times over all rounds: from P50 (bar's foot) to P99 (mark). Per cent and CPU: median of the rounds."
        " Thin bars: 95% interval of the mark; an end that n cannot bound is left open."
    )
    codes = dict.fromkeys(code for row in view.summary for code in row["flags"].split())
    foot = [Line(f"⚑ flagged, no claim is made: {', '.join(codes)}", SMALL, ALARM, "bold")] * bool(codes)
    legend = {PATHS[path]: mark for path, mark in marks.items()}
    heights = [110 if name.endswith("_error") else 70 for name in shown]
    figure, panels = page(view, legend, heights, "how far the client is from the truth", head, *foot)
    for panel, name in zip(panels, shown, strict=True):
        _draw(panel, name, cells, streams, marks)
        panel.set_xticks(range(len(streams)), [str(n) if panel is panels[-1] else "" for n in streams])
        panel.set_xticks([at + 0.5 for at in range(len(streams) - 1)], minor=True)
        panel.tick_params(axis="x", which="minor", length=0)
        panel.grid(axis="x", which="minor")
        panel.set_xlim(-0.5, len(streams) - 0.5)
    panels[-1].set_xlabel("streams at once")
    return svg(figure, view)


def _draw(panel: Axes, name: str, cells: Cells, streams: Sequence[int], marks: Mapping[str, Mark]) -> None:
    seen: list[float] = []
    column = "p99_ms" if name in TIMES else "median"
    for number_of, (path, mark) in enumerate(marks.items()):
        for at, count in enumerate(streams):
            if (row := cells.get((name, path, count))) is None:
                continue
            place = f"{name} of {path} at {count} streams"
            x = at + 0.22 * (number_of - (len(marks) - 1) / 2)
            value = max(number(row, column, place) or 0.0, LEAST)
            lo, hi = (value if end is None else max(end, LEAST) for end in bounds(row, column, place))
            if name in TIMES:
                foot = max(number(row, "p50_ms", place) or 0.0, LEAST)
                panel.plot(
                    [x, x], [foot, value], color=mark.color, linewidth=5, alpha=0.25, solid_capstyle="butt"
                )
                seen.append(foot)
            panel.plot([x, x], [lo, hi], color=mark.color, linewidth=1)
            panel.plot(
                [x], [value], mark.marker, color=mark.color, markersize=5, gid=f"{name}-{path}-{count}"
            )
            seen += [value, lo, hi]
    if name in TIMES:
        scale(panel, seen, TIMES[name], log=True)
    else:
        scale(panel, [*seen, 1.0], OF_RUNS[name], log=False)

"""How far the load client's times are from the server's, how late it is, and what a token costs it.

Answers: up to how many streams may its times be believed, and with which stamps?
"""

from collections.abc import Iterator
from dataclasses import replace

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import READ_INTERVAL, Axis, Panel, Point, Series, draw_panels, estimate_of
from inference_lab.figures.style import MARKS, Figure, drawing, flag_lines

TIMES = {
    "token_error": "ITL error\nms",
    "ttft_error": "TTFT error\nms",
    "client_lag": "read late\nms",
    "slip": "sent late\nms",
}
OF_RUNS = {"coalesced": "coalesced\n% of chunks", "client_cpu_a_token": "CPU\nµs per token"}
PATHS = {
    "kernel": "stamps of the kernel",
    "user": "stamps of the read",
    "open_loop": "stamps of the kernel, open loop",
}
LEAST = 1e-6  # ms: one ns, because a logarithmic axis has no 0


@drawing
def draw(view: View) -> Figure:
    """Draw one panel for each metric, one column for each number of streams, one mark for each path.

    Raises RecordError when the summary is not of a calibration.
    """
    if not {"path", "streams"} <= set(view.summary[0]):
        raise RecordError(f"{view.record.experiment}: no columns path and streams; draw a calibration")
    rows = {(row["metric"], row["path"], int(row["streams"])): row for row in view.summary}
    streams = sorted({count for _, _, count in rows})
    paths = [path for path in PATHS if any(path == measured for _, measured, _ in rows)]
    marks = dict(zip(paths, MARKS, strict=False))

    def point(metric: str, path: str, column: int) -> Iterator[Point]:
        row = rows.get((metric, path, streams[column]))
        if row is None:
            return
        if metric in OF_RUNS:
            yield Point(column, estimate_of(row, "median"))
        elif (top := estimate_of(row, "p99_ms")) and (foot := estimate_of(row, "p50_ms")):
            yield Point(column, _at_least(top), foot=max(foot.value, LEAST))

    panels: list[Panel] = []
    for metric, label in (TIMES | OF_RUNS).items():
        series = [
            Series(PATHS[path], marks[path], points, (lane, len(paths)), joined=False)
            for lane, path in enumerate(paths)
            if (points := [one for column in range(len(streams)) for one in point(metric, path, column)])
        ]
        if series:
            height, is_time = 110 if metric.endswith("_error") else 70, metric in TIMES
            panels.append(Panel(label, series, height, log=is_time, also=[] if is_time else [1.0]))
    head = (
        "Times over all rounds: from P50 (bar's foot) to P99 (mark). Per cent and CPU: median of the rounds."
        f" {READ_INTERVAL.replace('Bars', 'Thin bars')}"
    )
    foot = flag_lines(code for row in view.summary for code in row["flags"].split())
    axis = Axis("streams at once", streams, range(len(streams)), spread=0.22 * len(paths))
    legend = {PATHS[path]: mark for path, mark in marks.items()}
    title = "how far the client is from the truth"
    figure, _ = draw_panels(view, axis, panels, title, head, *foot, legend=legend)
    return figure


def _at_least(estimate: Estimate) -> Estimate:
    lo, hi = (None if bound is None else max(bound, LEAST) for bound in estimate.bounds[1:])
    return replace(estimate, value=max(estimate.value, LEAST), lo=lo, hi=hi)

"""How far the load client's times are from the server's, how late it is, and what a token costs it.

Answers: up to how many streams may its times be believed, and with which stamps?
"""

from dataclasses import replace

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import READ_INTERVAL, Axis, Panel, Point, Series, draw_panels, estimate_of
from inference_lab.figures.style import MARKS, Figure, drawing, flag_lines

PANELS = {  # metric: label, height
    "token_error": ("ITL error\nms", 110),
    "ttft_error": ("TTFT error\nms", 110),
    "client_lag": ("read late\nms", 70),
    "slip": ("sent late\nms", 70),
    "coalesced": ("coalesced\n% of chunks", 70),
    "client_cpu_a_token": ("CPU\nµs per token", 70),
}
OF_RUNS = ("coalesced", "client_cpu_a_token")  # one value per round; the others are times
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
    if "streams" not in view.summary[0]:
        raise RecordError(f"{view.record.experiment}: no columns path and streams; draw a calibration")
    rows = {(row["metric"], row["path"], int(row["streams"])): row for row in view.summary}
    streams = sorted({count for _, _, count in rows})
    measured = {path for _, path, _ in rows}
    marks = dict(zip((path for path in PATHS if path in measured), MARKS, strict=False))

    def points(metric: str, path: str) -> list[tuple[int, Point]]:
        found = [(column, rows.get((metric, path, count))) for column, count in enumerate(streams)]
        if metric in OF_RUNS:
            return [(column, Point(estimate_of(row, "median"))) for column, row in found if row]
        return [
            (column, Point(_at_least(top), foot=max(foot.value, LEAST)))
            for column, row in found
            if row and (top := estimate_of(row, "p99_ms")) and (foot := estimate_of(row, "p50_ms"))
        ]

    panels: list[Panel] = []
    for metric, (label, height) in PANELS.items():
        series = [
            Series(PATHS[path], mark, some, (lane, len(marks)), joined=False)
            for lane, (path, mark) in enumerate(marks.items())
            if (some := points(metric, path))
        ]
        if series:
            is_time = metric not in OF_RUNS
            panels.append(Panel(label, series, height, log=is_time, also=[] if is_time else [1.0]))
    head = (
        "Times over all rounds: from P50 (bar's foot) to P99 (mark). Per cent and CPU: median of the rounds."
        f" {READ_INTERVAL.replace('Bars', 'Thin bars')}"
    )
    foot = flag_lines(code for row in view.summary for code in row["flags"].split())
    axis = Axis("streams at once", streams, range(len(streams)), spread=0.22 * len(marks))
    legend = {PATHS[path]: mark for path, mark in marks.items()}
    title = "how far the client is from the truth"
    return draw_panels(view, axis, panels, title, head, *foot, legend=legend)[0]


def _at_least(estimate: Estimate) -> Estimate:
    lo, hi = (None if bound is None else max(bound, LEAST) for bound in estimate.bounds[1:])
    return replace(estimate, value=max(estimate.value, LEAST), lo=lo, hi=hi)

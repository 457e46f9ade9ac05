"""When each request of a load arrived, was let in, got its tokens and ended; below, how many were where.

Answers: who waits for whom? Client and server are drawn from their own records, on one time axis.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from inference_lab.analysis.load_runs import Run, in_flight_over_time, runs_of
from inference_lab.analysis.metrics import token_times
from inference_lab.analysis.summary_table import View
from inference_lab.figures.style import ALARM, INK, SMALL, Axes, Figure, Line, Mark, page, styled, svg
from inference_lab.stream_load.requests import RequestRecord

GATE = Mark("#999999", "", "-")
SENT = Mark("#d55e00", "", "-")
STREAM = Mark("#0072b2", "|", "-")
END = Mark(INK, ".", "")
FAILED = Mark(ALARM, "x", "")
CLIENT = Mark(INK, "", "-")
SERVER = Mark("#009e73", "", "--")
REQUEST, TALLEST, BELOW = 6, 300, 50  # points: a request, all of them at most, the panel below them
BETWEEN = 0.05  # of the figure's width, between two columns
MOST_TICKS = 4000  # a column with more tokens shows their streams without them

Cell = tuple[str, ...]
Segment = tuple[float, float, float]  # from, to, height


@styled()
def draw(view: View) -> str:
    """SVG: a pair of panels for each cell, one column a value of what the cells differ in first."""
    steady = view.judge.window == "steady"
    cells: dict[Cell, list[Run]] = {}
    for run in runs_of(view.record, steady=steady):
        cells.setdefault(tuple(run.cell.values()), []).append(run)
    columns = list(dict.fromkeys(cell[:1] for cell in cells))
    rows = list(dict.fromkeys(cell[1:] for cell in cells))
    heights: list[float] = []
    for row in rows:
        most = max(sum(len(run.requests) for run in cells.get(column + row, ())) for column in columns)
        heights += [min(max(REQUEST * most, BELOW), TALLEST), BELOW]
    legend = {
        "waits at the client's gate": GATE,
        "sent, waits for its first token": SENT,
        "gets tokens (a tick each)": STREAM,
        "end": END,
        "end without success": FAILED,
        "in flight, by the client's record": CLIENT,
        **({"in a step, by the server's record": SERVER} if view.record.rows else {}),
    }
    head = "One line a request in the order of arrival; time in s from the first one of its panel."
    foot = [
        Line("Shaded: the steady window. Requests that arrive in it are measured, others counted.")
    ] * steady
    foot += [
        Line(note) for note in dict.fromkeys(run.note for each in cells.values() for run in each) if note
    ]
    if flags := {row["flags"] for row in view.summary} - {""}:
        words = ", ".join(sorted(flags))
        foot.append(Line(f"⚑ flagged, no claim about times is made: {words}", SMALL, ALARM, "bold"))
    title = "when each request waited, and for whom"
    figure, panels = page(view, legend, heights, title, head, *foot)
    for number, row in enumerate(rows):
        above, below = (_split(figure, panel, len(columns)) for panel in panels[2 * number : 2 * number + 2])
        for place, column in enumerate(columns):
            cell = column + row
            if cell in cells:
                name = "-".join(cell) or "load"
                _requests(above[place], cells[cell], name, steady=steady)
                _counts(below[place], cells[cell], name, view.record.rows)
                below[place].set_xlim(above[place].get_xlim())
        above[0].set_ylabel(": ".join((*row, "requests")))
        below[0].set_ylabel("how many")
        for panel, column in zip(above, columns if number == 0 else (), strict=False):
            panel.set_title(_title(cells, column), size=SMALL, pad=2)
    return svg(figure, view)


def _title(cells: Mapping[Cell, Sequence[Run]], column: Cell) -> str:
    """What a column's cells have in common: a word as it is, a number with the name of what it counts."""
    runs = next(runs for cell, runs in cells.items() if cell[:1] == column)
    return " ".join(f"{name} {value}" if value.isdigit() else value
                    for name, value in list(runs[0].cell.items())[:1])  # fmt: skip


def _split(figure: Figure, panel: Axes, columns: int) -> list[Axes]:
    """The panel and others to its right, which share its place."""
    box = panel.get_position()
    width = (box.width - (columns - 1) * BETWEEN) / columns
    panel.set_position((box.x0, box.y0, width, box.height))
    others = [
        figure.add_axes(
            (box.x0 + i * (width + BETWEEN), box.y0, width, box.height), gid=f"{panel.get_gid()}-{i}"
        )
        for i in range(1, columns)
    ]
    return [panel, *others]


def _requests(panel: Axes, runs: Sequence[Run], cell: str, *, steady: bool) -> None:
    requests = sorted((r for run in runs for r in run.requests), key=lambda r: (r.arrival_ns, r.request_id))
    start = _start(runs)
    stages: dict[str, list[Segment]] = {"gate": [], "sent": [], "stream": []}
    ticks: list[tuple[float, float]] = []
    ends: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for height, request in enumerate(requests):
        for name, begin, end in _stages(request):
            stages[name].append((_s(begin, start), _s(end, start), height))
        ticks += [(_s(at, start), height) for at in token_times(request)]
        ends[request.status == "ok"].append((_s(request.finish_ns, start), height))
    thin = min(1, TALLEST / REQUEST / max(len(requests), 1))
    wide = {"gate": 0.8 * thin, "sent": 1.6 * thin, "stream": 1.6 * thin}
    for (name, found), mark in zip(stages.items(), (GATE, SENT, STREAM), strict=True):
        xs = [x for begin, end, _ in found for x in (begin, end, math.nan)]
        ys = [y for _, _, height in found for y in (height, height, math.nan)]
        panel.plot(
            xs, ys, color=mark.color, linewidth=wide[name], solid_capstyle="butt", gid=f"{name}-{cell}"
        )
    if len(ticks) <= MOST_TICKS:
        xs = [x for at, _ in ticks for x in (at, at, math.nan)]
        ys = [y for _, height in ticks for y in (height - 0.4, height + 0.4, math.nan)]
        panel.plot(xs, ys, color=STREAM.color, linewidth=0.5, gid=f"tokens-{cell}")
    for is_ok, mark in ((True, END), (False, FAILED)):
        at = ends[is_ok]
        panel.plot(
            [x for x, _ in at],
            [y for _, y in at],
            mark.marker,
            color=mark.color,
            markersize=2 if is_ok else 4,
            gid=f"{'ok' if is_ok else 'failed'}-{cell}",
        )
    if steady:
        for run in runs:
            if run.window and not run.note:
                first, last = (_s(at, start) for at in run.window)
                panel.axvspan(first, last, color="#f0ead2", linewidth=0, zorder=0, gid=f"window-{cell}")
    panel.set_ylim(len(requests) - 0.2, -0.8)
    panel.set_yticks([])
    panel.tick_params(labelbottom=False)
    panel.grid(axis="x")


def _stages(request: RequestRecord) -> Iterable[tuple[str, int, int]]:
    """(name, begin, end) of what a request waited for, as far as it came."""
    names = ("gate", "sent", "stream")
    reached = [request.arrival_ns, request.admitted_ns, request.first_token_ns, request.finish_ns]
    for name, (begin, end) in zip(names, pairwise(reached), strict=True):
        if begin is None:
            return
        yield name, begin, request.finish_ns if end is None else end


def _counts(panel: Axes, runs: Sequence[Run], cell: str, steps: Sequence[Mapping[str, str]]) -> None:
    start = _start(runs)
    events = list(in_flight_over_time(request for run in runs for request in run.requests))
    panel.plot(
        [_s(at, start) for at, _ in events],
        [now for _, now in events],
        drawstyle="steps-post",
        color=CLIENT.color,
        linewidth=1,
        gid=f"in-flight-{cell}",
    )
    own = [row for row in steps if all(row[key] == value for key, value in runs[0].cell.items())]
    xs = [x for row in own for x in (_s(int(row["started_ns"]), start), _s(int(row["ended_ns"]), start))]
    ys = [float(row["batch"]) for row in own for _ in (0, 1)]
    panel.plot(xs, ys, color=SERVER.color, linestyle=SERVER.line, linewidth=1.4, gid=f"batch-{cell}")
    most = max([now for _, now in events] + [round(y) for y in ys], default=1)
    panel.set_ylim(0, 1.15 * most)
    panel.set_yticks([0, most // 2, most] if most > 1 else [0, 1])


def _start(runs: Sequence[Run]) -> int:
    return min((request.arrival_ns for run in runs for request in run.requests), default=0)


def _s(at: int, start: int) -> float:
    return round((at - start) / 1e9, 6)

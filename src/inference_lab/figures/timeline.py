"""When each request of a load arrived, was let in, got its tokens and ended; below, how many were where.

Answers: who waits for whom? Client and server are drawn from their own records, on one time axis.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from inference_lab.analysis.load_runs import Cell, cells_of, in_flight_over_time
from inference_lab.analysis.metrics import token_times
from inference_lab.analysis.summary_table import View
from inference_lab.errors import ConfigError
from inference_lab.figures.style import (
    ALARM,
    INK,
    SMALL,
    Axes,
    Figure,
    Line,
    Mark,
    drawing,
    flag_lines,
    new_figure,
)
from inference_lab.records.record import Record
from inference_lab.stream_load.requests import RequestRecord

GATE = Mark("#999999", "", "-")
SENT = Mark("#d55e00", "", "-")
STREAM = Mark("#0072b2", "|", "-")
END = Mark(INK, ".", "")
FAILED = Mark(ALARM, "x", "")
CLIENT = Mark(INK, "", "-")
SERVER = Mark("#009e73", "", "--")
REQUEST, TALLEST, BELOW = 6, 300, 50  # points: a request, all of them at most, the panel below them
COLUMN_GAP = 0.05  # of the figure's width
MOST_TICKS = 4000  # a column with more tokens shows their streams without them

CellKey = tuple[str, ...]


@drawing
def draw(view: View) -> Figure:
    """Draw a pair of panels for each cell, one column for each value of what the cells differ in first.

    With `judge.shown` the first load of that value alone. Raises ConfigError when there is none.
    """
    steady = view.judge.window == "steady"
    record = _only(view.record, shown) if (shown := view.judge.shown) else view.record
    cells = {tuple(cell.conditions.values()): cell for cell in cells_of(record, steady=steady)}
    columns = list(dict.fromkeys(key[:1] for key in cells))
    rows = list(dict.fromkeys(key[1:] for key in cells))
    heights: list[float] = []
    for row in rows:
        most = max(len(cells[key].requests) for column in columns if (key := column + row) in cells)
        heights += [min(max(REQUEST * most, BELOW), TALLEST), BELOW]
    legend = {
        "waits at the client's gate": GATE,
        "sent, waits for its first token": SENT,
        "gets tokens (a tick each)": STREAM,
        "end": END,
        "end without success": FAILED,
        "in flight, by the client's record": CLIENT,
        **({"in a step, by the server's record": SERVER} if record.rows else {}),
    }
    head = "One line for each request in the order of arrival; time in s from the first one of its panel."
    shaded = "Shaded: the steady window. Requests that arrive in it are measured, others counted."
    notes = dict.fromkeys(run.note for cell in cells.values() for run in cell.runs if run.note)
    codes = sorted(code for code in {row["flags"] for row in view.summary} if code)
    foot = [*[Line(shaded)] * steady, *map(Line, notes), *flag_lines(codes, "no claim about times is made")]
    title = "when each request waited, and for whom"
    figure, panels = new_figure(view, legend, heights, title, head, *foot)
    for number, row in enumerate(rows):
        above, below = (_split(figure, panel, len(columns)) for panel in panels[2 * number : 2 * number + 2])
        for upper, lower, column in zip(above, below, columns, strict=True):
            if cell := cells.get(column + row):
                _requests(upper, cell, steady=steady)
                _counts(lower, cell)
                lower.set_xlim(upper.get_xlim())
                if number == 0:
                    upper.set_title(_title(cell), size=SMALL, pad=2)
        above[0].set_ylabel(": ".join((*row, "requests")))
        below[0].set_ylabel("how many")
    return figure


def _only(record: Record, shown: Mapping[str, object]) -> Record:
    """The record of the first load under these conditions alone."""
    wanted = {name: str(value) for name, value in shown.items()}
    for session in record.manifest["sessions"]:
        if {name: str(value) for name, value in session["cell"].items()} == wanted:
            name = session["name"]
            return replace(
                record,
                manifest={**record.manifest, "sessions": [session]},
                requests=[request for request in record.requests if request.load == name],
                rows=[row for row in record.rows if row["load"] == name],
            )
    raise ConfigError(f"{record.experiment}: judge.shown is {wanted}, and no load was made under that")


def _title(cell: Cell) -> str:
    """What a column's cells have in common: a word as it is, a number with the name of what it counts."""
    name, value = next(iter(cell.conditions.items()), ("", ""))
    return f"{name} {value}" if value.isdigit() else value


def _split(figure: Figure, panel: Axes, columns: int) -> list[Axes]:
    """The panel and others to its right, which share its place."""
    box = panel.get_position()
    width = (box.width - (columns - 1) * COLUMN_GAP) / columns
    places = [(box.x0 + i * (width + COLUMN_GAP), box.y0, width, box.height) for i in range(columns)]
    panel.set_position(places[0])
    return [panel, *(figure.add_axes(place) for place in places[1:])]


def _requests(panel: Axes, cell: Cell, *, steady: bool) -> None:
    requests = sorted(cell.requests, key=lambda request: (request.arrival_ns, request.request_id))
    start = _start(cell)
    thin = min(1, TALLEST / REQUEST / max(len(requests), 1))
    stages = [list(_stages(request)) for request in requests]
    for name, mark, width in (("gate", GATE, 0.8), ("sent", SENT, 1.6), ("stream", STREAM, 1.6)):
        spans = [
            (begin, end, height)
            for height, reached in enumerate(stages)
            for stage, begin, end in reached
            if stage == name
        ]
        xs = [x for begin, end, _ in spans for x in (_s(begin, start), _s(end, start), math.nan)]
        ys = [y for _, _, height in spans for y in (height, height, math.nan)]
        panel.plot(xs, ys, color=mark.color, linewidth=width * thin, solid_capstyle="butt")
    ticks = [(_s(at, start), n) for n, request in enumerate(requests) for at in token_times(request)]
    if len(ticks) <= MOST_TICKS:
        xs = [x for at, _ in ticks for x in (at, at, math.nan)]
        ys = [y for _, height in ticks for y in (height - 0.4, height + 0.4, math.nan)]
        panel.plot(xs, ys, color=STREAM.color, linewidth=0.5)
    for is_ok, mark, size in ((True, END, 2), (False, FAILED, 4)):
        ends = [(_s(r.finish_ns, start), n) for n, r in enumerate(requests) if (r.status == "ok") == is_ok]
        xs, ys = [x for x, _ in ends], [y for _, y in ends]
        panel.plot(xs, ys, mark.marker, color=mark.color, markersize=size)
    for window in (run.window for run in cell.runs if steady and not run.note):
        if window:
            panel.axvspan(_s(window[0], start), _s(window[1], start), color="#f0ead2", linewidth=0, zorder=0)
    panel.set_ylim(len(requests) - 0.2, -0.8)
    panel.set_yticks([])
    panel.tick_params(labelbottom=False)
    panel.grid(axis="x")


def _stages(request: RequestRecord) -> Iterable[tuple[str, int, int]]:
    """(name, begin, end) of what a request waited for, as far as it came."""
    reached = [request.arrival_ns, request.admitted_ns, request.first_token_ns, request.finish_ns]
    for name, (begin, end) in zip(("gate", "sent", "stream"), pairwise(reached), strict=True):
        if begin is None:
            return
        yield name, begin, request.finish_ns if end is None else end


def _counts(panel: Axes, cell: Cell) -> None:
    start = _start(cell)
    events = list(in_flight_over_time(cell.requests))
    xs, ys = [_s(at, start) for at, _ in events], [now for _, now in events]
    panel.plot(xs, ys, drawstyle="steps-post", color=CLIENT.color, linewidth=1)
    xs = [_s(at, start) for step in cell.steps for at in (step.started_ns, step.ended_ns)]
    batches = [step.batch for step in cell.steps for _ in (0, 1)]
    panel.plot(xs, batches, color=SERVER.color, linestyle=SERVER.line, linewidth=1.4)
    most = max([*ys, *batches], default=1)
    panel.set_ylim(0, 1.15 * most)
    panel.set_yticks([0, most // 2, most] if most > 1 else [0, 1])


def _start(cell: Cell) -> int:
    return min((request.arrival_ns for request in cell.requests), default=0)


def _s(at: int, start: int) -> float:
    return round((at - start) / 1e9, 6)

"""When each request of a load arrived, was let in, got its tokens and ended; below, how many were where.

Answers: who waits for whom? Client and server are drawn from their own records, on one time axis.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from inference_lab.analysis.load_runs import Cell, cells_of, in_flight_over_time
from inference_lab.analysis.metrics import token_times
from inference_lab.analysis.summary_table import View
from inference_lab.errors import ConfigError
from inference_lab.figures.style import ALARM, INK, Axes, Figure, Line, Mark, drawing, flag_lines, new_figure
from inference_lab.records.record import Record

LIMIT = Mark("#999999", "", "-")
SENT = Mark("#d55e00", "", "-")
STREAM = Mark("#0072b2", "|", "-")
END = Mark(INK, ".", "")
FAILED = Mark(ALARM, "x", "")
SERVER = Mark("#009e73", "", "--")
REQUEST, TALLEST, BELOW = 6, 300, 50  # points: a request, all of them at most, the panel below them
COLUMN_GAP = 0.05  # of the figure's width
MOST_TICKS = 4000  # a column with more tokens shows their streams without them

Seconds = Callable[[int], float]  # from ns of the clock to s on the axis


@drawing
def draw(view: View) -> Figure:
    """Draw a pair of panels for each cell, one column for each value of what the cells differ in first.

    With `judge.shown` the first load of that value alone. Raises ConfigError when there is none.
    """
    is_steady = view.judge.window == "steady"
    record = _only(view.record, shown) if (shown := view.judge.shown) else view.record
    cells = {tuple(cell.conditions.values()): cell for cell in cells_of(record, steady=is_steady)}
    columns = list(dict.fromkeys(key[:1] for key in cells))
    rows = list(dict.fromkeys(key[1:] for key in cells))
    heights: list[float] = []
    for row in rows:
        most = max(len(cell.requests) for key, cell in cells.items() if key[1:] == row)
        heights += [min(max(REQUEST * most, BELOW), TALLEST), BELOW]
    legend = {
        "waits for the client's limit": LIMIT,
        "sent, waits for its first token": SENT,
        "gets tokens (a tick each)": STREAM,
        "end": END,
        "end without success": FAILED,
        "in flight, by the client's record": Mark(INK, "", "-"),
        **({"in a step, by the server's record": SERVER} if record.rows else {}),
    }
    head = "One line for each request in the order of arrival; time in s from the first one of its panel."
    shaded = "Shaded: the steady window. Requests that arrive in it are measured, others counted."
    notes = dict.fromkeys(run.note for cell in cells.values() for run in cell.runs if run.note)
    codes = sorted(code for code in {row["flags"] for row in view.summary} if code)
    flags = flag_lines(codes, "no claim about times is made")
    foot = [*[Line(shaded)] * is_steady, *map(Line, notes), *flags]
    title = "when each request waited, and for whom"
    figure, panels = new_figure(view, legend, heights, title, head, *foot)
    split = [_split(figure, panel, len(columns)) for panel in panels]
    for row, above, below in zip(rows, split[::2], split[1::2], strict=True):
        above[0].set_ylabel(": ".join((*row, "requests")))
        below[0].set_ylabel("how many")
        for upper, lower, column in zip(above, below, columns, strict=True):
            if cell := cells.get(column + row):
                seconds = _since(min((request.arrival_ns for request in cell.requests), default=0))
                _requests(upper, cell, seconds, is_steady=is_steady)
                _counts(lower, cell, seconds)
                lower.set_xlim(upper.get_xlim())
                if row == rows[0]:
                    # A word as it is, a number with the name of what it counts.
                    name, value = next(iter(cell.conditions.items()), ("", ""))
                    upper.set_title(f"{name} {value}" if value.isdigit() else value, size=8, pad=2)
    return figure


def _since(start: int) -> Seconds:
    return lambda at: round((at - start) / 1e9, 6)


def _only(record: Record, shown: Mapping[str, object]) -> Record:
    """The record of the first load under these conditions alone."""
    wanted = {name: str(value) for name, value in shown.items()}
    for session in record.manifest["sessions"]:
        if {name: str(value) for name, value in session["cell"].items()} == wanted:
            return replace(
                record,
                manifest={**record.manifest, "sessions": [session]},
                requests=[request for request in record.requests if request.load == session["name"]],
                rows=[row for row in record.rows if row["load"] == session["name"]],
            )
    raise ConfigError(f"{record.experiment}: judge.shown is {wanted}, and no load was made under that")


def _split(figure: Figure, panel: Axes, columns: int) -> list[Axes]:
    """The panel and others to its right, which share its place."""
    box = panel.get_position()
    width = (box.width - (columns - 1) * COLUMN_GAP) / columns
    places = [(box.x0 + i * (width + COLUMN_GAP), box.y0, width, box.height) for i in range(columns)]
    panel.set_position(places[0])
    return [panel, *(figure.add_axes(place) for place in places[1:])]


def _requests(panel: Axes, cell: Cell, seconds: Seconds, *, is_steady: bool) -> None:
    requests = sorted(cell.requests, key=lambda request: (request.arrival_ns, request.request_id))
    thin = min(1, TALLEST / REQUEST / max(len(requests), 1))
    spans: dict[Mark, list[Sequence[float]]] = {LIMIT: [], SENT: [], STREAM: []}
    for height, request in enumerate(requests):
        reached = request.arrival_ns, request.admitted_ns, request.first_token_ns, request.finish_ns
        for mark, (begin, end) in zip(spans, pairwise(reached), strict=True):
            if begin is not None:  # drawn as far as it came
                ends = seconds(begin), seconds(request.finish_ns if end is None else end)
                spans[mark].append((*ends, height, height))
    for mark, lines in spans.items():
        width = (0.8 if mark is LIMIT else 1.6) * thin
        _lines(panel, lines, color=mark.color, linewidth=width, solid_capstyle="butt")
    tokens = [(seconds(at), n) for n, request in enumerate(requests) for at in token_times(request)]
    if len(tokens) <= MOST_TICKS:
        ticks = [(at, at, height - 0.4, height + 0.4) for at, height in tokens]
        _lines(panel, ticks, color=STREAM.color, linewidth=0.5)
    for is_ok, mark, size in ((True, END, 2), (False, FAILED, 4)):
        ended = [n for n, request in enumerate(requests) if (request.status == "ok") == is_ok]
        times = [seconds(requests[n].finish_ns) for n in ended]
        panel.plot(times, ended, mark.marker, color=mark.color, markersize=size)
    for window in (run.window for run in cell.runs if is_steady and not run.note):
        if window:
            panel.axvspan(*map(seconds, window), color="#f0ead2", linewidth=0, zorder=0)
    panel.set_ylim(len(requests) - 0.2, -0.8)
    panel.set_yticks([])
    panel.tick_params(labelbottom=False)
    panel.grid(axis="x")


def _lines(panel: Axes, lines: Sequence[Sequence[float]], **look: Any) -> None:
    """One line for each (x, x, y, y)."""
    xs = [x for x0, x1, _, _ in lines for x in (x0, x1, math.nan)]
    panel.plot(xs, [y for _, _, y0, y1 in lines for y in (y0, y1, math.nan)], **look)


def _counts(panel: Axes, cell: Cell, seconds: Seconds) -> None:
    events = list(in_flight_over_time(cell.requests))
    counts, batches = [now for _, now in events], [step.batch for step in cell.steps for _ in (0, 1)]
    panel.plot([seconds(at) for at, _ in events], counts, drawstyle="steps-post", color=INK, linewidth=1)
    ends = [seconds(at) for step in cell.steps for at in (step.started_ns, step.ended_ns)]
    panel.plot(ends, batches, color=SERVER.color, linestyle=SERVER.line, linewidth=1.4)
    most = max([*counts, *batches], default=1)
    panel.set_ylim(0, 1.15 * most)
    panel.set_yticks([0, most // 2, most] if most > 1 else [0, 1])

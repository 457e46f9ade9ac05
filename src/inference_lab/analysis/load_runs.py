"""The requests of a load together: which are measured, how many were in flight when, which runs are one cell.

Times are integer ns of one clock.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple, Required, TypedDict, cast

from inference_lab.errors import RecordError
from inference_lab.records.record import Record, varied
from inference_lab.stream_load.requests import RequestRecord

Window = tuple[int, int]  # first and last arrival that are measured
CellKey = tuple[tuple[str, str], ...]  # columns and values of a cell


class Session(TypedDict, total=False):
    """What a client recorded of its own run: one entry of the manifest's `sessions`."""

    name: Required[str]
    cell: Mapping[str, object]
    schedule: str
    concurrency: int | None
    warmup: bool
    launched_ns: int
    start_ns: int
    end_ns: int
    client_cpu_ns: int
    client_max_rss_kib: int
    clock: Mapping[str, object]
    server: int
    requests_before: int


class Truth(TypedDict):
    """One request as the server wrote it: a line of truth.jsonl."""

    request_id: str
    received_ns: int
    token_ns: Sequence[int]


class Scrape(TypedDict):
    """One reading of the server's /metrics: a line of server.jsonl."""

    phase: str  # before, sample or after
    at_ns: int
    metrics: Mapping[str, float] | None  # None: it did not answer


class Server(TypedDict):
    """How a server was started, and what it logged of itself: one entry of the manifest's `servers`."""

    server: int
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]


class EngineStepRow(NamedTuple):
    """One step of the server's engine: a row of raw.csv. A number that the row does not have is 0."""

    started_ns: int
    ended_ns: int
    batch: int
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    elapsed_ns: float


def _step(row: Mapping[str, str]) -> EngineStepRow:
    numbers = (int(row.get(name) or 0) for name in EngineStepRow._fields[:-1])
    return EngineStepRow(*numbers, elapsed_ns=1e6 * float(row.get("elapsed_ms") or 0))


@dataclass(frozen=True)
class Run:
    """One client's load from start to end, and what its server recorded of it."""

    sessions: Sequence[Session]  # more than one when it was resumed
    attempts: Sequence[RequestRecord]
    requests: Sequence[RequestRecord]  # the last attempt of each, by arrival
    window: Window | None
    note: str  # why there was no steady window
    truth: Mapping[str, Truth]  # by request
    scrapes: Sequence[Scrape]
    steps: Sequence[EngineStepRow]
    server: Server | None
    known: dict[str, list[float]] = field(default_factory=dict[str, list[float]])  # times computed before

    @property
    def name(self) -> str:
        """The name of the load."""
        return self.sessions[0]["name"]

    @property
    def cell(self) -> dict[str, str]:
        """What the run was made under, apart from what its experiment fixed."""
        return {key: str(value) for key, value in self.sessions[0].get("cell", {}).items()}

    @property
    def is_open_loop(self) -> bool:
        """Whether requests were sent by a schedule, not when an earlier one ended."""
        return self.sessions[0].get("schedule") != "closed"

    @cached_property
    def measured(self) -> list[RequestRecord]:
        """The requests that arrived in the window."""
        first, last = self.window or (0, -1)
        return [request for request in self.requests if first <= request.arrival_ns <= last]

    @cached_property
    def succeeded(self) -> list[RequestRecord]:
        """Those of them that succeeded: no other enters a time or a throughput."""
        return [request for request in self.measured if request.status == "ok"]

    @cached_property
    def span(self) -> Window | None:
        """First arrival and last finish of the measured requests; None when nothing lies between."""
        start = min((request.arrival_ns for request in self.measured), default=0)
        end = max((request.finish_ns for request in self.measured), default=0)
        return (start, end) if end > start else None

    @property
    def duration_s(self) -> float | None:
        """The length of the span."""
        return (self.span[1] - self.span[0]) / 1e9 if self.span else None


@dataclass(frozen=True)
class Cell:
    """All runs under one combination of conditions, and all steps of the engine under the same."""

    conditions: Mapping[str, str]
    runs: Sequence[Run]
    steps: Sequence[EngineStepRow]

    @property
    def requests(self) -> list[RequestRecord]:
        """The requests of all its runs."""
        return [request for run in self.runs for request in run.requests]

    @property
    def attempts(self) -> list[RequestRecord]:
        """All attempts of all its runs."""
        return [request for run in self.runs for request in run.attempts]


def cells_of(record: Record, *, steady: bool) -> list[Cell]:
    """The cells of a record in the order in which its varied values were declared. Raises as `runs_of`."""
    cells: dict[CellKey, list[Run]] = {}
    for run in runs_of(record, steady=steady):
        cells.setdefault(tuple(run.cell.items()), []).append(run)
    axis, values = varied(record.manifest)
    order = [str(value) for value in values]
    return [
        Cell(dict(key), cells[key], [_step(row) for row in record.rows if dict(key).items() <= row.items()])
        for key in sorted(cells, key=lambda key: order.index(dict(key)[axis]) if axis in dict(key) else 0)
    ]


def runs_of(record: Record, *, steady: bool) -> list[Run]:
    """Every run of a record in the order of its sessions; measured in their steady windows, or whole.

    A run that only warmed a server up is recorded and measured nowhere. Raises RecordError for a request
    that no session of the manifest made, or that lies outside of the time of the one that did.
    """
    sessions: dict[str | None, list[Session]] = {}
    for session in cast("Sequence[Session]", record.manifest["sessions"]):
        sessions.setdefault(session["name"], []).append(session)
    attempts: dict[str | None, list[RequestRecord]] = {name: [] for name in sessions}
    for request in record.requests:
        if request.load not in attempts:
            raise RecordError(f"request {request.request_id} is of no session that its manifest names")
        attempts[request.load].append(request)
    truth = {line["request_id"]: line for line in cast("Sequence[Truth]", record.truth)}
    servers = {one["server"]: one for one in cast("Sequence[Server]", record.manifest.get("servers", ()))}
    runs: list[Run] = []
    for name, own in sessions.items():
        if own[0].get("warmup"):
            continue
        _check_inside(own, attempts[name])
        last = {request.request_id: request for request in attempts[name]}
        requests = sorted(last.values(), key=lambda request: request.arrival_ns)
        window, note = steady_window(requests, own[0].get("concurrency") if steady else None)
        written = {request: truth[request] for request in last if request in truth}
        scrapes = cast("list[Scrape]", [line for line in record.server if line.get("load") == name])
        steps = [_step(row) for row in record.rows if row.get("load") == name]
        server = servers.get(own[0].get("server", -1))
        runs.append(Run(own, attempts[name], requests, window, note, written, scrapes, steps, server))
    return runs


def _check_inside(sessions: Sequence[Session], attempts: Iterable[RequestRecord]) -> None:
    """A client that an experiment launched ran once: its requests lie between its launch and its end."""
    if "launched_ns" not in sessions[0]:
        return  # a load of a user's may go on after a session was killed
    start_ns, end_ns = sessions[0]["launched_ns"], sessions[-1].get("end_ns", math.inf)
    for request in attempts:
        if request.arrival_ns < start_ns or request.finish_ns > end_ns:
            outside = f"request {request.request_id} lies outside of its session, {start_ns} to {end_ns} ns"
            raise RecordError(f"{outside}; restore the record or measure again")


def steady_window(requests: Sequence[RequestRecord], limit: int | None) -> tuple[Window | None, str]:
    """From when the limit is first full to the last arrival; all arrivals where there is no limit.

    All arrivals, too, and a note, when the limit never fills or fewer requests than it holds arrive from
    then on. `requests` are in the order of arrival.
    """
    if not requests:
        return None, "no request was recorded"
    first, last = requests[0].arrival_ns, requests[-1].arrival_ns
    if limit is None:
        return (first, last), ""
    full = next((at for at, now in in_flight_over_time(requests) if now >= limit), None)
    if full is None or sum(request.arrival_ns >= full for request in requests) < limit:
        return (first, last), "too short for a steady window: all requests are measured, start and end too"
    return (full, last), ""


def in_flight_over_time(requests: Iterable[RequestRecord]) -> Iterator[tuple[int, int]]:
    """(ns, requests in flight from then on) at each admission and end; of one ns, ends come first."""
    spans = [(r.admitted_ns, r.finish_ns) for r in requests if r.admitted_ns is not None]
    events = sorted(event for start, end in spans for event in ((start, 1), (end, -1)))
    yield from zip((at for at, _ in events), accumulate(change for _, change in events), strict=True)


def peak_in_flight(requests: Iterable[RequestRecord]) -> int:
    """The most requests in flight at once."""
    return max((now for _, now in in_flight_over_time(requests)), default=0)

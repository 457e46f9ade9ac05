"""Requests of one load together: which of them are measured, and how many were in flight when.

Answers: who belongs to which run, where is its steady window? Times are integer ns of one clock.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.records.requests import RequestRecord

Window = tuple[int, int]  # first and last arrival that count
Step = Mapping[str, str]  # one row of raw.csv: a step of the server's engine


@dataclass(frozen=True)
class Run:
    """One client's load from start to end: its sessions (more than one when it was resumed), its requests.

    `attempts` are all records of it, `requests` the last attempt of each request by arrival, `truth` what
    the server wrote of each, `server` the lines of its /metrics and `steps` those of its engine that name
    this load. `note` says why there was no steady window; `known` keeps values that were asked for.
    """

    sessions: Sequence[Mapping[str, Any]]
    attempts: Sequence[RequestRecord]
    requests: Sequence[RequestRecord]
    window: Window | None
    note: str
    truth: Mapping[str, Mapping[str, Any]]
    server: Sequence[Mapping[str, Any]] = ()
    steps: Sequence[Step] = ()
    known: dict[str, list[float]] = field(default_factory=dict[str, list[float]], compare=False)

    @property
    def cell(self) -> dict[str, str]:
        """What the run was made under, apart from what its experiment fixed."""
        return {key: str(value) for key, value in self.sessions[0].get("cell", {}).items()}

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


def runs_of(record: Record, *, steady: bool) -> list[Run]:
    """Every run of a record in the order of its sessions; measured in their steady windows, or whole.

    A run that only warmed a server up is recorded and measured nowhere. Raises RecordError for a request
    that no session of the manifest made, or that lies outside of the time of the one that did.
    """
    sessions: dict[str, list[Mapping[str, Any]]] = {}
    for session in record.manifest["sessions"]:
        sessions.setdefault(session["name"], []).append(session)
    made: dict[str, list[RequestRecord]] = {name: [] for name in sessions}
    for request in record.requests:
        if request.load not in made:
            raise RecordError(f"request {request.request_id} is of no session that its manifest names")
        made[request.load].append(request)
    truth = {line["request_id"]: line for line in record.truth}
    lines, steps = _by_load(record.server), _by_load(record.rows)
    return [
        replace(_run(sessions[name], attempts, truth, steady=steady), server=lines[name], steps=steps[name])
        for name, attempts in made.items()
        if not sessions[name][0].get("warmup")
    ]


def _by_load(rows: Iterable[Mapping[str, Any]]) -> defaultdict[str, list[Mapping[str, Any]]]:
    found: defaultdict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        found[row.get("load", "")].append(row)
    return found


def _run(
    sessions: Sequence[Mapping[str, Any]],
    attempts: Sequence[RequestRecord],
    truth: Mapping[str, Mapping[str, Any]],
    *,
    steady: bool,
) -> Run:
    # A client that an experiment launched ran once; a load of a user's may go on after a session was killed.
    start_ns = sessions[0].get("launched_ns", -math.inf)
    end_ns = sessions[-1].get("end_ns", math.inf) if "launched_ns" in sessions[0] else math.inf
    for request in attempts:
        if request.arrival_ns < start_ns or request.finish_ns > end_ns:
            raise RecordError(
                f"request {request.request_id} lies outside of its session, {start_ns} to {end_ns} ns; one of"
                " the two was changed: restore the record, or measure again"
            )
    last = {request.request_id: request for request in attempts}
    requests = sorted(last.values(), key=lambda request: request.arrival_ns)
    window, note = steady_window(requests, sessions[0].get("concurrency") if steady else None)
    return Run(sessions, attempts, requests, window, note, {i: truth[i] for i in last if i in truth})


def steady_window(requests: Sequence[RequestRecord], gate: int | None) -> tuple[Window | None, str]:
    """From when the gate is first full to the last arrival; all arrivals where there is no gate.

    All arrivals, too, and words that say so, when the gate never fills or fewer requests than it holds
    arrive from then on. `requests` are in the order of arrival.
    """
    if not requests:
        return None, "no request was recorded"
    first, last = requests[0].arrival_ns, requests[-1].arrival_ns
    if gate is None:
        return (first, last), ""
    full = next((at for at, now in in_flight_over_time(requests) if now >= gate), None)
    if full is None or sum(request.arrival_ns >= full for request in requests) < gate:
        return (first, last), "too short for a steady window: all requests are measured, start and end too"
    return (full, last), ""


def in_flight_over_time(requests: Iterable[RequestRecord]) -> Iterator[tuple[int, int]]:
    """(ns, requests in flight from then on) at each admission and end; of one ns, ends come first."""
    events: list[tuple[int, int]] = []
    for request in requests:
        if request.admitted_ns is not None:
            events += [(request.admitted_ns, 1), (request.finish_ns, -1)]
    events.sort()
    yield from zip((at for at, _ in events), accumulate(change for _, change in events), strict=True)


def peak_in_flight(requests: Iterable[RequestRecord]) -> int:
    """The most requests in flight at once."""
    return max((now for _, now in in_flight_over_time(requests)), default=0)

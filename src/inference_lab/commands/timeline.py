"""A load as a trace to zoom: requests and their phases, engine steps, counters. Perfetto and Chrome open it.

The form is the Trace Event Format of Chrome's `about:tracing`.
Times are microseconds since the first arrival of the record; every load is a process of the trace.
"""

import heapq
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from inference_lab.analysis.load_runs import EngineStepRow, Run, cells_of, in_flight_over_time
from inference_lab.commands import run_stage
from inference_lab.errors import ConfigError
from inference_lab.records import files
from inference_lab.records.record import Record
from inference_lab.stream_load.requests import RequestRecord

Event = dict[str, Any]  # as the format has it
_ENGINE = 0  # the lane of engine steps; requests have those from 1 on
_PHASES = (  # name, from, to
    ("queue", "arrival_ns", "admitted_ns"),
    ("connect", "admitted_ns", "sent_ns"),
    ("prefill", "sent_ns", "first_token_ns"),
    ("decode", "first_token_ns", "finish_ns"),
)


def timeline(folder: Path, output: Path) -> str:
    """Return what was written where: the trace of a served record, under results/ or of one's own.

    Raises ConfigError when the record holds no requests.
    """
    record = run_stage.read_record(folder, "")
    if not record.requests:
        raise ConfigError(f"{folder}: holds no requests; name the record of a served load")
    events = trace(record)
    files.write_file(output, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n")
    return f"{output}: {len(record.requests)} requests; open it in ui.perfetto.dev"


def trace(record: Record) -> list[Event]:
    """Return the events of a served record: each load is a process, each request a span in a lane of it."""
    loads = [
        # Of a simulation, steps are known of a cell alone.
        (run, run.steps or (cell.steps if len(cell.runs) == 1 else ()))
        for cell in cells_of(record, steady=False)
        for run in cell.runs
    ]
    zero_ns = min(request.arrival_ns for request in record.requests)
    return [event for number, load in enumerate(loads, 1) for event in _events(*load, number, zero_ns)]


def _events(run: Run, steps: Sequence[EngineStepRow], process: int, zero_ns: int) -> Iterator[Event]:
    base = {"pid": process}

    def span(name: str, lane: int, start_ns: int, end_ns: int, **args: object) -> Event:
        times = {"ts": (start_ns - zero_ns) / 1e3, "dur": (end_ns - start_ns) / 1e3}
        return {**base, "name": name, "ph": "X", "tid": lane, **times, "args": args}

    def named(what: str, name: str, lane: int) -> Event:
        return {**base, "name": what, "ph": "M", "tid": lane, "args": {"name": name}}

    yield named("process_name", f"load {run.name}", _ENGINE)
    yield named("thread_name", "engine steps", _ENGINE)
    for request, lane in _lanes(run):
        facts = {"status": request.status, "tokens": request.output_tokens}
        yield span(request.request_id, lane, request.arrival_ns, request.finish_ns, **facts)
        for name, start, end in _PHASES:
            begun, ended = getattr(request, start), getattr(request, end)
            if begun is not None and ended is not None:
                yield span(name, lane, begun, ended)
    for step in steps:
        kind = "prefill" if step.prefill_requests else "decode"
        yield span(f"{kind} of {step.batch}", _ENGINE, step.started_ns, step.ended_ns, batch=step.batch)
    for at_ns, number in in_flight_over_time(run.requests):
        yield _counter(base, "in flight (client)", at_ns - zero_ns, number)
    for scrape in run.scrapes:
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            if scrape["metrics"] is not None and name in scrape["metrics"]:
                yield _counter(base, f"{name} (server)", scrape["at_ns"] - zero_ns, scrape["metrics"][name])


def _counter(base: Event, name: str, at_ns: int, value: float) -> Event:
    return {**base, "name": name, "ph": "C", "ts": at_ns / 1e3, "args": {"value": value}}


def _lanes(run: Run) -> Iterator[tuple[RequestRecord, int]]:
    """Each request with the lowest lane that is free when it arrives, so that no two overlap in one."""
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    for request in sorted(run.requests, key=lambda request: request.arrival_ns):
        while busy and busy[0][0] <= request.arrival_ns:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (request.finish_ns, lane))
        yield request, lane

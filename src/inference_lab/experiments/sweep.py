"""One axis of a served system varied: the load as its client saw it, the engine as it describes itself.

An axis of the load (concurrency, input_tokens ...) is varied under one server, its values in shuffled order
in each round; any other is the server's own (max_num_seqs ...): each value gets a server.
"""

import random
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from inference_lab.config.sections import Sweep
from inference_lab.errors import MeasurementRefused
from inference_lab.experiments.serving_run import (
    CLIENT_LIMIT_S,
    Recording,
    cli_options,
    client_record,
    run_clients,
    serving,
)
from inference_lab.records.files import temporary_folder
from inference_lab.records.forms import JSON
from inference_lab.records.record import Measurement
from inference_lab.stream_load.servers.metrics_page import metrics_of, scrape, scraping
from inference_lab.stream_load.servers.process import STEP_COLUMNS, Server
from inference_lab.timing import machine

OF_LOAD = ("concurrency", "requests", "input_tokens", "output_tokens", "rate_per_s", "prefix_groups",
           "prefix_tokens", "vocab_size", "seed")  # fmt: skip


@dataclass(frozen=True)
class LoadSpec:
    """One load: its round, the value of the axis (none: warm-up), and what it asks for."""

    name: str
    round: int
    cell: JSON
    asks: JSON

    def options(self) -> list[str]:
        """Return the options of its client."""
        asks = dict(self.asks)
        # No two loads ask the same, or a prefix cache would answer for the engine.
        asks["seed"] = random.Random(f"{asks['seed']}/{self.name}").randrange(2**31)
        if (rate := asks.pop("rate_per_s", None)) is not None:
            asks |= {"rate": rate, "poisson": True}
        return cli_options(prompt="ids", ignore_eos=True, name=self.name, **asks)


@dataclass
class SweepRecording(Recording):
    """What was recorded so far. Every /metrics line and step names its load and has its cell's columns."""

    sample_s: float = 1.0
    servers: list[JSON] = field(default_factory=list[JSON])

    def serve(self, settings: JSON, loads: Sequence[LoadSpec], progress: Callable[[int], None]) -> None:
        """Run the loads one after the other against one server, and keep both sides, also when one dies."""
        number, first = len(self.servers), len(self.sessions)
        with temporary_folder("server") as place, serving(settings, place) as server:
            self.servers.append({"server": number, "settings": settings, "facts": server.facts})
            try:
                requests = 0
                for load in loads:
                    requests += self._load(server, load, place / f"client{len(self.sessions)}", requests)
                    server.check()
                    progress(len(self.sessions))
            finally:
                self.steps += list(_in_loads(server.steps(), self.sessions[first:], number))

    def _load(self, server: Server, load: LoadSpec, folder: Path, before: int) -> int:
        """Run one load and return how many requests it recorded."""
        pages = [("before", scrape(server.base_url))]
        launched_ns = monotonic_ns()
        with scraping(server.base_url, self.sample_s) as samples:
            (code,) = run_clients(server.base_url, [folder], [load.options()])
        pages += [*(("sample", page) for page in samples), ("after", scrape(server.base_url))]
        for phase, (at_ns, page) in pages:
            about = {"load": load.name, "cell": load.cell, "phase": phase, "at_ns": at_ns}
            self.server.append({**about, "metrics": metrics_of(page, gauges=phase == "sample")})
        lines, sessions = client_record(folder)
        self.requests += lines
        session = {"cell": load.cell, "server": len(self.servers) - 1, "round": load.round,
                   "requests_before": before, "warmup": not load.cell, "name": load.name,
                   "launched_ns": launched_ns}  # fmt: skip
        self.sessions.append({**session, **(sessions[0] if sessions else {})})
        if code not in (0, 1):  # 1: requests failed, which their records show
            server.check()
            end = f"not done after {CLIENT_LIMIT_S:g} s" if code is None else f"ended with exit code {code}"
            raise MeasurementRefused(f"the client of {load.name}: {end}; its message is above")
        return len(lines)


def measure(section: Sweep, progress: Callable[[int, int], None]) -> Measurement:
    """Return both sides of every load. Request ids begin with server/axis=value/round/.

    A server that dies ends the measurement: what was recorded until then is returned, marked invalid with the
    reason. Raises MeasurementRefused when nothing was recorded.
    """
    plan, recorded = list(_plan(section)), SweepRecording(sample_s=section.sample_s)
    total, reasons = sum(len(loads) for _, loads in plan), list[str]()
    with machine.Watch(section.quiet_cores, section.quiet_wait_s) as watch:
        try:
            for settings, loads in plan:
                recorded.serve(settings, loads, lambda done: progress(done, total))
        except MeasurementRefused as refused:
            if not recorded.requests:
                raise
            print(refused, file=sys.stderr, flush=True)
            reasons.append(str(refused).partition(";")[0])
    has_page = any(server["facts"]["kind"] != "external" for server in recorded.servers)  # others need none
    if has_page and recorded.server and all(line["metrics"] is None for line in recorded.server):
        reasons.append("no page of /metrics could be read")
    return recorded.measurement(
        watch.summary(),
        columns=["server", "load", section.axis, *STEP_COLUMNS],
        server_file="server.jsonl",
        servers=recorded.servers,
        validity={"valid": not reasons, "reasons": reasons},
    )


def _plan(section: Sweep) -> Iterator[tuple[JSON, list[LoadSpec]]]:
    """Yield (settings, loads in order) of every server."""
    axis, values, fixed = section.axis, section.values, section.fixed.given()
    order = random.Random(section.fixed.seed)
    asks = {name: value for name, value in fixed.items() if name in OF_LOAD}
    settings = section.server.given() | {name: fixed[name] for name in fixed if name not in OF_LOAD}

    def shuffled() -> list[JSON]:
        return [{axis: value} for value in order.sample(values, len(values))]

    number = 0
    for _ in range(section.servers):
        for own in [{}] if axis in OF_LOAD else shuffled():
            loads: list[LoadSpec] = []
            if warmups := section.warmup_requests:
                fits = {} if own else {axis: max(values)}
                loads.append(LoadSpec(f"{number}/warmup/", 0, {}, {**asks, **fits, "requests": warmups}))
            for round_number in range(section.rounds):
                for cell in [own] if own else shuffled():
                    name = f"{number}/{axis}={cell[axis]}/{round_number}/"
                    loads.append(LoadSpec(name, round_number, cell, asks if own else {**asks, **cell}))
            yield {**settings, **own}, loads
            number += 1


def _in_loads(steps: Sequence[JSON], sessions: Sequence[JSON], server: int) -> Iterator[JSON]:
    """Yield each step of a server with the load that was launched last before it, and that load's cell."""
    launched = [session["launched_ns"] for session in sessions]
    for step in steps:
        # A client starts for a tenth of a second: no step of one load begins in the time of another.
        place = bisect_right(launched, step["started_ns"]) - 1
        of = {"load": sessions[place]["name"], **sessions[place]["cell"]} if place >= 0 else {}
        yield {"server": server, **of, **step}

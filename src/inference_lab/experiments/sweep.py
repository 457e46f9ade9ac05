"""One axis of a served system varied: the load as its client saw it, the engine as it says itself.

An axis of the load (concurrency, input_tokens ...) is varied under one server, its values in shuffled order
in each round; any other is the server's own (max_num_seqs ...): each value gets a server. Derives nothing.
"""

import json
import random
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

from inference_lab.errors import MeasurementRefused
from inference_lab.experiments.serving_run import words
from inference_lab.records import installed
from inference_lab.records.record import Measurement, csv_text
from inference_lab.records.samples import write_samples
from inference_lab.records.temporary import temporary_folder
from inference_lab.stream_load import cli as load_cli
from inference_lab.stream_load.record_file import INFO, NAME, PARTIAL
from inference_lab.stream_load.servers.metrics_page import Scraper, metrics_of
from inference_lab.stream_load.servers.start import STEP_COLUMNS, Server, start_server
from inference_lab.timing import machine

OF_LOAD = ("concurrency", "requests", "input_tokens", "output_tokens", "rate_per_s", "prefix_groups",
           "prefix_tokens", "vocab_size", "seed")  # fmt: skip
_LIMIT_S = 600.0
Line = dict[str, Any]


@dataclass(frozen=True)
class Load:
    """One load: which round of which value (none: warm-up), and what it asks for."""

    name: str
    round: int
    cell: Mapping[str, Any]
    asks: Mapping[str, Any]


@dataclass
class Recorded:
    """What was recorded so far. Every line and step names its load and has the columns of its cell."""

    axis: str
    sample_s: float
    requests: list[str] = field(default_factory=list[str])
    sessions: list[Line] = field(default_factory=list[Line])
    metrics: list[Line] = field(default_factory=list[Line])
    steps: list[Line] = field(default_factory=list[Line])
    servers: list[Line] = field(default_factory=list[Line])

    def serve(
        self, settings: Mapping[str, Any], loads: Sequence[Load], progress: Callable[[int], None]
    ) -> None:
        """Run the loads one after the other against one server of these settings, and keep both sides.

        `progress` is told how many loads there were so far. Raises MeasurementRefused when the server or a
        client dies; what they did until then is kept.
        """
        number = len(self.servers)
        with (
            temporary_folder("server") as place,
            start_server(settings, place / "server.log") as server,
        ):
            first = len(self.sessions)
            told = {"server": number, "settings": dict(settings), "facts": server.facts}
            self.servers.append(told)  # the facts grow until the server has stopped
            try:
                requests = 0
                for load in loads:
                    requests += self._load(server, load, place / f"client{len(self.sessions)}", requests)
                    server.check()
                    progress(len(self.sessions))
            finally:
                self.steps += list(_in_loads(server.steps(), self.sessions[first:], number))

    def _load(self, server: Server, load: Load, folder: Path, before: int) -> int:
        """Run one load; how many requests it recorded."""
        scraper = Scraper(server.base_url, self.sample_s)
        about = {"load": load.name, "cell": load.cell}
        pages = [("before", scraper.scrape())]
        launched_ns = monotonic_ns()
        with scraper:
            code = _client(server.base_url, folder, load)
        pages += [*(("sample", page) for page in scraper.samples), ("after", scraper.scrape())]
        for phase, (at_ns, page) in pages:
            seen = metrics_of(page, gauges=phase == "sample")
            self.metrics.append({**about, "phase": phase, "at_ns": at_ns, "metrics": seen})
        lines = _whole_lines(folder / NAME) or _whole_lines(folder / PARTIAL)
        self.requests += lines
        asked = {"cell": dict(load.cell), "server": len(self.servers) - 1, "round": load.round,
                 "requests_before": before, "warmup": not load.cell, "name": load.name,
                 "launched_ns": launched_ns}  # fmt: skip
        sessions = json.loads((folder / INFO).read_text())["sessions"] if (folder / INFO).exists() else []
        self.sessions.append({**asked, **(sessions[0] if sessions else {})})
        if code not in (0, 1):  # 1: requests failed, and say so themselves
            server.check()
            how = f"was not done after {_LIMIT_S:g} s" if code is None else f"ended with exit code {code}"
            raise MeasurementRefused(f"the client of {load.name} {how}; see what it said above")
        return len(lines)

    def measurement(self, environment: Mapping[str, Any], reasons: Sequence[str]) -> Measurement:
        """requests.jsonl and server.jsonl, a line a request or scrape; raw.csv, a row a step of an engine.

        `reasons` say why the record is invalid.
        """
        columns = ["server", "load", self.axis, *STEP_COLUMNS]
        has_page = any(told["facts"]["kind"] != "external" for told in self.servers)  # others need not
        if has_page and self.metrics and all(line["metrics"] is None for line in self.metrics):
            reasons = [*reasons, "no page of /metrics could be read"]
        lines = [json.dumps(line, separators=(",", ":")) for line in self.metrics]
        files = {
            "raw.csv": csv_text(columns, self.steps),
            "controls.csv": write_samples((), controls=True),
            "requests.jsonl": "".join(f"{line}\n" for line in self.requests),
            "server.jsonl": "".join(f"{line}\n" for line in lines),
        }
        rows = dict(zip(files, (len(self.steps), 0, len(self.requests), len(lines)), strict=True))
        facts = {
            "oracle": [],
            "columns": columns,
            "servers": self.servers,
            "sessions": self.sessions,
            "clock": "monotonic_ns",
            "validity": {"valid": not reasons, "reasons": list(reasons)},
        }
        return Measurement("serving", files, rows, facts, environment)


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """Both sides of every load.

    Request ids begin with server/axis=value/round/. A server that dies ends the measurement: what was
    recorded until then is returned, marked invalid with the reason. Raises MeasurementRefused when
    nothing was recorded, because no server got ready.
    """
    servers = list(_plan(section))
    recorded = Recorded(next(iter(section["vary"])), section["sample_s"])
    total, reasons = sum(len(loads) for _, loads in servers), list[str]()
    waited_s = machine.wait_until_quiet(section["quiet_cores"], section["quiet_wait_s"])
    with machine.Watch() as watch:
        for settings, loads in servers:
            try:
                recorded.serve(settings, loads, lambda done: progress(done, total))
            except MeasurementRefused as refused:
                if not recorded.requests:
                    raise
                print(refused, file=sys.stderr, flush=True)
                reasons.append(str(refused).partition(";")[0])
                break
    return recorded.measurement({**watch.summary(), "waited_for_quiet_s": waited_s}, reasons)


def _plan(section: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], list[Load]]]:
    """(settings, loads in order) of every server."""
    (axis, values), fixed = next(iter(section["vary"].items())), section["fixed"]
    order = random.Random(fixed["seed"])
    of_server = {name: value for name, value in fixed.items() if name not in OF_LOAD}
    settings = {**section["server"], **of_server}
    asks = {name: value for name, value in fixed.items() if name in OF_LOAD}
    number = 0
    for _ in range(section["servers"]):
        for own in (
            [{}] if axis in OF_LOAD else [{axis: value} for value in order.sample(values, len(values))]
        ):
            loads: list[Load] = []
            if warmups := section["warmup_requests"]:
                fits = {axis: max(values)} if axis in OF_LOAD else {}
                loads.append(Load(f"{number}/warmup/", 0, {}, {**asks, **fits, "requests": warmups}))
            for round_number in range(section["rounds"]):
                for cell in [own] if own else [{axis: value} for value in order.sample(values, len(values))]:
                    name = f"{number}/{axis}={cell[axis]}/{round_number}/"
                    loads.append(Load(name, round_number, cell, asks if own else {**asks, **cell}))
            yield {**settings, **own}, loads
            number += 1


def _client(base_url: str, folder: Path, load: Load) -> int | None:
    """The exit code of the load's client, which ran in a process of its own; None: not done in time."""
    asks = dict(load.asks)
    # No two loads ask the same, or a prefix cache would answer for the engine.
    asks["seed"] = random.Random(f"{asks['seed']}/{load.name}").randrange(2**31)
    if (rate := asks.pop("rate_per_s", None)) is not None:
        asks |= {"rate": rate, "poisson": True}
    command = [sys.executable, "-m", load_cli.__name__, "--die-with-parent", "--base-url", base_url]
    command += ["--output", str(folder), *words(prompt="ids", ignore_eos=True, name=load.name, **asks)]
    try:
        return subprocess.run(
            command, stdout=subprocess.DEVNULL, timeout=_LIMIT_S, check=False, env=installed.of_child()
        ).returncode
    except subprocess.TimeoutExpired:
        return None


def _whole_lines(path: Path) -> list[str]:
    """Every whole line of a file; none when it is not there, and without what is half written."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _in_loads(steps: Sequence[Line], sessions: Sequence[Line], server: int) -> Iterator[Line]:
    """Each step of a server with the load that was launched last before it, and that load's cell.

    A client is at least a tenth of a second old when it sends its first request, and the engine idles
    until then: no step of one load starts in the time of another.
    """
    launched = [session["launched_ns"] for session in sessions]
    for step in steps:
        place = bisect_right(launched, step["started_ns"]) - 1
        of = {"load": sessions[place]["name"], **sessions[place]["cell"]} if place >= 0 else {}
        yield {"server": server, **of, **step}

"""A server and its clients, each in a process of its own, and what both sides wrote.

Neither side is told about the other: clients never see the server's batch limit, the server never sees a
client's concurrency.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns

from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import serving_child
from inference_lab.records import installed
from inference_lab.records.files import temporary_folder
from inference_lab.records.forms import JSON
from inference_lab.records.record import Measurement, csv_text
from inference_lab.records.samples import write_samples
from inference_lab.stream_load.requests import NAME, PARTIAL, short_truth
from inference_lab.stream_load.servers.process import Server, whole_lines
from inference_lab.stream_load.servers.start import start_server
from inference_lab.stream_load.session import INFO

CLIENT_LIMIT_S = 600.0
_CHILD = (sys.executable, "-m", serving_child.__name__)


@dataclass
class Recording:
    """What was recorded so far: lines of every client's requests.jsonl, its sessions, the engine's steps.

    `server` holds the lines of what the server wrote otherwise: its truth, or its /metrics. Every session
    names the `cell` it was made under, and every step has the cell's columns.
    """

    requests: list[str] = field(default_factory=list[str])
    sessions: list[JSON] = field(default_factory=list[JSON])
    steps: list[JSON] = field(default_factory=list[JSON])
    server: list[JSON] = field(default_factory=list[JSON])

    def measurement(
        self, environment: JSON, *, columns: Sequence[str], server_file: str, **facts: object
    ) -> Measurement:
        """Return raw.csv with a row per step of the engine, and a JSON line per request and server line."""
        lines = [json.dumps(line, separators=(",", ":")) for line in self.server]
        files = {
            "raw.csv": csv_text(columns, self.steps),
            "controls.csv": write_samples((), controls=True),
            NAME: "".join(f"{line}\n" for line in self.requests),
            server_file: "".join(f"{line}\n" for line in lines),
        }
        rows = dict(zip(files, (len(self.steps), 0, len(self.requests), len(lines)), strict=True))
        facts |= {"oracle": [], "columns": list(columns), "sessions": self.sessions, "clock": "monotonic_ns"}
        return Measurement("serving", files, rows, facts, environment)

    def truth_measurement(self, environment: JSON) -> Measurement:
        """Return the measurement of loads that `load_beside_truth` recorded."""
        return self.measurement(environment, columns=[*self.steps[0]], server_file="truth.jsonl")

    def load_beside_truth(self, cell: JSON, settings: JSON, clients: Sequence[Sequence[str]]) -> None:
        """Run the clients' loads at the same time against one reference server; add what both sides wrote.

        `clients` holds the options of each `load` but base URL and output. Raises MeasurementRefused unless
        every request of every client succeeded; what both sides wrote is then kept in the folder it names.
        """
        with temporary_folder("serving") as place:
            folders = [place / f"client{number}" for number in range(len(clients))]
            with serving({"kind": "reference", **settings}, place) as server:
                launched_ns = monotonic_ns()
                codes = run_clients(server.base_url, folders, clients)
            if any(code != 0 for code in codes):
                raise MeasurementRefused(
                    f"clients ended with exit codes {codes} (None: not done after {CLIENT_LIMIT_S:g} s);"
                    f" nothing recorded, see {place}"
                )
            assert server.truth is not None
            written = [json.loads(line) for line in whole_lines(server.truth)]
            for folder in folders:
                lines, sessions = client_record(folder)
                refuse_contradiction(map(json.loads, lines), written, place)
                self.requests += lines
                self.sessions += [{"cell": cell, "launched_ns": launched_ns, **one} for one in sessions]
            for line in written:
                kind = line.pop("kind")
                if kind == "request":
                    self.server.append(short_truth(line))
                elif kind == "step":
                    self.steps.append({**cell, **line})


@contextlib.contextmanager
def serving(settings: JSON, place: Path) -> Generator[Server]:
    """A server of these settings, whose log is in the folder `place`; its process runs checked code."""
    reference, log = (*_CHILD, "serve-reference"), place / "server.log"
    with start_server(settings, log, reference=reference, env=installed.of_child()) as server:
        yield server


def run_clients(base_url: str, folders: Sequence[Path], clients: Sequence[Sequence[str]]) -> list[int | None]:
    """Run one client per folder, all at the same time; return their exit codes, None: not done in time."""
    env = installed.of_child()
    processes: list[subprocess.Popen[bytes]] = []
    for folder, options in zip(folders, clients, strict=True):
        command = [*_CHILD, "load", "--base-url", base_url, "--output", str(folder), *options]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env))
    give_up_s = time.monotonic() + CLIENT_LIMIT_S
    try:
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(give_up_s - time.monotonic(), 0))
        return [process.returncode for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def client_record(folder: Path) -> tuple[list[str], list[JSON]]:
    """Return the whole lines of a client's requests.jsonl, finished or not, and its sessions."""
    lines, info = whole_lines(folder / NAME) or whole_lines(folder / PARTIAL), folder / INFO
    return lines, json.loads(info.read_text(encoding="utf-8"))["sessions"] if info.exists() else []


def refuse_contradiction(seen: Iterable[JSON], written: Iterable[JSON], place: Path) -> None:
    """Raise MeasurementRefused unless the server wrote as many tokens of each request as its client saw."""
    tokens = {line["request_id"]: len(line["token_ns"]) for line in written if line["kind"] == "request"}
    for request in seen:
        name, count = request["request_id"], request["output_tokens"]
        if tokens.get(name) != count:
            raise MeasurementRefused(
                f"request {name}: the client saw {count} tokens, the server wrote"
                f" {tokens.get(name, 'nothing')} of it; nothing recorded, see both in {place}"
            )


def cli_options(**options: object) -> list[str]:
    """Return options of a command: `requests=2, burst=True` is `--requests 2 --burst`."""
    words: list[str] = []
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return words

"""One reference server and its clients, each in a process of its own: what both sides wrote down.

Neither process is told what the other is: the clients never see the server's batch limit, the server
never sees a client's concurrency.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.record import Measurement, csv_text
from inference_lab.records.samples import write_samples
from inference_lab.records.temporary import temporary_folder
from inference_lab.stream_load import cli as load_cli
from inference_lab.stream_load.record_file import INFO
from inference_lab.stream_load.reference.reference_process import reference_server

_LIMIT_S = 300.0
STEP_COLUMNS = (
    *("step", "started_ns", "ended_ns", "batch", "prefill_requests", "prefill_tokens"),
    *("decode_requests", "decode_tokens", "waiting"),
)
Line = dict[str, Any]


@dataclass
class BothSides:
    """What was recorded so far: lines of every client's requests.jsonl, its sessions, the server's truth.

    Every session names the `cell` it was made under, and every step has the cell's columns.
    """

    requests: list[str] = field(default_factory=list[str])
    sessions: list[Line] = field(default_factory=list[Line])
    truth: list[Line] = field(default_factory=list[Line])
    steps: list[Line] = field(default_factory=list[Line])

    def measurement(self, environment: Mapping[str, Any]) -> Measurement:
        """requests.jsonl and truth.jsonl, a line a request; raw.csv, a row a step of the server's engine."""
        columns = [*self.sessions[0]["cell"], *STEP_COLUMNS]
        truth = [json.dumps(line, separators=(",", ":")) for line in self.truth]
        files = {
            "raw.csv": csv_text(columns, self.steps),
            "controls.csv": write_samples((), controls=True),
            "requests.jsonl": "".join(f"{line}\n" for line in self.requests),
            "truth.jsonl": "".join(f"{line}\n" for line in truth),
        }
        rows = {
            "raw.csv": len(self.steps),
            "controls.csv": 0,
            "requests.jsonl": len(self.requests),
            "truth.jsonl": len(truth),
        }
        facts = {"oracle": [], "columns": columns, "sessions": self.sessions, "clock": "monotonic_ns"}
        return Measurement("serving", files, rows, facts, environment)

    def serve_and_load(
        self, cell: Mapping[str, Any], server: Sequence[str], clients: Sequence[Sequence[str]]
    ) -> None:
        """Run the clients' loads at the same time against one server and add what became of them.

        `server` holds arguments of `serve-reference`, each of `clients` those of `load` but for the base
        URL and the output. Raises MeasurementRefused unless every request of every client succeeded; what
        both sides wrote until then is kept in the folder it names.
        """
        with temporary_folder("serving") as place:
            truth = place / "truth.jsonl"
            folders = [place / f"client{number}" for number in range(len(clients))]
            with reference_server([*server, "--truth", str(truth)]) as base_url:
                launched_ns = monotonic_ns()
                _run_clients(base_url, folders, clients)
            written = [json.loads(line) for line in _lines(truth)]
            for folder in folders:
                lines = _lines(folder / "requests.jsonl")
                check_both(map(json.loads, lines), written, place)
                self.requests += lines
                for session in json.loads(_text(folder / INFO))["sessions"]:
                    self.sessions.append({"cell": dict(cell), "launched_ns": launched_ns, **session})
            for line in written:
                kind = line.pop("kind")
                if kind == "request":
                    self.truth.append(line)
                elif kind == "step":
                    self.steps.append({**cell, **line})


def _run_clients(base_url: str, folders: Sequence[Path], clients: Sequence[Sequence[str]]) -> None:
    command = [sys.executable, "-m", load_cli.__name__, "--die-with-parent", "--base-url", base_url]
    variables = installed.of_child()
    processes = [
        subprocess.Popen(
            [*command, "--output", str(folder), *words], stdout=subprocess.DEVNULL, env=variables
        )
        for folder, words in zip(folders, clients, strict=True)
    ]
    try:
        codes = [process.wait(_LIMIT_S) for process in processes]
    except subprocess.TimeoutExpired:
        raise MeasurementRefused(
            f"a client was not done after {_LIMIT_S:g} s; nothing recorded, see {folders[0].parent}"
        ) from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        raise MeasurementRefused(
            f"clients ended with exit codes {codes}; nothing recorded, see {folders[0].parent}"
        )


def check_both(seen: Iterable[Line], written: Iterable[Line], place: Path) -> None:
    """Raises MeasurementRefused unless the server wrote, of each request of a client, the tokens it saw."""
    tokens = {line["request_id"]: len(line["token_ns"]) for line in written if line["kind"] == "request"}
    for request in seen:
        name, count = request["request_id"], request["output_tokens"]
        if tokens.get(name) != count:
            raise MeasurementRefused(
                f"request {name}: the client saw {count} tokens, the server wrote"
                f" {tokens.get(name, 'nothing')} of it; nothing recorded, see both in {place}"
            )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def words(**options: object) -> list[str]:
    """Options of a command as its words: `max_num_seqs=2` is `--max-num-seqs 2`, `burst=True` `--burst`."""
    found: list[str] = []
    for name, value in options.items():
        found += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return found

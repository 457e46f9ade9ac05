"""One reference server and its clients, each in a process of its own: what both sides wrote down.

Neither process is told what the other is: the clients never see the server's batch limit, the server
never sees a client's concurrency.
"""

import csv
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference_lab.errors import MeasurementRefused
from inference_lab.serving.reference_process import reference_server

_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """The lines of every client's requests.jsonl, what each said of its run, the server's truth."""

    requests: Sequence[str]
    sessions: Sequence[Mapping[str, Any]]
    truth: Sequence[Mapping[str, Any]]

    def lines(self, kind: str) -> list[dict[str, Any]]:
        """The truth's lines of one kind (`request`, `step`), without naming it."""
        return [
            {key: value for key, value in line.items() if key != "kind"}
            for line in self.truth
            if line["kind"] == kind
        ]


def serve_and_load(server: Sequence[str], clients: Sequence[Sequence[str]]) -> Served:
    """What became of the clients' loads, run at the same time against one server.

    `server` holds arguments of `serve-reference`, each of `clients` those of `load` but for the base URL
    and the output. Raises MeasurementRefused unless every request of every client succeeded; what both
    sides wrote until then is kept in the folder it names.
    """
    place = Path(tempfile.mkdtemp(prefix="inference-lab-serving-"))
    truth = place / "truth.jsonl"
    folders = [place / f"client{number}" for number in range(len(clients))]
    with reference_server([*server, "--truth", str(truth)]) as base_url:
        _run_clients(base_url, folders, clients)
    infos = [json.loads(_text(folder / "load.json")) for folder in folders]
    served = Served(
        [line for folder in folders for line in _text(folder / "requests.jsonl").splitlines()],
        [session for info in infos for session in info["sessions"]],
        [json.loads(line) for line in _text(truth).splitlines()],
    )
    shutil.rmtree(place)
    return served


def _run_clients(base_url: str, folders: Sequence[Path], clients: Sequence[Sequence[str]]) -> None:
    command = [sys.executable, "-m", "inference_lab.serving.load_command", "--die-with-parent"]
    command += ["--base-url", base_url]
    processes = [
        subprocess.Popen([*command, "--output", str(folder), *words], stdout=subprocess.DEVNULL)
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


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def words(**options: object) -> list[str]:
    """Options of a command as its words: `max_num_seqs=2` is `--max-num-seqs 2`, `burst=True` `--burst`."""
    found: list[str] = []
    for name, value in options.items():
        found += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return found


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows under these columns as the text of a CSV file."""
    text = io.StringIO()
    table = csv.DictWriter(text, columns, lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return text.getvalue()

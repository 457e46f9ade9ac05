"""The server that settings ask for: the reference server, vLLM, or one that runs already."""

import json
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.reference import cli as reference_cli
from inference_lab.stream_load.servers.process import (
    STEP_COLUMNS,
    Server,
    get,
    refuse_dead,
    refuse_unknown,
    root,
    supervised,
    version,
    whole_lines,
)
from inference_lab.stream_load.servers.vllm import SETTINGS, vllm_server

_READY_S = 30.0
_REFERENCE = ("max_num_seqs", "max_num_batched_tokens", "port", "ttft_ms", "itl_ms")
# Settings of vLLM that the reference server ignores, so that one experiment's settings serve both kinds.
_IGNORED = frozenset(SETTINGS) - {*_REFERENCE}
_PROGRAM = (sys.executable, "-m", reference_cli.__name__)


def start_server(
    settings: Mapping[str, Any],
    log: Path,
    *,
    reference: Sequence[str] = _PROGRAM,
    env: Mapping[str, str] | None = None,
) -> AbstractContextManager[Server]:
    """A server of `settings["kind"]`, reference, vllm or external, that ends with the block.

    `log` is a new file in a folder of its own. `reference` is the command of the reference server; `env` are
    the variables of our own processes. Raises ConfigError for a key that the kind does not know,
    MeasurementRefused, with the end of the log, when no server gets ready.
    """
    asked = dict(settings)
    match asked.pop("kind", None):
        case "reference":
            return _reference(asked, log, reference, env)
        case "vllm":
            return vllm_server(asked, log, env)
        case "external":
            return _external(asked)
        case kind:
            raise ConfigError(f"server kind is {kind!r}, must be one of reference, vllm, external")


@contextmanager
def _reference(
    settings: Mapping[str, Any], log: Path, program: Sequence[str], env: Mapping[str, str] | None
) -> Generator[Server]:
    refuse_unknown("reference", settings, _IGNORED | {*_REFERENCE})
    used = {name: settings[name] for name in _REFERENCE if name in settings}
    truth = log.with_suffix(".truth.jsonl")
    command = [*program, "--truth", str(truth)]
    for name, value in ({"port": 0} | used).items():
        command += [f"--{name.replace('_', '-')}", str(value)]

    def steps() -> list[dict[str, Any]]:
        lines = map(json.loads, whole_lines(truth))
        return [_step_row(line) for line in lines if line["kind"] == "step"]

    with supervised(command, log, env) as process:

        def check() -> None:
            refuse_dead("the reference server", process.poll(), log)

        began_s = time.monotonic()
        while not (ready := [line for line in whole_lines(log) if line.startswith('{"base_url"')]):
            check()
            if time.monotonic() - began_s > _READY_S:
                raise MeasurementRefused(f"the reference server was not ready after {_READY_S:g} s")
            time.sleep(0.02)
        url = json.loads(ready[0])["base_url"]
        facts = {
            "kind": "reference",
            "version": version(url),
            "arguments": used,
            "ignored": sorted(set(settings) - set(used)),
            "started_s": round(time.monotonic() - began_s, 3),
            "clock": {"of": "CLOCK_MONOTONIC, read by the server itself", "offset_ns": 0},
        }
        yield Server(url, facts, steps, check, log, truth)


def _step_row(line: Mapping[str, Any]) -> dict[str, Any]:
    row = {**line, "elapsed_ms": (line["ended_ns"] - line["started_ns"]) / 1e6}
    return {column: row[column] for column in STEP_COLUMNS}


@contextmanager
def _external(settings: Mapping[str, Any]) -> Generator[Server]:
    refuse_unknown("external", settings, _IGNORED | {*_REFERENCE, "base_url"})
    url = settings.get("base_url", "")
    Endpoint.parse(url)
    facts = {
        "kind": "external",
        "version": version(url),
        "arguments": {},
        "ignored": sorted(set(settings) - {"base_url"}),
        "clock": {"of": "none: its steps are not seen from here"},
    }

    def check() -> None:
        if get(f"{root(url)}/health") is None and get(f"{url}/models") is None:
            raise MeasurementRefused(
                f"{url} answers neither /health nor /models; start it or correct base_url"
            )

    check()
    yield Server(url, facts, list, check)

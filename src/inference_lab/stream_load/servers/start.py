"""The server that settings ask for: the reference server, vLLM, or one that runs already."""

import json
import sys
import time
from collections.abc import Generator, Mapping
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
    guarded,
    refuse_dead,
    refuse_unknown,
    root,
    version,
)
from inference_lab.stream_load.servers.vllm import SETTINGS, vllm_server

_READY_S = 30.0
# What the reference server has no use for, so that one experiment's settings serve both kinds.
_IGNORED = frozenset(SETTINGS) - {"max_num_seqs", "max_num_batched_tokens", "port"}
_REFERENCE = ("max_num_seqs", "max_num_batched_tokens", "port", "ttft_ms", "itl_ms", "spread", "seed")


def start_server(settings: Mapping[str, Any], log: Path) -> AbstractContextManager[Server]:
    """A server of `settings["kind"]`, reference, vllm or external, that ends with the block.

    `log` is a new file in a folder of its own. Raises ConfigError for a key that the kind does not know,
    MeasurementRefused, with the end of the log, when no server gets ready.
    """
    kinds = {"reference": _reference, "vllm": vllm_server, "external": _external}
    asked = dict(settings)
    kind = asked.pop("kind", None)
    if kind not in kinds:
        raise ConfigError(f"server kind is {kind!r}, must be one of {', '.join(kinds)}")
    return kinds[kind](asked, log)


@contextmanager
def _reference(settings: Mapping[str, Any], log: Path) -> Generator[Server]:
    refuse_unknown("reference", settings, _IGNORED | {*_REFERENCE})
    used = {name: settings[name] for name in _REFERENCE if name in settings}
    truth = log.with_suffix(".truth.jsonl")
    command = [sys.executable, "-m", reference_cli.__name__, "--truth", str(truth)]
    for name, value in ({"port": 0} | used).items():
        command += [f"--{name.replace('_', '-')}", str(value)]

    def steps() -> list[dict[str, Any]]:
        lines = map(json.loads, _whole_lines(truth))
        return [_reference_step(line) for line in lines if line["kind"] == "step"]

    with guarded(command, log) as process:

        def check() -> None:
            refuse_dead("the reference server", process.poll(), log)

        began_s = time.monotonic()
        while not (said := [line for line in _whole_lines(log) if line.startswith('{"base_url"')]):
            check()
            if time.monotonic() - began_s > _READY_S:
                raise MeasurementRefused(f"the reference server was not ready after {_READY_S:g} s")
            time.sleep(0.02)
        url = json.loads(said[0])["base_url"]
        facts = {
            "kind": "reference",
            "version": version(url),
            "arguments": used,
            "ignored": sorted(set(settings) - set(used)),
            "started_s": round(time.monotonic() - began_s, 3),
            "clock": {"of": "CLOCK_MONOTONIC, read by the server itself", "offset_ns": 0},
        }
        yield Server(url, facts, steps, check, log, truth)


def _whole_lines(path: Path) -> list[str]:
    """Lines of a file that is being written, but for one that is only begun."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _reference_step(line: Mapping[str, Any]) -> dict[str, Any]:
    row = {**line, "elapsed_ms": (line["ended_ns"] - line["started_ns"]) / 1e6}
    return {column: row[column] for column in STEP_COLUMNS}


@contextmanager
def _external(settings: Mapping[str, Any], _: Path) -> Generator[Server]:
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


__all__ = ["STEP_COLUMNS", "Server", "start_server"]

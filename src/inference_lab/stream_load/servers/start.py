"""The server that settings ask for: the reference server, vLLM, or one that runs already."""

import json
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.reference import cli as reference_cli
from inference_lab.stream_load.servers import vllm
from inference_lab.stream_load.servers.process import (
    STEP_COLUMNS,
    Server,
    Settings,
    Step,
    get,
    root,
    started,
    version,
    whole_lines,
)

_READY_S = 30.0
_REFERENCE = ("max_num_seqs", "max_num_batched_tokens", "port", "ttft_ms", "itl_ms")
_EITHER = (*_REFERENCE, *vllm.SETTINGS)  # what is of vLLM alone is ignored: one experiment serves both kinds
_KNOWN = {"reference": _EITHER, "vllm": vllm.SETTINGS, "external": (*_EITHER, "base_url")}
_PROGRAM = (sys.executable, "-m", reference_cli.__name__)


def start_server(
    settings: Settings,
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
    kind = asked.pop("kind", None)
    if kind not in _KNOWN:
        raise ConfigError(f"server kind is {kind!r}, must be one of {', '.join(_KNOWN)}")
    if unknown := sorted(set(asked) - set(_KNOWN[kind])):
        known = ", ".join(sorted(set(_KNOWN[kind])))
        raise ConfigError(f"{kind} server: no setting {unknown[0]!r}; known are {known}")
    if kind == "vllm":
        return vllm.vllm_server(asked, log, env)
    return _external(asked) if kind == "external" else _reference(asked, log, reference, env)


@contextmanager
def _reference(
    settings: Settings, log: Path, program: Sequence[str], env: Mapping[str, str] | None
) -> Generator[Server]:
    used = {name: settings[name] for name in _REFERENCE if name in settings}
    truth = log.with_suffix(".truth.jsonl")
    command = [*program, "--truth", str(truth)]
    for name, value in ({"port": 0} | used).items():
        command += [f"--{name.replace('_', '-')}", str(value)]

    def steps() -> list[Step]:
        lines = [line for line in map(json.loads, whole_lines(truth)) if line["kind"] == "step"]
        for line in lines:
            line["elapsed_ms"] = (line["ended_ns"] - line["started_ns"]) / 1e6
        return [{column: line[column] for column in STEP_COLUMNS} for line in lines]

    def ready() -> str | None:
        return next((line for line in whole_lines(log) if line.startswith('{"base_url"')), None)

    with started(command, log, env, ready, _READY_S) as (line, check, started_s):
        url = json.loads(line)["base_url"]
        facts = {
            "kind": "reference",
            "version": version(url),
            "arguments": used,
            "ignored": sorted(set(settings) - set(used)),
            "started_s": started_s,
            "clock": {"of": "CLOCK_MONOTONIC, read by the server itself", "offset_ns": 0},
        }
        yield Server(url, facts, steps, check, truth)


@contextmanager
def _external(settings: Settings) -> Generator[Server]:
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

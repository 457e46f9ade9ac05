"""A vLLM server of our own: started with declared arguments, watched through its log, always ended."""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import run
from typing import Any

from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.records.files import sha256_file, sha256_value
from inference_lab.stream_load.servers.process import (
    Server,
    get,
    guarded,
    log_tail,
    refuse_dead,
    refuse_unknown,
    root,
)
from inference_lab.stream_load.servers.vllm_install import (
    VllmEnvironment,
    declared,
    find_environment,
    variables,
)

MODEL_NAME = "model"
READY_S = 240.0
# Engine and worker poll each other for as long as there is work, and on two cores a client that lost its core
# to them got it back 0.2 s later: whoever measures comes first.
_NICE = 10
# Settings that are arguments of the same name; the others are said where they are used.
_ARGUMENTS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "dtype", "block_size")
SETTINGS = (*_ARGUMENTS, "kv_cache_gib", "enable_prefix_caching", "model", "port", "arguments", "ready_s")
_SHAPE = ("vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "seed")
_ITERATION = re.compile(
    r"(?P<ended_ns>\d+) [\d.]+ INFO \S+ (?:.*: )?Iteration\((?P<step>\d+)\): "
    r"(?P<prefill_requests>\d+) context requests, (?P<prefill_tokens>\d+) context tokens, "
    r"(?P<decode_requests>\d+) generation requests, (?P<decode_tokens>\d+) generation tokens, "
    r"iteration elapsed time: (?P<elapsed_ms>[\d.]+) ms"
)
_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")


@contextmanager
def vllm_server(settings: Mapping[str, Any], log: Path) -> Generator[Server]:
    """A vLLM server on 127.0.0.1 that answers /health.

    `settings` are SETTINGS; `model` is a path or a shape, whose weights are then written here, seeded.
    Raises ConfigError for settings that it does not know, MeasurementRefused with the end of the log when
    the server dies or is not ready after `ready_s`.
    """
    refuse_unknown("vllm", settings, frozenset(SETTINGS))
    environment = find_environment()
    model, model_facts = _model(environment, settings.get("model"))
    port = settings.get("port") or _free_port()
    base_url = f"http://127.0.0.1:{port}/v1"
    arguments = _arguments(settings)
    command = ["nice", "-n", str(_NICE), str(environment.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--served-model-name", MODEL_NAME]
    command += ["--host", "127.0.0.1", "--port", str(port), *arguments]
    began_s = time.monotonic()
    with guarded(command, log, _variables(environment)) as process:

        def check() -> None:
            refuse_dead("the vLLM server", process.poll(), log)

        _wait_until_ready(base_url, check, settings.get("ready_s", READY_S), log)
        facts = {
            "kind": "vllm",
            "version": environment.facts["vllm"],
            "environment": environment.facts,
            "arguments": arguments,
            "nice": _NICE,
            "model": model_facts,
            "started_s": round(time.monotonic() - began_s, 3),
            "kv_cache_tokens": _kv_tokens(log),
            "block_size": _block_size(base_url),
            "clock": {
                "of": "CLOCK_MONOTONIC, read by the API server when it logs a step: after its end in the"
                " engine, before its tokens are sent",
                "offset_ns": 0,
            },
        }
        yield Server(base_url, facts, lambda: iterations(log), check, log)


def iterations(log: Path) -> list[dict[str, Any]]:
    """A row for each iteration in a log: see STEP_COLUMNS. The log does not say how many waited."""
    rows: list[dict[str, Any]] = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := _ITERATION.search(line):
            said = {name: int(value) for name, value in found.groupdict().items() if name != "elapsed_ms"}
            elapsed_ms = float(found["elapsed_ms"])
            rows.append(
                {
                    "step": said["step"],
                    "started_ns": said["ended_ns"] - round(elapsed_ms * 1e6),
                    "ended_ns": said["ended_ns"],
                    "batch": said["prefill_requests"] + said["decode_requests"],
                    "prefill_requests": said["prefill_requests"],
                    "prefill_tokens": said["prefill_tokens"],
                    "decode_requests": said["decode_requests"],
                    "decode_tokens": said["decode_tokens"],
                    "waiting": None,
                    "elapsed_ms": elapsed_ms,
                }
            )
    return rows


def _arguments(settings: Mapping[str, Any]) -> list[str]:
    words = ["--enable-logging-iteration-details", "--enforce-eager", "--disable-uvicorn-access-log"]
    for name in _ARGUMENTS:
        if settings.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    words += ["--kv-cache-memory-bytes", str(round(settings.get("kv_cache_gib", 1) * 2**30))]
    if (caching := settings.get("enable_prefix_caching")) is not None:
        words.append("--enable-prefix-caching" if caching else "--no-enable-prefix-caching")
    return [*words, *map(str, settings.get("arguments", ()))]


def _variables(environment: VllmEnvironment) -> dict[str, str]:
    """The server's environment: offline, silent, one thread of arithmetic, its log on the monotonic clock."""
    logging = declared("logging.json")
    # A user's VLLM_ variable would change what is measured.
    kept = {name: value for name, value in variables().items() if not name.startswith("VLLM_")}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_LOGGING_CONFIG_PATH": str(logging),
        "VLLM_CACHE_ROOT": str(environment.folder / "cache"),
        "PYTHONPATH": str(logging.parent),
    }


def _model(environment: VllmEnvironment, asked: Any) -> tuple[Path, dict[str, Any]]:
    """Folder of the model and what it is: shape, sha256 of weights and config."""
    if not isinstance(asked, Mapping) or not ({"path"} == set(asked) or set(_SHAPE) <= set(asked)):
        raise ConfigError(
            f"vllm server: model is {asked!r}, must be {{path: ...}} or give {', '.join(_SHAPE)}"
        )
    folder = Path(asked["path"]) if "path" in asked else written_model(environment, dict(asked))
    files = sorted([*folder.glob("*.safetensors"), *folder.glob("config.json")])
    if not (folder / "config.json").is_file():
        raise MeasurementRefused(f"model {folder}: no config.json there; correct model.path")
    digests = {path.name: sha256_file(path) for path in files}
    return folder.absolute(), {"shape": {k: v for k, v in asked.items() if k != "path"}, "sha256": digests}


def written_model(environment: VllmEnvironment, shape: dict[str, Any]) -> Path:
    """The folder of a random-weight model of this shape, written at its first use."""
    script = declared("write_model.py")
    whole = {"intermediate_size": 2 * shape["hidden_size"], "max_position_embeddings": 8192, **shape}
    name = sha256_value([whole, sha256_file(script), environment.facts["digest"]])[:16]
    folder = environment.folder / "models" / name
    if not folder.exists():
        half = folder.with_name(f"{name}.{os.getpid()}.partial")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        command = [str(environment.python), str(script), str(half), json.dumps(whole)]
        offline = {**variables(), "HF_HUB_OFFLINE": "1"}
        ended = run(command, env=offline, capture_output=True, text=True, check=False)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise MeasurementRefused(f"a model of shape {shape} cannot be written: {last}")
        half.rename(folder)
    return folder


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _wait_until_ready(base_url: str, check: Any, limit_s: float, log: Path) -> None:
    give_up = time.monotonic() + limit_s
    while get(f"{root(base_url)}/health", timeout_s=2.0) is None:
        check()
        if time.monotonic() > give_up:
            raise MeasurementRefused(
                f"the vLLM server was not ready after {limit_s:g} s; raise ready_s or read its log {log},"
                f" which ends with\n{log_tail(log)}"
            )
        time.sleep(0.1)
    check()  # another server may answer on a port that ours could not have


def _kv_tokens(log: Path) -> int | None:
    found = _KV_TOKENS.search(log.read_text(encoding="utf-8", errors="replace"))
    return int(found[1].replace(",", "")) if found else None


def _block_size(base_url: str) -> int | None:
    """From the labels of vllm:cache_config_info."""
    found = re.search(
        rb'cache_config_info\{[^}]*\bblock_size="(\d+)"', get(f"{root(base_url)}/metrics") or b""
    )
    return int(found[1]) if found else None

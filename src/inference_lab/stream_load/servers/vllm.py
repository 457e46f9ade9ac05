"""A vLLM server of our own: started with declared arguments, watched through its log, always ended.

Its environment, its model and its log's form come from the files in SCRIPTS, relative to the checkout.
"""

import hashlib
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import run
from typing import Any

from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.stream_load.servers.process import (
    STEP_COLUMNS,
    Facts,
    Server,
    Settings,
    Step,
    get,
    log_text,
    root,
    started,
)

SCRIPTS = Path("workflow/envs/vllm")
_READY_S = 240.0
# Engine and worker poll each other while there is work. On two cores a client that lost its core to them got
# it back 0.2 s later, so the server yields to whoever measures.
_NICE = 10
# Settings that are arguments of the same name.
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
_BLOCK_SIZE = re.compile(r'cache_config_info\{[^}]*\bblock_size="(\d+)"')


@dataclass(frozen=True, slots=True)
class VllmEnvironment:
    """An installed environment. Facts: versions of vLLM, torch, Python; digest; whether it is as pinned."""

    folder: Path
    python: Path
    site: Path
    facts: Facts


def find_environment(env: Mapping[str, str] | None = None) -> VllmEnvironment:
    """Return the environment of vLLM, checked by the script that makes it. Raises MeasurementRefused."""
    command = [sys.executable, str(_script("install.py")), "--json"]
    checked = run(command, env=env, capture_output=True, text=True, check=False)
    if checked.returncode:
        raise MeasurementRefused(checked.stderr.strip() or f"{SCRIPTS}/install.py: no message")
    folder, python, site, facts = json.loads(checked.stdout).values()
    return VllmEnvironment(Path(folder), Path(python), Path(site), facts)


def _script(name: str) -> Path:
    path = (SCRIPTS / name).resolve()
    if not path.is_file():
        raise ConfigError(f"{SCRIPTS / name}: no such file; run this in a checkout of the project")
    return path


@contextmanager
def vllm_server(settings: Settings, log: Path, env: Mapping[str, str] | None = None) -> Generator[Server]:
    """A vLLM server on 127.0.0.1 that answers /health.

    `settings` are SETTINGS; `model` is a path or a shape, whose weights are then written here, seeded. `env`
    is the environment of the script that checks the installation. Raises ConfigError for a model that is
    neither, MeasurementRefused with the end of the log when the server dies or is not ready in `ready_s`.
    """
    environment = find_environment(env)
    model, model_facts = _model(environment, settings.get("model"))
    port = settings.get("port") or _free_port()
    base_url = f"http://127.0.0.1:{port}/v1"
    arguments = _arguments(settings)
    command = ["nice", "-n", str(_NICE), str(environment.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--served-model-name", "model"]
    command += ["--host", "127.0.0.1", "--port", str(port), *arguments]

    def ready() -> bytes | None:
        return get(f"{root(base_url)}/health", timeout_s=2.0)

    limit_s = settings.get("ready_s", _READY_S)
    with started(command, log, _variables(environment), ready, limit_s) as (_, check, started_s):
        facts = {
            "kind": "vllm",
            "version": environment.facts["vllm"],
            "environment": environment.facts,
            "arguments": arguments,
            "nice": _NICE,
            "model": model_facts,
            "started_s": started_s,
            "kv_cache_tokens": _number(_KV_TOKENS, log_text(log)),
            "block_size": _number(_BLOCK_SIZE, (get(f"{root(base_url)}/metrics") or b"").decode("latin-1")),
            "clock": {
                "of": "CLOCK_MONOTONIC, read by the API server when it logs a step: after its end in the"
                " engine, before its tokens are sent",
                "offset_ns": 0,
            },
        }
        yield Server(base_url, facts, lambda: iterations(log), check)


def iterations(log: Path) -> list[Step]:
    """Return the iterations in a log. How many waited is not in the log."""
    found = (_ITERATION.search(line) for line in log_text(log).splitlines())
    return [_step(match) for match in found if match]


def _step(found: re.Match[str]) -> Step:
    elapsed_ms = float(found["elapsed_ms"])
    counts = {name: int(value) for name, value in found.groupdict().items() if name != "elapsed_ms"}
    return {
        **dict.fromkeys(STEP_COLUMNS),
        **counts,
        "started_ns": counts["ended_ns"] - round(elapsed_ms * 1e6),
        "batch": counts["prefill_requests"] + counts["decode_requests"],
        "elapsed_ms": elapsed_ms,
    }


def _arguments(settings: Settings) -> list[str]:
    words = ["--enable-logging-iteration-details", "--enforce-eager", "--disable-uvicorn-access-log"]
    for name in _ARGUMENTS:
        if settings.get(name) is not None:
            words += [f"--{name.replace('_', '-')}", str(settings[name])]
    words += ["--kv-cache-memory-bytes", str(round(settings.get("kv_cache_gib", 1) * 2**30))]
    if (caching := settings.get("enable_prefix_caching")) is not None:
        words.append("--enable-prefix-caching" if caching else "--no-enable-prefix-caching")
    return [*words, *map(str, settings.get("arguments", ()))]


def _variables(environment: VllmEnvironment) -> dict[str, str]:
    """Return the server's variables: offline, silent, one thread of arithmetic, a log in monotonic time."""
    logging = _script("logging.json")
    # A user's VLLM_ variable would change what is measured.
    kept = {name: value for name, value in _of_another_python().items() if not name.startswith("VLLM_")}
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


def _of_another_python() -> dict[str, str]:
    """Return this process's variables without those that steer its own Python."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    return {**kept, "PYTHONSAFEPATH": "1"}  # no module from the working directory


def _model(environment: VllmEnvironment, asked: Any) -> tuple[Path, Facts]:
    """Return the folder of the model and its facts: shape, sha256 of weights and config."""
    if not isinstance(asked, Mapping) or not ({"path"} == set(asked) or set(_SHAPE) <= set(asked)):
        rule = f"must be {{path: ...}} or give {', '.join(_SHAPE)}"
        raise ConfigError(f"vllm server: model is {asked!r}, {rule}")
    shape = {name: value for name, value in asked.items() if name != "path"}
    folder = Path(asked["path"]) if "path" in asked else written_model(environment, shape)
    if not (folder / "config.json").is_file():
        raise MeasurementRefused(f"model {folder}: no config.json there; correct model.path")
    files = sorted([*folder.glob("*.safetensors"), folder / "config.json"])
    return folder.absolute(), {"shape": shape, "sha256": {path.name: _sha256(path) for path in files}}


def written_model(environment: VllmEnvironment, shape: Settings) -> Path:
    """Return the folder of a random-weight model of this shape, written at its first use."""
    script = _script("write_model.py")
    whole = {"intermediate_size": 2 * shape["hidden_size"], "max_position_embeddings": 8192, **shape}
    decides = json.dumps([whole, _sha256(script), environment.facts["digest"]], sort_keys=True)
    name = hashlib.sha256(decides.encode()).hexdigest()[:16]
    folder = environment.folder / "models" / name
    if not folder.exists():
        half = folder.with_name(f"{name}.{os.getpid()}.partial")
        shutil.rmtree(half, ignore_errors=True)
        half.mkdir(parents=True)
        command = [str(environment.python), str(script), str(half), json.dumps(whole)]
        offline = {**_of_another_python(), "HF_HUB_OFFLINE": "1"}
        ended = run(command, env=offline, capture_output=True, text=True, check=False)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no message"])[-1]
            raise MeasurementRefused(f"a model of shape {shape} cannot be written: {last}")
        half.rename(folder)
    return folder


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1].replace(",", "")) if found else None

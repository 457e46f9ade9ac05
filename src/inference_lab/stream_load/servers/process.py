"""A server as a process: its address, its facts, its engine's steps, and whether it still runs."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.servers import process_group

STEP_COLUMNS = ("step", "started_ns", "ended_ns", "batch", "prefill_requests", "prefill_tokens",
                "decode_requests", "decode_tokens", "waiting", "elapsed_ms")  # fmt: skip
_ERROR = re.compile(r"^(?:[\w.]+(?:Error|Exception)|\S+: error): .+$", re.MULTILINE)
_NOISE = re.compile(r"nanobind: |See \S+nanobind| - (leaked|\.\.\.)|\s+warnings\.warn")  # after the end
_STOP_S = 20.0
_MAX_PAGE_BYTES = 16 << 20  # no server decides how much memory its page takes
_open = build_opener(ProxyHandler({})).open  # as the load client: no proxy, whatever the environment names
Settings = Mapping[str, Any]  # of a server, by name
Facts = dict[str, Any]  # JSON values; they hold no path
Step = dict[str, float | None]  # STEP_COLUMNS of a step, ns of CLOCK_MONOTONIC; None: not reported
Found = TypeVar("Found")


@dataclass
class Server:
    """A running server; `check` raises MeasurementRefused, with the end of its log, when it has died."""

    base_url: str
    facts: Facts
    steps: Callable[[], list[Step]]
    check: Callable[[], None]
    truth: Path | None = None  # of the reference server alone: its own times, complete when it has stopped


@contextmanager
def supervised(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """A command whose whole family of processes ends with this block, or with this process, however it ends.

    stdout and stderr go to `log`. The process given is its supervisor, which ends as the command does.
    """
    with log.open("ab") as file:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", process_group.__file__, str(os.getpid()), *command],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=env,
            # Ctrl-C is for the measuring process, which ends its server itself. No session of its own: Linux
            # weighs sessions against each other, and a server's niceness would mean nothing to its client.
            process_group=0,
        )
    try:
        yield supervisor
    finally:
        if supervisor.stdin:
            supervisor.stdin.close()  # it sends SIGTERM, then kills what is left
        try:
            supervisor.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            supervisor.send_signal(signal.SIGKILL)
            supervisor.wait()


@contextmanager
def started(
    command: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None,
    ready: Callable[[], Found | None],
    limit_s: float,
) -> Generator[tuple[Found, Callable[[], None], float]]:
    """What `ready` finds of a supervised server, the check whether it runs, and how many s its start took.

    Raises MeasurementRefused when that takes longer than `limit_s`, or when the server dies.
    """
    began_s = time.monotonic()
    with supervised(command, log, env) as process:

        def check() -> None:
            refuse_dead(process.poll(), log)

        while (found := ready()) is None:
            check()
            if time.monotonic() - began_s > limit_s:
                words = f"the server was not ready after {limit_s:g} s; raise ready_s or read its log {log}"
                raise MeasurementRefused(f"{words}, which ends with\n{log_tail(log)}")
            time.sleep(0.05)
        check()  # another server may answer on a port that ours could not have
        yield found, check, round(time.monotonic() - began_s, 3)


def log_text(log: Path) -> str:
    """Return the text of a log; none when it is not there."""
    return log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""


def whole_lines(path: Path) -> list[str]:
    """Return the whole lines of a file that may still be written; none when it is not there."""
    text = log_text(path)
    return text[: text.rfind("\n") + 1].splitlines()


def log_tail(log: Path) -> str:
    """Return the last lines of a log, each indented, without what libraries print at their exit."""
    lines = [line for line in log_text(log).splitlines() if line.strip() and not _NOISE.match(line)]
    return "\n".join(f"  | {line.rstrip()}" for line in lines[-15:]) or "  | (the log is empty)"


def get(url: str, timeout_s: float = 5.0) -> bytes | None:
    """Return the body of a GET answered with 200, whole, in time and within bounds; else None."""
    give_up_s, body = time.monotonic() + timeout_s, b""
    try:
        with _open(url, timeout=timeout_s) as answer:
            while piece := answer.read1(1 << 20):
                body += piece
                if len(body) > _MAX_PAGE_BYTES or time.monotonic() > give_up_s:
                    return None
            return None if answer.length else body  # what is left of a body that was cut off
    except (URLError, HTTPException, OSError, ValueError):  # HTTP errors are URLErrors; ValueError: no HTTP
        return None


def version(base_url: str) -> str | None:
    """Return the version on the server's page /version, None when it has no such page."""
    try:
        return str(json.loads(get(f"{root(base_url)}/version") or b"")["version"])[:100]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def root(base_url: str) -> str:
    """Return the base URL without its /v1: there are /health, /version and /metrics."""
    return base_url.rstrip("/").removesuffix("/v1")


def refuse_dead(returncode: int | None, log: Path) -> None:
    """Raise MeasurementRefused with the end of the log when a process has an exit code."""
    if returncode is None:
        return
    number = -returncode if returncode < 0 else returncode - 128  # the supervisor's own end, or the command's
    how = f"was killed by signal {number}" if number > 0 else f"ended with exit code {returncode}"
    first = _ERROR.search(log_text(log))  # in a stack of errors the last is the vaguest
    cause = f": {first[0].strip()}" if first else ""
    raise MeasurementRefused(f"the server {how}{cause}; its log {log} ends with\n{log_tail(log)}")

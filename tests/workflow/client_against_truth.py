"""What the load client is worth against a compiled server: errors of its times, tokens/s, CPU per token.

    uv run python -m tests.workflow.client_against_truth [--streams 64 256 700] [--rounds 3] [--beside FOLDER]

Compiles truth_server.c with `cc` and loads it from this checkout and, in turns, from another one (`--beside`,
its environment made), so that two states of the client are compared on one machine in one session. By hand,
on a quiet machine.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from itertools import accumulate
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parents[2]
TTFT_MS, ITL_MS, TOKENS = 20, 10, 128


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_load(checkout: Path, program: Path, streams: int, folder: Path) -> dict[str, float]:
    """Errors in ms (client minus truth), tokens/s, CPU microseconds per token of one load.

    `CPU s beside` is what the command needs besides: imports, digests of its sources and packages, summary.
    """
    port, truth = free_port(), folder / "truth"
    server = subprocess.Popen(
        [program, str(port), str(TTFT_MS), str(ITL_MS), truth], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    server.stdout.readline()
    words = [
        "load",
        "--base-url",
        f"http://127.0.0.1:{port}/v1",
        "--output",
        folder / "load",
        "--model",
        "truth",
    ]
    words += ["--requests", 3 * streams, "--concurrency", streams, "--output-tokens", TOKENS]
    child = subprocess.Popen(
        [checkout / ".venv/bin/inference-lab", *map(str, words)],
        cwd=checkout, stdout=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    server.send_signal(signal.SIGTERM)
    server.wait()
    if child.returncode:
        sys.exit(f"{checkout}: the load ended with {child.returncode}")
    written: dict[str, dict[int, int]] = {}
    for line in truth.read_text().splitlines():
        name, number, ns = line.split()
        written.setdefault(name, {})[int(number)] = int(ns)
    ttft, itl = list[int](), list[int]()
    first, last, tokens = 1 << 62, 0, 0
    for line in (folder / "load" / "requests.jsonl").read_text().splitlines():
        request = json.loads(line)
        seen = list(accumulate(request["itl_ns"], initial=request["first_token_ns"]))
        true = [ns for _, ns in sorted(written[request["request_id"]].items())]
        ttft.append(seen[0] - true[0])
        itl += [b - a - (d - c) for a, b, c, d in zip(seen, seen[1:], true, true[1:], strict=False)]
        first, last, tokens = min(first, seen[0]), max(last, seen[-1]), tokens + len(seen)
    sessions = json.loads((folder / "load" / "manifest.json").read_text())["sessions"]
    return {
        "TTFT error P50": float(np.percentile(ttft, 50)) / 1e6,
        "P99": float(np.percentile(ttft, 99)) / 1e6,
        "ITL error P99": float(np.percentile(np.abs(itl), 99)) / 1e6,
        "max": float(np.abs(itl).max()) / 1e6,
        "tokens/s": tokens / (last - first) * 1e9,
        "CPU us/token": sum(session["client_cpu_ns"] for session in sessions) / tokens / 1e3,
        "CPU s beside": usage.ru_utime + usage.ru_stime - sum(one["client_cpu_ns"] for one in sessions) / 1e9,
    }


def main() -> None:
    """Print one line a load, then the median of each state of the client."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 256, 700])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--beside", type=Path, action="append", default=[])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as at:
        program = Path(at, "truth_server")
        subprocess.run(["cc", "-O2", "-o", program, Path(__file__).with_name("truth_server.c")], check=True)
        for streams in args.streams:
            found: dict[Path, list[dict[str, float]]] = {}
            for round_ in range(args.rounds):
                for number, checkout in enumerate([HERE, *args.beside]):
                    folder = Path(at, f"{streams}-{round_}-{number}")
                    folder.mkdir()
                    found.setdefault(checkout, []).append(one_load(checkout, program, streams, folder))
            for checkout, loads in found.items():
                medians = {name: float(np.median([load[name] for load in loads])) for name in loads[0]}
                words = ", ".join(f"{name} {value:,.4g}" for name, value in medians.items())
                print(f"{streams} streams, {checkout.name}: {words}", flush=True)


if __name__ == "__main__":
    main()

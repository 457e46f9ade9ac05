"""The command `serve-reference`: the reference server as a process of its own."""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from inference_lab.errors import LabError
from inference_lab.stream_load.event_loop import run_in_event_loop
from inference_lab.stream_load.reference.scheduler import EngineSettings
from inference_lab.stream_load.reference.server import ReferenceServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `serve-reference`."""
    default = EngineSettings()
    add = parser.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 takes a free one; the first line printed names it")
    add("--model", default="reference", help="the name under which it serves")
    add("--max-num-seqs", type=int, default=default.max_num_seqs, help="requests in one step")
    add("--max-num-batched-tokens", type=int, default=default.max_num_batched_tokens)
    add("--ttft-ms", type=float, default=default.ttft_ms, help="a step that prefills a prompt")
    add("--itl-ms", type=float, default=default.itl_ms, help="a step of decodes alone")
    add("--truth", type=Path, help="file for receipts, token writes and steps, one JSON line each")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; the exit code."""
    settings = EngineSettings(args.max_num_seqs, args.max_num_batched_tokens, args.ttft_ms, args.itl_ms)
    server = ReferenceServer(settings, host=args.host, port=args.port, model=args.model, truth=args.truth)
    return run_in_event_loop(lambda: _serve(server))


async def _serve(server: ReferenceServer) -> int:
    """Serve until SIGTERM or SIGINT, having printed one JSON line with the base URL; the exit code."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with server:
        server.engine.add_done_callback(lambda _: stop.set())  # it ends alone only of an error
        print(json.dumps({"base_url": server.base_url, "pid": os.getpid()}), flush=True)
        await stop.wait()
    return 0


def main(given: Sequence[str] | None = None) -> int:
    """Run this module as a program, with `given` words instead of its own; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args(given))
    except LabError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

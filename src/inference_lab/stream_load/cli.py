"""The command `load`: its arguments, their meaning, and its output."""

import argparse
import contextlib
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from inference_lab.errors import InputError, LabError
from inference_lab.stream_load.client.endpoint import KEY_HEADER, named_secret
from inference_lab.stream_load.client.stream import Timeouts
from inference_lab.stream_load.options import LoadOptions
from inference_lab.stream_load.requests import JSON, RequestRecord
from inference_lab.stream_load.schedule import Schedule
from inference_lab.stream_load.session import LoadResult, load
from inference_lab.stream_load.workload import ENDPOINTS, Length, Workload

_WIDTH = 200  # of a reason on the terminal; the record has the whole text
Made = TypeVar("Made", LoadOptions, Timeouts, Workload)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `load`."""
    add = parser.add_argument
    limits = Timeouts()
    add("--base-url", required=True, help="such as http://127.0.0.1:8000/v1")
    add("--output", type=Path, required=True, help="a folder that does not exist yet")
    add("--resume", action="store_true", help="continue the run in --output; finished requests stay")
    add("--model", default="", help="default: the first the server lists")
    add("--endpoint", default="completions", choices=ENDPOINTS)
    add("--requests", type=int, help="stop after that many")
    add("--duration", type=float, metavar="S", help="stop starting requests after that time")
    add("--concurrency", type=int, metavar="N", help="requests in flight at most; alone: closed loop")
    add("--rate", type=float, metavar="R", help="open loop: requests per second, equally spaced")
    add("--poisson", action="store_true", help="with --rate: exponential gaps instead of equal ones")
    add("--burst", action="store_true", help="all requests arrive at once and wait at --concurrency")
    add("--input-tokens", type=_length, default=Length(64, 64), metavar="N|LOW:HIGH")
    add("--output-tokens", type=_length, default=Length(64, 64), metavar="N|LOW:HIGH")
    add("--prompt", default="text", choices=("text", "ids"), help="ids: lengths are exact")
    add("--vocab-size", type=int, default=512, help="token ids are drawn below it")
    add("--prefix-groups", type=int, default=0, metavar="G", help="groups that share a prefix")
    add("--prefix-tokens", type=int, default=0, metavar="N")
    form = '{"prompt" or "messages": ..., "output_tokens": 9, "tools": ...}'
    add("--prompts", type=Path, metavar="JSONL", help=form)
    add("--ignore-eos", action="store_true", help="ask for exactly --output-tokens (vLLM)")
    into = "into every request; null leaves a key out"
    add("--extra-body", type=_json_object, default={}, metavar="JSON", help=into)
    add("--seed", type=int, default=0)
    add("--api-key-env", metavar="NAME", help="environment variable that holds the key")
    add("--api-key-header", default=KEY_HEADER, metavar="NAME", help="such as api-key; default: a bearer's")
    add("--header", action="append", default=[], type=_header, metavar="'NAME: VALUE'", help="no secrets")
    add("--unix-socket", type=Path, metavar="FILE", help="connect to it; --base-url names the host")
    add("--ca", type=Path, metavar="FILE", help="PEM with the authority of the server's certificate")
    add("--insecure", action="store_true", help="accept any certificate; the record says so")
    add("--stamps", default="kernel", choices=("kernel", "user"), help="user: the time of the read")
    add("--retries", type=int, default=0, help="each is recorded as an attempt of its own")
    for part, limit_s in asdict(limits).items():
        add(f"--{part[:-2].replace('_', '-')}-timeout", type=float, dest=part, default=limit_s, metavar="S")
    add("--max-failure-share", type=float, default=0.0, help="above it the exit code is 1")
    bound = "such as ttft_ms=200; goodput counts the requests that met every one"
    add("--slo", action="append", default=[], type=_slo, metavar="NAME_ms=X", help=bound)
    add("--name", default="r", help="begins every request id")


def _length(text: str) -> Length:
    try:
        return Length.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("must be like 'X-Team: lab'")
    return name.strip(), value.strip()


def _slo(text: str) -> tuple[str, float]:
    name, _, bound = text.partition("=")
    with contextlib.suppress(ValueError):
        if math.isfinite(limit := float(bound)):
            return name, limit
    raise argparse.ArgumentTypeError("must be like ttft_ms=200")


def _json_object(text: str) -> JSON:
    keys: list[str] = []  # at any depth

    def seen(pairs: list[tuple[str, Any]]) -> JSON:
        keys.extend(key for key, _ in pairs)
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=seen)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    if secret := named_secret(keys):
        words = f"{secret!r} holds a secret, which records would show; give --api-key-env"
        raise argparse.ArgumentTypeError(words)
    return value


def options_from(args: argparse.Namespace) -> LoadOptions:
    """Return the options of a load. Raises InputError when arguments contradict each other."""
    if args.rate is not None and args.burst:
        raise InputError("--rate and --burst: requests come at a rate or at once, not both")
    if args.poisson and args.rate is None:
        raise InputError("--poisson needs --rate")
    process = "poisson" if args.poisson else "constant"
    if args.rate is None:
        process = "burst" if args.burst else "closed"
    return _made(
        LoadOptions,
        args,
        schedule=Schedule(process, args.requests, args.duration, args.rate, args.seed),
        workload=_made(Workload, args, prompts_file=args.prompts),
        timeouts=_made(Timeouts, args),
        kernel_stamps=args.stamps == "kernel",
        headers=dict(args.header),
        ca_file=args.ca,
    )


def _made(kind: type[Made], args: argparse.Namespace, **more: Any) -> Made:
    """Return an object whose fields are the arguments of these names, or `more`."""
    names = (one.name for one in fields(kind))
    return kind(**{name: more[name] if name in more else getattr(args, name) for name in names})


def outcome(result: LoadResult) -> str:
    """Return how the requests of a load ended, and where that is recorded."""
    counts = ", ".join(f"{count} {status}" for status, count in result.info["counts"].items())
    lines = [f"{counts or 'no request'}; recorded in {result.requests_path}"]
    sessions = result.info["sessions"]
    if again := sum(session.get("resent_requests", 0) for session in sessions):
        lines.append(f"{again} requests went over a second connection: the server had ended the first")
    if result.info["conditions"].get("insecure"):
        lines.append("note: nobody checked the server's certificate (--insecure)")
    return "\n".join(lines)


def reasons(requests: Sequence[RequestRecord], sessions: Sequence[JSON]) -> list[str]:
    """Return lines: why requests failed, what was noted, and which requests belong to a killed session."""
    failed = Counter(f"{one.status}: {one.error or 'no message'}" for one in requests if one.status != "ok")
    noted = Counter(note for one in requests for note in one.notes)
    lines = [
        f"{what}: {count} of {len(requests)}, {text[:_WIDTH]}"
        for what, texts in (("failed", failed), ("note", noted))
        for text, count in texts.most_common(3)
    ]
    times = [(session["start_ns"], session["end_ns"]) for session in sessions]
    if orphans := sum(not any(a <= one.arrival_ns <= b for a, b in times) for one in requests):
        lines.append(f"note: {orphans} requests are of a session that was killed, which left no account")
    return lines


def main(given: Sequence[str] | None = None) -> int:
    """Run this module as a program, with `given` words instead of its own; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    try:
        args = parser.parse_args(given)
        result = load(options_from(args), args.output, resume=args.resume)
        print(outcome(result), flush=True)
        return result.exit_code
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the load could catch it: nothing was sent
        return 130


if __name__ == "__main__":
    sys.exit(main())

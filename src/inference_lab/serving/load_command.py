"""The command `load`: its arguments, what they mean, and what it prints."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from inference_lab.errors import InputError, LabError
from inference_lab.records.locks import die_with_parent
from inference_lab.serving.load import PATHS, LoadOptions, LoadResult, load
from inference_lab.serving.response import Timeouts
from inference_lab.serving.schedule import Schedule
from inference_lab.serving.workload import Length, Workload


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `load`."""
    add = parser.add_argument
    limits = Timeouts()
    add("--base-url", required=True, help="such as http://127.0.0.1:8000/v1")
    add("--output", type=Path, required=True, help="a folder that does not exist yet")
    add("--resume", action="store_true", help="continue the run in --output; finished requests stay")
    add("--model", default="", help="default: the first the server lists")
    add("--endpoint", default="completions", choices=PATHS)
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
    add("--prompts", type=Path, metavar="JSONL", help='lines of {"prompt": ...} or {"messages": ...}')
    add("--ignore-eos", action="store_true", help="ask for exactly --output-tokens (vLLM)")
    add("--extra-body", type=_json_object, default={}, metavar="JSON", help="added to every request")
    add("--seed", type=int, default=0)
    add("--api-key-env", metavar="NAME", help="environment variable that holds the key")
    add("--stamps", default="kernel", choices=("kernel", "user"), help="user: the time of the read")
    add("--retries", type=int, default=0, help="each is recorded as an attempt of its own")
    add("--connect-timeout", type=float, default=limits.connect_s, metavar="S")
    add("--first-token-timeout", type=float, default=limits.first_token_s, metavar="S")
    add("--between-tokens-timeout", type=float, default=limits.between_tokens_s, metavar="S")
    add("--total-timeout", type=float, default=limits.total_s, metavar="S")
    add("--max-failure-share", type=float, default=0.0, help="above it the exit code is 1")
    add(
        "--slo",
        action="append",
        default=[],
        type=_slo,
        metavar="NAME_ms=X",
        help="such as ttft_ms=200; goodput counts the requests that met every one",
    )
    add("--name", default="r", help="begins every request id")
    add("--die-with-parent", action="store_true", help="live no longer than who started it")


def _length(text: str) -> Length:
    try:
        return Length.parse(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _slo(text: str) -> tuple[str, float]:
    name, _, bound = text.partition("=")
    try:
        return name, float(bound)
    except ValueError:
        raise argparse.ArgumentTypeError("must be like ttft_ms=200") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def options_from(args: argparse.Namespace) -> LoadOptions:
    """The options that parsed arguments mean; raises InputError when they contradict each other."""
    if args.rate is not None and args.burst:
        raise InputError("--rate and --burst: requests come at a rate or at once, not both")
    if args.poisson and args.rate is None:
        raise InputError("--poisson needs --rate")
    process = "burst" if args.burst else "closed"
    if args.rate is not None:
        process = "poisson" if args.poisson else "constant"
    return LoadOptions(
        base_url=args.base_url,
        schedule=Schedule(process, args.requests, args.duration, args.rate, args.seed),
        workload=Workload(
            model=args.model,
            endpoint=args.endpoint,
            prompt=args.prompt,
            input_tokens=args.input_tokens,
            output_tokens=args.output_tokens,
            prefix_groups=args.prefix_groups,
            prefix_tokens=args.prefix_tokens,
            vocab_size=args.vocab_size,
            ignore_eos=args.ignore_eos,
            prompts_file=args.prompts,
            extra_body=args.extra_body,
            seed=args.seed,
        ),
        concurrency=args.concurrency,
        timeouts=Timeouts(
            args.connect_timeout,
            args.first_token_timeout,
            args.between_tokens_timeout,
            args.total_timeout,
        ),
        retries=args.retries,
        kernel_stamps=args.stamps == "kernel",
        api_key_env=args.api_key_env,
        name=args.name,
        max_failure_share=args.max_failure_share,
    )


def run(args: argparse.Namespace) -> LoadResult:
    """Run the load, print how its requests ended, and return what became of it."""
    if args.die_with_parent:
        die_with_parent()
    result = load(options_from(args), args.output, resume=args.resume, show=True)
    counts = ", ".join(f"{count} {status}" for status, count in sorted(result.counts.items()))
    print(f"{counts or 'no request'}; recorded in {result.requests_path}", flush=True)
    return result


def main() -> int:
    """The exit code of `python -m inference_lab.serving.load_command`."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    try:
        return run(parser.parse_args()).exit_code
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the load could catch it: nothing was sent
        return 130


if __name__ == "__main__":
    sys.exit(main())

"""The command line: each subcommand parses its words and calls one function of `commands`."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from inference_lab.commands import terminal
from inference_lab.records import locks, plan, stages
from inference_lab.records.files import canonical


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status of `inference-lab`: 0 done, 2 refused with one line on stderr."""
    words = sys.argv[1:] if words is None else words
    parser = terminal.Parser(
        prog="inference-lab",
        description="A laboratory for LLM inference whose every number can explain itself.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], object], text: str, *, anywhere: bool = False):
        added = commands.add_parser(name, help=text)
        added.set_defaults(run=run, anywhere=anywhere)
        return added

    add("example", _example, "the smallest cached decode, step by step")
    _add_log(add("test", _test, "run the unit tests and write results/tests.json"))
    stage = commands.add_parser("stage")  # for the workflow's rules: without a line in the help
    stage.set_defaults(run=_stage)
    stage.add_argument("stage", choices=stages.STAGES)
    stage.add_argument("experiment")
    stage.add_argument("figure", nargs="?", default="", help="file name as in judge.figures")
    stage.add_argument(
        "--section", type=_json, required=True, help="this stage's part of config.yaml as JSON"
    )
    stage.add_argument("--lock", default=locks.MACHINE_LOCK, help="name of the machine's one lock")
    _add_log(stage)

    load = add("load", _load, "load an OpenAI-compatible server and record every request", anywhere=True)
    if words[:1] == ["load"]:  # no other command waits for what a load imports
        from inference_lab.stream_load import cli as load_cli

        load_cli.add_arguments(load)
    load.set_defaults(words=words)
    summarize = add("summarize", _summarize, "make summary.csv of a recorded load", anywhere=True)
    summarize.add_argument("folder", type=Path)
    figures = add("figures", _figures, "draw the figures of a recorded load", anywhere=True)
    figures.add_argument("folder", type=Path)
    reference = add(
        "serve-reference", _serve_reference, "start the reference server, which logs its own token times"
    )
    if words[:1] == ["serve-reference"]:
        from inference_lab.stream_load.reference import cli as reference_cli

        reference_cli.add_arguments(reference)

    verify = add("verify", _verify, "rebuild every result from its raw data and compare bytes", anywhere=True)
    verify.add_argument("experiment", nargs="*", help="or the folder of a load; default: all experiments")
    verify.add_argument("--config", type=_json, help="experiments as JSON (default: config.yaml)")
    verify.add_argument("--receipt", type=Path, help="write a receipt here and skip what it already covers")
    _add_log(verify)
    explain = add("explain", _explain, "where a figure, summary or record comes from", anywhere=True)
    explain.add_argument("file", type=Path)
    add("records", _records, "what is recorded, and what was superseded")
    compare = add("compare", _compare, "two records of one experiment beside each other")
    compare.add_argument("one", help="a record's folder, or COMMIT:results/EXPERIMENT")
    compare.add_argument("other")
    return terminal.run(parser, words)


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", type=_emptied, help="also write the final message to this file")


def _emptied(text: str) -> Path:
    try:
        Path(text).write_text("")  # the message of the run before is not this one's
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: cannot be written ({error.strerror})") from None
    return Path(text)


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
        canonical(value)  # refuses NaN, which json.loads takes
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _example(_: argparse.Namespace) -> str:
    from inference_lab.commands.example import example

    return example()


def _test(_: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    return run_stage.run_tests()


def _stage(args: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    step = stages.step(args.stage, args.experiment, args.section, args.figure)
    if args.stage != "measure":
        return run_stage.derive(step)
    shown = terminal.progress(f"{args.experiment} measure")
    return run_stage.measure(step, Path(step.receipt), shown, in_pipeline=True, lock=args.lock)


def _load(args: argparse.Namespace) -> tuple[str, int]:
    from inference_lab.commands import own_load

    return own_load.load(args)


def _summarize(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load

    return own_load.summarise(args.folder)


def _figures(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load

    return own_load.draw(args.folder)


def _serve_reference(args: argparse.Namespace) -> int:
    from inference_lab.stream_load.reference import cli as reference_cli

    return reference_cli.run(args)


def _verify(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load, run_stage, verify
    from inference_lab.config.experiments import check_config, load_config

    run_stage.check_code()
    config = check_config(args.config, "--config") if args.config else load_config()
    walk = plan.Plan(config.given())
    if args.receipt:
        return verify.verify_stage(walk, args.receipt)
    if not args.experiment:
        return verify.checked(verify.verify_checkout(walk))
    findings: list[verify.Finding] = []
    for name in args.experiment:
        load = own_load.around(Path(name)) if name not in walk.experiments else None
        findings += verify.verify_experiment(load or walk, next(iter(load.experiments)) if load else name)
    return verify.checked(findings)


def _explain(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load
    from inference_lab.commands.explain import explain
    from inference_lab.config.experiments import load_config

    # An SVG explains itself outside a checkout, too.
    config = load_config().given() if Path("config.yaml").exists() else {"experiments": {}}
    return explain(args.file, own_load.around(args.file) or plan.Plan(config))


def _records(_: argparse.Namespace) -> str:
    from inference_lab.commands.status import closing_table, superseded
    from inference_lab.config.experiments import load_config

    config = load_config().given()
    return f"{closing_table(config)}\n\n{superseded(config)}"


def _compare(args: argparse.Namespace) -> str:
    from inference_lab.commands.compare import compare

    return compare(args.one, args.other)


def standalone_measure(words: Sequence[str] | None = None) -> int:
    """Return the exit status of `p2-inference-systems`: a measurement into a raw file of any name."""
    from inference_lab.commands import standalone

    return standalone.measure(words)


def standalone_summary(words: Sequence[str] | None = None) -> int:
    """Return the exit status of `p2-inference-systems-summary`: summary, figures and knee of a raw file."""
    from inference_lab.commands import standalone

    return standalone.summary(words)

"""The command line: each subcommand parses its words and calls one function of `commands`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from inference_lab.commands import terminal
from inference_lab.records import locks, stages
from inference_lab.records.files import canonical

# Started outside a checkout, these work in the one that this package is of.
_ANYWHERE = ("load", "summarize", "figures", "verify", "explain", "timeline")


def main(words: Sequence[str] | None = None) -> int:
    """Return the exit status of `inference-lab`: 0 done, 2 refused with one line on stderr."""
    words = sys.argv[1:] if words is None else words
    text = "A laboratory for LLM inference whose every number can explain itself."
    parser = terminal.Parser(prog="inference-lab", description=text)
    parser.set_defaults(run=_run, words=words)
    add = parser.add_subparsers(dest="command", required=True, metavar="COMMAND").add_parser

    add("example", help="the smallest cached decode, step by step")
    _add_log(add("test", help="run the unit tests and write results/tests.json"))
    stage = add("stage")  # for the workflow's rules: without a line in the help
    stage.add_argument("stage", choices=stages.STAGES)
    stage.add_argument("experiment")
    stage.add_argument("figure", nargs="?", default="", help="file name as in judge.figures")
    stage.add_argument("--section", type=_json, required=True, help="its part of config.yaml as JSON")
    stage.add_argument("--lock", default=locks.MACHINE_LOCK, help="name of the machine's one lock")
    _add_log(stage)
    load = add("load", help="load an OpenAI-compatible server and record every request")
    add("summarize", help="make summary.csv of a recorded load").add_argument("folder", type=Path)
    add("figures", help="draw the figures of a recorded load").add_argument("folder", type=Path)
    reference = add("serve-reference", help="start the reference server, which logs its own token times")
    if words[:1] == ["load"]:  # no other command waits for what a load imports
        from inference_lab.stream_load import cli as load_cli

        load_cli.add_arguments(load)
    elif words[:1] == ["serve-reference"]:
        from inference_lab.stream_load.reference import cli as reference_cli

        reference_cli.add_arguments(reference)
    verify = add("verify", help="rebuild every result from its raw data and compare bytes")
    verify.add_argument("experiment", nargs="*", help="or the folder of a load; default: all experiments")
    verify.add_argument("--config", type=_json, help="experiments as JSON (default: config.yaml)")
    verify.add_argument("--receipt", type=Path, help="write a receipt here and skip what it already covers")
    _add_log(verify)
    add("explain", help="where a figure, summary or record comes from").add_argument("file", type=Path)
    add("records", help="what is recorded, and what was superseded")
    add("demo", help="the five demonstrations of docs/handover.md, in a throwaway clone")
    add("doctor", help="whether this machine is fit to measure, with advice")
    timeline = add("timeline", help="a recorded load as a trace to zoom, for ui.perfetto.dev")
    timeline.add_argument("folder", type=Path, help="a record's folder, under results/ or of one's own")
    timeline.add_argument("--output", type=Path, default=Path("trace.json"), help="default: trace.json")
    new = add("new", help="an experiment of your own: a section of config.yaml and a blank prediction")
    new.add_argument("name")
    new.add_argument("--like", default="m1", help="the experiment whose section is copied (default: m1)")
    new.add_argument("--vary", default="", metavar="AXIS=VALUE,VALUE", help="what it varies instead")
    compare = add("compare", help="two records of one experiment beside each other")
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


def _json(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
        canonical(value)  # refuses NaN, which json.loads takes
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value  # pyright: ignore[reportUnknownVariableType]


def _run(args: argparse.Namespace) -> terminal.Said:
    """Run the command that was named; each imports what it needs when it runs, a plan starts many."""
    if args.command in _ANYWHERE:
        terminal.enter_checkout(args)
    match args.command:
        case "example":
            from inference_lab.commands.example import example

            return example()
        case "serve-reference":
            from inference_lab.stream_load.reference import cli as reference_cli

            return "", reference_cli.run(args)
        case "test" | "stage":
            from inference_lab.commands import run_stage

            return run_stage.run_tests() if args.command == "test" else _stage(args)
        case "load" | "summarize" | "figures":
            from inference_lab.commands import own_load

            if args.command == "load":
                return own_load.load(args)
            return (own_load.summarise if args.command == "summarize" else own_load.draw)(args.folder)
        case "verify":
            from inference_lab.commands import verify

            return verify.verify_named(args.experiment, args.config, args.receipt)
        case "explain":
            from inference_lab.commands.explain import explain

            return explain(args.file)
        case "demo":
            from inference_lab.commands.demo import demo

            return demo()
        case "doctor":
            from inference_lab.commands.doctor import doctor

            return doctor()
        case "timeline":
            from inference_lab.commands.timeline import timeline

            return timeline(args.folder, args.output)
        case "new":
            from inference_lab.commands.new import new

            return new(args.name, args.like, args.vary)
        case "records":
            from inference_lab.commands.status import records

            return records()
        case _:
            from inference_lab.commands.compare import compare

            return compare(args.one, args.other)


def _stage(args: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    step = stages.step(args.stage, args.experiment, args.section, args.figure)
    if args.stage != "measure":
        return run_stage.derive(step)
    shown = terminal.progress(f"{args.experiment} measure")
    return run_stage.measure(step, Path(step.receipt), shown, in_pipeline=True, lock=args.lock)


def standalone_measure(words: Sequence[str] | None = None) -> int:
    """Return the exit status of `p2-inference-systems`: a measurement into a raw file of any name."""
    from inference_lab.commands import standalone

    return standalone.measure(words)


def standalone_summary(words: Sequence[str] | None = None) -> int:
    """Return the exit status of `p2-inference-systems-summary`: summary, figures and knee of a raw file."""
    from inference_lab.commands import standalone

    return standalone.summary(words)

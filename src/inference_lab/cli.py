"""Commands. One subcommand a stage; each parses its words and calls one function."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inference_lab.commands import terminal
from inference_lab.records import locks, receipts, stages
from inference_lab.records.files import canonical


def main(words: Sequence[str] | None = None) -> int:
    """Exit status of `inference-lab`: 0 done, 2 refused with one line on stderr."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(
        prog="inference-lab",
        description="A laboratory for LLM inference whose every number can explain itself.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    add = commands.add_parser("example", help="the smallest cached decode, step by step")
    add.set_defaults(run=_example)

    add = commands.add_parser("test", help="run the unit tests and write results/tests.json")
    _add_log(add)
    add.set_defaults(run=_test)

    add = _stage(commands, "measure", "measure an experiment and record it")
    add.add_argument("--lock", default=locks.MACHINE_LOCK, help="name of the machine's one lock")
    add.set_defaults(run=_measure)
    add = _stage(commands, "summarize", "make summary.csv from the raw samples", of_load=True)
    add.set_defaults(run=_summarize, anywhere=True)
    add = _stage(commands, "figure", "draw one figure or page")
    add.add_argument("figure", help="file name as in judge.figures")
    add.set_defaults(run=_figure)
    _stage(commands, "analyze", "set prediction beside result").set_defaults(run=_analyze)
    _stage(commands, "report", "write one report of several experiments").set_defaults(run=_report)

    add = commands.add_parser("load", help="load an OpenAI-compatible server and record every request")
    if words[:1] == ["load"]:  # no other command waits for what a load imports
        from inference_lab.stream_load import cli as load_cli

        load_cli.add_arguments(add)
    add.set_defaults(run=_load, words=words, anywhere=True)
    add = commands.add_parser("figures", help="draw the figures of a recorded load")
    add.add_argument("folder", type=Path)
    add.set_defaults(run=_figures, anywhere=True)
    add = commands.add_parser("serve-reference", help="a server whose truth is known, to be loaded")
    if words[:1] == ["serve-reference"]:
        from inference_lab.stream_load.reference import cli as reference_cli

        reference_cli.add_arguments(add)
    add.set_defaults(run=_serve_reference)

    add = commands.add_parser("verify", help="rebuild every result from its raw data and compare bytes")
    add.add_argument("experiment", nargs="*", help="or the folder of a load; default: all experiments")
    add.add_argument("--config", type=_json, help="experiments as JSON (default: config.yaml)")
    add.add_argument("--receipt", type=Path, help="write the stage's receipt here and skip what it knows")
    _add_log(add)
    add.set_defaults(run=_verify, anywhere=True)

    add = commands.add_parser("explain", help="where a figure, summary or record comes from")
    add.add_argument("file", type=Path)
    add.set_defaults(run=_explain, anywhere=True)

    add = commands.add_parser("records", help="what is recorded, and what was superseded")
    add.set_defaults(run=_records)

    add = commands.add_parser("compare", help="two records of one experiment beside each other")
    add.add_argument("one", help="a record's folder, or COMMIT:results/EXPERIMENT")
    add.add_argument("other")
    add.set_defaults(run=_compare)
    return terminal.run(parser, words)


def _stage(commands: Any, name: str, text: str, *, of_load: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
    parser.add_argument("experiment", help="or, without --section, the folder of a load" * of_load)
    parser.add_argument(
        "--section", required=not of_load, type=_json, help="this stage's part of config.yaml as JSON"
    )
    _add_log(parser)
    return parser


def _add_log(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--log", type=_emptied, help="write here too how it ended, in the same words")


def _emptied(text: str) -> Path:
    try:
        Path(text).write_text("")  # what the run before said is not of this one
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
        raise argparse.ArgumentTypeError("must be a JSON object: the section's part")
    return value  # pyright: ignore[reportUnknownVariableType]


def _example(_: argparse.Namespace) -> str:
    from inference_lab.commands.example import example

    return example()


def _test(_: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    return run_stage.run_tests()


def _measure(args: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    step = stages.measure_step(args.experiment, args.section)
    shown = terminal.progress(f"{args.experiment} measure")
    return run_stage.measure(step, Path(step.receipt), shown, in_pipeline=True, lock=args.lock)


def _summarize(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load, run_stage

    if args.section is None:
        return own_load.summarise(Path(args.experiment))
    return run_stage.derive(stages.summary_step(args.experiment, args.section))


def _figure(args: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    return run_stage.derive(stages.figure_step(args.experiment, args.section, args.figure))


def _analyze(args: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    return run_stage.derive(stages.analysis_step(args.experiment, args.section))


def _report(args: argparse.Namespace) -> str:
    from inference_lab.commands import run_stage

    return run_stage.derive(stages.report_step(args.experiment, **args.section))


def _load(args: argparse.Namespace) -> tuple[str, int]:
    from inference_lab.commands import own_load

    return own_load.load(args)


def _figures(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load

    return own_load.draw(args.folder)


def _serve_reference(args: argparse.Namespace) -> int:
    from inference_lab.stream_load.reference import cli as reference_cli

    return reference_cli.run(args)


def _verify(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load, run_stage, verify
    from inference_lab.config.experiments import load_config

    run_stage.check_code()
    walk = receipts.Receipts(args.config or load_config().given())
    if args.receipt:
        return verify.verify_stage(walk, args.receipt)
    if not args.experiment:
        return verify.checked(verify.verify_checkout(walk))
    findings: list[verify.Finding] = []
    for name in args.experiment:
        load = own_load.around(Path(name)) if name not in walk.experiments else None
        findings += verify.verify(load or walk, list(load.experiments) if load else [name], {})
    return verify.checked(findings)


def _explain(args: argparse.Namespace) -> str:
    from inference_lab.commands import own_load
    from inference_lab.commands.explain import explain
    from inference_lab.config.experiments import load_config

    # An SVG says something of itself outside a checkout, too.
    config = load_config().given() if Path("config.yaml").exists() else {"experiments": {}}
    return explain(args.file, own_load.around(args.file) or receipts.Receipts(config))


def _records(_: argparse.Namespace) -> str:
    from inference_lab.commands.status import closing_table, superseded
    from inference_lab.config.experiments import load_config

    config = load_config().given()
    return f"{closing_table(config)}\n\n{superseded(config)}"


def _compare(args: argparse.Namespace) -> str:
    from inference_lab.commands.compare import compare

    return compare(args.one, args.other)


def seed_measure(words: Sequence[str] | None = None) -> int:
    """Exit status of `p2-inference-systems`: a seed measurement into a raw file of any name."""
    from inference_lab.commands import standalone

    return standalone.measure(words)


def seed_summary(words: Sequence[str] | None = None) -> int:
    """Exit status of `p2-inference-systems-summary`: summary, figures and knee of a raw file."""
    from inference_lab.commands import standalone

    return standalone.summary(words)


__all__ = ["main", "seed_measure", "seed_summary"]

"""Commands. One subcommand a stage; each parses its words and calls one function."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, TextIO

from inference_lab.errors import LabError, printable
from inference_lab.records import chain, layout, locks
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
    _stage(commands, "article", "write docs/experiments/ from the numbers").set_defaults(run=_article)
    _stage(commands, "report", "write one report of several experiments").set_defaults(run=_report)

    add = commands.add_parser("load", help="load an OpenAI-compatible server and record every request")
    if words[:1] == ["load"]:  # no other command waits for what a load imports
        from inference_lab.serving import load_command

        load_command.add_arguments(add)
    add.set_defaults(run=_load, words=words, anywhere=True)
    add = commands.add_parser("figures", help="draw the figures of a recorded load")
    add.add_argument("folder", type=Path)
    add.set_defaults(run=_figures, anywhere=True)
    add = commands.add_parser("serve-reference", help="a server whose truth is known, to be loaded")
    if words[:1] == ["serve-reference"]:
        from inference_lab.serving import serve_reference

        serve_reference.add_arguments(add)
    add.set_defaults(run=_serve_reference)

    _vllm(commands.add_parser("vllm", help="the real server: install it, check it, trace its source"))

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
    return run(parser, words)


def _stage(commands: Any, name: str, text: str, *, of_load: bool = False) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text)
    parser.add_argument("experiment", help="or, without --section, the folder of a load" * of_load)
    parser.add_argument(
        "--section", required=not of_load, type=_json, help="this stage's part of config.yaml as JSON"
    )
    _add_log(parser)
    return parser


def _vllm(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    folder = argparse.ArgumentParser(add_help=False)
    folder.add_argument("--folder", type=Path, help="of the environment (default: in the user's cache)")
    add = commands.add_parser("install", parents=[folder], help="make the pinned environment by pip")
    add.add_argument("--python", default=sys.executable, help="the interpreter that it is made of")
    add.set_defaults(run=_vllm_install)
    add = commands.add_parser("check", parents=[folder], help="is it the pinned one, whole and unchanged?")
    add.set_defaults(run=_vllm_check)
    add = commands.add_parser("trace", parents=[folder], help="where its source causes what is recorded")
    add.add_argument("--output", type=Path, help="write the page of findings here")
    add.add_argument("--write", action="store_true", help="declare the lines and digests found here")
    add.set_defaults(run=_vllm_trace)


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


def run(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> int:
    """Exit status of a parsed command; an error a user can meet is one line on stderr and 2."""
    args = parser.parse_args(words)
    try:
        said, status, stream = _outcome(parser.prog, args)
        said = printable(said)
        if said:
            print(said, file=stream)
        stream.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
        return 141
    except OSError as error:  # a full disk behind stdout
        _give_up(sys.stdout)
        print(f"{parser.prog}: cannot print ({error.strerror}); what was done stands", file=sys.stderr)
        return 2
    if log := vars(args).get("log"):
        try:
            log.write_text(f"{said}\n", encoding="utf-8")
        except OSError as error:  # a full disk, say: what happened was told all the same
            print(f"{log}: cannot be written ({error.strerror})", file=sys.stderr)
    return status


def _give_up(stream: TextIO) -> None:
    """Send what a stream still holds nowhere: the interpreter flushes it once more at its end."""
    with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def _enter_checkout(args: argparse.Namespace) -> None:
    """Started outside a checkout, work in the one that this package is of.

    Files and folders that the user named stay where he named them.
    """
    home = Path(__file__).parents[2]
    if Path("src", "inference_lab").is_dir() or not (home / "pyproject.toml").is_file():
        return
    for name, value in vars(args).items():
        if isinstance(value, Path):
            setattr(args, name, value.absolute())
    if named := vars(args).get("experiment"):  # or the folder of a load, or several of both
        found = [str(Path(each).absolute()) if Path(each).exists() else each for each in _listed(named)]
        args.experiment = found if isinstance(named, list) else found[0]
    os.chdir(home)


def _listed(named: str | list[str]) -> list[str]:
    return [named] if isinstance(named, str) else named


def _outcome(prog: str, args: argparse.Namespace) -> tuple[str, int, TextIO]:
    """(what is said, exit status, where it is said)."""
    try:
        locks.die_with_run()
        if vars(args).get("anywhere"):
            _enter_checkout(args)
        said = args.run(args)
        if isinstance(said, tuple):
            return (*said, sys.stdout)  # pyright: ignore[reportUnknownVariableType]
        return ("", said, sys.stdout) if isinstance(said, int) else (said, 0, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:  # a path too long, a folder that may not be entered, a disk that is gone
        place = "" if error.filename is None else f"{error.filename}: "
        return f"{prog}: {place}{error.strerror or error}; give a path that can be used", 2, sys.stderr
    except LabError as error:
        return f"{prog}: {error}", 2, sys.stderr
    except KeyboardInterrupt:
        return f"{prog}: interrupted; nothing half-made was left in place", 130, sys.stderr


def _example(_: argparse.Namespace) -> str:
    from inference_lab.experiments.example import example

    return example()


def _test(_: argparse.Namespace) -> str:
    from inference_lab import stages

    return stages.run_tests()


def _measure(args: argparse.Namespace) -> str:
    from inference_lab import stages

    step = layout.measure_step(args.experiment, args.section)
    shown = progress(f"{args.experiment} measure")
    return stages.measure(step, Path(step.receipt), shown, in_pipeline=True, lock=args.lock)


def _summarize(args: argparse.Namespace) -> str:
    from inference_lab import loads, stages

    if args.section is None:
        return loads.summarise(Path(args.experiment))
    return stages.derive(layout.summary_step(args.experiment, args.section))


def _figure(args: argparse.Namespace) -> str:
    from inference_lab import stages

    return stages.derive(layout.figure_step(args.experiment, args.section, args.figure))


def _analyze(args: argparse.Namespace) -> str:
    from inference_lab import stages

    return stages.derive(layout.analysis_step(args.experiment, args.section))


def _article(args: argparse.Namespace) -> str:
    from inference_lab import stages

    return stages.derive(layout.article_step(args.experiment, args.section))


def _report(args: argparse.Namespace) -> str:
    from inference_lab import stages

    return stages.derive(layout.report_step(args.experiment, **args.section))


def _load(args: argparse.Namespace) -> tuple[str, int]:
    from inference_lab import loads

    return loads.load(args)


def _figures(args: argparse.Namespace) -> str:
    from inference_lab import loads

    return loads.draw(args.folder)


def _serve_reference(args: argparse.Namespace) -> int:
    from inference_lab.serving import serve_reference

    return serve_reference.run(args)


def _vllm_install(args: argparse.Namespace) -> str:
    from inference_lab.serving import vllm_install

    return vllm_install.install(args.folder, args.python)


def _vllm_check(args: argparse.Namespace) -> str:
    from inference_lab.serving import vllm_install

    return vllm_install.described(vllm_install.find_environment(args.folder))


def _vllm_trace(args: argparse.Namespace) -> str:
    from inference_lab.serving import vllm_trace

    return vllm_trace.trace(args.folder, args.output, write=args.write)


def _verify(args: argparse.Namespace) -> str:
    from inference_lab import loads, stages, verification
    from inference_lab.records.config import load_config

    stages.check_code()
    walk = chain.Chain(args.config or load_config())
    if args.receipt:
        return verification.verify_stage(walk, args.receipt)
    if not args.experiment:
        return verification.checked(verification.verify_checkout(walk))
    findings: list[verification.Finding] = []
    for name in args.experiment:
        load = loads.around(Path(name)) if name not in walk.experiments else None
        findings += verification.verify(load or walk, list(load.experiments) if load else [name], {})
    return verification.checked(findings)


def _explain(args: argparse.Namespace) -> str:
    from inference_lab import loads
    from inference_lab.explanation import explain
    from inference_lab.records.config import load_config

    # An SVG says something of itself outside a checkout, too.
    config = load_config() if Path("config.yaml").exists() else {"experiments": {}}
    return explain(args.file, loads.around(args.file) or chain.Chain(config))


def _records(_: argparse.Namespace) -> str:
    from inference_lab.records.config import load_config
    from inference_lab.records.table import closing_table, superseded

    config = load_config()
    return f"{closing_table(config)}\n\n{superseded(config)}"


def _compare(args: argparse.Namespace) -> str:
    from inference_lab.comparison import compare

    return compare(args.one, args.other)


@contextlib.contextmanager
def progress(label: str) -> Generator[Callable[[int, int], None]]:
    """A function that is told (done, total): a bar on a terminal, a line every tenth elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    said = -1

    def plain(done: int, total: int) -> None:
        nonlocal said
        if (tenth := 10 * done // total) > said:
            said = tenth
            with contextlib.suppress(BrokenPipeError):  # nobody listens; what is measured is recorded
                print(f"{label}: {done} of {total} rounds", file=sys.stderr, flush=True)

    yield plain


def seed_measure(words: Sequence[str] | None = None) -> int:
    """Exit status of `p2-inference-systems`: a seed measurement into a raw file of any name."""
    from inference_lab import seed

    return seed.measure(words)


def seed_summary(words: Sequence[str] | None = None) -> int:
    """Exit status of `p2-inference-systems-summary`: summary, figures and knee of a raw file."""
    from inference_lab import seed

    return seed.summary(words)


__all__ = ["main", "progress", "run", "seed_measure", "seed_summary"]

"""What every command shares with its user: how it ends, what it prints, how far it is.

An error that a user can meet is one line on stderr and exit status 2.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from time import monotonic
from typing import NoReturn

from inference_lab.errors import LabError, printable
from inference_lab.records import locks

Said = str | tuple[str, int]  # what a command says on stdout, and its exit status when that is not 0
_LINE_EVERY_S = 5.0


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with 2."""
        self.exit(2, f"{self.prog}: {printable(message)}; see {self.prog} --help\n")


def run(parser: argparse.ArgumentParser, words: Sequence[str] | None) -> int:
    """Exit status of a parsed command; an error a user can meet is one line on stderr and 2."""
    args = parser.parse_args(words)
    stream = sys.stdout
    try:
        try:
            locks.die_with_run()
            answer: Said = args.run(args)
            said, status = (answer, 0) if isinstance(answer, str) else answer
        except (LabError, UnicodeEncodeError, OSError, KeyboardInterrupt) as error:
            if isinstance(error, BrokenPipeError):
                raise
            said, stream = f"{parser.prog}: {_refusal(error)}", sys.stderr
            status = 130 if isinstance(error, KeyboardInterrupt) else 2
        said = printable(said)
        print(said, end="\n" if said else "", file=stream, flush=True)
    except OSError as error:  # a reader that went away, or a full disk behind stdout
        # The interpreter flushes stdout once more at its end: what it still holds goes nowhere.
        with contextlib.suppress(OSError), Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 141
        print(f"{parser.prog}: cannot print ({error.strerror}); what was done stands", file=sys.stderr)
        return 2
    if log := vars(args).get("log"):
        try:
            log.write_text(f"{said}\n", encoding="utf-8")
        except OSError as error:  # a full disk, say: what happened was said all the same
            print(f"{log}: cannot be written ({error.strerror})", file=sys.stderr)
    return status


def _refusal(error: BaseException) -> str:
    match error:
        case OSError():  # a path too long, a folder that may not be entered, a disk that is gone
            place = "" if error.filename is None else f"{error.filename}: "
            return f"{place}{error.strerror or error}; give a path that can be used"
        case UnicodeEncodeError():
            near = error.object[max(0, error.start - 30) : error.end]
            return f"...{near!a} is no UTF-8 text; write it as such"
        case KeyboardInterrupt():
            return "interrupted; nothing half-made was left in place"
        case _:
            return str(error)


def enter_checkout(args: argparse.Namespace) -> None:
    """Outside a checkout, work in the one this package is of; what the user named stays where it is."""
    home = Path(__file__).parents[3]
    if Path("src", "inference_lab").is_dir() or not (home / "pyproject.toml").is_file():
        return
    for name, value in vars(args).items():
        if isinstance(value, Path):
            setattr(args, name, value.absolute())
        elif name == "experiment":  # or the folder of a load
            args.experiment = [str(Path(each).absolute()) if Path(each).exists() else each for each in value]
    os.chdir(home)


@contextlib.contextmanager
def progress(label: str) -> Generator[Callable[[int, int], None]]:
    """A function that is given (done, total): a bar on a terminal, a line every tenth elsewhere."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task(label, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    shown = -1

    def plain(done: int, total: int) -> None:
        nonlocal shown
        if (tenth := 10 * done // total) > shown:
            shown = tenth
            _print(f"{label}: {done} of {total} rounds")

    yield plain


@contextlib.contextmanager
def live_line() -> Generator[Callable[[str], None]]:
    """A function that shows a line: in place on a terminal, elsewhere one every 5 s."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
            yield lambda line: live.update(line, refresh=True)
        return
    shown_s = monotonic()

    def plain(line: str) -> None:
        nonlocal shown_s
        if monotonic() - shown_s >= _LINE_EVERY_S:
            shown_s = monotonic()
            _print(line)

    yield plain


def _print(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens; the measurement or load goes on
        print(line, file=sys.stderr, flush=True)

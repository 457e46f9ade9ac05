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
from typing import NoReturn, TextIO

from inference_lab.errors import LabError, printable
from inference_lab.records import locks


class Parser(argparse.ArgumentParser):
    """A parser whose refusals are one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        """Print the line and exit with 2."""
        self.exit(2, f"{self.prog}: {printable(message)}; see {self.prog} --help\n")


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
    home = Path(__file__).parents[3]
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
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 30) : error.end]
        return f"{prog}: ...{near!a} is no UTF-8 text; write it as such", 2, sys.stderr
    except LabError as error:
        return f"{prog}: {error}", 2, sys.stderr
    except KeyboardInterrupt:
        return f"{prog}: interrupted; nothing half-made was left in place", 130, sys.stderr


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


_LINE_EVERY_S = 5.0


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
            with contextlib.suppress(OSError):  # nobody listens; the load goes on
                print(line, file=sys.stderr, flush=True)

    yield plain

"""Throwaway checkouts of a toy laboratory, and what a run in one of them did.

    with checkout() as lab:                        a copy of one prepared checkout, everything current
        lab.edit("config.yaml", "seed: 1", "seed: 5")
        run = lab.snakemake("all")
        run.made                                   {"measure t1", "summary t1", ...}: what was made anew

The prepared checkout is this repository's Snakefile, rules, profile and package, with the experiments,
analysis and figures of tests/workflow/toy/ in place of the real ones. It is made once a process.
"""

import atexit
import contextlib
import copy
import functools
import hashlib
import itertools
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
TOY = Path(__file__).with_name("toy")
PROGRAMS = Path(sys.executable).parent
TOY_SOURCE, TOY_SUMMARY = "src/inference_lab/experiments/toy.py", "src/inference_lab/analysis/toy.py"
STALE = ("config.yaml", "seed: 1}", "seed: 5}")  # t1 has other conditions
# What the toy replaces or does not need: every source is parsed at every plan.
NOT_COPIED = re.compile(r"src/inference_lab/(experiments|figures|mechanisms)/(?!__init__)")
COPIED = ("Snakefile", "workflow", "profiles", "src", "pyproject.toml", ".gitignore", ".gitattributes")
WITHOUT_PROFILE = ("--workflow-profile", "none", "--cores", "1")
# Writes down what it was asked to do, then is the real command: `exec` keeps its process and its parent.
WRAPPER = """#!/bin/sh
words=
for word in "$@"; do
    case "$word" in -*) break ;; stage) continue ;; esac
    words="${words:+$words }$word"
done
words="${words#stage }"
printf '%s\\n' "$words" >>"$TOY_RAN"
if [ "$words" = "$TOY_LIMITED" ]; then ulimit -f 0; fi
exec "$TOY_PROGRAMS/inference-lab" "$@"
"""
# Variables that Python itself reads as it starts: a call with others cannot be a fork.
AT_START = ("LC_ALL", "LANG", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "PYTHONHASHSEED")
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["snakemake.cli", __name__])
RECEIPTS = {
    "test": "results/tests.json",
    "measure": "results/{}/manifest.json",
    "summary": "results/{}/receipts/summary.json",
    "figure": "results/{}/receipts/{}.json",
    "analysis": "results/{}/receipts/analysis.json",
    "verify": "results/.verified.json",
}


RESEAL = """
import json, sys
from pathlib import Path
from inference_lab.records.receipts import seal
from inference_lab.records.files import json_text, sha256_file
path = Path(sys.argv[1])
receipt = json.loads(path.read_text(encoding="utf-8"))
exec(sys.argv[2])
path.write_text(json_text(seal(receipt)), encoding="utf-8")
"""


def derived(*experiments: str) -> set[str]:
    """The commands that follow a measurement of these toy experiments."""
    stages = ("summary {}", "figure {} plot.svg", "analysis {}")
    found = {stage.format(name) for stage in stages for name in experiments}
    return found | ({"figure t1 rows.svg"} if "t1" in experiments else set())


def measured(*experiments: str) -> set[str]:
    """The commands that make these toy experiments from nothing."""
    return {f"measure {name}" for name in experiments} | derived(*experiments)


class Run(NamedTuple):
    """What one call did: exit status, all it said, the commands it started, and which of them made files."""

    status: int
    text: str
    ran: list[str]
    made: set[str]

    @property
    def decided(self) -> set[str]:
        """What was made anew, verification aside: that follows every change."""
        return self.made - {"verify"}


@dataclass
class Checkout:
    """A checkout of the toy laboratory at `root`; temporaries and logs are in `outside`, beside it."""

    root: Path
    outside: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a call: this checkout's package first, a machine lock of its own, no bytecode."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("TOY_", "SNAKEMAKE_", "GIT_"))}
        return {
            **kept,
            "PATH": f"{self.outside.parent / 'programs'}:{PROGRAMS}:{os.environ['PATH']}",
            "PYTHONPATH": f"{self.root / 'src'}:{self.root / 'installed'}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.outside),
            "INFERENCE_LAB_LOCK": str(self.outside),
            "XDG_CACHE_HOME": str(self.outside.parent / "cache"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "TOY_PROGRAMS": str(PROGRAMS),
            "TOY_RAN": str(self.outside / "ran"),
            "TOY_HERE": str(self.outside / "here"),
            "TOY_GO": str(self.outside / "go"),
            **self.variables,
        }

    def snakemake(self, *words: str, **variables: str) -> Run:
        """What a call of Snakemake in this checkout did."""
        log, said = self.outside / "ran", self.outside / "said"
        log.write_text("")
        receipts = ("*.json", ".*.json", "*/manifest.json", "*/receipts/*.json")
        before = {path: self.identity(path) for path in self.contents(*(f"results/{p}" for p in receipts))}
        environment = {**self.environment, **variables}
        otherwise = any(environment.get(name) != os.environ.get(name) for name in AT_START)
        # A job that may write no file could not say so: what a fork says goes into a file, not a pipe.
        if otherwise or "TOY_LIMITED" in variables:
            with self.start(*words, **variables) as process:
                text = process.communicate(timeout=300)[0]
            status = process.returncode
        else:
            status = forked(self.root, environment, words, said)
            text = said.read_text(errors="replace")
        ran = [line.removeprefix("stage ") for line in log.read_text().splitlines()]
        paths = {words: RECEIPTS[words.split()[0]].format(*words.split()[1:]) for words in ran}
        made = {words for words, path in paths.items() if self.identity(path) not in (None, before.get(path))}
        return Run(status, text, ran, made | {"test"}.intersection(ran))

    def start(self, *words: str, log: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """A running Snakemake in a process group of its own; stdout and stderr in one pipe, or in `log`."""
        with contextlib.ExitStack() as files:
            return subprocess.Popen(
                [PROGRAMS / "snakemake", "--nocolor", *words], cwd=self.root,
                env={**self.environment, **variables}, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT,
                stdout=files.enter_context(log.open("w")) if log else subprocess.PIPE,
                text=True, errors="replace", start_new_session=True,
            )  # fmt: skip

    def command(self, program: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A finished call of a program in this checkout, by default one of the environment."""
        own = PROGRAMS / program
        return subprocess.run(
            [own if own.exists() else program, *words], cwd=self.root, env={**self.environment, **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    def verify(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """What `inference-lab verify` says here."""
        return self.command("inference-lab", "verify", **variables)

    def python(self, code: str, *words: str) -> str:
        """What Python code prints in this checkout. Raises RuntimeError when it fails."""
        done = self.command("python", "-c", code, *words)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout

    def go_on(self) -> None:
        """Let the paused stage go on."""
        (self.outside / "go").touch()

    def reseal(self, path: str, statement: str) -> None:
        """Change a receipt (named `receipt` in `statement`) and seal it again, as a run elsewhere would."""
        self.python(RESEAL, path, statement)

    def clone(self, name: str, *options: str) -> "Checkout":
        """A clone of this checkout, beside it; by git's own protocol, which `--depth` needs."""
        clone = Checkout(self.outside / name, self.outside)
        self.git("clone", "--quiet", *options, self.root.as_uri(), str(clone.root))
        return clone

    def git(self, *words: str) -> str:
        """What git says, in this checkout. Raises CalledProcessError when it fails."""
        who = ("-c", "user.name=Toy", "-c", "user.email=toy@invalid")
        done = self.command("git", *who, *words)
        done.check_returncode()
        return done.stdout

    def commit(self) -> None:
        """Commit everything that git does not ignore."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "state")

    def changes(self) -> list[str]:
        """Files that differ from the last commit or that git does not know."""
        return self.git("status", "--porcelain", "--untracked-files=all").splitlines()

    def identity(self, path: str) -> tuple[int, str] | None:
        """What tells a file that was written again from one left alone; times do not count."""
        file = self.root / path
        if not file.exists():
            return None
        return file.stat().st_ino, hashlib.sha256(file.read_bytes()).hexdigest()

    def contents(self, *patterns: str) -> dict[str, bytes]:
        """`{path: bytes}` of the files that match, superseded records aside."""
        found = {path for pattern in patterns for path in self.root.glob(pattern) if path.is_file()}
        kept = sorted(path for path in found if "superseded" not in path.parts)
        return {path.relative_to(self.root).as_posix(): path.read_bytes() for path in kept}

    def published(self) -> dict[str, bytes]:
        """Everything that follows from conditions and sources alone: no digest of a time of day in it."""
        return self.contents("results/*/*.csv", "results/*/*.svg", "results/*/*.md", "docs/**/*.md")

    def edit(self, path: str, old: str, new: str, *, keep_mtime: bool = False) -> None:
        """Replace the one place that has `old`."""
        file = self.root / path
        text, times = file.read_text(encoding="utf-8"), file.stat()
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is {text.count(old)} times in {path}, must be once")
        file.write_text(text.replace(old, new), encoding="utf-8")
        if keep_mtime:
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))

    def remove(self, *paths: str) -> None:
        """Delete files and folders."""
        for path in paths:
            place = self.root / path
            shutil.rmtree(place) if place.is_dir() else place.unlink()

    def permute_mtimes(self, seed: int, days: int = 10) -> None:
        """Give every file a random time of the last days; of 0 days: now."""
        order, now = random.Random(seed), time.time()
        for path in sorted(self.root.rglob("*")):
            if path.is_file() and ".git" not in path.parts:
                moment = now - order.uniform(0, days * 86_400)
                os.utime(path, (moment, moment))

    def processes(self) -> list[str]:
        """Command lines of the processes that carry this checkout's temporary folder."""
        mark, found = f"TMPDIR={self.outside}".encode(), list[str]()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if words:  # a dead one that nobody waited for yet has none
                        found.append(f"{entry.name} {words.strip()}")
        return found


def forked(root: Path, environment: Mapping[str, str], words: Sequence[str], said: Path) -> int:
    """Exit status of Snakemake in a fork of a process that has imported it, and nothing of ours.

    A call starts a second sooner than by its command, which half of these checks' time went into. All it
    says, and all that its jobs say, goes into the file `said`.
    """
    call = FORKS.Process(target=_snakemake, args=(root, dict(environment), list(words), said))
    with _PREPARING:  # the server that forks starts with the first call
        call.start()
    call.join(300)
    if call.exitcode is None:
        call.kill()
        raise TimeoutError(f"snakemake {' '.join(words)} goes on after 300 s:\n{said.read_text()}")
    return call.exitcode


def _snakemake(root: Path, environment: dict[str, str], words: list[str], said: Path) -> None:
    os.setsid()
    streams = os.open(os.devnull, os.O_RDONLY), os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, stream in enumerate((streams[0], streams[1], streams[1])):
        os.dup2(stream, number)
    os.chdir(root)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    sys.path[:] = [*environment["PYTHONPATH"].split(os.pathsep), *filter(os.path.isabs, sys.path)]
    sys.argv = [str(PROGRAMS / "snakemake"), "--nocolor", *words]
    if any(name.partition(".")[0] == "inference_lab" for name in sys.modules):
        raise RuntimeError("the package was imported before the checkout's own could be")
    from snakemake.cli import main

    sys.dont_write_bytecode = bool(environment["PYTHONDONTWRITEBYTECODE"])
    atexit._clear()  # what the server registered is the server's
    try:
        main(sys.argv[1:])
    finally:
        atexit._run_exitfuncs()  # a fork ends without them, a command does not


@contextlib.contextmanager
def checkout(name: str = "lab") -> Generator[Checkout]:
    """A copy of the prepared checkout with its `.snakemake` and times: everything in it is current."""
    with _place() as outside:
        root = outside / name
        subprocess.run(["cp", "-a", prepared().root, root], check=True)
        yield Checkout(root, outside)


@contextlib.contextmanager
def fresh_clone(name: str = "lab", *, seed: int = 0) -> Generator[Checkout]:
    """A git clone of the prepared checkout: no `.snakemake`, times in random order."""
    with _place() as outside:
        clone = Checkout(outside / name, outside)
        prepared().git("clone", "--quiet", "--local", ".", str(clone.root))
        clone.permute_mtimes(seed)
        yield clone


@contextlib.contextmanager
def _place() -> Generator[Path]:
    prepared()
    outside = Path(_base().name, f"case-{next(_NUMBERS)}")
    outside.mkdir()
    try:
        yield outside
    finally:
        shutil.rmtree(outside)


_NUMBERS = itertools.count(1)
_PREPARING = threading.RLock()
_base = functools.cache(lambda: tempfile.TemporaryDirectory(prefix="inference-lab-checks-"))


def prepared() -> Checkout:
    """The one prepared checkout: everything measured and committed, v2 never measured. Only copy it."""
    with _PREPARING:
        return _prepare()


@functools.cache
def _prepare() -> Checkout:
    base = Path(_base().name)
    lab = Checkout(base / "prepared", base / "outside")
    lab.outside.mkdir()
    program = base / "programs" / "inference-lab"
    program.parent.mkdir()
    program.write_text(WRAPPER)
    program.chmod(0o755)
    _lay_out(lab)
    lab.git("init", "--quiet")
    lab.commit()
    for words in (("-R", "measure_manual", "--", "results/v1/plot.svg", "results/v1/analysis.md"), ("all",)):
        if (run := lab.snakemake(*words)).status:
            raise RuntimeError(f"the toy checkout cannot be prepared:\n{run.text}")
    lab.commit()
    return lab


def _lay_out(lab: Checkout) -> None:
    """Copy what git knows or would add of this repository, without the real stages; lay the toy over it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", "--", *COPIED],
        cwd=REPOSITORY, capture_output=True, check=True, text=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, listed):
        if (source := REPOSITORY / name).is_file() and not NOT_COPIED.match(name):
            (lab.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, lab.root / name)
    shutil.copytree(TOY, lab.root, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    pins = '\nconstraint-dependencies = [\n    "toydep==1",\n    "toyplot==1",'
    lab.edit("pyproject.toml", "\nconstraint-dependencies = [", pins)
    sections = "src/inference_lab/config/sections.py"
    lab.edit(sections, 'by: Literal["decode_paths"]', 'by: Literal["toy"]')
    lab.edit(sections, "paths: Several[DecodePath]", "paths: Several[str]")
    lab.edit("src/inference_lab/config/judge.py", 'by: Literal["timing", ', 'by: Literal["toy", ')


def laid_over(under: Any, over: Any) -> Any:
    """A section with another one laid over it key by key, as `--configfile` does; an axis is replaced."""
    if not (isinstance(under, Mapping) and isinstance(over, Mapping)):
        return copy.deepcopy(over)
    return {**under, **{key: laid_over(under.get(key), value) for key, value in over.items()}}


def stop(process: subprocess.Popen[str], number: int, *, group: bool) -> None:
    """Send a signal to Snakemake's process alone or to its whole group, and wait until it is gone."""
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    process.communicate(timeout=60)


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> bool:
    """Whether `condition` came true within this time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@contextlib.contextmanager
def paused(lab: Checkout, stage: str, *words: str, **variables: str) -> Generator[subprocess.Popen[str]]:
    """A run of Snakemake that waits in the middle of `stage`; killed on leaving."""
    (lab.outside / "here").unlink(missing_ok=True)
    process = lab.start(*words, TOY_PAUSE=stage, **variables)
    try:
        if not wait_for(lambda: (lab.outside / "here").exists() or process.poll() is not None):
            raise TimeoutError(f"the run never came to {stage}")
        if process.poll() is not None:
            raise RuntimeError(f"the run ended before {stage}:\n{process.communicate()[0]}")
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


class Parallel(unittest.TestCase):
    """Tests whose bodies run two at a time: the first one asked for starts all that were selected."""

    waiting: "list[Parallel]" = []  # noqa: RUF012  (shared on purpose: one queue for every check)
    pool = ThreadPoolExecutor(max_workers=2)

    def __init__(self, methodName: str = "runTest") -> None:
        super().__init__(methodName)
        self.future: Future[None] | None = None
        if methodName != "runTest":
            self.body = getattr(self, methodName)
            setattr(self, methodName, self.finished)
            self.waiting.append(self)

    def finished(self) -> None:
        """Wait for the body of this test; its failure is this test's failure."""
        while self.waiting:
            test = self.waiting.pop(0)
            test.future = self.pool.submit(test.body)
        if self.future is None:
            raise RuntimeError(f"{self.id()} was never started")
        try:
            self.future.result()
        except KeyboardInterrupt:
            self.pool.shutdown(wait=False, cancel_futures=True)
            raise

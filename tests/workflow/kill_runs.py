"""Kills runs of the toy laboratory at random moments and looks at what the next plain run makes of it.

    uv run python -m tests.workflow.kill_runs [--kills 110] [--seed 1] [--pause FILE]

Every other kill is of Snakemake's process alone, the rest of its whole process group, all with SIGKILL.
Each run begins from a checkout that is stale in one of several ways. Counted are half records (files under
a final name that are not whole), files that git does not know, processes that live on, runs that need more
than a plain `snakemake all` to recover, and final bytes that differ from an undisturbed run's. By hand: it
takes minutes. Exits with 1 when anything was counted. While FILE exists no further run is begun.
"""

import argparse
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.workflow.check_crashes import half_made
from tests.workflow.harness import Checkout, checkout, stop, wait_for

SLOWED = {"TOY_SLEEP_S": "0.01"}  # so that kills land in measurements too
PATIENCE_S = 2.0  # within which every process of a killed run must be gone


def conditions(lab: Checkout) -> None:
    """Two experiments measure again."""
    lab.edit("config.yaml", "seed: 1}", "seed: 5}")
    lab.edit("config.yaml", "seed: 2}", "seed: 6}")


def source(lab: Checkout) -> None:
    """The tests run, then everything automatic."""
    lab.edit("src/inference_lab/experiments/toy.py", "* us)", "+ us)")


def looks(lab: Checkout) -> None:
    """Tests, summaries and all that follows; nothing measures."""
    lab.edit("src/inference_lab/analysis/toy.py", "/ 1e6", "/ 1e3")


def nothing_recorded(lab: Checkout) -> None:
    """No results at all but the manual experiment's."""
    lab.remove("results/tests.json")
    for name in ("t1", "t2"):
        for path in sorted((lab.root / "results" / name).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


STATES: tuple[Callable[[Checkout], None], ...] = (conditions, source, looks, nothing_recorded)


@dataclass(frozen=True)
class Kill:
    """One kill to come: of what state, after which share of an undisturbed run, of the whole group or not."""

    number: int
    state: Callable[[Checkout], None]
    share: float
    group: bool


@dataclass(frozen=True)
class Outcome:
    """Whether the kill met a living run, and everything that was wrong afterwards."""

    landed: bool
    faults: list[str]


def undisturbed(state: Callable[[Checkout], None]) -> tuple[float, dict[str, bytes]]:
    """Seconds that a run of this state takes, and the bytes it ends in."""
    with checkout() as lab:
        state(lab)
        started = time.monotonic()
        run = lab.snakemake("all", **SLOWED)
        if run.status:
            raise RuntimeError(run.text)
        return time.monotonic() - started, lab.published()


def try_kill(kill: Kill, seconds: float, whole: dict[str, bytes]) -> Outcome:
    """What came of this kill and the plain run that followed it."""
    with checkout() as lab:
        kill.state(lab)
        process = lab.start("all", log=lab.outside / "killed.log", **SLOWED)
        time.sleep(kill.share * seconds)
        ended = process.poll() is not None
        stop(process, signal.SIGKILL, group=kill.group) if not ended else process.wait()
        gone = wait_for(lambda: not lab.processes(), PATIENCE_S)
        left = lab.processes()
        found = [f"lives on: {words}" for words in left] if not gone else []
        found += [f"half record: {words}" for words in half_made(lab)]
        found += [f"unknown to git: {line}" for line in lab.changes() if line.startswith("??")]
        run = lab.snakemake("all", **SLOWED)
        if run.status:
            found.append(f"needs a hand: {run.text[-2000:]}")
        elif lab.published() != whole:
            found.append("other bytes than an undisturbed run's")
        elif "Nothing to be done" not in lab.snakemake("-n", "all").text:
            found.append("not current after the run that followed")
        found += [f"left in build/: {path.name}" for path in (lab.root / "build").glob("*")]
        who = "group" if kill.group else "snakemake alone"
        outcome = "; ".join(found) or ("had ended already" if ended else "recovered")
        print(
            f"{kill.number:3}  {kill.state.__name__:16}  {kill.share:5.1%}  {who:15}  {outcome}", flush=True
        )
        return Outcome(not ended, found)


def main() -> int:
    """Exit status: 1 when anything was wrong after any kill."""
    parser = argparse.ArgumentParser(prog="kill_runs", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=110)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=Path, help="wait while this file exists, between kills")
    args = parser.parse_args()
    order = random.Random(args.seed)
    kills = [
        Kill(number, STATES[number // 2 % len(STATES)], 0.9 * order.random(), group=number % 2 == 0)
        for number in range(args.kills)
    ]

    def outcome(kill: Kill) -> Outcome:
        while args.pause and args.pause.exists():
            time.sleep(5)
        return try_kill(kill, *ends[kill.state])

    with ThreadPoolExecutor(max_workers=2) as pool:
        ends = dict(zip(STATES, pool.map(undisturbed, STATES), strict=True))
        found = list(pool.map(outcome, kills))
    counted = Counter(words.split(":")[0] for one in found for words in one.faults)
    alone = sum(one.landed for kill, one in zip(kills, found, strict=True) if not kill.group)
    print(
        f"seed {args.seed}: {sum(one.landed for one in found)} kills of a living run, {alone} of them of"
        f" Snakemake alone, faults: {dict(counted)}"
    )
    return int(bool(counted))


if __name__ == "__main__":
    sys.exit(main())

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.workflow.check_crashes import half_made, unknown
from tests.workflow.harness import STALE, TOY_SOURCE, TOY_SUMMARY, Checkout, checkout, stop, wait_for

SLOWED = {"TOY_SLEEP_S": "0.01"}  # so that kills land in measurements too
PATIENCE_S = 2.0  # within which every process of a killed run must be gone
STATES = {  # what is edited or removed before a run
    "conditions": [STALE, ("config.yaml", "seed: 2}", "seed: 6}")],
    "source": [(TOY_SOURCE, "* us)", "+ us)")],
    "summaries": [(TOY_SUMMARY, "/ 1e6", "/ 1e3")],
    "nothing_recorded": ["results/tests.json", "results/t1", "results/t2"],
}


class Kill(NamedTuple):
    """One kill to come: of what state, after which share of an undisturbed run, of the whole group or not."""

    number: int
    state: str
    share: float
    group: bool


def prepare(lab: Checkout, state: str) -> None:
    """Bring the checkout into one of STATES."""
    for change in STATES[state]:
        lab.remove(change) if isinstance(change, str) else lab.edit(*change)


def undisturbed(state: str) -> tuple[float, dict[str, bytes]]:
    """Seconds that a run of this state takes, and the bytes it ends in."""
    with checkout() as lab:
        prepare(lab, state)
        started = time.monotonic()
        run = lab.snakemake("all", **SLOWED)
        if run.status:
            raise RuntimeError(run.text)
        return time.monotonic() - started, lab.published()


def try_kill(kill: Kill, seconds: float, whole: dict[str, bytes]) -> tuple[bool, list[str]]:
    """Whether the kill met a living run, and everything that was wrong after the plain run that followed."""
    with checkout() as lab:
        prepare(lab, kill.state)
        process = lab.start("all", log=lab.outside / "killed.log", **SLOWED)
        time.sleep(kill.share * seconds)
        landed = process.poll() is None
        stop(process, signal.SIGKILL, group=kill.group) if landed else process.wait()
        gone = wait_for(lambda: not lab.processes(), PATIENCE_S)
        found = [f"lives on: {words}" for words in ([] if gone else lab.processes())]
        found += [f"half record: {words}" for words in half_made(lab)]
        found += [f"unknown to git: {line}" for line in unknown(lab)]
        run = lab.snakemake("all", **SLOWED)
        if run.status:
            found.append(f"needs a hand: {run.text[-2000:]}")
        elif lab.published() != whole:
            found.append("other bytes than an undisturbed run's")
        elif "Nothing to be done" not in lab.snakemake("-n", "all").text:
            found.append("not current after the run that followed")
        found += [f"left in build/: {path.name}" for path in (lab.root / "build").glob("*")]
    who = "group" if kill.group else "snakemake alone"
    outcome = "; ".join(found) or ("recovered" if landed else "had ended already")
    print(f"{kill.number:3}  {kill.state:16}  {kill.share:5.1%}  {who:15}  {outcome}", flush=True)
    return landed, found


def main() -> int:
    """Exit status: 1 when anything was wrong after any kill."""
    parser = argparse.ArgumentParser(prog="kill_runs", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=110)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=Path, help="wait while this file exists, between kills")
    args = parser.parse_args()
    order, states = random.Random(args.seed), list(STATES)
    kills = [
        Kill(number, states[number // 2 % len(states)], 0.9 * order.random(), group=number % 2 == 0)
        for number in range(args.kills)
    ]

    def outcome(kill: Kill) -> tuple[bool, list[str]]:
        while args.pause and args.pause.exists():
            time.sleep(5)
        return try_kill(kill, *ends[kill.state])

    with ThreadPoolExecutor(max_workers=2) as pool:
        ends = dict(zip(states, pool.map(undisturbed, states), strict=True))
        found = list(pool.map(outcome, kills))
    counted = Counter(words.split(":")[0] for _, faults in found for words in faults)
    alone = sum(landed for kill, (landed, _) in zip(kills, found, strict=True) if not kill.group)
    print(
        f"seed {args.seed}: {sum(landed for landed, _ in found)} kills of a living run, {alone} of them of"
        f" Snakemake alone, faults: {dict(counted)}"
    )
    return int(bool(counted))


if __name__ == "__main__":
    sys.exit(main())

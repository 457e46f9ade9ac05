"""How long a plan takes when there is nothing to do, over the number of jobs it looks at.

    uv run python -m tests.workflow.plan_times [--jobs 11 100 1000] [--profile]

Each number of jobs is a copy of the toy laboratory with as many experiments and figures as give that many,
all current. Stated is the wall time of `snakemake -n all` less that of `snakemake --version`, best and median
of several, and the CPU time beside it. By hand, on a quiet machine: it makes and times hundreds of files.
"""

import argparse
import copy
import json
import os
import statistics
import sys
import time

import yaml

from tests.workflow.harness import Checkout, checkout

STEPS = 4  # of an experiment with one figure: measure, summary, figure, analysis
FIGURES = 6  # more figures of every further experiment
BOUNDS_S = {11: 1.5, 100: 2.5, 1000: 5.0}
# Copies what t2 recorded under another name, as if it had been measured and derived there.
COPY = """
import json, sys
from pathlib import Path
from inference_lab.records.plan import Plan
from inference_lab.records.receipts import receipt_of, seal
from inference_lab.records.files import json_text, write_file
config = json.loads(sys.argv[1])
def put(walk, step):
    receipt = receipt_of(step, step.inputs(walk.sources), step.pins(walk.sources))
    write_file(Path(step.receipt), json_text(seal(receipt)))
for name in set(config["experiments"]) - {"t1", "t2", "v1", "v2"}:
    walk = Plan(config)
    measure, *derived = walk.steps(name)
    manifest = json.loads(Path("results/t2/manifest.json").read_text(encoding="utf-8"))
    manifest |= {"experiment": name, "command": list(measure.command), "inputs": measure.inputs(walk.sources)}
    for file in manifest["outputs"]:
        write_file(Path("results", name, file), Path("results/t2", file).read_bytes())
    write_file(Path(measure.receipt), json_text(seal(manifest)))
    write_file(Path("predictions", f"{name}.yaml"), Path("predictions/t2.yaml").read_bytes())
    for step in derived:
        for path in step.makes:
            write_file(Path(path), f"{path}\\n")
        put(Plan(config), step)
walk = Plan(config)
put(walk, walk.verify_step())
"""


def with_jobs(lab: Checkout, jobs: int) -> int:
    """Adds experiments until `all` looks at about so many jobs; the number it then looks at."""
    count = STEPS + (STEPS + 1) + 2  # t2, t1 with another figure, tests and verification
    if count >= jobs:
        return count
    file = lab.root / "config.yaml"
    config = yaml.safe_load(file.read_text(encoding="utf-8"))
    section = config["experiments"]["t2"]
    while count + STEPS <= jobs:
        more = min(FIGURES, jobs - count - STEPS)
        its = copy.deepcopy(section)
        its["judge"]["figures"] = {f"{n}.svg": "figures.toy" for n in range(1 + more)}
        config["experiments"][f"e{count}"] = its
        count += STEPS + more
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    lab.python(COPY, json.dumps(config))
    return count


def timed(lab: Checkout, *words: str) -> tuple[float, float, str]:
    """Wall and CPU seconds of a call of Snakemake in the checkout, and what it said."""
    before, began = os.times(), time.monotonic()
    done = lab.command("snakemake", *words)
    wall_s, after = time.monotonic() - began, os.times()
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return wall_s, cpu_s, done.stdout + done.stderr


def profile(lab: Checkout) -> str:
    """The functions in which a plan spends most of its time."""
    out = str(lab.outside / "plan.prof")
    lab.command("python", "-m", "cProfile", "-o", out, "-m", "snakemake", "-n", "all")
    shown = "import pstats, sys; pstats.Stats(sys.argv[1]).sort_stats('cumtime').print_stats(70)"
    return lab.python(shown, out)


def main() -> int:
    """Exit status: 1 when the best plan of a number of jobs takes longer than its bound."""
    parser = argparse.ArgumentParser(prog="plan_times", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", type=int, nargs="+", default=list(BOUNDS_S))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    slow = False
    for jobs in args.jobs:
        with checkout() as lab:
            count = with_jobs(lab, jobs)
            timed(lab, "--cores", "1", "all")  # a folder that was just made has to be verified once
            start_ups = [timed(lab, "--version")[:2] for _ in range(args.repeats)]
            plans = [timed(lab, "-n", "all") for _ in range(args.repeats)]
            if "Nothing to be done" not in plans[0][2]:
                raise RuntimeError(plans[0][2])
            start_s, cpu_s = (min(part) for part in zip(*start_ups, strict=True))
            walls = [wall_s - start_s for wall_s, _, _ in plans]
            best_cpu_s = min(cpu for _, cpu, _ in plans) - cpu_s
            bound_s = next((s for n, s in BOUNDS_S.items() if jobs <= n), None)
            slow |= bound_s is not None and min(walls) > bound_s
            print(
                f"{count} jobs: best {min(walls):.2f} s, median {statistics.median(walls):.2f} s,"
                f" CPU {best_cpu_s:.2f} s beyond a start-up of {start_s:.2f} s (bound {bound_s} s);"
                f" load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            if args.profile:
                print(profile(lab))
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())

# Receipts decide what runs; times and metadata never do. The decisions are inference_lab.records.chain's;
# here they are carried to Snakemake, with the semi-internals that needs (one test each).
import atexit
import fcntl
import functools
import os
import sys
from pathlib import Path

from inference_lab.errors import LabError
from inference_lab.records import chain as receipts, config as lab_config, files as lab_files
from inference_lab.records import locks as lab_locks, table as lab_table


def refuse(error):
    """One line on stderr and exit status 2: an exception would show a traceback."""
    print(f"snakemake: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2)


try:
    lab_config.read_yaml(Path("config.yaml"))  # a key that stands twice
    lab_config.check_config(config)
except LabError as error:
    refuse(error)

EXPERIMENTS = list(config["experiments"])
AUTO = [
    name for name in EXPERIMENTS if config["experiments"][name]["refresh"] == "auto"
]
FIGURES = {
    name for e in config["experiments"].values() for name in e["judge"]["figures"]
}


def any_of(names):
    """A wildcard constraint: one of these names."""
    return "|".join(map(re.escape, sorted(names))) or "(?!)"


@functools.cache
def walk():
    """The one walk over the receipts of this call, after the checkout was claimed."""
    claim()
    # Metadata does not decide either, with or without the profile.
    workflow.dag_settings.rerun_triggers = set()
    asked = receipts.Asked(
        frozenset(map(str, workflow.dag_settings.forcerun)),
        workflow.dag_settings.forceall,
    )
    return receipts.Chain(config, asked)


def claim():
    """Hold this checkout until the process ends and clear what a killed run left; a plan takes nothing."""
    if (
        workflow.executor_plugin is None
        or workflow.dryrun
        or not workflow.is_main_process
    ):
        return
    here = os.open(".", os.O_RDONLY)  # the kernel frees it with its holder
    lab_locks.hold(here, "runs in this checkout")
    Path(".snakemake/locks").mkdir(
        parents=True, exist_ok=True
    )  # the run before removed it on its way out
    for left in (
        *Path(".snakemake/locks").glob("*"),
        *Path(".snakemake/incomplete").glob("*"),
    ):
        left.unlink(missing_ok=True)
    lab_files.clear_leftovers()


def step_of(stage, wildcards):
    return walk().step(
        stage, wildcards.get("experiment", ""), wildcards.get("figure", "")
    )


def inputs(stage, *needs):
    """An input function: a receipt that holds makes every link ancient, one that does not forces the job."""

    def of(wildcards):
        try:
            step = step_of(stage, wildcards)
            why = walk().why(step)
            if stage == "measure" and walk().manual(step.experiment):
                workflow.dag.forcerules.discard(workflow.get_rule("measure_manual"))
            reads = [
                *step.sources(walk().sources),
                *step.reads,
                *needs,
                "pyproject.toml",
            ]
        except LabError as error:
            refuse(error)
        if not why:
            return [ancient(path) for path in reads if os.path.exists(path)]
        if stage != "tests":
            # Past a current measurement, whose link to the tests is ancient, a run of the tests would hide
            # that this job has to run (and it must not run when they fail): it is linked to them itself.
            reads.append(receipts.TESTS_RECEIPT)
        logger.info(f"{step.name}: {'; '.join(why)}")
        workflow.dag.forcefiles.add(step.receipt)
        if stage == "measure" and receipts.tests_ran_elsewhere():
            logger.info("tests: the receipt is from another platform or other versions")
            workflow.dag.forcefiles.add(receipts.TESTS_RECEIPT)
        return reads

    return of


def section(stage):
    """A stage's part of its config section, as the one JSON argument its command gets."""
    return lambda wildcards: lab_files.canonical(step_of(stage, wildcards).section)


def results(experiments):
    """Every committed file of these experiments; a manual one that nobody measured is left out and named."""

    def of(wildcards):
        steps = []
        for experiment in experiments:
            if unmeasured := walk().waits_to_be_asked(experiment):
                logger.info(unmeasured)
            else:
                steps += walk().steps(experiment)
        return receipts.files_of(steps)

    return of


def closing_table(wildcards):
    """No file: what a real run says when it ends, whether there was anything to do or not."""
    if (
        workflow.executor_plugin is not None
        and not workflow.dryrun
        and workflow.is_main_process
    ):
        atexit.register(lambda: print(lab_table.closing_table(config), file=sys.stderr))
    return []

# Receipts decide what runs; times and metadata never do. The decisions are inference_lab.records.plan';
# here they are carried to Snakemake, with the semi-internals that needs (one test each).

os.environ[lab_locks.RUN_VARIABLE] = str(os.getpid())  # whom every job dies with


def jobs_run_here():
    """Whether this call runs jobs: a plan or a list does not, and a job's own Snakemake is not the one."""
    asked = workflow.executor_plugin is not None and not workflow.dryrun
    return asked and workflow.is_main_process


@functools.cache
def walk():
    """The one walk over the receipts of this call, after the checkout was claimed."""
    claim()
    # Metadata does not decide either, with or without the profile.
    workflow.dag_settings.rerun_triggers = set()
    asked = lab_plan.Asked(
        frozenset(map(str, workflow.dag_settings.forcerun)),
        workflow.dag_settings.forceall,
    )
    return lab_plan.Plan(config, asked)


def claim():
    """Hold this checkout until the process ends and clear what a killed run left; a plan takes nothing."""
    if not jobs_run_here():
        return
    here = os.open(".", os.O_RDONLY)  # the kernel frees it with its holder
    try:
        lab_locks.hold(here, os.getcwd(), "runs in this checkout")
    except LabError as error:
        refuse(error)
    state = Path(".snakemake")  # the run before removed its locks/ on its way out
    (state / "locks").mkdir(parents=True, exist_ok=True)
    for left in (*state.glob("locks/*"), *state.glob("incomplete/*")):
        left.unlink(missing_ok=True)
    # A job that failed now would have a killed job's copies restored beside files that came later.
    shutil.rmtree(state / "backups", ignore_errors=True)
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
            if stage == "measure" and walk().experiments[step.experiment].manual:
                workflow.dag.forcerules.discard(workflow.get_rule("measure_manual"))
            reads = walk().links(step, *needs)
        except LabError as error:
            refuse(error)
        if not why:
            return [ancient(path) for path in reads if os.path.exists(path)]
        if stage != "tests":
            # The measurement's link to the tests is `ancient`. If only the tests ran, Snakemake would skip
            # this job. So it depends on the tests directly: it runs after them, and not if they fail.
            reads.append(lab_stages.TESTS_RECEIPT)
        logger.info(f"{step.name}: {'; '.join(why)}")
        workflow.dag.forcefiles.add(step.receipt)
        if stage == "measure" and lab_receipts.tests_ran_elsewhere():
            logger.info("tests: the receipt is from another platform or other versions")
            workflow.dag.forcefiles.add(lab_stages.TESTS_RECEIPT)
        return reads

    return of

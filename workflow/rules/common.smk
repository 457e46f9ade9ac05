# Shared by all others: the checked config, its names, a stage's part of it, what `all` asks for.
def refuse(error):
    """One line on stderr and exit status 2: an exception would show a traceback."""
    print(f"snakemake: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2)


try:
    lab_installed.check_package()
    read_yaml(Path("config.yaml"))  # a key that stands twice
    lab_config.check_config(config)
except LabError as error:
    refuse(error)

EXPERIMENTS = list(config["experiments"])
AUTO = [
    name for name in EXPERIMENTS if config["experiments"][name]["refresh"] == "auto"
]
TARGETS = {}
for name, its in config["experiments"].items():
    if target := its.get("target", name if its["refresh"] == "manual" else None):
        TARGETS.setdefault(target, []).append(name)
ARTICLES = {
    name for name in EXPERIMENTS if config["experiments"][name]["judge"].get("article")
}
REPORTS = {e["judge"].get("report") for e in config["experiments"].values()} - {None}
FIGURES = {
    name for e in config["experiments"].values() for name in e["judge"]["figures"]
}


def any_of(names):
    """A wildcard constraint: one of these names."""
    return "|".join(map(re.escape, sorted(names))) or "(?!)"


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
        steps += walk().reports_of(experiments)
        return lab_stages.files_of(steps)

    return of


def say_what_is_recorded():
    print(lab_status.closing_table(config), file=sys.stderr)


def closing_table(wildcards):
    """No file: what a real run says when it ends, whether there was anything to do or not."""
    if jobs_run_here():
        atexit.unregister(say_what_is_recorded)  # several targets: once
        atexit.register(say_what_is_recorded)
    return []

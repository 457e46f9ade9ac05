"""Where everything that is recorded stands, and each stage as a step: what it reads, makes and depends on.

Answers: which files and sources make up a stage of an experiment? Whether they still agree is the chain's to
say. Every path is relative to the checkout, which is the working directory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.digests import PACKAGE, PAGES, SOURCE_ROOT, TEMPLATE, Sources, module_path
from inference_lab.records.files import sha256_value
from inference_lab.records.installed import interpreter

TESTS_RECEIPT = "results/tests.json"
VERIFIED_RECEIPT = "results/.verified.json"  # of this machine, ignored by git
RAW_FILES = ("raw.csv", "controls.csv")
WAITS = ("quiet_cores", "quiet_wait_s")  # how long a measurement waits before it begins decides no number


@dataclass(frozen=True)
class Step:
    """One stage of one experiment: what it reads, what it makes, and where its receipt stands."""

    stage: str
    experiment: str
    command: tuple[str, ...]
    receipt: str
    makes: tuple[str, ...]
    reads: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    section: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def name(self) -> str:
        """The step in words: "m1 measure", "m1 figure latency.svg"."""
        return " ".join((self.experiment, *self.command[:1], *self.command[2:])).strip()

    def sources(self, sources: Sources) -> dict[str, str]:
        """`{path: digest}` of the source files whose meaning this step depends on."""
        if self.stage not in ("tests", "verify"):
            return sources.closure(*self.modules, wordless=self.stage == "measure")
        paths = tested_files(sources.root) if self.stage == "tests" else package_files(sources.root)
        return {path: sources.digest(path) for path in paths}

    def inputs(self, sources: Sources) -> dict[str, str]:
        """`{what: sha256}` of everything this step reads, as it is now."""
        found = self.sources(sources)
        for path in self.reads:
            try:
                pins = path == self.section.get("environment")
                found[path] = sources.pin_file(path) if pins else sources.file(path)
            except OSError as error:
                raise RecordError(
                    f"{path}: cannot be read ({error.strerror}), and {self.name} reads it; make or restore it"
                ) from None
        if self.section:
            decides = {key: value for key, value in self.section.items() if key not in WAITS}
            found["section"] = sha256_value(decides)
        found["command"] = sha256_value(self.command)
        if self.stage == "verify":  # a copy of its receipt, in a commit or an archive, says nothing here
            found["checkout"] = sha256_value([interpreter(), Path().stat().st_ino])
        return found

    def pins(self, sources: Sources) -> dict[str, str]:
        """`{package: version}` of the pins this step depends on."""
        return sources.pins(self.sources(sources))


def package_files(root: Path) -> list[str]:
    """The package's sources, templates of pages among them."""
    sources = [*(root / SOURCE_ROOT).rglob("*.py"), *(root / PAGES).rglob(f"*{TEMPLATE}")]
    return sorted(path.relative_to(root).as_posix() for path in sources)


def tested_files(root: Path) -> list[str]:
    """The package's sources and the unit tests, without the slow checks of the workflow."""
    tests = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("*.py"))
    return [*package_files(root), *(path for path in tests if not path.startswith("tests/workflow/"))]


def has_module(name: str) -> bool:
    """Whether the checkout has this module of the package, named inside it."""
    return module_path(f"{PACKAGE}.{name}") is not None


def folder(experiment: str) -> str:
    """Where an experiment's record stands."""
    return experiment.rstrip("/") if is_load(experiment) else f"results/{experiment}"


def is_load(experiment: str) -> bool:
    """Whether this is a load of the user's own: it is named by its folder and a slash, as in `run1/`."""
    return experiment.endswith("/")


def tests_step() -> Step:
    """The step that runs the unit tests."""
    return Step("tests", "", ("test",), TESTS_RECEIPT, makes=())


def measure_step(experiment: str, section: Mapping[str, Any]) -> Step:
    """The step that measures; its receipt is the manifest. `section` is the `measure:` part."""
    load = is_load(experiment)
    return Step(
        "measure",
        experiment,
        ("load",) if load else ("measure", experiment),
        f"{folder(experiment)}/manifest.json",
        makes=_raw(experiment),
        reads=_environment(section),
        modules=("stream_load.cli" if load else f"experiments.{_by(section)}",),
        section=section,
    )


def summary_step(experiment: str, section: Mapping[str, Any]) -> Step:
    """The step that makes summary.csv from the record. `section` is the `judge:` part."""
    return Step(
        "summary",
        experiment,
        ("summary", experiment),
        f"{folder(experiment)}/receipts/summary.json",
        makes=(f"{folder(experiment)}/summary.csv",),
        reads=(*_record(experiment), *_calibration(section)),
        modules=(f"analysis.{_by(section)}",),
        section=section,
    )


def figure_step(experiment: str, section: Mapping[str, Any], figure: str) -> Step:
    """The step that draws one figure or generated page named in `judge.figures`."""
    drawn = section.get("figures", {})
    if figure not in drawn:
        known = ", ".join(drawn) or "none"
        raise ConfigError(f"{experiment} has no figure {figure!r}; its judge.figures names {known}")
    return Step(
        "figure",
        experiment,
        ("figure", experiment, figure),
        f"{folder(experiment)}/receipts/{figure}.json",
        makes=(f"{folder(experiment)}/{figure}",),
        reads=(f"{folder(experiment)}/summary.csv", *_record(experiment)),
        modules=(drawn[figure], "analysis.summary_table"),  # by which what it draws is read
        section=section,
    )


def analysis_step(experiment: str, section: Mapping[str, Any]) -> Step:
    """The step that sets prediction beside result: verdicts.csv, analysis.md, an article."""
    at = folder(experiment)
    article = (f"docs/experiments/{experiment}.md",) if section.get("article") else ()
    return Step(
        "analysis",
        experiment,
        ("analysis", experiment),
        f"{at}/receipts/analysis.json",
        makes=(f"{at}/verdicts.csv", f"{at}/analysis.md", *article),
        reads=(
            *(f"{at}/summary.csv", *_record(experiment), prediction_file(experiment)),
            *(f"{page}.j2" for page in article),
        ),
        modules=("pages.analysis", "analysis.verdicts"),
        section=section,
    )


def report_step(name: str, experiments: Sequence[Mapping[str, Any]], unmeasured: Sequence[str]) -> Step:
    """The step that writes one report of several experiments from what was found in each of them.

    `experiments` holds an {experiment, figures} for each that it is about.
    """
    at = folder(name)
    files = ("summary.csv", "verdicts.csv", "manifest.json")
    return Step(
        "report",
        name,
        ("report", name),
        f"{at}/receipts/report.json",
        makes=(f"{at}/report.md",),
        reads=tuple(
            path
            for about in experiments
            for path in (
                *(f"{folder(about['experiment'])}/{file}" for file in files),
                prediction_file(about["experiment"]),
            )
        ),
        modules=("pages.report",),
        section={"experiments": list(experiments), "unmeasured": list(unmeasured)},
    )


def part_of(stage: str) -> str:
    """Which part of a config section a stage receives: conditions to measure, bounds and looks to judge."""
    return "measure" if stage == "measure" else "judge"


def prediction_file(experiment: str) -> str:
    """Where an experiment's prediction stands."""
    return f"predictions/{experiment}.yaml"


def _raw(experiment: str) -> tuple[str, ...]:
    names = ("requests.jsonl",) if is_load(experiment) else RAW_FILES
    return tuple(f"{folder(experiment)}/{name}" for name in names)


def _record(experiment: str) -> tuple[str, ...]:
    return (*_raw(experiment), f"{folder(experiment)}/manifest.json")


def _environment(section: Mapping[str, Any]) -> tuple[str, ...]:
    """What decides what serves: the file of pins; beside it the log's form and clock, the model's writer."""
    if "environment" not in section:
        return ()
    pins = Path(section["environment"])
    beside = map(pins.with_name, ("logging.json", "monotonic_log.py", "write_model.py"))
    return (pins.as_posix(), *(path.as_posix() for path in beside if path.is_file()))


def _by(section: Mapping[str, Any]) -> str:
    """The module a section names. config.yaml is checked for it, a section given as words is not."""
    if not isinstance(name := section.get("by"), str):
        raise ConfigError("the section has no key 'by', a module's name: give a whole section of config.yaml")
    return name


def _calibration(section: Mapping[str, Any]) -> tuple[str, ...]:
    """What says how far the load client's own times are from the truth, if a summary leans on it."""
    at = folder(section.get("calibration", ""))
    return (f"{at}/summary.csv", f"{at}/manifest.json") if "calibration" in section else ()


def files_of(steps: Sequence[Step]) -> list[str]:
    """Every file the steps make, receipts included."""
    return [path for step in steps for path in (*step.makes, step.receipt)]

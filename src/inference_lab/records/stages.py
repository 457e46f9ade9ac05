"""The stages as a table: what each reads and makes, which modules decide it, where its receipt is.

Whether they still agree is decided in receipts.py. Paths are relative to the checkout, the working directory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.digests import PAGES, SOURCE_ROOT, TEMPLATE, Sources
from inference_lab.records.files import JSON, sha256_value
from inference_lab.records.installed import platform_and_packages

TESTS_RECEIPT = "results/tests.json"
VERIFIED_RECEIPT = "results/.verified.json"  # of this machine, ignored by git
ARTICLE = "docs/experiments/{}.md"  # written by the analysis, from a template beside it
WAITS = ("quiet_cores", "quiet_wait_s")  # how long a measurement waits before it begins decides no number

Section = JSON  # a part of config.yaml, already checked


@dataclass(frozen=True)
class Stage:
    """One row of the table. {at} is the experiment's folder, {raw} each of its raw files."""

    makes: tuple[str, ...]
    reads: tuple[str, ...]
    modules: tuple[str, ...]
    receipt: str
    part: str = "judge"  # of the config section: conditions to measure, or bounds and looks to judge


_RECORD = ("{at}/{raw}", "{at}/manifest.json")
STAGES = {
    "measure": Stage(("{at}/{raw}",), (), ("experiments.{by}",), "{at}/manifest.json", part="measure"),
    "summary": Stage(("{at}/summary.csv",), _RECORD, ("analysis.{by}",), "{at}/receipts/summary.json"),
    "figure": Stage(
        ("{at}/{figure}",),
        ("{at}/summary.csv", *_RECORD),
        ("{drawn}", "analysis.summary_table"),  # which reads the summary that is drawn
        "{at}/receipts/{figure}.json",
    ),
    "analysis": Stage(
        ("{at}/verdicts.csv", "{at}/analysis.md"),
        ("{at}/summary.csv", *_RECORD, "predictions/{name}.yaml"),
        ("pages.analysis", "analysis.verdicts"),
        "{at}/receipts/analysis.json",
    ),
    "report": Stage(("{at}/report.md",), (), ("pages.report",), "{at}/receipts/report.json"),
}


@dataclass(frozen=True)
class Step:
    """One stage of one experiment: what it reads and makes, and where its receipt is."""

    stage: str
    experiment: str
    command: tuple[str, ...]
    receipt: str
    makes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    section: Section = field(default_factory=dict[str, object])
    own_load: bool = False  # of a load in a folder of the user's own

    @property
    def name(self) -> str:
        """The step in words: "m1 measure", "m1 figure latency.svg"."""
        return " ".join((self.experiment, *self.command[:1], *self.command[2:])).strip()

    @property
    def folder(self) -> Path:
        """The folder of the experiment."""
        return Path(self.receipt).parent if self.stage == "measure" else Path(self.receipt).parents[1]

    def sources(self, sources: Sources) -> dict[str, str]:
        """`{path: digest}` of the source files whose meaning this step depends on."""
        if self.stage not in ("tests", "verify"):
            return sources.closure(*self.modules, wordless=self.stage == "measure")
        paths = tested_files(sources.root) if self.stage == "tests" else package_files(sources.root)
        return {path: sources.digest(path) for path in paths}

    def inputs(self, sources: Sources) -> dict[str, str]:
        """`{what: sha256}` of everything this step reads, as it is now."""
        digests = self.sources(sources)
        for path in self.reads:
            try:
                pins = path == self.section.get("environment")
                digests[path] = sources.pin_file(path) if pins else sources.file(path)
            except OSError as error:
                words = f"cannot be read ({error.strerror}), and {self.name} reads it"
                raise RecordError(f"{path}: {words}; make or restore it") from None
        if self.section:
            decides = {key: value for key, value in self.section.items() if key not in WAITS}
            digests["section"] = sha256_value(decides)
        digests["command"] = sha256_value(self.command)
        if self.stage == "verify":  # a copy of its receipt, in a commit or an archive, is not evidence here
            digests["checkout"] = sha256_value([platform_and_packages(()), Path().stat().st_ino])
        return digests

    def pins(self, sources: Sources) -> dict[str, str]:
        """`{package: version}` of the pins this step depends on."""
        return sources.pins(self.sources(sources))


TESTS = Step("tests", "", ("test",), TESTS_RECEIPT)


@dataclass(frozen=True)
class Experiment:
    """One experiment of the config, or a load of the user's own in a folder of its own."""

    name: str
    measure: Section
    judge: Section
    manual: bool = False  # measured only when asked for by name
    own_folder: str | None = None  # of a load of the user's own

    @property
    def folder(self) -> str:
        """The folder of the record."""
        return self.own_folder or folder(self.name)

    def step(self, stage: str, figure: str = "") -> Step:
        """Return the step of a stage. Raises ConfigError for a figure that the config does not name."""
        section = self.measure if STAGES[stage].part == "measure" else self.judge
        return step(stage, self.name, section, figure, self.own_folder)

    def steps(self) -> list[Step]:
        """Return every step, in the order of the data."""
        figures = [self.step("figure", figure) for figure in self.judge.get("figures", {})]
        later = [] if self.own_folder else [self.step("analysis")]  # of an own load nothing was predicted
        return [self.step("measure"), self.step("summary"), *figures, *later]


def step(
    stage: str, experiment: str, section: Section, figure: str = "", own_folder: str | None = None
) -> Step:
    """Return a stage of an experiment as a step; `section` is the part of its config that the stage gets."""
    row, figures = STAGES[stage], section.get("figures", {})
    command, modules = (stage, experiment, *((figure,) if figure else ())), row.modules
    if stage == "measure" and own_folder:
        command, modules = ("load",), ("stream_load.cli",)
    if stage == "figure" and figure not in figures:
        known = ", ".join(figures) or "none"
        raise ConfigError(f"{experiment} has no figure {figure!r}; its judge.figures names {known}")
    if "{by}" in modules[0] and not isinstance(section.get("by"), str):  # it came from an option
        raise ConfigError("the section has no key 'by', a module's name: give a whole section of config.yaml")
    article = (ARTICLE.format(experiment),) if stage == "analysis" and section.get("article") else ()
    raw = ("requests.jsonl",) if own_folder else ("raw.csv", "controls.csv")
    names = {"at": own_folder or folder(experiment), "name": experiment, "figure": figure}
    names |= {"by": section.get("by", ""), "drawn": figures.get(figure, "")}

    def filled(patterns: Sequence[str]) -> Iterator[str]:
        for pattern in patterns:
            for file in raw if "{raw}" in pattern else raw[:1]:
                yield pattern.format(raw=file, **names)

    return Step(
        stage,
        experiment,
        command,
        row.receipt.format(**names),
        makes=(*filled(row.makes), *article),
        reads=(*filled(row.reads), *_read_by_section(stage, section), *(f"{page}.j2" for page in article)),
        modules=tuple(filled(modules)),
        section=section,
        own_load=own_folder is not None,
    )


def _read_by_section(stage: str, section: Section) -> Iterator[str]:
    """Yield the files that a step reads because its section names them."""
    if stage == "measure" and "environment" in section:
        # What decides what serves: the file of pins; beside it who holds the environment against them, the
        # log's form and clock, the model's writer.
        pins = Path(section["environment"])
        yield pins.as_posix()
        beside = map(pins.with_name, ("install.py", "logging.json", "monotonic_log.py", "write_model.py"))
        yield from (path.as_posix() for path in beside if path.is_file())
    elif stage == "summary" and "calibration" in section:  # how far the client's own times are from the truth
        yield from (f"{folder(section['calibration'])}/{file}" for file in ("summary.csv", "manifest.json"))
    elif stage == "report":
        for about in section["experiments"]:
            name = about["experiment"]
            yield from (f"{folder(name)}/{file}" for file in ("summary.csv", "verdicts.csv", "manifest.json"))
            yield prediction_file(name)


def package_files(root: Path) -> list[str]:
    """Return the package's sources, templates of pages among them."""
    sources = [*(root / SOURCE_ROOT).rglob("*.py"), *(root / PAGES).rglob(f"*{TEMPLATE}")]
    return sorted(path.relative_to(root).as_posix() for path in sources)


def tested_files(root: Path) -> list[str]:
    """Return the package's sources and the unit tests, without the slow checks of the workflow."""
    tests = sorted(path.relative_to(root).as_posix() for path in (root / "tests").rglob("*.py"))
    return [*package_files(root), *(path for path in tests if not path.startswith("tests/workflow/"))]


def folder(experiment: str) -> str:
    """Return the folder of an experiment's record."""
    return f"results/{experiment}"


def prediction_file(experiment: str) -> str:
    """Return the path of an experiment's prediction."""
    return f"predictions/{experiment}.yaml"


def is_own_load(recorded_name: str) -> bool:
    """Return whether a recorded name is that of an own load: it is its folder's name and a slash."""
    return recorded_name.endswith("/")


def files_of(steps: Sequence[Step]) -> list[str]:
    """Return every file the steps make, receipts included."""
    return [path for step in steps for path in (*step.makes, step.receipt)]

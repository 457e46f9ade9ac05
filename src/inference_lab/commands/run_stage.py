"""One function a stage: reads what the stage reads, has it made, puts it in place with its receipt last.

Joins records to experiments, analysis and figures. Each module of those is imported when its stage runs,
so that measuring meets no pandas and a plan meets nothing.
"""

import shlex
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib import import_module  # noqa: TID251  (the one dispatch of stages)
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference_lab.config.judge import Judge, read_judge
from inference_lab.config.sections import read_measure
from inference_lab.errors import ConfigError, LabError, MeasurementRefused, RecordError
from inference_lab.records import history, installed, locks, receipts, stages, store
from inference_lab.records.digests import Sources
from inference_lab.records.files import read_text, sha256_file, write_json
from inference_lab.records.forms import JSON
from inference_lab.records.receipts import State
from inference_lab.records.record import Calibration, Measurement, Record
from inference_lab.records.stages import Step
from inference_lab.timing import machine

if TYPE_CHECKING:  # pages and figures have it in their closures; measuring meets no analysis
    from inference_lab.analysis.summary_table import View

Progress = Callable[[int, int], None]
Load = Callable[[Path], Record]  # reads a record by its manifest; one that remembers spares reading it again
WATCHED_BY_GIT = ("src", "config.yaml", "predictions", "pyproject.toml")


def stage_module(name: str) -> Any:
    """The package module of that name, imported now. Raises ConfigError when there is none."""
    if not Path(__file__).parents[1].joinpath(*name.split(".")).with_suffix(".py").is_file():
        raise ConfigError(f"no module src/inference_lab/{name.replace('.', '/')}.py: name an existing one")
    return import_module(f"inference_lab.{name}")


def _started(step: Step) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Digests of what a step reads, its pins and digests of their packages; refuses what is not as pinned."""
    sources = Sources()
    read, pins = step.inputs(sources), step.pins(sources)
    packages = installed.check_running(pins)
    sources.drop_bytecode(step.sources(sources))
    return read, pins, packages


def run_tests() -> str:
    """What happened, in words, after the unit tests passed and their receipt was written."""
    from inference_lab.commands.run_tests import run_unit_tests

    step = stages.TESTS
    read, pins, packages = _started(step)
    outcomes = run_unit_tests()
    if step.inputs(Sources()) != read:
        raise RecordError("a source or test changed while the tests ran; run them again")
    threads = {"thread_variables": dict.fromkeys(machine.THREAD_VARIABLES, "1")}
    environment = {**installed.platform_and_packages(pins), "package_digests": packages, **threads}
    more = {"tests": outcomes, "environment": environment}
    write_json(Path(step.receipt), receipts.seal({**receipts.receipt_of(step, read, pins), **more}))
    return f"{len(outcomes)} unit tests passed: {step.receipt}"


def check_tests() -> str:
    """The digest of the tests' receipt. Raises MeasurementRefused unless it holds here and now."""
    step = stages.TESTS
    state = State(step, Sources())
    if reasons := state.reasons:
        why = f"{step.receipt} does not hold ({'; '.join(reasons[:3])})"
        raise MeasurementRefused(f"{why}; run snakemake {step.receipt} first")
    if state.receipt and installed.ran_elsewhere(state.receipt):
        why = f"{step.receipt} is from another platform or other versions"
        raise MeasurementRefused(f"{why}; run snakemake -R tests -- {step.receipt}")
    return sha256_file(Path(step.receipt))


def measure(
    step: Step,
    manifest_path: Path,
    progress: AbstractContextManager[Progress],
    *,
    in_pipeline: bool,
    lock: str = locks.MACHINE_LOCK,
) -> str:
    """What was recorded where, in words, once samples and manifest are in place.

    Refused before anything runs: pins that differ from what is installed; in the pipeline also tests
    that do not hold and a prediction file that is missing or invalid. A record that stood there is moved
    to superseded/. A measurement that found itself invalid is recorded there itself, and refused.
    """
    begun = begin(step, manifest_path, in_pipeline=in_pipeline)
    try:
        begun["tests"] = check_tests()
    except (MeasurementRefused, RecordError, ConfigError):
        if in_pipeline:
            raise
        begun["tests"] = "not current"
    module = stage_module(step.modules[0])
    section = read_measure(step.section, f"{step.experiment}: measure")
    with locks.one_measurement(lock), progress as report:
        begun["started_at"] = _now()
        found = module.measure(section, report)
        manifest = end(step, begun, found)
        reasons = invalid(manifest)
        if reasons:  # it takes no place of a record that stands; Snakemake would undo that, too
            manifest_path = store.place_beside(manifest_path, f"{manifest['started_at']}-invalid")
        stem = manifest_path.name.removesuffix("manifest.json")  # x.manifest.json has x.csv beside it
        names = {name: f"{stem}{name.removeprefix('raw.')}" if stem else name for name in found.files}
        files = {names[name]: text for name, text in found.files.items()}
        rows = {names[name]: number for name, number in found.rows.items()}
        moved = store.replace_record(manifest_path, files, rows, manifest)
    if reasons:
        where = f"what was recorded is kept, marked, in {manifest_path.parent}"
        raise MeasurementRefused(f"{step.experiment}: invalid, because {reasons}; {where}")
    counted = ", ".join(f"{rows[name]} rows in {name}" for name in rows)
    kept = f"; the record before it is kept in {moved}" if moved else ""
    return f"{step.experiment}: {counted} and {manifest_path}{kept}"


def begin(step: Step, manifest_path: Path, *, in_pipeline: bool) -> JSON:
    """What a manifest says of a measurement that may begin; refuses as `measure` says. Of tests, nothing."""
    from inference_lab.config.prediction import load_prediction

    read, pins, _ = _started(step)
    store.check_writable(manifest_path)
    path, prediction = Path(stages.prediction_file(step.experiment)), None
    if in_pipeline or path.exists():
        load_prediction(path)
        prediction = {"file": path.as_posix(), "sha256": sha256_file(path)}
    try:
        git = {"git": history.state(WATCHED_BY_GIT)}
    except history.NoHistory as error:
        git = {"git": None, "git_reason": str(error)}
    return {
        "schema": receipts.SCHEMA,
        "stage": "measure",
        "experiment": step.experiment,
        "command": list(step.command),
        "conditions": step.section,
        "inputs": read,
        "pins": pins,
        "prediction": prediction,
        **git,
        "started_at": _now(),
    }


def end(step: Step, begun: JSON, found: Measurement) -> JSON:
    """The manifest of a measurement that is over, without its outputs; invalid when an input changed."""
    reasons: list[str] = [*found.facts.get("validity", {}).get("reasons", [])]
    packages = None
    try:
        changed = receipts.changes(step, begun, Sources())
        packages = installed.check_running(begun["pins"])
    except LabError as error:  # a source that is gone or half edited, a package that was
        changed = [str(error)]
    reasons += [f"{what} while it ran" for what in changed]
    here = {**installed.machine(begun["pins"]), "package_digests": packages}
    return {
        **begun,
        "kind": found.kind,
        "clock": "perf_counter_ns",
        **found.facts,
        "validity": {"valid": not reasons, "reasons": reasons},
        "environment": {**here, **found.environment},
        "finished_at": _now(),
    }


def invalid(manifest: Mapping[str, Any]) -> str:
    """Why a measurement may not be believed, as it says itself; "" when it may."""
    validity = manifest["validity"]
    return "" if validity["valid"] else "; ".join(validity["reasons"]) or "no reason was recorded"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_view(folder: Path, judge: Judge, name: str, load: Load = store.load_record) -> "View":
    """Read what one figure or page of the record in a folder is drawn from."""
    record = load(folder / "manifest.json")
    return view_of(record, read_text(folder / "summary.csv", "rebuild it from raw"), judge, name)


def view_of(record: Record, summary: str, judge: Judge, figure: str) -> "View":
    """A view from a record in memory and the text of its summary."""
    from inference_lab.analysis.summary_table import View, summary_rows

    own_load = stages.is_own_load(record.experiment)
    at = record.experiment.rstrip("/") if own_load else stages.folder(record.experiment)
    files = {name: made["sha256"] for name, made in record.manifest["outputs"].items()}
    files["summary.csv"] = sha256(summary.encode()).hexdigest()
    again = f"inference-lab figures {shlex.quote(at)}" if own_load else f"snakemake {at}/{figure}"
    source = {"experiment": record.experiment, "files": files, "command": again}
    return View(record, summary_rows(summary, f"{at}/summary.csv"), judge, source)


def read_record(folder: Path, calibration: str, load: Load = store.load_record) -> Record:
    """Read the record in a folder, with the calibration that its summary relies on.

    Raises RecordError when the measurement was recorded as invalid: nothing may be derived from it.
    """
    record = load(folder / "manifest.json")
    if reasons := invalid(record.manifest):  # of an own load; any other is put aside by its stage
        marked = f"{folder / 'manifest.json'}: marked invalid, because {reasons}"
        raise RecordError(f"{marked}; measure again")
    if not calibration:
        return record
    from inference_lab.analysis.summary_table import read_summary

    at = Path(stages.folder(calibration))
    manifest = receipts.read_receipt(at / "manifest.json")
    words = f"{calibration} {manifest['started_at'][:16]} ({manifest['digest'][:8]})"
    return replace(record, calibration=Calibration(words, read_summary(at / "summary.csv")))


def check_code() -> None:
    """Raises MeasurementRefused unless the whole package, and all that it imports, runs as it stands here."""
    installed.check_running(Sources().pins(stages.package_files(Path())))


def texts(step: Step, load: Load = store.load_record, sources: Sources | None = None) -> dict[str, str]:
    """`{file: text}` of everything a derived step makes, from what is recorded, without writing it."""
    sources = sources or Sources()
    sources.drop_bytecode(step.sources(sources))
    made = _texts(step, load)
    installed.check_loaded()
    return dict(zip(step.makes, made, strict=True))


def _texts(step: Step, load: Load) -> list[str]:
    module = stage_module(step.modules[0])
    if step.stage == "report":
        return [module.report(step.experiment, step.section)]
    judge = read_judge(step.section, f"{step.name}: its judge: part")
    if step.stage == "summary":
        return [module.summarise(read_record(step.folder, judge.calibration, load), judge)]
    if step.stage == "figure":
        return [module.draw(read_view(step.folder, judge, step.command[2], load))]
    view = read_view(step.folder, judge, "analysis.md", load)
    files = [Path(path) for path in step.reads if path.startswith(("predictions/", "docs/"))]
    return module.pages(view, *files)


def derive(step: Step) -> str:
    """What happened, in words, once the files of a derived step and its receipt are in place.

    Raises MeasurementRefused when what runs is not what its receipt would name.
    """
    sources = Sources()
    installed.check_running(step.pins(sources))
    made = store.make(step, lambda: texts(step, sources=sources), sources)
    return f"{' '.join(step.makes)}: {'made' if made else 'holds already'}"

"""Where a number comes from, in plain words: figure, summary, raw rows, machine, sources, tests."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.errors import RecordError
from inference_lab.records.files import read_text, sha256_file
from inference_lab.records.plan import Plan
from inference_lab.records.receipts import State, changes, read_receipt
from inference_lab.records.stages import TESTS_RECEIPT, Step, files_of, folder
from inference_lab.records.svg import read_metadata

_WAY_OUT = "name a figure, summary or record of this checkout, or an SVG that was copied from one"


def explain(file: Path, receipts: Plan) -> str:
    """Return the chain behind a figure, summary, page or record of this checkout, or behind a copied SVG.

    Raises RecordError when the file belongs to no record here and does not name its origin itself.
    """
    step = _step_of(file, receipts)
    if step is not None:
        about = receipts.reports().get(step.experiment, [step.experiment])
        behind = [line for name in about for line in _measured(name, receipts)]
        return "\n".join([*_made(receipts.state(step)), *behind, _rebuild(step.makes[0], step)])
    if manifest := _manifest_of(file):
        return "\n".join([f"{manifest.parent}: a record, not the current one", *_recorded(manifest)])
    if file.is_dir():
        raise RecordError(f"{file}: is a folder without manifest.json, so no record; {_WAY_OUT}")
    return "\n".join(_copied(file, receipts))


def _manifest_of(file: Path) -> Path | None:
    """Return the manifest of the record whose folder, manifest or raw file this is."""
    manifest = (file if file.is_dir() else file.parent) / "manifest.json"
    if manifest.is_file() and (file in (manifest, manifest.parent) or file.name in _outputs(manifest)):
        return manifest
    return None


def _step_of(file: Path, receipts: Plan) -> Step | None:
    """Return the step of this checkout that makes the file or whose receipt it is."""
    here = (_manifest_of(file) or file).resolve()
    steps = [*receipts.steps(), *receipts.reports_of(receipts.experiments)]
    return next((step for step in steps if here in (Path(path).resolve() for path in files_of([step]))), None)


def _outputs(manifest: Path) -> Mapping[str, Any]:
    return read_receipt(manifest)["outputs"]


def _copied(file: Path, receipts: Plan) -> list[str]:
    """Return the chain of an SVG from elsewhere, by its own metadata, joined to the record it names."""
    text = read_text(file, _WAY_OUT)
    try:
        source = read_metadata(text)
    except RecordError as error:
        raise RecordError(f"{file}: belongs to no record of this checkout and {error}; {_WAY_OUT}") from None
    at = folder(source["experiment"])
    lines = [
        f"{file}: a figure of {source['experiment']}, by its own metadata",
        *(f"  <- {name} with sha256 {digest}" for name, digest in source["files"].items()),
    ]
    manifest = _manifest_with(Path(at), source["files"])
    if manifest is None:
        return [
            *lines,
            f"  Its record is not here: no manifest in {at}/ names these",
            "  samples, so machine, conditions and sources are not known. Look in that folder's history.",
        ]
    lines.append(f"  <- recorded in {manifest}")
    if manifest == Path(at, "manifest.json"):
        step = receipts.maker(source["command"].rpartition(" ")[2])
        if step is not None and step.stage == "figure":
            made = Path(step.makes[0])
            same = made.is_file() and sha256_file(made) == sha256_file(file)
            lines.append(f"  {'the same bytes as' if same else 'not the bytes of'} {made} here")
            return [*lines, *_measured(step.experiment, receipts), _rebuild(step.makes[0], step)]
    return [*lines, *_recorded(manifest), "  This record was superseded here."]


def _manifest_with(at: Path, files: Mapping[str, str]) -> Path | None:
    """Return the manifest that names every raw file the figure was drawn from; two records may share some."""
    raw = {digest for name, digest in files.items() if name != "summary.csv"}
    for manifest in (at / "manifest.json", *sorted(at.glob("superseded/*/manifest.json"))):
        if manifest.is_file() and raw <= {made["sha256"] for made in _outputs(manifest).values()}:
            return manifest
    return None


def _made(state: State) -> list[str]:
    """Return the derived links from the asked file back to the record."""
    step = state.step
    if step.stage == "measure":
        return []
    if state.receipt is None:
        missing = not Path(step.receipt).exists()
        words = f"has no receipt {step.receipt}" if missing else f"{state.reasons[0]} and is no evidence"
        return [f"{step.makes[0]}: {words}; make it with snakemake {step.makes[0]}"]
    lines = [f"{path}: {_compared(path, digest)}" for path, digest in state.files.items()]
    try:
        reasons = state.input_reasons
    except RecordError as error:  # a file it reads is gone
        reasons = [str(error)]
    by = step.modules[0].replace(".", "/")
    pins, inputs = state.receipt["pins"], state.receipt["inputs"]
    lines.append(f"  <- made by src/inference_lab/{by}.py with {_pins(pins)}: {_holds(reasons)}")
    read = [path for path in step.reads if not path.endswith("manifest.json")]
    return [*lines, *(f"  <- {path}: {_compared(path, inputs.get(path))}" for path in read)]


def _measured(experiment: str, receipts: Plan) -> list[str]:
    step = receipts.step("measure", experiment)
    manifest = Path(step.receipt)
    if not manifest.exists():
        return [f"  <- {manifest}: missing; {experiment} has no record here"]
    record = read_receipt(manifest)  # of one that is not whole the rest is told all the same
    reasons = changes(step, record, receipts.sources)
    return [
        *_recorded(manifest),
        f"     sources, pins and conditions: {_holds(reasons)}",
        f"  <- tests: {_tests(record.get('tests'))}",
    ]


def _recorded(manifest: Path) -> list[str]:
    """Return what a manifest contains, and whether its raw files still are what it says."""
    record, at = read_receipt(manifest), manifest.parent
    lines = _of_manifest(record)
    for name, made in record["outputs"].items():
        lines.append(f"  <- {at / name}: {made['rows']} rows, {_compared(str(at / name), made['sha256'])}")
    return lines


def _of_manifest(record: Mapping[str, Any]) -> list[str]:
    seen, git = record["environment"], record["git"]
    commit = f"no commit ({record.get('git_reason', 'outside git')})"
    if git is not None:
        commit = f"{git['commit'][:12]}{', with uncommitted changes' * git['dirty']}"
    sources = [path for path in record["inputs"] if path.endswith(".py")]
    conditions = {key: value for key, value in record["conditions"].items() if key != "by"}
    return [
        f"  <- measured {record['started_at']} to {record['finished_at']}",
        f"     on {seen.get('cpu_model', 'a machine unknown')}, {seen.get('cores', '?')} cores,"
        f" {seen.get('kernel', 'kernel unknown')}, Python {seen.get('python', '?')}",
        f"     by inference-lab {' '.join(record['command'])}",
        f"     under {_in_words(conditions)}",
        f"     with {_pins(record['pins'])}",
        f"  <- sources at {commit}: " + ", ".join(f"{path} {record['inputs'][path][:8]}" for path in sources),
    ]


def _in_words(values: Mapping[str, Any], between: str = "; ") -> str:
    return between.join(f"{key} {value}" for key, value in values.items())


def _pins(pins: Mapping[str, str]) -> str:
    return _in_words(pins, ", ") or "no third-party package"


def _compared(path: str, expected: str | None) -> str:
    if not Path(path).is_file():
        return f"missing (sha256 {expected})"
    found = sha256_file(Path(path))
    if found == expected:
        return f"sha256 {found}, holds"
    return f"DIFFERS: expected sha256 {expected}, found {found}"


def _holds(reasons: Sequence[str]) -> str:
    return "as they are now" if not reasons else f"no longer: {'; '.join(reasons)}"


def _tests(digest: str | None) -> str:
    path = Path(TESTS_RECEIPT)
    if digest is None:
        return "unknown: the record names no receipt of theirs"
    if digest == "not current":
        return "they were not current when this was measured"
    if not path.exists():
        return f"{path} is missing, so what passed is unknown here (the record names sha256 {digest})"
    try:
        receipt = read_receipt(path)
    except RecordError:
        return f"{path} was edited and is no evidence; restore it or run them: snakemake {path}"
    passed = list(receipt["tests"].values()).count("passed")
    same = sha256_file(path) == digest
    return f"{passed} passed ({path}); {'the very run' if same else 'run again since'}"


def _rebuild(path: str, step: Step) -> str:
    if step.own_load:
        at = shlex.quote(step.folder.as_posix())
        return (
            f"Rebuild it from raw: uv run inference-lab summarize {at} && uv run inference-lab figures {at}"
        )
    if step.stage == "measure":
        return f"Measure it again: uv run snakemake -R {step.receipt} -- {path}"
    return f"Rebuild it from raw: rm {path} && uv run snakemake {path}"

"""Where a number comes from, in plain words: figure, summary, raw rows, machine, sources, tests."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.errors import RecordError
from inference_lab.records import receipts, stages
from inference_lab.records.files import read_text, sha256_file
from inference_lab.records.receipts import Receipts
from inference_lab.records.stages import Step
from inference_lab.records.svg import read_metadata

_WAY_OUT = "name a figure, summary or record of this checkout, or an SVG that was copied from one"


def explain(file: Path, walk: Receipts) -> str:
    """The chain behind a figure, summary, page or record of this checkout, or behind a copied SVG.

    Raises RecordError when the file belongs to no record here and says itself nothing about its origin.
    """
    step = _step_of(file, walk)
    if step is not None:
        about = walk.reports().get(step.experiment, [step.experiment])
        behind = [line for name in about for line in _measured(name, walk)]
        return "\n".join([*_made(step, walk), *behind, _rebuild(step.makes[0], step)])
    if manifest := _manifest_of(file):
        return "\n".join([f"{manifest.parent}: a record, not the current one", *_recorded(manifest, walk)])
    if file.is_dir():
        raise RecordError(f"{file}: is a folder without manifest.json, so no record; {_WAY_OUT}")
    return "\n".join(_copied(file, walk))


def _manifest_of(file: Path) -> Path | None:
    """The manifest that a record's folder or one of its raw files goes by; itself, if it is one."""
    manifest = (file if file.is_dir() else file.parent) / "manifest.json"
    if manifest.is_file() and (file in (manifest, manifest.parent) or file.name in _outputs(manifest)):
        return manifest
    return None


def _step_of(file: Path, walk: Receipts) -> Step | None:
    """The step of this checkout that makes the file or whose receipt it is."""
    here = (_manifest_of(file) or file).resolve()
    steps = [step for experiment in walk.experiments for step in walk.steps(experiment)]
    return next(
        (
            step
            for step in (*steps, *walk.reports_of(walk.experiments))
            if here in map(Path.resolve, map(Path, stages.files_of([step])))
        ),
        None,
    )


def _outputs(manifest: Path) -> Mapping[str, Any]:
    return receipts.read_receipt(manifest)["outputs"]


def _copied(file: Path, walk: Receipts) -> list[str]:
    """The chain of an SVG from elsewhere, by what it says of itself, joined to the record it names."""
    text = read_text(file, _WAY_OUT)
    try:
        source = read_metadata(text)
    except RecordError as error:
        raise RecordError(f"{file}: belongs to no record of this checkout and {error}; {_WAY_OUT}") from None
    lines = [
        f"{file}: a figure of {source['experiment']}, by its own metadata",
        *(f"  <- {name} with sha256 {digest}" for name, digest in source["files"].items()),
    ]
    manifest = _manifest_with(source["experiment"], source["files"])
    if manifest is None:
        return [
            *lines,
            f"  Its record is not here: no manifest in {stages.folder(source['experiment'])}/ names these",
            "  samples, so machine, conditions and sources cannot be told. Look in that folder's history.",
        ]
    lines.append(f"  <- recorded in {manifest}")
    current = manifest == Path(stages.folder(source["experiment"]), "manifest.json")
    if current and source["experiment"] in walk.experiments:
        step = _step_of(Path(source["command"].rpartition(" ")[2]), walk)
        if step is not None and step.stage == "figure":
            same = Path(step.makes[0]).is_file() and sha256_file(Path(step.makes[0])) == sha256_file(file)
            lines.append(f"  {'the same bytes as' if same else 'not the bytes of'} {step.makes[0]} here")
            return [*lines, *_measured(step.experiment, walk), _rebuild(step.makes[0], step)]
    return [*lines, *_recorded(manifest, walk), "  This record was superseded here."]


def _manifest_with(experiment: str, files: Mapping[str, str]) -> Path | None:
    """The manifest that names every raw file the figure was drawn from; two records may share some."""
    raw = {digest for name, digest in files.items() if name != "summary.csv"}
    at = Path(stages.folder(experiment))
    for manifest in (at / "manifest.json", *sorted(at.glob("superseded/*/manifest.json"))):
        if manifest.is_file() and raw <= {made["sha256"] for made in _outputs(manifest).values()}:
            return manifest
    return None


def _made(step: Step, walk: Receipts) -> list[str]:
    """The derived links from the asked file back to the record."""
    if step.stage == "measure":
        return []
    if not Path(step.receipt).exists():
        return [f"{step.makes[0]}: has no receipt {step.receipt}; make it with snakemake {step.makes[0]}"]
    try:
        receipt = receipts.read_receipt(Path(step.receipt))
    except RecordError:
        return [f"{step.makes[0]}: {step.receipt} was edited and vouches for nothing; ask for it again"]
    made = {path: receipt["outputs"].get(path, {}).get("sha256") for path in step.makes}
    lines = [f"{path}: {_state(path, digest, walk)}" for path, digest in made.items()]
    try:
        reasons = walk.changed(step, receipt)
    except RecordError as error:  # a file it reads is gone
        reasons = [str(error)]
    by = step.modules[0].replace(".", "/")
    lines.append(f"  <- made by src/inference_lab/{by}.py with {_pins(receipt['pins'])}: {_holds(reasons)}")
    lines += [
        f"  <- {path}: {_state(path, receipt['inputs'].get(path), walk)}"
        for path in step.reads
        if not path.endswith("manifest.json")
    ]
    return lines


def _measured(experiment: str, walk: Receipts) -> list[str]:
    step = walk.step("measure", experiment)
    manifest = Path(step.receipt)
    if not manifest.exists():
        return [f"  <- {manifest}: missing; {experiment} has no record here"]
    lines, record = _recorded(manifest, walk), receipts.read_receipt(manifest)
    gone = ["what measures it is not in this checkout"]
    reasons = gone if walk.read_only(experiment) else walk.changed(step, record)
    lines.append(f"     sources, pins and conditions: {_holds(reasons)}")
    lines.append(f"  <- tests: {_tests(record.get('tests'))}")
    return lines


def _recorded(manifest: Path, walk: Receipts) -> list[str]:
    """What a manifest says, and whether its raw files still are what it says."""
    record, at = receipts.read_receipt(manifest), manifest.parent
    lines = _of_manifest(record)
    for name, made in record["outputs"].items():
        state = _state((at / name).as_posix(), made["sha256"], walk)
        lines.append(f"  <- {at / name}: {made['rows']} rows, {state}")
    return lines


def _of_manifest(record: Mapping[str, Any]) -> list[str]:
    seen = record["environment"]
    git = record["git"]
    commit = (
        f"no commit ({record.get('git_reason', 'outside git')})"
        if git is None
        else f"{git['commit'][:12]}{', with uncommitted changes' * git['dirty']}"
    )
    conditions = record["conditions"]
    sources = [path for path in record["inputs"] if path.endswith(".py")]
    return [
        f"  <- measured {record['started_at']} to {record['finished_at']}",
        f"     on {seen.get('cpu_model', 'a machine unknown')}, {seen.get('cores', '?')} cores,"
        f" {seen.get('kernel', 'kernel unknown')}, Python {seen.get('python', '?')}",
        f"     by inference-lab {' '.join(record['command'])}",
        f"     under {_words(conditions)}",
        f"     with {_pins(record['pins'])}",
        f"  <- sources at {commit}: " + ", ".join(f"{path} {record['inputs'][path][:8]}" for path in sources),
    ]


def _words(conditions: Mapping[str, Any]) -> str:
    return "; ".join(f"{key} {value}" for key, value in conditions.items() if key != "by")


def _pins(pins: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in pins.items()) or "no third-party package"


def _state(path: str, expected: str | None, walk: Receipts) -> str:
    if not Path(path).is_file():
        return f"missing (sha256 {expected})"
    found = walk.sources.file(path)
    return (
        f"sha256 {found}, holds"
        if found == expected
        else f"DIFFERS: expected sha256 {expected}, found {found}"
    )


def _holds(reasons: Sequence[str]) -> str:
    return "as they are now" if not reasons else f"no longer: {'; '.join(reasons)}"


def _tests(digest: str | None) -> str:
    path = Path(stages.TESTS_RECEIPT)
    if digest is None:
        return "unknown: the record names no receipt of theirs"
    if digest == "not current":
        return "they were not current when this was measured"
    if not path.exists():
        return f"{path} is missing, so what passed is unknown here (the record names sha256 {digest})"
    try:
        receipt = receipts.read_receipt(path)
    except RecordError:
        return f"{path} was edited and vouches for nothing; restore it or run them: snakemake {path}"
    passed = list(receipt["tests"].values()).count("passed")
    same = sha256_file(path) == digest
    return f"{passed} passed ({path}); {'the very run' if same else 'run again since'}"


def _rebuild(path: str, step: Step) -> str:
    if stages.is_load(step.experiment):
        at = shlex.quote(stages.folder(step.experiment))
        return (
            f"Rebuild it from raw: uv run inference-lab summarize {at} && uv run inference-lab figures {at}"
        )
    if step.stage == "measure":
        return f"Measure it again: uv run snakemake -R {step.receipt} -- {path}"
    return f"Rebuild it from raw: rm {path} && uv run snakemake {path}"

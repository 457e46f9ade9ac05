"""Where a number comes from, in plain words: figure, summary, raw rows, machine, sources, tests."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference_lab.commands import own_load
from inference_lab.errors import RecordError
from inference_lab.records.files import read_text, sha256_file
from inference_lab.records.forms import read_metadata
from inference_lab.records.plan import Plan
from inference_lab.records.receipts import State, changes, read_receipt
from inference_lab.records.stages import TESTS_RECEIPT, Step, files_of, folder

_WAY_OUT = "name a figure, summary or record of this checkout, or an SVG that was copied from one"


def explain(file: Path, plan: Plan | None = None) -> str:
    """Return the chain behind a figure, summary, page or record of this checkout, or behind a copied SVG.

    Raises RecordError when the file belongs to no record here and does not name its origin itself.
    """
    plan = plan or own_load.around(file) or _plan_here()
    at = file if file.is_dir() else file.parent
    manifest = at / "manifest.json"
    of_record = manifest.is_file() and file in (at, manifest, *_raw(manifest))
    here = (manifest if of_record else file).resolve()
    steps = [*plan.steps(), *plan.reports_of(plan.experiments)]
    for step in steps:
        if here in (Path(path).resolve() for path in files_of([step])):
            about = plan.reports().get(step.experiment, [step.experiment])
            behind = [line for name in about for line in _measured(name, plan)]
            return "\n".join([*_made(plan.state(step)), *behind, _rebuild(step)])
    if of_record:
        return "\n".join([f"{at}: a record, not the current one", *_recorded(manifest)])
    if file.is_dir():
        raise RecordError(f"{file}: is a folder without manifest.json, so no record; {_WAY_OUT}")
    return "\n".join(_copied(file, plan))


def _plan_here() -> Plan:
    from inference_lab.config.experiments import load_config  # not where an own load is explained

    # An SVG explains itself outside a checkout, too.
    return Plan(load_config().given() if Path("config.yaml").exists() else {"experiments": {}})


def _raw(manifest: Path) -> dict[Path, str]:
    """Return `{raw file: its sha256}` of a record."""
    outputs = read_receipt(manifest)["outputs"]
    return {manifest.with_name(name): made["sha256"] for name, made in outputs.items()}


def _copied(file: Path, plan: Plan) -> list[str]:
    """Return the chain of an SVG from elsewhere, by its own metadata, joined to the record it names."""
    text = read_text(file, _WAY_OUT)
    try:
        source = read_metadata(text)
    except RecordError as error:
        raise RecordError(f"{file}: belongs to no record of this checkout and {error}; {_WAY_OUT}") from None
    at = Path(folder(source["experiment"]))
    lines = [f"{file}: a figure of {source['experiment']}, by its own metadata"]
    lines += [f"  <- {name} with sha256 {digest}" for name, digest in source["files"].items()]
    raw = {digest for name, digest in source["files"].items() if name != "summary.csv"}
    manifests = [at / "manifest.json", *sorted(at.glob("superseded/*/manifest.json"))]
    # Two records may share some raw files: the figure's has all of them.
    found = next((each for each in manifests if each.is_file() and raw <= {*_raw(each).values()}), None)
    if found is None:
        why = "so machine, conditions and sources are not known. Look in that folder's history."
        return [*lines, f"  Its record is not here: no manifest in {at}/ names these samples,", f"  {why}"]
    lines.append(f"  <- recorded in {found}")
    step = plan.makers.get(source["command"].rpartition(" ")[2])
    if found != manifests[0]:
        return [*lines, *_recorded(found), "  This record was superseded here."]
    if step is None or step.stage != "figure":
        return [*lines, *_recorded(found)]
    made = Path(step.makes[0])
    same = made.is_file() and sha256_file(made) == sha256_file(file)
    lines.append(f"  {'the same bytes as' if same else 'not the bytes of'} {made} here")
    return [*lines, *_measured(step.experiment, plan), _rebuild(step)]


def _made(state: State) -> list[str]:
    """Return the derived links from the asked file back to the record."""
    step = state.step
    if step.stage == "measure":
        return []
    if state.receipt is None:
        missing = not Path(step.receipt).exists()
        words = f"has no receipt {step.receipt}" if missing else f"{state.reasons[0]} and is no evidence"
        return [f"{step.makes[0]}: {words}; make it with snakemake {step.makes[0]}"]
    try:
        reasons = state.input_reasons
    except RecordError as error:  # a file it reads is gone
        reasons = [str(error)]
    by, inputs = step.modules[0].replace(".", "/"), state.receipt["inputs"]
    read = [path for path in step.reads if not path.endswith("manifest.json")]
    return [
        *(f"{path}: {_compared(path, digest)}" for path, digest in state.files.items()),
        f"  <- made by src/inference_lab/{by}.py with {_pins(state.receipt['pins'])}: {_holds(reasons)}",
        *(f"  <- {path}: {_compared(path, inputs.get(path))}" for path in read),
    ]


def _measured(experiment: str, plan: Plan) -> list[str]:
    step = plan.step("measure", experiment)
    manifest = Path(step.receipt)
    if not manifest.exists():
        return [f"  <- {manifest}: missing; {experiment} has no record here"]
    record = read_receipt(manifest)  # of one that is not whole the rest is said all the same
    return [
        *_recorded(manifest),
        f"     sources, pins and conditions: {_holds(changes(step, record, plan.sources))}",
        f"  <- tests: {_tests(record.get('tests'))}",
    ]


def _recorded(manifest: Path) -> list[str]:
    """Return what a manifest contains, and whether its raw files still are what it says."""
    record = read_receipt(manifest)
    seen, git = record["environment"], record["git"]
    commit = f"no commit ({record.get('git_reason', 'outside git')})"
    if git is not None:
        commit = f"{git['commit'][:12]}{', with uncommitted changes' * git['dirty']}"
    sources = [f"{path} {sha256[:8]}" for path, sha256 in record["inputs"].items() if path.endswith(".py")]
    conditions = [f"{key} {value}" for key, value in record["conditions"].items() if key != "by"]
    rows = {manifest.with_name(name): made["rows"] for name, made in record["outputs"].items()}
    return [
        f"  <- measured {record['started_at']} to {record['finished_at']}",
        f"     on {seen.get('cpu_model', 'a machine unknown')}, {seen.get('cores', '?')} cores,"
        f" {seen.get('kernel', 'kernel unknown')}, Python {seen.get('python', '?')}",
        f"     by inference-lab {' '.join(record['command'])}",
        f"     under {'; '.join(conditions)}",
        f"     with {_pins(record['pins'])}",
        f"  <- sources at {commit}: {', '.join(sources)}",
        *(
            f"  <- {raw}: {rows[raw]} rows, {_compared(raw, sha256)}"
            for raw, sha256 in _raw(manifest).items()
        ),
    ]


def _pins(pins: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in pins.items()) or "no third-party package"


def _compared(path: str | Path, expected: str | None) -> str:
    if not Path(path).is_file():
        return f"missing (sha256 {expected})"
    found = sha256_file(Path(path))
    return (
        f"sha256 {found}, holds"
        if found == expected
        else f"DIFFERS: expected sha256 {expected}, found {found}"
    )


def _holds(reasons: Sequence[str]) -> str:
    return f"no longer: {'; '.join(reasons)}" if reasons else "as they are now"


def _tests(digest: str | None) -> str:
    path = Path(TESTS_RECEIPT)
    if digest is None:
        return "unknown: the record names no receipt of theirs"
    if digest == "not current":
        return "they were not current when this was measured"
    if not path.exists():
        return f"{path} is missing, so what passed is unknown here (the record names sha256 {digest})"
    try:
        passed = list(read_receipt(path)["tests"].values()).count("passed")
    except RecordError:
        return f"{path} was edited and is no evidence; restore it or run them: snakemake {path}"
    return f"{passed} passed ({path}); {'the very run' if sha256_file(path) == digest else 'run again since'}"


def _rebuild(step: Step) -> str:
    if step.own_load:
        at = shlex.quote(step.folder.as_posix())
        return (
            f"Rebuild it from raw: uv run inference-lab summarize {at} && uv run inference-lab figures {at}"
        )
    if step.stage == "measure":
        return f"Measure it again: uv run snakemake -R {step.receipt} -- {step.makes[0]}"
    return f"Rebuild it from raw: rm {step.makes[0]} && uv run snakemake {step.makes[0]}"

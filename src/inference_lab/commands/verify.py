"""Does every committed result follow from its raw data? Rebuilds each in memory and compares bytes.

What differs from what is rebuilt is a fault, whatever else is out of date; so is what is out of date, missing
or made by no step. A manual record of an earlier source is none: it is kept, and what follows from it is
rebuilt as anything else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from inference_lab.commands import run_stage
from inference_lab.errors import LabError, RecordError
from inference_lab.records import history, receipts, stages
from inference_lab.records.files import read_json, sha256_file, write_json
from inference_lab.records.receipts import Receipts
from inference_lab.records.stages import Step
from inference_lab.records.store import load_record

# Names below results/ that are of this machine alone, as .gitignore says.
_NOT_COMMITTED = {"superseded", Path(stages.VERIFIED_RECEIPT).name, "report.html", "report.zip"}


@dataclass(frozen=True)
class Finding:
    """What was found of one file, in words, and whether it is a fault."""

    experiment: str
    file: str
    state: str
    fault: bool = False


def verify(walk: Receipts, experiments: Sequence[str], before: Mapping[str, str]) -> list[Finding]:
    """Findings of every file of these experiments; receipts whose digest is in `before` are not redone."""
    found: list[Finding] = []
    for experiment in experiments:
        steps = walk.steps(experiment)
        if all(before.get(step.receipt) == _digest(step.receipt) for step in steps) and not any(
            step.stage != "measure" and walk.differences(step) for step in steps
        ):
            found.append(Finding(experiment, stages.folder(experiment), "verified before"))
        else:
            found += _experiment(walk, steps)
    for step in walk.reports_of(experiments):
        if before.get(step.receipt) == _digest(step.receipt) and not walk.differences(step):
            found.append(Finding(step.experiment, step.makes[0], "verified before"))
        else:
            found += _derived(walk, step)
    return found


def verify_checkout(walk: Receipts) -> list[Finding]:
    """Findings of everything that is recorded here, and of every file that no step makes."""
    tests = walk.step("tests")
    reasons = walk.differences(tests)
    state = f"out of date: {_few(reasons)}; snakemake {tests.receipt} runs them" if reasons else "holds"
    first = Finding("", tests.receipt, state, fault=bool(reasons))
    return [first, *verify(walk, list(walk.experiments), {}), *_strays(walk)]


def _experiment(walk: Receipts, steps: Sequence[Step]) -> Iterator[Finding]:
    measured, *derived = steps
    experiment, manifest = measured.experiment, Path(measured.receipt)
    if not manifest.exists():
        yield _unrecorded(walk, steps)
        return
    try:
        load_record(manifest)
        reasons = walk.stale_record(measured)
    except LabError as error:
        yield Finding(experiment, measured.receipt, str(error), fault=True)
        return
    if not reasons:
        yield Finding(experiment, measured.receipt, "holds")
    elif walk.manual(experiment):
        yield Finding(experiment, measured.receipt, walk.kept(reasons))
    else:
        words = f"out of date: {_few(reasons)}; snakemake all measures it again"
        yield Finding(experiment, measured.receipt, words, fault=True)
    if not stages.is_load(experiment):
        yield _prediction(experiment)
    for step in derived:
        yield from _derived(walk, step)


def _unrecorded(walk: Receipts, steps: Sequence[Step]) -> Finding:
    """What to say of an experiment without manifest: a record that was deleted, or none yet."""
    experiment, manifest = steps[0].experiment, steps[0].receipt
    at = stages.folder(experiment)
    if left := [path for path in stages.files_of(steps) if Path(path).exists()]:
        words = (
            f"missing, and {left[0]} is here, which follows from nothing without it; restore {at} from git"
        )
        return Finding(experiment, manifest, f"{words} or measure it again", fault=True)
    try:
        commit = history.last_with(manifest)
    except history.NoHistory:
        commit = None
    if commit is not None:
        words = (
            f"deleted: commit {commit} has it; restore it (git checkout {commit} -- {at}), measure it again"
        )
        return Finding(experiment, manifest, f"{words} or take it out of the config", fault=True)
    if walk.manual(experiment):
        return Finding(experiment, manifest, "not measured")
    return Finding(experiment, manifest, "not measured; snakemake all measures it", fault=True)


def _derived(walk: Receipts, step: Step) -> list[Finding]:
    if stages.is_load(step.experiment) and not any(Path(path).exists() for path in stages.files_of([step])):
        return [Finding(step.experiment, path, "not drawn") for path in step.makes]
    try:
        texts = run_stage.texts(step)
        reasons = walk.differences(step)
    except LabError as error:
        return [Finding(step.experiment, path, str(error), fault=True) for path in step.makes]
    states = {path: _compare(path, texts[path], step) for path in step.makes}
    found = [
        Finding(step.experiment, path, state or "same bytes", fault=bool(state))
        for path, state in states.items()
    ]
    # The receipts of a load name the folder it was in: one that moved follows from its raw all the same.
    if reasons and not any(states.values()) and not stages.is_load(step.experiment):
        words = f"out of date: {_few(reasons)}; {_again(step, step.makes[0])}"
        found.append(Finding(step.experiment, step.receipt, words, fault=True))
    return found


def _compare(path: str, text: str, step: Step) -> str:
    """How a file differs from what was rebuilt, in words; "" when it does not."""
    if not Path(path).exists():
        return f"missing; {_again(step, path)}"
    found, rebuilt = sha256_file(Path(path)), sha256(text.encode()).hexdigest()
    if found == rebuilt:
        return ""
    try:
        recorded = receipts.read_receipt(Path(step.receipt))["outputs"].get(path, {}).get("sha256")
    except RecordError:
        recorded = None
    if found != recorded:
        return f"edited: its receipt says sha256 {recorded}, found {found}; {_again(step, path)}"
    return f"does not follow from its raw data: found sha256 {found}, rebuilt {rebuilt}; {_again(step, path)}"


def _again(step: Step, path: str) -> str:
    if stages.is_load(step.experiment):
        at = stages.folder(step.experiment)
        return f"inference-lab summarize {at} && inference-lab figures {at} makes it again"
    return f"rm -f {path} && snakemake {path} makes it again"


def _few(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - 3} more" * (len(reasons) > 3)
    return "; ".join(reasons[:3]) + more


def _prediction(experiment: str) -> Finding:
    """Whether the prediction, as it was measured under, stands in the commit that the run names.

    A commit's name depends on all it holds, so it was there before the run. Dates are no evidence.
    """
    manifest = read_json(Path(stages.folder(experiment), "manifest.json"))
    recorded = manifest["prediction"]
    if recorded is None:
        return Finding(experiment, stages.prediction_file(experiment), "not checked: recorded without one")
    file: str = recorded["file"]
    git = manifest.get("git")
    if git is None:
        why = manifest.get("git_reason", "it does not say why")
        return Finding(experiment, file, f"not checked: the run names no commit ({why})")
    try:
        stood = history.file_in(git["commit"], file)
    except history.NoHistory as error:
        return Finding(experiment, file, f"not checked: {error}")
    if sha256(stood).hexdigest() != recorded["sha256"]:
        short = git["commit"][:12]
        return Finding(
            experiment, file, f"not checked: commit {short}, which the run names, holds it in other words"
        )
    return Finding(experiment, file, "holds: the prediction stands in the commit that the run names")


def _strays(walk: Receipts) -> Iterator[Finding]:
    """Every file below results/ and every article that no step of the config makes."""
    steps = [step for experiment in walk.experiments for step in walk.steps(experiment)]
    steps += walk.reports_of(walk.experiments)
    made, homes = (
        {stages.TESTS_RECEIPT, *stages.files_of(steps)},
        {stages.folder(s.experiment) for s in steps},
    )
    for step in steps:
        if step.stage == "measure":
            made |= {f"{stages.folder(step.experiment)}/{name}" for name in _outputs(step.receipt)}
    strangers: set[str] = set()
    for path in (*sorted(Path("results").rglob("*")), *sorted(Path("docs/experiments").glob("*.md"))):
        name, home = path.as_posix(), "/".join(path.parts[:2])
        committed = not _NOT_COMMITTED & set(path.parts) and path.suffix != ".partial"
        if path.is_dir() or name in made or not committed or home in strangers:
            continue
        if len(path.parts) > 2 and path.parts[0] == "results" and home not in homes:
            strangers.add(home)
            words = "stray: no experiment of the config has this folder; move it elsewhere or remove it"
            yield Finding("", f"{home}/", words, fault=True)
        else:
            yield Finding("", name, "stray: no step makes it; move it elsewhere or remove it", fault=True)


def _outputs(manifest: str) -> Iterable[str]:
    try:
        return receipts.read_receipt(Path(manifest))["outputs"]
    except RecordError:  # missing or edited, and named for it
        return ()


def _digest(path: str) -> str | None:
    return sha256_file(Path(path)) if Path(path).is_file() else None


def verify_stage(walk: Receipts, receipt: Path) -> str:
    """The table of findings, once everything recorded was rebuilt the same; then the receipt is written.

    Only what changed since the last verification here is rebuilt. Raises RecordError at a fault.
    """
    step = walk.verify_step()
    read, pins = step.inputs(walk.sources), step.pins(walk.sources)
    text = checked(verify(walk, walk.verified(), _before(receipt, read, pins)))
    write_json(receipt, receipts.seal(receipts.receipt_of(step, read, pins)))
    return text


def _before(receipt: Path, read: Mapping[str, str], pins: Mapping[str, str]) -> Mapping[str, str]:
    """What the receipt says was read, if it was by these sources and pins and in this checkout."""
    try:
        written = receipts.read_receipt(receipt)
    except RecordError:  # never verified here, or torn: everything is rebuilt
        return {}

    def by(inputs: Mapping[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in inputs.items() if not name.endswith(".json")}

    return written["inputs"] if (by(written["inputs"]), written["pins"]) == (by(read), pins) else {}


def checked(findings: Sequence[Finding]) -> str:
    """The findings as a table. Raises RecordError that names every fault when there is one."""
    if faults := [finding for finding in findings if finding.fault]:
        raise RecordError(f"{len(faults)} of {len(findings)} findings are faults\n{as_table(faults)}")
    return as_table(findings)


def as_table(findings: Sequence[Finding]) -> str:
    """The findings as lines of two columns: file, state."""
    width = max((len(finding.file) for finding in findings), default=0)
    return "\n".join(f"{finding.file:<{width}}  {finding.state}" for finding in findings)

"""Does every committed result follow from its raw data? Rebuilds each in memory and compares bytes.

What differs from what is rebuilt is a fault, and what is out of date, missing or made by no step. A manual
record of an earlier source is none: it is kept, and what follows from it is rebuilt like anything else.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from inference_lab.commands import own_load, run_stage
from inference_lab.errors import LabError, RecordError, printable
from inference_lab.records import history
from inference_lab.records.files import write_json
from inference_lab.records.plan import Plan, kept
from inference_lab.records.receipts import State, leads_out, read_receipt, receipt_of, seal
from inference_lab.records.record import Record, aligned
from inference_lab.records.stages import TESTS_RECEIPT, VERIFIED_RECEIPT, Step, files_of, prediction_file
from inference_lab.records.store import load_record

# Names below results/ that are of this machine alone, as .gitignore says.
_NOT_COMMITTED = {"superseded", Path(VERIFIED_RECEIPT).name, "report.html", "report.zip"}
_PAGES = "docs/experiments"


@dataclass(frozen=True)
class Finding:
    """What was found about one file, in words, and whether it is a fault."""

    file: str
    state: str
    fault: bool = False


def verify_named(names: Sequence[str], config: Mapping[str, object] | None, receipt: Path | None) -> str:
    """Return the table of findings on these experiments or loads, on the whole checkout when none is named.

    `config` is read from config.yaml when it is None. Raises RecordError when a finding is a fault.
    """
    from inference_lab.config.experiments import check_config, load_config

    run_stage.check_code()
    plan = Plan((check_config(config, "--config") if config else load_config()).given())
    if receipt:
        return verify_stage(plan, receipt)
    if not names:
        return checked(verify_checkout(plan))
    findings: list[Finding] = []
    for name in names:
        load = own_load.around(Path(name)) if name not in plan.experiments else None
        findings += verify_experiment(load or plan, next(iter(load.experiments)) if load else name)
    return checked(findings)


def verify(plan: Plan, experiments: Sequence[str], before: Mapping[str, str]) -> list[Finding]:
    """Return findings on every file of these experiments; what has its digest in `before` is not redone."""
    # Each step of an experiment reads its record, and a record is large: the last one is kept in memory.
    load = functools.lru_cache(maxsize=1)(functools.partial(load_record, sources=plan.sources))
    findings: list[Finding] = []
    reports = [[step] for step in plan.reports_of(experiments)]
    for steps in (*map(plan.steps, experiments), *reports):
        first = steps[0]
        if _as_before(plan, steps, before):
            of = first.folder.as_posix() if first.stage == "measure" else first.makes[0]
            findings.append(Finding(of, "verified before"))
        elif first.stage == "measure":
            findings += _experiment(plan, steps, load)
        else:
            findings += _derived(plan, first, load)
    return findings


def _as_before(plan: Plan, steps: Sequence[Step], before: Mapping[str, str]) -> bool:
    same = all(before.get(step.receipt) == plan.state(step).digest(step.receipt) for step in steps)
    return same and not any(step.stage != "measure" and plan.state(step).reasons for step in steps)


def verify_checkout(plan: Plan) -> list[Finding]:
    """Return findings on everything that is recorded here, and on every file that no step makes."""
    tests = plan.step("tests")
    reasons = plan.state(tests).reasons
    words = f"out of date: {_few(reasons)}; snakemake {tests.receipt} runs them" if reasons else "holds"
    first = Finding(tests.receipt, words, fault=bool(reasons))
    everywhere = [Path("results"), Path(_PAGES)]
    return [first, *verify(plan, list(plan.experiments), {}), *_strays(plan, everywhere)]


def verify_experiment(plan: Plan, experiment: str) -> list[Finding]:
    """Return findings on one experiment, on strays in its folder, and on where no stray was looked for."""
    findings = verify(plan, [experiment], {})
    its = plan.experiments[experiment]
    if its.own_folder:  # which may hold anything else
        return findings
    words = (
        "no other folder was looked at for files that no step makes; inference-lab verify looks everywhere"
    )
    return [*findings, *_strays(plan, [Path(its.folder)]), Finding(its.folder, words)]


def _experiment(plan: Plan, steps: Sequence[Step], load: run_stage.Load) -> Iterator[Finding]:
    measured, *derived = steps
    manifest, manual = Path(measured.receipt), plan.experiments[measured.experiment].manual
    if not manifest.exists():
        words = _unrecorded(steps, manual=manual)
        yield Finding(measured.receipt, words, fault=words != "not measured")
        return
    try:
        record = load(manifest)
        reasons = plan.state(measured).reasons
    except LabError as error:
        yield Finding(measured.receipt, str(error), fault=True)
        return
    if reasons and not manual:
        words = f"out of date: {_few(reasons)}; snakemake all measures it again"
        yield Finding(measured.receipt, words, fault=True)
    else:
        yield Finding(measured.receipt, kept(reasons) if reasons else "holds")
    if not measured.own_load:
        named = record.manifest["prediction"]
        file = named["file"] if named else prediction_file(measured.experiment)
        yield Finding(file, _evidence(lambda: _prediction(record)))
        yield Finding(f"{TESTS_RECEIPT} of {measured.experiment}", _evidence(lambda: _tests(record)))
    for step in derived:
        yield from _derived(plan, step, load)


def _unrecorded(steps: Sequence[Step], *, manual: bool) -> str:
    """Return what to say of an experiment without manifest: a record that was deleted, or none yet."""
    manifest, at = steps[0].receipt, steps[0].folder
    if left := [path for path in files_of(steps) if Path(path).exists()]:
        words = f"missing, and {left[0]} is here, which follows from nothing without it"
        return f"{words}; restore {at} from git or measure it again"
    try:
        commit = history.last_with(manifest)
    except history.NoHistory:
        commit = None
    if commit is not None:
        words = f"deleted: commit {commit} has it; restore it (git checkout {commit} -- {at})"
        return f"{words}, measure it again or take it out of the config"
    return "not measured" if manual else "not measured; snakemake all measures it"


def _derived(plan: Plan, step: Step, load: run_stage.Load) -> list[Finding]:
    state = plan.state(step)
    if step.own_load and not any(Path(path).exists() for path in files_of([step])):
        return [Finding(path, "not drawn") for path in step.makes]
    try:
        texts = run_stage.texts(step, load, plan.sources)
        reasons = state.reasons
    except LabError as error:
        return [Finding(path, str(error), fault=True) for path in step.makes]
    faults = {path: _compare(path, texts[path], state) for path in step.makes}
    findings = [Finding(path, fault or "same bytes", fault=bool(fault)) for path, fault in faults.items()]
    # The receipts of a load name the folder it was in: one that moved follows from its raw all the same.
    if reasons and not any(faults.values()) and not step.own_load:
        words = f"out of date: {_few(reasons)}; {_again(step, step.makes[0])}"
        findings.append(Finding(step.receipt, words, fault=True))
    return findings


def _compare(path: str, text: str, state: State) -> str:
    """Return how a file differs from what was rebuilt, in words; "" when it does not."""
    again = _again(state.step, path)
    if leads_out(Path(path)):
        return f"is a link out of this checkout; {again}"
    if (found := state.digest(path)) is None:
        return f"missing; {again}"
    if found == (rebuilt := sha256(text.encode()).hexdigest()):
        return ""
    if found != (recorded := state.files[path]):
        return f"edited: its receipt says sha256 {recorded}, found {found}; {again}"
    reasons, words = state.input_reasons, "does not follow from its raw data"
    if reasons and not any(why.startswith("results/") for why in reasons):
        words = f"older than what makes it now ({_few(reasons)})"
    return f"{words}: found sha256 {found}, rebuilt {rebuilt}; {again}"


def _again(step: Step, path: str) -> str:
    if step.own_load:
        return f"inference-lab summarize {step.folder} && inference-lab figures {step.folder} makes it again"
    return f"rm -f {path} && snakemake {path} makes it again"


def _few(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - 3} more" * (len(reasons) > 3)
    return "; ".join(reasons[:3]) + more


def _evidence(found: Callable[[], str]) -> str:
    """Return what history shows of a record: "holds: ...", or "not checked: " and why it shows nothing."""
    try:
        return f"holds: {found()}"
    except history.NoHistory as error:
        return f"not checked: {error}"


def _prediction(record: Record) -> str:
    """Whether the prediction is, as it was measured under, in the commit of the run.

    A commit's name depends on all it holds, so it was there before the run. Dates are no evidence.
    """
    recorded, git = record.manifest["prediction"], record.manifest.get("git")
    if recorded is None:
        raise history.NoHistory("recorded without one")
    if git is None:
        why = record.manifest.get("git_reason", "no reason recorded")
        raise history.NoHistory(f"the run names no commit ({why})")
    committed = history.file_in(git["commit"], recorded["file"])
    if sha256(committed).hexdigest() != recorded["sha256"]:
        raise history.NoHistory(f"commit {git['commit'][:12]}, which the run names, has it in other words")
    return "the commit that the run names has this prediction"


def _tests(record: Record) -> str:
    """Whether history has the tests' receipt that was current when this was measured."""
    digest = record.manifest.get("tests")
    if digest is None:
        raise history.NoHistory("the record names no receipt of theirs")
    if digest == "not current":
        raise history.NoHistory("the tests were not current when this was measured")
    if digest not in history.digests_of(TESTS_RECEIPT):
        named = f"the receipt that the run names (sha256 {digest[:12]})"
        raise history.NoHistory(f"no commit here has {named}")
    return "a commit has the receipt of the tests that the run names"


def _strays(plan: Plan, folders: Sequence[Path]) -> Iterator[Finding]:
    """Yield every file below these folders that no step of the config makes."""
    steps = [*plan.steps(), *plan.reports_of(plan.experiments)]
    made, homes = {TESTS_RECEIPT, *files_of(steps)}, {step.folder for step in steps}
    made |= {f"{path}.j2" for path in made if path.startswith(_PAGES)}  # an article's template
    for step in steps:
        if step.stage == "measure":
            made |= plan.state(step).files.keys()
    for path in (path for folder in folders for path in _files_below(folder, homes)):
        if path.as_posix() in made:
            continue
        name = printable(path.as_posix()).replace("\n", "\\n").replace("\t", "\\t")
        name += "/" * (path.is_dir() and not path.is_symlink())
        way = "copy what the link leads to" if path.is_symlink() else "move it elsewhere"
        yield Finding(name, f"stray: no step of the config makes it; {way} or remove it", fault=True)


def _files_below(folder: Path, homes: Iterable[Path]) -> Iterator[Path]:
    """Yield files and links below a folder, sorted; a folder of results/ that is no experiment's as one."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name in _NOT_COMMITTED or path.suffix == ".partial":
            continue
        if not path.is_dir() or path.is_symlink() or (path.parts[:-1] == ("results",) and path not in homes):
            yield path
        else:
            yield from _files_below(path, homes)


def verify_stage(plan: Plan, receipt: Path) -> str:
    """Return the table of findings once everything was rebuilt the same and the receipt is written.

    Only what changed since the last verification here is rebuilt. Raises RecordError at a fault.
    """
    step = plan.verify_step()
    read, pins = step.inputs(plan.sources), step.pins(plan.sources)
    text = checked(verify(plan, plan.verified(), _before(receipt, read, pins)))
    write_json(receipt, seal(receipt_of(step, read, pins)))
    return text


def _before(receipt: Path, read: Mapping[str, str], pins: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the receipt names as read, if it was by these sources and pins and in this checkout."""
    try:
        written = read_receipt(receipt)
    except RecordError:  # never verified here, or torn: everything is rebuilt
        return {}

    def by(inputs: Mapping[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in inputs.items() if not name.endswith(".json")}

    return written["inputs"] if (by(written["inputs"]), written["pins"]) == (by(read), pins) else {}


def checked(findings: Sequence[Finding]) -> str:
    """Return the findings as a table. Raises RecordError that names every fault when there is one."""
    faults = [finding for finding in findings if finding.fault]
    table = "\n".join(aligned([(finding.file, finding.state) for finding in faults or findings]))
    if faults:
        raise RecordError(f"{len(faults)} of {len(findings)} findings are faults\n{table}")
    return table

"""Does every committed result follow from its raw data? Rebuilds each in memory and compares bytes."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from inference_lab import stages
from inference_lab.errors import LabError, RecordError
from inference_lab.records import chain, layout
from inference_lab.records.chain import Chain
from inference_lab.records.files import read_json, sha256_file, write_json
from inference_lab.records.installed import interpreter
from inference_lab.records.layout import Step
from inference_lab.records.store import load_record

GOOD = ("holds", "same bytes", "older than the run", "verified before")
REPORTED = ("out of date", "not checked", "not measured", "not drawn")


@dataclass(frozen=True)
class Finding:
    """What was found of one file: `state` begins with one of GOOD or REPORTED, or it is a mismatch."""

    experiment: str
    file: str
    state: str

    @property
    def mismatch(self) -> bool:
        """Whether this is neither good nor merely out of date."""
        return not self.state.startswith((*GOOD, *REPORTED))


def verify(walk: Chain, experiments: Sequence[str], before: Mapping[str, str]) -> list[Finding]:
    """Findings of every file of these experiments; receipts whose digest is in `before` are not redone."""
    found: list[Finding] = []
    for experiment in experiments:
        measured = walk.step("measure", experiment)
        if not Path(measured.receipt).exists():
            found.append(Finding(experiment, measured.receipt, "not measured"))
            continue
        steps = walk.steps(experiment)
        if all(before.get(step.receipt) == _digest(step.receipt) for step in steps) and not any(
            step.stage != "measure" and walk.differences(step) for step in steps
        ):
            found.append(Finding(experiment, layout.folder(experiment), "verified before"))
            continue
        record = _record(walk, measured)
        found.append(record)
        if record.mismatch:
            continue
        if not layout.is_load(experiment):
            found.append(_prediction(experiment))
        found += [finding for step in steps[1:] for finding in _derived(walk, step)]
    for step in walk.reports_of(experiments):
        if before.get(step.receipt) == _digest(step.receipt) and not walk.differences(step):
            found.append(Finding(step.experiment, step.makes[0], "verified before"))
        else:
            found += _derived(walk, step)
    return found


def _record(walk: Chain, step: Step) -> Finding:
    try:
        load_record(Path(step.receipt))
        reasons = walk.stale_record(step)
    except LabError as error:
        return Finding(step.experiment, step.receipt, str(error))
    state = f"out of date: {'; '.join(reasons)}" if reasons else "holds"
    return Finding(step.experiment, step.receipt, state)


def _derived(walk: Chain, step: Step) -> list[Finding]:
    if layout.is_load(step.experiment) and not any(Path(path).exists() for path in layout.files_of([step])):
        return [Finding(step.experiment, path, "not drawn") for path in step.makes]
    try:
        receipt = chain.read_receipt(Path(step.receipt))
        reasons = walk.changed(step, receipt)
        texts = stages.texts(step)
    except LabError as error:
        return [Finding(step.experiment, path, str(error)) for path in step.makes]
    return [
        Finding(step.experiment, path, _compare(path, texts[path], receipt, reasons)) for path in step.makes
    ]


def _compare(path: str, text: str, receipt: Mapping[str, Any], reasons: Sequence[str]) -> str:
    if not Path(path).is_file():
        return f"missing; rebuild it with snakemake {path}"
    recorded = receipt["outputs"].get(path, {}).get("sha256")
    found, rebuilt = sha256_file(Path(path)), sha256(text.encode()).hexdigest()
    if found == rebuilt:
        return "same bytes"
    if found != recorded:
        return f"edited: its receipt says sha256 {recorded}, found {found}; snakemake {path} makes it again"
    if reasons:
        return f"out of date: {'; '.join(reasons)}"
    return f"differs: found sha256 {found}, rebuilt {rebuilt}; measure or derive it on one machine again"


def _prediction(experiment: str) -> Finding:
    """Whether the prediction stood in git before the run began."""
    manifest = read_json(Path(layout.folder(experiment), "manifest.json"))
    recorded = manifest["prediction"]
    if recorded is None:
        return Finding(experiment, layout.prediction_file(experiment), "not checked: recorded without one")
    file, digest = recorded["file"], recorded["sha256"]
    started = datetime.fromisoformat(manifest["started_at"])
    try:
        commits = [line.split() for line in _git("log", "--format=%H %ct", "--", file).decode().splitlines()]
        times = [
            int(seconds)
            for commit, seconds in commits
            if sha256(_git("show", f"{commit}:{file}")).hexdigest() == digest
        ]
    except (OSError, subprocess.CalledProcessError):
        return Finding(experiment, file, "not checked: no git history here")
    if not times:
        return Finding(
            experiment, file, "not checked: the prediction as measured is in no commit of this history"
        )
    if min(times) > started.timestamp():
        return Finding(experiment, file, "younger than the run: it was committed after measuring began")
    return Finding(experiment, file, "older than the run")


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], capture_output=True, check=True).stdout


def _digest(path: str) -> str | None:
    return sha256_file(Path(path)) if Path(path).is_file() else None


def verify_stage(config: Mapping[str, Any], receipt: Path) -> str:
    """The table of findings, once everything recorded was rebuilt the same; then the receipt is written.

    Only what changed since the last verification here is rebuilt. Raises RecordError at a mismatch.
    """
    walk = Chain(config)
    step = walk.verify_step()
    read = step.inputs(walk.sources)
    findings = verify(walk, walk.verified(), _before(receipt))
    text = as_table(findings)
    if bad := [finding for finding in findings if finding.mismatch]:
        raise RecordError(f"{bad[0].file}: {bad[0].state} (the first of {len(bad)} mismatches)")
    written = {**chain.receipt_of(step, read, step.pins(walk.sources)), "interpreter": interpreter()}
    write_json(receipt, chain.seal(written))
    return text


def _before(receipt: Path) -> dict[str, str]:
    try:
        written = chain.read_receipt(receipt)
    except RecordError:  # never verified here, or torn: everything is rebuilt
        return {}
    return written["inputs"] if written.get("interpreter") == interpreter() else {}


def as_table(findings: Sequence[Finding]) -> str:
    """The findings as lines of equal columns: experiment, file, state."""
    width = max((len(finding.file) for finding in findings), default=0)
    return "\n".join(f"{finding.file:<{width}}  {finding.state}" for finding in findings)

"""The closing table: what is recorded, since when and where, whether it may be believed, whether current."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from inference_lab.errors import LabError, printable
from inference_lab.records.plan import Plan, kept
from inference_lab.records.receipts import read_receipt
from inference_lab.records.record import aligned
from inference_lab.records.stages import Step, folder

_HEAD = ("experiment", "recorded", "on", "flags", "state", "figures")


def records() -> str:
    """Return what is recorded in this checkout, and what was superseded."""
    from inference_lab.config.experiments import load_config  # which the workflow has done already

    config = load_config().given()
    return f"{closing_table(config)}\n\n{superseded(list(config['experiments']))}"


def closing_table(config: Mapping[str, object]) -> str:
    """One line an experiment: recorded when and where, flags, current or why not, figures."""
    plan = Plan(config)
    return printable("\n".join(aligned([_HEAD, *(_row(plan, name) for name in plan.experiments)])))


def _row(plan: Plan, experiment: str) -> tuple[str, ...]:
    steps = plan.steps(experiment)
    measured = plan.state(steps[0])
    figures = ", ".join(plan.experiments[experiment].judge["figures"]) or "none"
    try:
        if measured.error:
            raise measured.error
        if measured.receipt is None:
            return (experiment, "never", "", "", "not measured", figures)
        state = _state(plan, steps)
    except LabError as error:
        return (experiment, "?", "", "", str(error), figures)
    when = measured.receipt["started_at"][:16].replace("T", " ")
    where = measured.receipt["environment"].get("cpu_model", "unknown")
    return (experiment, when, where, _flags(steps[0].folder / "summary.csv"), state, figures)


def _state(plan: Plan, steps: Sequence[Step]) -> str:
    measured, *derived = steps
    earlier, manual = plan.state(measured).reasons, plan.experiments[measured.experiment].manual
    if earlier and not manual:
        return f"measure out of date: {'; '.join(earlier)}"
    for step in derived:
        if reasons := plan.why(step):
            return f"{step.stage} out of date: {'; '.join(reasons)}"
    return kept(earlier) if earlier else "current"


def _flags(summary: Path) -> str:
    try:
        with summary.open(encoding="utf-8", newline="") as file:
            found = {flag for row in csv.DictReader(file) for flag in (row.get("flags") or "").split()}
    except OSError:
        return "no summary"
    return " ".join(sorted(found)) or "none"


def superseded(experiments: Sequence[str]) -> str:
    """One line a record that was replaced and kept: where it stands, when it was measured, its digest."""
    lines = ["superseded, invalid or without a place: on this machine alone, and git clean -xfd deletes them"]
    for aside in (each for name in experiments for each in sorted(Path(folder(name)).glob("superseded/*"))):
        try:
            record = read_receipt(aside / "manifest.json")
            what = f"measured {record['started_at']}, manifest {record['digest'][:8]}"
        except LabError:
            what = "no whole manifest: files that were no record"
        lines.append(f"{aside.as_posix()}  {what}")
    return printable("\n".join(lines)) if lines[1:] else "no superseded record on this machine"

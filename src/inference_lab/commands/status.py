"""The closing table: what is recorded, since when and where, whether it may be believed, whether current."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.errors import LabError, printable
from inference_lab.records.plan import Plan, kept
from inference_lab.records.receipts import read_receipt
from inference_lab.records.record import aligned
from inference_lab.records.stages import Step, folder

_HEAD = ("experiment", "recorded", "on", "flags", "state", "figures")


def closing_table(config: Mapping[str, Any]) -> str:
    """One line an experiment: recorded when and where, flags, current or why not, figures."""
    plan = Plan(config)
    rows = [_HEAD, *(_row(plan, experiment) for experiment in plan.experiments)]
    return printable("\n".join(aligned(rows)))


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


def superseded(config: Mapping[str, Any]) -> str:
    """One line a record that was replaced and kept: where it stands, when it was measured, its digest."""
    lines: list[str] = []
    for experiment in config["experiments"]:
        for aside in sorted(Path(folder(experiment), "superseded").glob("*")):
            try:
                record = read_receipt(aside / "manifest.json")
                what = f"measured {record['started_at']}, manifest {record['digest'][:8]}"
            except LabError:
                what = "no whole manifest: files that were no record"
            lines.append(f"{aside.as_posix()}  {what}")
    if not lines:
        return "no superseded record on this machine"
    head = "superseded, invalid or without a place: on this machine alone, and git clean -xfd deletes them"
    return printable("\n".join([head, *lines]))

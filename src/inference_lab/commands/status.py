"""The closing table: what is recorded, since when and where, whether it may be believed, whether current."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inference_lab.errors import LabError, printable
from inference_lab.records.receipts import Receipts, read_receipt
from inference_lab.records.record import aligned
from inference_lab.records.stages import folder

_HEAD = ("experiment", "recorded", "on", "flags", "state", "figures")


def closing_table(config: Mapping[str, Any]) -> str:
    """One line an experiment: recorded when and where, flags, current or why not, figures."""
    walk = Receipts(config)
    rows = [_HEAD, *(_row(walk, experiment) for experiment in walk.experiments)]
    return printable("\n".join(aligned(rows)))


def _row(walk: Receipts, experiment: str) -> tuple[str, ...]:
    figures = ", ".join(walk.experiments[experiment]["judge"]["figures"]) or "none"
    manifest = Path(walk.step("measure", experiment).receipt)
    if not manifest.exists():
        return (experiment, "never", "", "", "not measured", figures)
    try:
        record = read_receipt(manifest)
        when, where = (
            record["started_at"][:16].replace("T", " "),
            record["environment"].get("cpu_model", "unknown"),
        )
        state = _state(walk, experiment)
    except LabError as error:
        return (experiment, "?", "", "", str(error), figures)
    return (experiment, when, where, _flags(manifest.with_name("summary.csv")), state, figures)


def _state(walk: Receipts, experiment: str) -> str:
    measured, *derived = walk.steps(experiment)
    earlier = walk.stale_record(measured)
    if earlier and not walk.manual(experiment):
        return f"measure out of date: {'; '.join(earlier)}"
    for step in derived:
        if reasons := walk.why(step):
            return f"{step.stage} out of date: {'; '.join(reasons)}"
    if earlier:
        return walk.kept(earlier)
    return "read only: what measures it is not here" if walk.read_only(experiment) else "current"


def _flags(summary: Path) -> str:
    import csv

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
        for kept in sorted(Path(folder(experiment), "superseded").glob("*")):
            try:
                record = read_receipt(kept / "manifest.json")
                what = f"measured {record['started_at']}, manifest {record['digest'][:8]}"
            except LabError:
                what = "no whole manifest: files that were no record"
            lines.append(f"{kept.as_posix()}  {what}")
    if not lines:
        return "no superseded record on this machine"
    head = "superseded, invalid or without a place: on this machine alone, and git clean -xfd deletes them"
    return printable("\n".join([head, *lines]))

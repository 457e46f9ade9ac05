"""Selfcheck records with a known truth, and their views."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference_lab.analysis.selfcheck import summarise
from inference_lab.analysis.summary_table import SummaryRow, View, summary_rows
from inference_lab.records.record import Record
from tests.analysis.views import SOURCE
from tests.checkout import judge_of
from tests.synthetic import Machine, steady, timing_record

PATHS = ("preallocated", "null_1", "plus_10")
PROCESSES = 3


def cost(path: str, cell: Mapping[str, Any]) -> float:
    """A null costs what the baseline does, plus_10 a tenth more."""
    percent = int(path.removeprefix("plus_")) if path.startswith("plus_") else 0
    return 1e4 * cell["sequence_length"] * (1 + percent / 100)


def selfcheck_record(
    machine: Machine | None = None, *, runs: int = 4, busy: Sequence[int] = (), paths: Sequence[str] = PATHS
) -> Record:
    """A record of so many runs of 3 processes of 10 rounds; others use the machine in the runs named busy."""
    how: dict[str, Any] = {
        "vary": {"sequence_length": (96, 128)},
        "processes": runs * PROCESSES,
        "rounds": 10,
        "warmups": 0,
    }
    machine = machine or steady(0.01)
    made = timing_record(experiment="selfcheck", paths=paths, cost=cost, machine=machine, **how)
    cores = [0.9 if run in busy else 0.01 for run in range(runs)]
    conditions = {**made.manifest["conditions"], "processes": PROCESSES, "runs": runs}
    seen = [{"others_used_cores": {"median": used, "max": used}} for used in cores]
    return replace(made, manifest={**made.manifest, "conditions": conditions, "runs": seen})


def rows(record: Record) -> dict[tuple[str, str], SummaryRow]:
    """The rows of the record's summary by what they are about."""
    table = summary_rows(summarise(record, judge_of()), "summary.csv")
    return {(row["among"], row["effect_percent"]): row for row in table}


def selfcheck_view(record: Record) -> View:
    """The record with its summary."""
    return View(record, list(rows(record).values()), judge_of(), {**SOURCE, "experiment": "selfcheck"})

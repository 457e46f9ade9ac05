"""Views over synthetic records, with the summary that the analysis itself makes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference_lab.analysis.summary_table import SummaryRow, View, summary_rows
from inference_lab.analysis.timing import summarise
from inference_lab.records.record import Record
from tests.checkout import judge_of

SOURCE = {
    "experiment": "m1",
    "files": {"raw.csv": "a" * 64, "summary.csv": "b" * 64},
    "command": "snakemake results/m1/analysis.md",
}


def table(record: Record, **judge: Any) -> list[SummaryRow]:
    """The rows of a timing record's summary, as they are read again."""
    return summary_rows(summarise(record, judge_of(**judge)), "summary.csv")


def view_of(record: Record, **judge: Any) -> View:
    """The record with its summary."""
    return View(record, table(record, **judge), judge_of(**judge), SOURCE)


def changed(record: Record, **fields: Any) -> Record:
    """The record with other fields in its manifest."""
    return replace(record, manifest={**record.manifest, **fields})


def table_view(rows: Sequence[Mapping[str, str]], vary: Mapping[str, Sequence[Any]], **judge: Any) -> View:
    """A view over a summary alone, as records of observations, capacities and serving have it."""
    manifest = {
        **{"kind": "observation", "experiment": "m1", "conditions": {"by": "observations", "vary": vary}},
        **{"environment": {"python": "3.11.9"}, "git": None, "prediction": None},
        **{"started_at": "2026-11-02T10:00:00+00:00", "finished_at": "2026-11-02T10:00:01+00:00"},
        "validity": {"valid": True, "reasons": []},
    }
    return View(Record("m1", manifest), list(map(SummaryRow, rows)), judge_of(**judge), SOURCE)

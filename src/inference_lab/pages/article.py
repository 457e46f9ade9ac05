"""An experiment's article: a jinja template whose every number is looked up in summary and verdicts.

{{ cell(path="preallocated", batch_size=8).positions_per_s | short }}
{{ cell(path="preallocated", batch_size=8) | interval("ratio") }}
{{ verdict("batching-pays").verdict }}      {{ manifest.environment.cpu_model }}
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from inference_lab.analysis.summary_table import SummaryRow, View, in_words, pick
from inference_lab.errors import ConfigError
from inference_lab.pages.render import render


def article(template: Path, view: View, verdicts: Iterable[Mapping[str, str]]) -> str:
    """Return the text of an article.

    Raises ConfigError naming template and line when it asks for a cell, column or claim there is not.
    """
    judged = {row["id"]: SummaryRow(row, "verdicts.csv") for row in verdicts}

    def cell(**columns: Any) -> SummaryRow:
        row = pick(view.summary, columns, "summary.csv")
        if row is None:
            raise ConfigError(f"summary.csv: no cell {in_words(columns)}")
        return row

    def verdict(claim: str) -> SummaryRow:
        if claim not in judged:
            raise ConfigError(f"verdicts.csv: no claim {claim!r}; there are {', '.join(judged)}")
        return judged[claim]

    return render(template, cell=cell, verdict=verdict, rows=view.summary, manifest=view.record.manifest)

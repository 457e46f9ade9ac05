"""verdicts.csv, analysis.md and articles: what was asked, what came of it, and the numbers behind it.

In an article's template every number is looked up in summary and verdicts:
{{ cell(path="preallocated", batch_size=8).positions_per_s | short }}    {{ verdict("pays").verdict }}
{{ cell(path="preallocated", batch_size=8) | interval("ratio") }}    {{ manifest.environment.cpu_model }}
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from inference_lab.analysis.statistics import short
from inference_lab.analysis.summary_table import SEPARATOR, SummaryRow, View, in_words, pick
from inference_lab.analysis.verdicts import CHANGED, COLUMNS, evaluate
from inference_lab.config.prediction import Scalar, load_prediction
from inference_lab.errors import ConfigError
from inference_lab.pages import environment
from inference_lab.pages.answers import Verdict, answers
from inference_lab.pages.numbers import kind, numbers
from inference_lab.pages.render import page, render
from inference_lab.records.forms import JSON
from inference_lab.records.record import csv_text, varied

OUTLIER = 3  # a sample this many times its cell's P50 is named


def pages(view: View, prediction_file: Path, *articles: Path) -> tuple[str, ...]:
    """Return the texts of verdicts.csv, analysis.md and of each article, by its template.

    A prediction that is not the one the manifest recorded is marked in both. Raises ConfigError when the
    prediction breaks its schema or asks for what no summary holds.
    """
    prediction, manifest = load_prediction(prediction_file), view.record.manifest
    recorded = manifest.get("prediction") or {}
    changed = recorded.get("sha256") != hashlib.sha256(prediction_file.read_bytes()).hexdigest()
    verdicts = evaluate(prediction, view, prediction_changed=changed)
    text = page(
        "analysis",
        view,
        prediction=prediction,
        changed=CHANGED if changed else "",
        answers=answers(prediction.claims, verdicts, view.summary),
        numbers=numbers(view.summary, prediction.claims),
        kind=kind(view.summary),
        varied=varied(manifest)[0],
        notes=list(_notes(view)),
        oracle=_oracle(manifest.get("oracle") or []),
        machine=environment.machine(manifest) | environment.session(manifest),
        servers=environment.servers({view.record.experiment: manifest}),
    )
    return csv_text(COLUMNS, verdicts), text, *(article(template, view, verdicts) for template in articles)


def _oracle(checks: Sequence[JSON]) -> dict[str, list[JSON]]:
    """Return the checks of each path, that nearest its tolerance first."""
    of_paths: dict[str, list[JSON]] = {check["path"]: [] for check in checks}
    for check in sorted(checks, key=lambda check: check["max_abs_error"] / check["tolerance"], reverse=True):
        of_paths[check["path"]].append(check)
    return of_paths


def _notes(view: View) -> Iterator[str]:
    """Yield each timed cell with a sample far above its P50, then the advice of flagged cells."""
    about = ("path", "transport", *view.record.manifest["conditions"].get("vary", {}))
    named: dict[str, dict[str, None]] = {}
    cells: dict[str, None] = {}
    for row in view.summary:
        cell = in_words({name: row[name] for name in about if name in row})
        cells[cell] = None
        most, p50 = (row.number(name) if kind([row]) == "timing" else None for name in ("max_ms", "p50_ms"))
        if most and p50 and most > OUTLIER * p50:
            yield f"{cell}: the slowest sample took {short(most)} ms, {short(most / p50)} times the P50"
        for advice in filter(None, row.get("advice", "").split(SEPARATOR)):
            named.setdefault(advice, {})[cell] = None
    for advice, where in named.items():
        place = "every cell" if len(where) == len(cells) > 1 else "; ".join(filter(None, where))
        yield f"{place}: {advice}" if place else advice


def article(template: Path, view: View, verdicts: Iterable[Verdict]) -> str:
    """Return the text of an article.

    Raises ConfigError naming template and line when it asks for a cell, column or claim there is not.
    """
    judged = {row["id"]: SummaryRow(row, "verdicts.csv") for row in verdicts}

    def cell(**columns: Scalar) -> SummaryRow:
        if (row := pick(view.summary, columns, "summary.csv")) is None:
            raise ConfigError(f"summary.csv: no cell {in_words(columns)}")
        return row

    def verdict(claim: str) -> SummaryRow:
        if claim not in judged:
            raise ConfigError(f"verdicts.csv: no claim {claim!r}; there are {', '.join(judged)}")
        return judged[claim]

    return render(template, cell=cell, verdict=verdict, rows=view.summary, manifest=view.record.manifest)

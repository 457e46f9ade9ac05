"""verdicts.csv and analysis.md: what was asked, what came of it, and the numbers behind it."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inference_lab.analysis.summary_table import SEPARATOR, View, in_words
from inference_lab.analysis.verdicts import CHANGED, evaluate, verdicts_csv
from inference_lab.config.prediction import load_prediction
from inference_lab.pages import environment
from inference_lab.pages.answers import answers
from inference_lab.pages.article import article
from inference_lab.pages.numbers import kind, numbers, outliers
from inference_lab.pages.render import page
from inference_lab.records.record import Record, varied

OUTLIER = 3  # a sample this many times its cell's P50 is named


def pages(view: View, prediction_file: Path, *articles: Path) -> tuple[str, ...]:
    """Return the texts of verdicts.csv, analysis.md and of each article, by its template.

    A prediction that is not the one the manifest recorded is marked in both. Raises ConfigError when the
    prediction breaks its schema or asks for what no summary holds.
    """
    prediction, manifest = load_prediction(prediction_file), view.record.manifest
    claims = [claim.given() for claim in prediction.claims]
    recorded = manifest.get("prediction") or {}
    changed = recorded.get("sha256") != hashlib.sha256(prediction_file.read_bytes()).hexdigest()
    verdicts = evaluate(prediction, view, prediction_changed=changed)
    text = page(
        "analysis",
        view,
        prediction=prediction,
        changed=CHANGED if changed else "",
        answers=answers(claims, verdicts, view.summary),
        numbers=numbers(view.summary, claims),
        kind=kind(view.summary),
        varied=varied(manifest)[0],
        anomalies=list(_anomalies(view)),
        oracle=list(_oracle(view.record)),
        conditions=environment.conditions(manifest),
        machine=environment.machine(manifest) | environment.session(manifest),
        servers=environment.servers({view.record.experiment: manifest}),
    )
    return verdicts_csv(verdicts), text, *(article(template, view, verdicts) for template in articles)


def _oracle(record: Record) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    """Yield each checked path, its number of checks, and the check nearest its tolerance."""
    checks: Sequence[Mapping[str, Any]] = record.manifest.get("oracle") or []
    for path in dict.fromkeys(check["path"] for check in checks):
        of_path = [check for check in checks if check["path"] == path]
        yield path, len(of_path), max(of_path, key=lambda check: check["max_abs_error"] / check["tolerance"])


def _anomalies(view: View) -> Iterator[str]:
    """Yield what a run found wrong with itself, the slowest samples, and the advice of flagged cells."""
    yield from view.record.manifest.get("validity", {}).get("reasons", [])
    about = ("path", "transport", *view.record.manifest["conditions"].get("vary", {}))
    yield from outliers(view.summary, about, OUTLIER)
    named: dict[str, dict[str, None]] = {}
    cells: dict[str, None] = {}
    for row in view.summary:
        cell = in_words({name: row[name] for name in about if name in row})
        cells[cell] = None
        for advice in filter(None, row.get("advice", "").split(SEPARATOR)):
            named.setdefault(advice, {})[cell] = None
    for advice, where in named.items():
        place = "every cell" if len(where) == len(cells) > 1 else "; ".join(filter(None, where))
        yield f"{place}: {advice}" if place else advice

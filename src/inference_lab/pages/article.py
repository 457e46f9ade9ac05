"""An experiment's article: a Jinja2 template whose every number is looked up in summary and verdicts.

{{ cell(path="preallocated", batch_size=8).positions_per_s | short }}
{{ interval(path="preallocated", batch_size=8, of="ratio") }}
{{ verdict("batching-pays").verdict }}      {{ manifest.environment.cpu_model }}
"""

import json
import traceback
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import SummaryRow, in_words, pick, read_summary
from inference_lab.errors import ConfigError


def render(template: Path, summary: Path, verdicts: Path, manifest: Path) -> str:
    """The text of the article.

    Raises ConfigError naming template and line when it asks for a cell, column or claim there is not.
    """
    rows = read_summary(summary)

    def cell(**columns: Any) -> SummaryRow:
        row = pick(rows, columns, summary.name)
        if row is None:
            raise ConfigError(f"{summary.name}: no cell {in_words(columns)}")
        return row

    def interval(of: str, **columns: Any) -> str:
        row = cell(**columns)
        return with_interval(row.number(of), row.interval(of))

    judged = {row["id"]: row for row in read_summary(verdicts)}

    def verdict(claim: str) -> SummaryRow:
        if claim not in judged:
            raise ConfigError(f"{verdicts.name}: no claim {claim!r}; there are {', '.join(judged)}")
        return judged[claim]

    words = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    words.filters.update(short=_short, fixed=_fixed)
    facts = json.loads(manifest.read_text(encoding="utf-8"))
    try:
        page = words.from_string(template.read_text(encoding="utf-8"))
        return page.render(cell=cell, interval=interval, verdict=verdict, rows=rows, manifest=facts)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(f"{template} line {error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, ConfigError, ValueError, TypeError, ArithmeticError) as error:
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__) if at.filename == "<template>"]
        raise ConfigError(f"{template} line {lines[-1] if lines else '?'}: {error}") from None


def _short(text: str) -> str:
    return short(float(text))


def _fixed(text: str, digits: int = 2) -> str:
    return f"{float(text):.{digits}f}"

"""Prediction beside result, in the shortest form, and a template whose placeholders are filled."""

from pathlib import Path

from inference_lab import toy_pause
from inference_lab.analysis.summary_table import View
from inference_lab.analysis.verdicts import count


def pages(view: View, prediction: Path, *articles: Path) -> tuple[str, ...]:
    """Text of verdicts.csv, of analysis.md and of each article."""
    toy_pause.here("analysis")
    toy_pause.half_written("analysis", f"results/{view.record.experiment}/verdicts.csv")
    fastest = min(view.summary, key=lambda row: float(row["p50_ms"]))["path"]
    page = f"{prediction.read_text(encoding='utf-8')}\nFastest: {fastest}\n"
    verdicts = f"claims,fastest\n{count(prediction)},{fastest}\n"
    filled = [template.read_text(encoding="utf-8").format(verdicts) for template in articles]
    return verdicts, page, *filled

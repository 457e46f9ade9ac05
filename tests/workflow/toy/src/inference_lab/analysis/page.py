"""Prediction beside result, in the shortest form."""

from pathlib import Path

from inference_lab import toy_pause
from inference_lab.analysis.summary_table import View
from inference_lab.analysis.verdicts import count


def pages(view: View, prediction: Path) -> tuple[str, str]:
    """Text of verdicts.csv and of analysis.md."""
    toy_pause.here("analysis")
    toy_pause.half_written("analysis", f"results/{view.record.experiment}/verdicts.csv")
    fastest = min(view.summary, key=lambda row: float(row["p50_ms"]))["path"]
    page = f"{prediction.read_text(encoding='utf-8')}\nFastest: {fastest}\n"
    return f"claims,fastest\n{count(prediction)},{fastest}\n", page

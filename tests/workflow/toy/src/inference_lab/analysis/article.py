"""A template whose placeholders are filled."""

from pathlib import Path

from inference_lab import toy_pause


def render(template: Path, summary: Path, verdicts: Path, manifest: Path) -> str:
    """Text of the article."""
    toy_pause.here("article")
    rows = [path.read_text(encoding="utf-8") for path in (summary, verdicts)]
    return template.read_text(encoding="utf-8").format(*rows)

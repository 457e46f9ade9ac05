"""knee-analysis.md: where throughput stops growing, the numbers behind it, and what it does not buy."""

from dataclasses import dataclass

from inference_lab.analysis.comparisons import Evidence, NoEvidence, Quantity
from inference_lab.analysis.knee import measured_knee
from inference_lab.analysis.statistics import with_interval
from inference_lab.analysis.summary_table import SummaryRow, View
from inference_lab.errors import ConfigError
from inference_lab.pages.render import page


@dataclass
class Path:
    """One decode path: its knee, its rows with gain and growth at 2B, and its largest batch beside one."""

    name: str
    knee: str
    reason: str
    rows: list[tuple[SummaryRow, str, str]]
    no_comparison: str = ""
    small: int | None = None
    large: int | None = None
    more: str = ""
    later: str = ""
    quick: float = 0.0
    slow: float = 0.0


def draw(view: View) -> str:
    """Return the text of knee-analysis.md.

    Raises ConfigError when the experiment does not vary batch_size or declares no knee_factor.
    """
    evidence, factor = Evidence(view), view.judge.knee_factor
    if evidence.axis != "batch_size" or factor is None:
        raise ConfigError(
            f"{view.record.experiment}: a knee page needs vary: batch_size and judge.knee_factor;"
            " leave it out of judge.figures"
        )
    names = dict.fromkeys(row["path"] for row in view.summary)
    return page("knee", view, factor=factor, paths=[_path(name, evidence, factor) for name in names])


def _path(name: str, evidence: Evidence, factor: float) -> Path:
    rows = [row for row in evidence.view.summary if row["path"] == name]
    try:
        knee = measured_knee(evidence, "positions_per_s", {"path": name}, factor)
    except NoEvidence as missing:
        path = Path(name, "Inconclusive", str(missing), [(row, "", "") for row in rows])
    else:
        between = f"B = {knee.lo}" if knee.lo == knee.hi else f"B = {knee.lo} to {knee.hi}"
        steps = {str(step.value): (_shown(step.gain), step.growth(factor)) for step in knee.doublings}
        numbers = [(row, *steps.get(row["batch_size"], ("", ""))) for row in rows]
        path = Path(name, between if knee.answer == "interval" else knee.answer, str(knee), numbers)
    _compare(path, evidence)
    return path


def _compare(path: Path, evidence: Evidence) -> None:
    """Set what the largest batch does to throughput and to one request beside the smallest."""
    if len(evidence.values) == 1:
        path.no_comparison = "one batch size was measured; there is nothing to compare"
        return
    small, large = (
        {"path": path.name, "batch_size": size} for size in (min(evidence.values), max(evidence.values))
    )
    try:
        path.more = _shown(evidence.ratio("positions_per_s", large, small))
        path.later = _shown(evidence.ratio("p50_ms", large, small))
        path.quick, path.slow = (evidence.value("p50_ms", cell).estimate.value for cell in (small, large))
    except NoEvidence as missing:
        path.no_comparison = f"no comparison is made: {missing}"
    else:
        path.small, path.large = min(evidence.values), max(evidence.values)


def _shown(quantity: Quantity) -> str:
    return with_interval(quantity.estimate.value, quantity.estimate.bounds[1:])

"""knee-analysis.md: where throughput stops growing, the numbers behind it, and what it does not buy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference_lab.analysis.comparisons import Evidence, NoEvidence
from inference_lab.analysis.knee import Doubling, measured_knee
from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import SummaryRow, View
from inference_lab.errors import ConfigError
from inference_lab.pages.render import page


@dataclass
class Path:
    """One decode path: its knee, its rows, each doubling of B, and its largest batch over its smallest."""

    name: str
    rows: Sequence[SummaryRow]
    knee: str = "Inconclusive"
    reason: str = ""
    doublings: Mapping[str, Doubling] = field(default_factory=dict[str, Doubling])
    more: Estimate | None = None  # positions/s
    later: Estimate | None = None  # time
    no_comparison: str = ""


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
    paths = [_path(name, evidence, factor) for name in dict.fromkeys(row["path"] for row in view.summary)]
    sizes = min(evidence.values), max(evidence.values)
    return page("knee", view, factor=factor, paths=paths, sizes=sizes)


def _path(name: str, evidence: Evidence, factor: float) -> Path:
    path = Path(name, [row for row in evidence.view.summary if row["path"] == name])
    try:
        knee = measured_knee(evidence, "positions_per_s", {"path": name}, factor)
    except NoEvidence as missing:
        path.reason = str(missing)
    else:
        between = f"B = {knee.lo}" if knee.lo == knee.hi else f"B = {knee.lo} to {knee.hi}"
        path.knee, path.reason = between if knee.answer == "interval" else knee.answer, str(knee)
        path.doublings = {str(step.value): step for step in knee.doublings}
    small, large = ({"path": name, "batch_size": end(evidence.values)} for end in (min, max))
    if small == large:
        path.no_comparison = "one batch size was measured; there is nothing to compare"
        return path
    try:
        path.more = evidence.ratio("positions_per_s", large, small).estimate
        path.later = evidence.ratio("p50_ms", large, small).estimate
    except NoEvidence as missing:
        path.no_comparison = f"no comparison is made: {missing}"
    return path

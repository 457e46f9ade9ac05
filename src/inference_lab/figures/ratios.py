"""How much longer or shorter than the baseline each path takes, paired within each round.

Beside it is what could feign a difference: the baseline against itself (A/A), and the smallest effect that
the claim rule (analysis/claim_rule.py) accepts.
"""

from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.figures.panels import READ_INTERVAL, Panel, Point, estimate_of, known
from inference_lab.figures.style import FAINT, INK, Axes, Figure, drawing
from inference_lab.figures.timing_axes import CellKey, TimingAxes


@drawing
def draw(view: View) -> Figure:
    """Draw the time ratio path / baseline over the varied axis, with the claim threshold and A/A band."""
    axes = TimingAxes(view)
    baseline, times = axes.baseline, axes.rounds.times
    compared = [path for path in axes.paths if path != baseline]
    same = {value: estimate_of(axes.rows[baseline, value], "aa_ratio") for value in axes.values}
    aa = {value: estimate for value, estimate in same.items() if estimate}
    least = float(view.summary[0]["smallest_effect"])

    def median(column: int, cell: CellKey) -> Point:
        claimed = axes.rows[cell]["ratio_claimed"] == "yes"
        return Point(column, axes.estimate(cell, "ratio"), hollow=not claimed)

    def rounds(column: int, cell: CellKey) -> Point:
        return Point(column, samples=(times[cell] / times[baseline, cell[1]]).ravel().tolist())

    limits = (1 + least, 1 / (1 + least))
    panels = [
        Panel(
            f"time / time of {baseline}", axes.series(compared, median), 210 if compared else 240, log=True,
            also=[0.9, 1 / 0.9, *limits, *known(list(aa.values()))],
        )
    ]  # fmt: skip
    if compared:
        panels.append(Panel("every round", axes.series(compared, rounds), 140, log=True))
    read = [
        f"Mark: median ratio, filled when the difference is claimed. {READ_INTERVAL} Light points: the"
        " ratio of every round, left to right in the order measured."
        if compared
        else "One path was measured: nothing to compare.",
        f"Dashed: the smallest effect that is claimed, {least:.1%} either way.",
        "Grey: the baseline measured against itself (A/A)." if aa else "A/A was not measured.",
    ]
    title = f"time of {axes.call} relative to {baseline}"
    figure, drawn = axes.draw(compared or axes.paths, panels, title, " ".join(read), ratios=True)
    for limit in limits:
        drawn[0].axhline(limit, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=1.5)
    for panel in drawn:
        panel.axhline(1, color=INK, linewidth=0.8, zorder=1.5)
    lanes = len(compared) or 1
    for column, value in enumerate(axes.values):
        if value in aa:
            left, right = axes.axis.at(column, (0, lanes), -1), axes.axis.at(column, (lanes - 1, lanes), 1)
            _draw_aa(drawn[0], left, right, aa[value])
    return figure


def _draw_aa(panel: Axes, left: float, right: float, aa: Estimate) -> None:
    panel.plot([left, right], [aa.value] * 2, color=FAINT, linewidth=1, zorder=1.2)
    if aa.lo is not None and aa.hi is not None:
        corners = [left, right, right, left], [aa.lo, aa.lo, aa.hi, aa.hi]
        panel.fill(*corners, color="#c8c8c8", linewidth=0, zorder=1)

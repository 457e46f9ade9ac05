"""How much longer or shorter than the baseline each path takes, paired within each round.

Beside it is what could feign a difference: the baseline against itself (A/A), and the smallest effect that
the claim rule (analysis/claim_rule.py) accepts.
"""

from inference_lab.analysis.rounds import CellKey
from inference_lab.analysis.summary_table import View
from inference_lab.figures.panels import READ_INTERVAL, Panel, Point, estimate_of, known
from inference_lab.figures.style import FAINT, INK, Figure, drawing
from inference_lab.figures.timing_axes import TimingAxes


@drawing
def draw(view: View) -> Figure:
    """Draw the time ratio path / baseline over the varied axis, with the claim threshold and A/A band."""
    axes = TimingAxes(view)
    baseline, times = axes.baseline, axes.rounds.times
    compared = [path for path in axes.paths if path != baseline]
    axes.drawn = compared or axes.paths
    same = {column: estimate_of(axes.rows[baseline, at], "aa_ratio") for column, at in enumerate(axes.values)}
    aa = {column: estimate for column, estimate in same.items() if estimate}
    least = float(view.summary[0]["smallest_effect"])
    limits = (1 + least, 1 / (1 + least))

    def median(cell: CellKey) -> Point:
        return Point(axes.estimate(cell, "ratio"), hollow=axes.rows[cell]["ratio_claimed"] != "yes")

    def rounds(cell: CellKey) -> Point:
        return Point(samples=(times[cell] / times[baseline, cell[1]]).ravel().tolist())

    label, also = f"time / time of {baseline}", [0.9, 1 / 0.9, *limits, *known(list(aa.values()))]
    panels = [Panel(label, [], 240, log=True, also=also)]
    measured = "One path was measured: nothing to compare."
    if compared:
        panels = [Panel(label, axes.series(median), 210, log=True, also=also)]
        panels.append(Panel("every round", axes.series(rounds), 140, log=True))
        measured = (
            f"Mark: median ratio, filled when the difference is claimed. {READ_INTERVAL} Light points: the"
            " ratio of every round, left to right in the order measured."
        )
    smallest = f"Dashed: the smallest effect that is claimed, {least:.1%} either way."
    again = "Grey: the baseline measured against itself (A/A)." if aa else "A/A was not measured."
    title, read = f"time of {axes.call} relative to {baseline}", f"{measured} {smallest} {again}"
    figure, (top, *more) = axes.draw(panels, title, read, baseline)
    for limit in limits:
        top.axhline(limit, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=1.5)
    for panel in (top, *more):
        panel.axhline(1, color=INK, linewidth=0.8, zorder=1.5)
    last = len(axes.drawn) - 1
    for column, estimate in aa.items():
        left, right = (axes.axis.at(column, (lane, last + 1), side) for lane, side in ((0, -1), (last, 1)))
        top.plot([left, right], [estimate.value] * 2, color=FAINT, linewidth=1, zorder=1.2)
        if estimate.lo is not None and estimate.hi is not None:
            heights = [estimate.lo, estimate.lo, estimate.hi, estimate.hi]
            top.fill([left, right, right, left], heights, color="#c8c8c8", linewidth=0, zorder=1)
    return figure

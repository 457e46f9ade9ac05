"""Each kernel under the two roofs that were measured in its own rounds: reading and multiplying.

Across: how much longer the call's multiply-adds take than reading its bytes, each alone: its intensity,
where 1 is the ridge. Up: the share of the call's time that its multiply-adds alone take. No point can be
above 1 (the products) or above the slope (the reading).
"""

from itertools import product

from inference_lab.analysis.peers import LIMITS, check_limits
from inference_lab.analysis.summary_table import View
from inference_lab.figures.style import FAINT, INK, SMALL, Figure, drawing, flag_lines, new_figure, scale
from inference_lab.figures.timing_axes import TimingAxes


@drawing
def draw(view: View) -> Figure:
    """Draw the roofline, one mark for each path and cell. Raises RecordError when a limit is missing."""
    axes = TimingAxes(view)
    check_limits(view.record, axes.paths, "a roofline")
    p50 = {cell: axes.estimate(cell, "p50_ms").value for cell in axes.rows}
    marks = {path: mark for path, mark in axes.marks.items() if path not in LIMITS}
    intensity = {value: p50["gemm", value] / p50["read", value] for value in axes.values}
    left, right = min(*intensity.values(), 0.5) / 2, max(*intensity.values(), 2) * 2
    foot = flag_lines(code for cell in product(marks, axes.values) for code in axes.flags(cell))
    head = (
        "P50s. Up: time of the call's multiply-adds alone / time of the call. Across: that time / time of"
        " reading its bytes alone. Lines: no call can be above them. Numbers: how much of its limit a call"
        f" reaches (reading, multiplying or NumPy's calls, the longest), and {axes.name}."
    )
    figure, (panel,) = new_figure(view, marks, [260], "how near to the roofs", head, *foot)
    panel.plot([left, 1, right], [left, 1, 1], color=INK, linewidth=1.2)
    panel.set_xscale("log")
    ticks = [tick for n in range(-3, 5) for m in (1, 2, 5) if left < (tick := m * 10**n) < right]
    panel.set_xticks(ticks, [f"{tick:,.4g}" for tick in ticks])
    panel.set_xticks([], minor=True)
    seen = [left, 1.0]
    # Slanted, ours above and theirs below: values may lie close together.
    sides = (4, "left", "bottom"), (-4, "right", "top")
    for (away, ha, va), (path, mark) in zip(sides, marks.items(), strict=True):
        for value in axes.values:
            x, y = intensity[value], p50["gemm", value] / p50[path, value]
            panel.plot([x], [y], mark.marker, color=mark.color)
            words = f"{axes.estimate((path, value), 'of_limit').value:.0%} {value}"
            panel.annotate(words, (x, y), (away, away), textcoords="offset points", size=SMALL, color=FAINT,
                           ha=ha, va=va, rotation=35, rotation_mode="anchor")  # fmt: skip
            seen += [y, 0.7 * y]  # the label below has room
    scale(panel, seen, "multiply-adds alone / call", log=True)
    panel.set_xlim(left, right)
    panel.set_xlabel("intensity: multiply-adds alone / reading alone, log scale")
    return figure

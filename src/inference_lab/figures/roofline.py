"""Each kernel under the two roofs that were measured in its own rounds: reading and multiplying.

Across: how much longer the call's multiply-adds take than reading its bytes, each alone: its intensity,
where 1 is the ridge. Up: the share of the call's time that its multiply-adds alone take. No point can stand
above 1 (the products) or above the slope (the reading).
"""

from inference_lab.analysis.peers import LIMITS, check_limits
from inference_lab.analysis.summary_table import View
from inference_lab.figures.cells import by_path, cells, varied_axis
from inference_lab.figures.sheet import marks_of
from inference_lab.figures.style import ALARM, FAINT, INK, SMALL, Line, page, scale, styled, svg


@styled()
def draw(view: View) -> str:
    """SVG of the roofline, one mark a path and cell. Raises RecordError when a limit was not measured."""
    paths = by_path(cells(view))
    check_limits(view.record, paths, "a roofline")
    roofs = {path: {cell.value: cell.needed("p50_ms").value for cell in paths[path]} for path in LIMITS}
    shown = {path: some for path, some in paths.items() if path not in LIMITS}
    marks = {path: mark for path, mark in marks_of(cells(view)).items() if path in shown}
    intensity = {value: gemm / roofs["read"][value] for value, gemm in roofs["gemm"].items()}
    left, right = min(*intensity.values(), 0.5) / 2, max(*intensity.values(), 2) * 2
    flagged = dict.fromkeys(code for some in shown.values() for cell in some for code in cell.flags)
    foot = [Line(f"flagged, no claim is made: {', '.join(flagged)}", SMALL, ALARM, "bold")] * bool(flagged)
    head = (
        "P50s. Up: time of the call's multiply-adds alone / time of the call. Across: that time / time of"
        " reading its bytes alone. Lines: no call can be above them. Numbers: how much of its limit a call"
        f" reaches (reading, multiplying or NumPy's calls, the longest), and {varied_axis(view)}."
    )
    figure, (panel,) = page(view, marks, (260,), "how near to the roofs", head, *foot)
    panel.plot([left, 1, right], [left, 1, 1], color=INK, linewidth=1.2, gid="roof")
    panel.set_xscale("log")
    ticks = [tick for n in range(-3, 5) for tick in (10**n, 2 * 10**n, 5 * 10**n) if left < tick < right]
    panel.set_xticks(ticks, [f"{tick:,.4g}" for tick in ticks])
    panel.set_xticks([], minor=True)
    seen = [left, 1.0]
    for side, (path, some) in zip((1, -1), shown.items(), strict=True):
        for cell in some:
            x, y = intensity[cell.value], roofs["gemm"][cell.value] / cell.needed("p50_ms").value
            panel.plot([x], [y], marks[path].marker, color=marks[path].color, gid=f"{path}-{cell.value}")
            label = f"{cell.needed('of_limit').value:.0%} {cell.value}"
            # Slanted, ours above and theirs below: values may lie close together.
            panel.annotate(
                *(label, (x, y), (4 * side, 4 * side)),
                textcoords="offset points",
                ha="left" if side > 0 else "right",
                va="bottom" if side > 0 else "top",
                rotation=35,
                rotation_mode="anchor",
                size=SMALL,
                color=FAINT,
            )
            seen += [y, 0.7 * y]  # the label below has room
    scale(panel, seen, "multiply-adds alone / call", log=True)
    panel.set_xlim(left, right)
    panel.set_xlabel("intensity: multiply-adds alone / reading alone, log scale")
    return svg(figure, view)

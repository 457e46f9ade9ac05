"""How much longer or shorter than the baseline each path takes, paired within each round.

Beside it stands what could feign a difference: the baseline against itself (A/A), and the smallest effect
that the claim rule (analysis/claim_rule.py) accepts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inference_lab.analysis.rounds import Rounds, rounds_of
from inference_lab.analysis.statistics import Estimate
from inference_lab.analysis.summary_table import View
from inference_lab.figures.cells import Cell, by_path, cells, known
from inference_lab.figures.sheet import (
    READ_INTERVAL,
    Sheet,
    line,
    marks_of,
    point,
    samples,
    sheet,
    timed_call,
)
from inference_lab.figures.style import FAINT, INK, Axes, scale, styled, svg


@styled()
def draw(view: View) -> str:
    """SVG of the time ratio path / baseline over the varied axis, with the claim threshold and A/A band.

    Raises RecordError when a row of the summary is malformed.
    """
    measured = cells(view)
    baseline = measured[0].text("baseline")
    base = {cell.value: cell for cell in measured if cell.path == baseline}
    compared = [_with_flags_of(base.get(cell.value), cell) for cell in measured if cell.path != baseline]
    aa = {cell.value: found for cell in measured if (found := cell.estimate("aa_ratio"))}
    least, timed = measured[0].number("smallest_effect"), rounds_of(view.record)
    read = [
        f"Mark: median ratio, filled when the difference is claimed. {READ_INTERVAL} Light points: the"
        " ratio of every round, left to right in the order measured."
        if compared
        else "One path was measured: nothing to compare.",
        f"Dashed: the smallest effect that is claimed, {least:.1%} either way.",
        "Grey: the baseline measured against itself (A/A)." if aa else "A/A was not measured.",
    ]
    shown, title = compared or measured, f"time of {timed_call(view)} relative to {baseline}"
    heights = (210, 140) if compared else (240,)
    page = sheet(view, shown, marks_of(measured), heights, title, " ".join(read))
    medians, rounds = page.panels[0], page.panels[-1]
    for gid, bound in (("claim-above", 1 + least), ("claim-below", 1 / (1 + least))):
        medians.axhline(bound, color=INK, linewidth=0.8, linestyle=(0, (5, 3)), zorder=1.5, gid=gid)
    _draw_aa(medians, page, shown, aa)
    seen = [0.9, 1 / 0.9, 1 + least, 1 / (1 + least), *known(list(aa.values()))]
    each: list[float] = []
    for row in by_path(compared).values():
        ratios = [cell.needed("ratio") for cell in row]
        seen += known(ratios)
        line(medians, page, row, ratios)
        for cell, ratio in zip(row, ratios, strict=True):
            point(medians, page, cell, ratio, "ratio", hollow=cell.text("ratio_claimed") != "yes")
            each += (of_rounds := _of_rounds(timed, cell, baseline))
            samples(rounds, page, cell, of_rounds)
    for panel in page.panels:
        panel.axhline(1, color=INK, linewidth=0.8, zorder=1.5)
    if compared:
        scale(rounds, each, "every round", log=True)
    scale(medians, seen, f"time / time of {baseline}", log=True)
    return svg(page.figure, view)


def _with_flags_of(base: Cell | None, cell: Cell) -> Cell:
    """A ratio is in doubt when either of its two sides is."""
    others = base.flags if base else []
    flags = [*cell.flags, *(flag for flag in others if flag not in cell.flags)]
    return replace(cell, row={**cell.row, "flags": " ".join(flags)})


def _of_rounds(timed: Rounds, cell: Cell, baseline: str) -> list[float]:
    """The cell's time over the baseline's for each round, in the order measured."""
    key = cell.path, cell.value
    return (timed.times[key] / timed.times[baseline, cell.value]).ravel().tolist()


def _draw_aa(panel: Axes, page: Sheet, shown: Sequence[Cell], aa: Mapping[int, Estimate]) -> None:
    for value, estimate in aa.items():
        slots = [page.slot(cell) for cell in shown if cell.value == value]
        left, right = min(slot.at(-1) for slot in slots), max(slot.at(1) for slot in slots)
        panel.plot(
            [left, right], [estimate.value] * 2, color=FAINT, linewidth=1, zorder=1.2, gid=f"aa-{value}"
        )
        if estimate.lo is not None and estimate.hi is not None:
            low, high = estimate.lo, estimate.hi
            corners = [left, right, right, left], [low, low, high, high]
            panel.fill(*corners, color="#c8c8c8", linewidth=0, zorder=1, gid=f"aa-band-{value}")

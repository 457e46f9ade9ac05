"""How far the laboratory may be believed: every comparison of a selfcheck, shares claimed, coverage."""

from inference_lab.analysis.selfcheck import AMONG, covers_one, trials, valid
from inference_lab.analysis.statistics import ALPHA
from inference_lab.analysis.summary_table import View
from inference_lab.errors import RecordError
from inference_lab.figures.panels import estimate_of
from inference_lab.figures.style import (
    FAINT,
    INK,
    MARKS,
    Axes,
    Figure,
    Line,
    Mark,
    drawing,
    interval,
    new_figure,
)

GOALS = {0: 0.02, 5: 0.85, 10: 0.95}  # by percent of extra work: at most, then at least this share claimed
LEGEND: dict[str, Mark] = dict(
    zip(("claimed", "not claimed", "share claimed where A/A is narrow"), MARKS, strict=False)
)
WIDE = 0.8


@drawing
def draw(view: View) -> Figure:
    """Draw every ratio by what was put into it, the share claimed of each, and coverage of 1 by run.

    Raises RecordError when a row of the summary is missing.
    """
    found = trials(view.record, view.judge)
    percents = sorted({trial.percent for trial in found})
    every, left_out = valid(found)
    runs = sorted({trial.run for trial in every})
    title = "differences claimed where none and where one was put in"
    head = f"{len(every)} comparisons of {len(runs)} runs, each path judged with the baseline as one record."
    head += f" Left out as invalid: run {', '.join(map(str, left_out))}." if left_out else ""
    read = (
        "Top: the median ratio of every comparison, left to right in the order of runs; the line is what was"
        " put in. Middle: share claimed of all runs, and of those whose A/A intervals are within 2% of their"
        " middle; the lines: at most 2%, at least 85% and 95%. Bottom: share of a run's equal comparisons"
        " whose interval holds 1; at the right all of them. Bars: 95% interval, runs as clusters."
    )
    figure, (ratios, shares, coverage) = new_figure(view, LEGEND, (220, 130, 110), title, head, Line(read))
    for place, percent in enumerate(percents):
        some = [trial for trial in every if trial.percent == percent]
        for claimed, mark in ((True, MARKS[0]), (False, MARKS[1])):
            numbers = [i for i, trial in enumerate(some) if trial.claimed == claimed]
            places = [place + WIDE * ((i + 0.5) / len(some) - 0.5) for i in numbers]
            heights = [100 * (some[i].comparison.ratio.value - 1) for i in numbers]
            ratios.plot(places, heights, mark.marker, color=mark.color, alpha=0.6, markersize=2.6,
                        markeredgewidth=0, zorder=2)  # fmt: skip
        _level(ratios, place, percent)
        if percent in GOALS:
            _level(shares, place, 100 * GOALS[percent])
        for among, mark, at in ((AMONG[0], MARKS[0], -0.2), (AMONG[1], MARKS[2], 0.2)):
            _share(view, shares, place + at, mark, "claimed_share", (among, str(percent)))
    for panel in (ratios, shares):
        panel.set_xlim(-0.5, len(percents) - 0.5)
        panel.set_xticks(range(len(percents)), [f"+{p}%" if p else "equal" for p in percents])
    ratios.tick_params(labelbottom=False)
    ratios.set_ylabel("ratio to the baseline, %")
    shares.set_ylabel("claimed, %")
    shares.set_ylim(-4, 104)

    covered = [
        [covers_one(trial) for trial in every if (trial.run, trial.percent) == (run, 0)] for run in runs
    ]
    held = [100 * sum(some) / len(some) for some in covered]
    last = max(runs, default=0)
    coverage.plot(runs, held, MARKS[3].marker, color=MARKS[3].color, ls="", ms=4)
    _share(view, coverage, last + 2, MARKS[0], "covers_one_share", (AMONG[0], "0"))
    coverage.axhline(100 * (1 - ALPHA), color=INK, linewidth=0.8, linestyle=(0, (5, 3)))
    coverage.set_xticks([0, last, last + 2], ["0", str(last), "all"])
    coverage.set_xlabel("run")
    coverage.set_ylabel("holds 1, %")
    coverage.set_ylim(min([*held, 80]) - 4, 104)
    return figure


def _level(panel: Axes, place: int, value: float) -> None:
    panel.plot([place - WIDE / 2, place + WIDE / 2], [value] * 2, color=FAINT, linewidth=1, zorder=3)


def _share(view: View, panel: Axes, at: float, mark: Mark, of: str, wanted: tuple[str, str]) -> None:
    """One share of the summary with its interval; nothing where the summary leaves it empty."""
    row = next((row for row in view.summary if (row["among"], row["effect_percent"]) == wanted), None)
    if row is None:
        raise RecordError(f"summary.csv of selfcheck: no row {' '.join(wanted)}; rebuild it from raw.csv")
    if share := estimate_of(row, of, 100):
        interval(panel, at, share, mark)

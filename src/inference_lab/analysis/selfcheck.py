"""summary.csv of a selfcheck: how often equal calls were told apart, and how often different ones.

Each run is judged as a record of its own, and each path of it as the one path of an experiment with the
baseline, by the same functions that judge every record.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import betaincinv, stdtrit

from inference_lab.analysis.flags import Flag, Judged, judge_rounds
from inference_lab.analysis.rounds import Rounds, rounds_of
from inference_lab.analysis.statistics import ALPHA, Comparison, Estimate, estimate, excludes_one
from inference_lab.analysis.summary_table import SEPARATOR, as_text, bounded, with_bounds
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record, csv_text

OF_A_RECORD = frozenset({"threads", "busy"})  # with one of these a run is left out
NARROW = 0.02  # widest half-width of an A/A interval with which +5% has to be seen
AMONG = ("all", f"aa_within_{100 * NARROW:.0f}_percent")
SHARES = ("claimed_share", "unclaimed_share", "covers_one_share", "ratio")
COLUMNS = (
    *("among", "effect_percent", "runs", "runs_left_out", "n", "flagged"),
    *(name for share in SHARES for name in bounded(share)),
    *("covers_as_stated", "least_effect_p50", "least_effect_max", "flags", "advice"),
)


@dataclass(frozen=True)
class Trial:
    """One comparison: the path, the percent of work put into it, and what the laboratory said."""

    run: int
    path: str
    value: int
    comparison: Comparison
    claimed: bool
    flags: Sequence[Flag]
    least: float  # the smallest effect claimed in this run
    aa_half_width: float  # the widest of the run; inf where n bounds none

    @property
    def percent(self) -> int:
        """How much more work the path is than the baseline."""
        return int(self.path.removeprefix("plus_")) if self.path.startswith("plus_") else 0


def trials(record: Record, judge: Judge) -> list[Trial]:
    """Every comparison of every run. Raises RecordError when the rows are not what the manifest declares."""
    whole, size = rounds_of(record), record.manifest["conditions"]["processes"]
    found: list[Trial] = []
    for run, seen in enumerate(record.manifest["runs"]):
        environment = {**record.manifest["environment"], **seen}
        here = replace(record, manifest={**record.manifest, "environment": environment})
        for path in whole.paths:
            if path != whole.baseline:
                part = _part(whole, slice(run * size, (run + 1) * size), path)
                found += _trials(run, judge_rounds(here, part, judge), whole.baseline)
    return found


def _trials(run: int, judged: Judged, baseline: str) -> Iterator[Trial]:
    widths = [width for one in judged.same.values() if (width := one.ratio.half_width) is not None]
    widest, least = max(widths, default=math.inf), judged.smallest_effect
    for (path, value), comparison in judged.ratios.items():
        flags = [*judged.flags[path, value], *judged.flags[baseline, value]]
        named = [flag for flag in flags if flag.code]
        yield Trial(run, path, value, comparison, judged.claimed[path, value], named, least, widest)


def valid(every: Sequence[Trial]) -> tuple[list[Trial], dict[int, Flag]]:
    """The trials of runs that are valid as a whole, and why the other runs are not."""
    bad = {t.run: flag for t in every for flag in t.flags if flag.code in OF_A_RECORD}
    return [trial for trial in every if trial.run not in bad], bad


def _part(whole: Rounds, processes: slice, path: str) -> Rounds:
    """The rounds of one run, as if it had timed the baseline and this path alone."""
    cells = [cell for cell in whole.times if cell[0] in (whole.baseline, path)]
    return replace(
        whole,
        paths=[whole.baseline, path],
        cells={cell: whole.cells[cell] for cell in cells},
        times={cell: whole.times[cell][processes] for cell in cells},
        replica={value: times[processes] for value, times in whole.replica.items()},
        probe=None if whole.probe is None else whole.probe[processes],
    )


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv: a row for each size of effect, over all runs and over those with narrow A/A.

    A run that is invalid as a whole is left out and counted; where none is left, the row has its flags.
    Raises RecordError as `trials`.
    """
    every = trials(record, judge)
    good, bad = valid(every)
    rows: list[dict[str, object]] = []
    for among in AMONG:
        for percent in sorted({trial.percent for trial in every}):
            some = [t for t in good if t.percent == percent and (among == "all" or t.aa_half_width <= NARROW)]
            named = [f"run {run} is left out: {flag.advice}" for run, flag in bad.items()]
            if percent == 0:
                named += [f"claimed although equal: {_named(trial)}" for trial in some if trial.claimed]
            flags = " ".join(sorted({flag.code for flag in bad.values()})) if not good else ""
            row = {"among": among, "effect_percent": percent, "runs_left_out": len(bad), "flags": flags}
            rows.append({**row, **_numbers(some), "advice": SEPARATOR.join(named if among == "all" else ())})
    return csv_text(COLUMNS, rows)


def _numbers(some: Sequence[Trial]) -> dict[str, str]:
    """What a row says of these comparisons, without what it is about."""
    runs = [[trial for trial in some if trial.run == run] for run in dict.fromkeys(t.run for t in some)]
    numbers: dict[str, object] = {
        "runs": len(runs),
        "n": len(some),
        "flagged": sum(bool(t.flags) for t in some),
    }
    if some:
        ratios = np.array([trial.comparison.ratio.value for trial in some])
        numbers |= with_bounds("claimed_share", share([t.claimed for t in run] for run in runs).bounds)
        numbers |= with_bounds("unclaimed_share", share([not t.claimed for t in run] for run in runs).bounds)
        numbers |= with_bounds("ratio", estimate(ratios, 0.5).bounds)
        if some[0].percent == 0:
            _, lo, hi = covers = share([covers_one(t) for t in run] for run in runs).bounds
            stated = lo is not None and hi is not None and lo <= 1 - ALPHA <= hi
            numbers |= with_bounds("covers_one_share", covers) | {"covers_as_stated": as_text(stated)}
        least = [run[0].least for run in runs]
        numbers |= {"least_effect_p50": float(np.percentile(least, 50)), "least_effect_max": max(least)}
    return {name: f"{x:.6g}" if isinstance(x, float) else as_text(x) for name, x in numbers.items()}


def covers_one(trial: Trial) -> bool:
    """Whether the interval of the ratio holds 1."""
    return not excludes_one(trial.comparison.ratio.bounds[1:])


def share(of_runs: Iterable[Sequence[bool]]) -> Estimate:
    """The share of hits with its 95% interval, when comparisons of one run are more alike than of two.

    Korn & Graubard, Survey Methodology 24 (1998) 193: Clopper & Pearson's bounds at the number of
    comparisons divided by the design effect and by the squared ratio of the t quantiles, never more than
    there are. One run alone bounds nothing: open on both sides.
    """
    runs = [list(hits) for hits in of_runs]
    n, k = sum(map(len, runs)), len(runs)
    hits = sum(map(sum, runs))
    p = hits / n
    if k < 2:
        return Estimate(p, None, None, n)
    variance = k / (k - 1) * sum((sum(run) - p * len(run)) ** 2 for run in runs) / n**2
    effective = p * (1 - p) / variance if variance and 0 < hits < n else n
    t = [float(stdtrit(df, 1 - ALPHA / 2)) for df in (n - 1, k - 1)]
    effective = min(n, effective * (t[0] / t[1]) ** 2)
    x = p * effective
    low = float(betaincinv(x, effective - x + 1, ALPHA / 2)) if hits else 0.0
    high = float(betaincinv(x + 1, effective - x, 1 - ALPHA / 2)) if hits < n else 1.0
    return Estimate(p, low, high, n)


def _named(trial: Trial) -> str:
    ratio, lo, hi = trial.comparison.ratio.bounds
    return f"run {trial.run} {trial.path} at {trial.value}: {ratio:.4g} [{lo or 0:.4g}, {hi or 0:.4g}]"

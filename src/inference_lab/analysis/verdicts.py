"""What a record says about a prediction: one verdict per claim, with interval, n and the rows it rests on.

docs/glossary.md defines the verdicts. "Less" is decided by the claim rule (claim_rule.py).
"""

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import NamedTuple

from inference_lab.analysis.comparisons import Cell, Evidence, NoEvidence, Quantity
from inference_lab.analysis.knee import measured_knee
from inference_lab.analysis.statistics import Estimate, Interval, short, within
from inference_lab.analysis.summary_table import View, as_text, in_words
from inference_lab.config.prediction import Claim, Equal, Knee, LessThan, Order, Prediction, Ratio, Slope
from inference_lab.errors import ConfigError

CHANGED = "prediction changed after measuring"
_VERDICT = {True: "Supported", False: "Refuted", None: "Inconclusive"}


class Finding(NamedTuple):
    """A verdict and what it rests on: the columns of verdicts.csv after those of the claim."""

    verdict: str
    value: float | str | None = None  # text where a column holds words
    lo: float | None = None
    hi: float | None = None
    n: int | None = None
    rows: str = ""
    reason: str = ""


COLUMNS = ("id", "kind", "says", *Finding._fields)


def evaluate(prediction: Prediction, view: View, *, prediction_changed: bool) -> list[dict[str, str]]:
    """Return one row of verdicts.csv (COLUMNS) for each claim, in the order of the prediction.

    Raises ConfigError when a claim names a column the summary does not have or a cell that fits several
    rows; a cell that was not measured makes the claim Inconclusive.
    """
    evidence = Evidence(view)
    mark = f"{CHANGED}; " if prediction_changed else ""
    rows: list[dict[str, str]] = []
    for claim in prediction.claims:
        try:
            found = _finding(claim, evidence)
        except NoEvidence as missing:
            found = Finding(_VERDICT[None], reason=str(missing))
        found = found._replace(reason=mark + found.reason)
        row = (claim.id, claim.kind, claim.says, *map(as_text, found))
        rows.append(dict(zip(COLUMNS, row, strict=True)))
    return rows


def _finding(claim: Claim, evidence: Evidence) -> Finding:
    match claim:
        case Ratio():
            ratio = evidence.ratio(claim.of, *_cells(claim, claim.at, claim.over))
            return _within(ratio, claim.within)
        case LessThan():
            return _less_than(claim, evidence)
        case Equal():
            return _equal(claim, evidence)
        case Order():
            return _order(claim, evidence)
        case Slope():
            return _slope(claim, evidence)
        case Knee():
            return _knee(claim, evidence)


def _cells(claim: Claim, *cells: Cell) -> list[Cell]:
    """The cells, each with the claim's own path unless it names one."""
    return [{**({"path": claim.path} if claim.path else {}), **cell} for cell in cells]


def _less_than(claim: LessThan, evidence: Evidence) -> Finding:
    at, over = _cells(claim, claim.at, claim.over)
    if not claim.over:
        below = -math.inf, math.nextafter(claim.value, -math.inf)
        return _within(evidence.value(claim.of, at), below, f"below {claim.value}")
    less, ratio = evidence.less(claim.of, at, over)
    return _of(ratio, less, "no difference may be claimed" if less is None else "by the claim rule")


def _equal(claim: Equal, evidence: Evidence) -> Finding:
    of, wanted, (at, over) = claim.of, claim.value, _cells(claim, claim.at, claim.over)
    if claim.over:
        most = 1 + claim.tolerance
        return _within(evidence.ratio(of, at, over), (1 / most, most))
    row = evidence.row(of, at)
    if not evidence.is_exact(of):
        raise NoEvidence(f"{of} is an estimate and equals no number exactly; compare cells, with a tolerance")
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and row[of]
    equal = evidence.number(row, of) == wanted if is_number else row[of] == as_text(wanted)
    reason = f"it is {row[of] or 'undefined'}, predicted was {as_text(wanted) or 'undefined'}"
    return Finding(_VERDICT[equal], row[of], n=1, rows=f"{of} at {in_words(at)}", reason=reason)


def _order(claim: Order, evidence: Evidence) -> Finding:
    cells = _cells(claim, *claim.cells)
    steps = [evidence.less(claim.of, *pair) for pair in pairwise(cells)]
    answers = [less for less, _ in steps]
    verdict = False if False in answers else None if None in answers else True
    rows = " < ".join(in_words(cell) for cell in cells)
    reason = "each step up is claimed"
    if verdict is not True:
        ratio = steps[answers.index(verdict)][1]
        what = "no difference may be claimed" if verdict is None else "it descends"
        reason = f"{what}: {ratio.rows} is {ratio.estimate.value:.4g}"
    n = steps[0][1].estimate.n
    return Finding(_VERDICT[verdict], n=n, rows=f"{claim.of} at {rows}", reason=reason)


def _slope(claim: Slope, evidence: Evidence) -> Finding:
    what, values = f"{evidence.place}: claim {claim.id}", evidence.values
    if not values or not all(isinstance(value, int | float) for value in values):
        raise ConfigError(f"{what} needs a varied axis of numbers; {evidence.axis or 'none'} is varied")
    start, end = claim.start or min(values), claim.end or max(values)
    if start >= end:
        raise ConfigError(f"{what} goes from {start} to {end}; a slope needs a smaller and a larger value")
    at, over = _cells(claim, *({**claim.at, evidence.axis: value} for value in (end, start)))
    ratio = evidence.ratio(claim.of, at, over)
    if ratio.estimate.value <= 0:
        raise NoEvidence(f"{ratio.rows} is {ratio.estimate.value:.4g}: it has no logarithm")
    apart = (Decimal(end) / Decimal(start)).ln()

    def power(ratio: float) -> float:  # Decimal.ln is rounded correctly, the same on every machine
        return float(Decimal(float(ratio)).ln() / apart)

    def bounds(interval: Interval) -> Interval:
        lo, hi = interval
        return (None if lo is None or lo <= 0 else power(lo)), (None if hi is None else power(hi))

    slope = Estimate(power(ratio.estimate.value), *bounds(ratio.estimate.bounds[1:]), ratio.estimate.n)
    intervals = [bounds(interval) for interval in ratio.intervals]
    return _within(Quantity(slope, intervals, f"log-log of {ratio.rows}"), claim.within)


def _knee(claim: Knee, evidence: Evidence) -> Finding:
    factor = evidence.view.judge.knee_factor
    if factor is None:
        raise ConfigError(f"{evidence.place}: claim {claim.id} needs knee_factor under judge; declare it")
    (rest,) = _cells(claim, claim.at)
    knee = measured_knee(evidence, claim.of or "positions_per_s", rest, factor)
    low, high = claim.within  # infinite where the claim is not_reached: beyond everything measured
    if knee.lo is not None and knee.hi is not None:
        verdict = _VERDICT[within([(knee.lo, knee.hi)], low, high)]
    elif knee.answer == "Inconclusive" or low == math.inf:
        verdict = "Supported" if knee.answer == "Not reached" else "Inconclusive"
    else:
        verdict = "Not reached" if high > knee.doublings[-1].value else "Refuted"
    rows = "; ".join(f"{step.gain.rows}: {short(step.gain.estimate.value)}" for step in knee.doublings)
    return Finding(verdict, None, knee.lo, knee.hi, knee.doublings[0].gain.estimate.n, rows, str(knee))


def _within(quantity: Quantity, bounds: Sequence[float], words: str = "") -> Finding:
    low, high = bounds
    answer = within(quantity.intervals, low, high)
    lies = {True: "lies", False: "does not lie", None: "does not surely lie"}[answer]
    return _of(quantity, answer, f"it {lies} {words or f'inside [{low:.9g}, {high:.9g}]'}")


def _of(quantity: Quantity, answer: bool | None, reason: str) -> Finding:
    found = quantity.estimate
    return Finding(_VERDICT[answer], *found.bounds, found.n, quantity.rows, reason)

"""What a record says about a prediction: one verdict per claim, with interval, n and the rows it rests on.

Supported      the whole interval lies inside what was predicted
Refuted        the whole interval lies outside
Not reached    a knee was predicted beyond what was measured, and growth had not ended by then
Inconclusive   the interval straddles, a cell is flagged or the evidence is missing

"Less" is decided by the claim rule (claim_rule.py), over the same family as in the summary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from inference_lab.analysis.comparisons import Cell, Evidence, NoEvidence, Quantity
from inference_lab.analysis.knee import measured_knee
from inference_lab.analysis.statistics import Estimate, Interval, short, within
from inference_lab.analysis.summary_table import View, as_text, in_words
from inference_lab.config.prediction import Claim, Equal, Knee, LessThan, Order, Prediction, Ratio, Slope
from inference_lab.errors import ConfigError
from inference_lab.records.record import csv_text

COLUMNS = ("id", "kind", "says", "verdict", "value", "lo", "hi", "n", "rows", "reason")
CHANGED = "prediction changed after measuring"


@dataclass(frozen=True)
class Finding:
    """A verdict and what it rests on; `value` is text where a column holds words."""

    verdict: str
    reason: str
    value: float | str | None = None
    bounds: Interval = (None, None)
    n: int | None = None
    rows: str = ""


def evaluate(prediction: Prediction, view: View, *, prediction_changed: bool) -> list[dict[str, str]]:
    """Return one row of verdicts.csv (COLUMNS) for each claim, in the order of the prediction.

    Raises ConfigError when a claim names a column the summary does not have or a cell that fits several
    rows; a cell that was not measured makes the claim Inconclusive.
    """
    evidence = Evidence(view)
    mark = f"{CHANGED}; " if prediction_changed else ""
    return [_row(claim, _finding(claim, evidence), mark) for claim in prediction.claims]


def verdicts_csv(verdicts: Sequence[Mapping[str, str]]) -> str:
    """Return the text of verdicts.csv."""
    return csv_text(COLUMNS, verdicts)


def _row(claim: Claim, finding: Finding, mark: str) -> dict[str, str]:
    numbers = (finding.value, *finding.bounds, finding.n)
    texts = ["" if x is None else x if isinstance(x, str) else f"{x:.9g}" for x in numbers]
    first = (claim.id, claim.kind, claim.says, finding.verdict)
    return dict(zip(COLUMNS, (*first, *texts, finding.rows, mark + finding.reason), strict=True))


def _finding(claim: Claim, evidence: Evidence) -> Finding:
    try:
        match claim:
            case Ratio():
                at, over = _cells(claim, claim.at, claim.over)
                low, high = claim.within
                return _within(evidence.ratio(claim.of, at, over), low, high)
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
    except NoEvidence as missing:
        return Finding("Inconclusive", str(missing))


def _cells(claim: Claim, *cells: Cell) -> list[Cell]:
    """The cells, each with the claim's own path unless it names one."""
    return [{**({"path": claim.path} if claim.path else {}), **cell} for cell in cells]


def _less_than(claim: LessThan, evidence: Evidence) -> Finding:
    at, over = _cells(claim, claim.at, claim.over)
    if not claim.over:
        below = math.nextafter(claim.value, -math.inf)
        return _within(evidence.value(claim.of, at), -math.inf, below, f"below {claim.value}")
    less, ratio = evidence.less(claim.of, at, over)
    return _of(ratio, less, "no difference may be claimed" if less is None else "by the claim rule")


def _equal(claim: Equal, evidence: Evidence) -> Finding:
    of, wanted, (at, over) = claim.of, claim.value, _cells(claim, claim.at, claim.over)
    if claim.over:
        most = 1 + claim.tolerance
        return _within(evidence.ratio(of, at, over), 1 / most, most)
    row = evidence.row(of, at)
    if not evidence.is_exact(of):
        raise NoEvidence(f"{of} is an estimate and equals no number exactly; compare cells, with a tolerance")
    if isinstance(wanted, int | float) and not isinstance(wanted, bool) and row[of]:
        equal = evidence.number(row, of) == wanted
    else:
        equal = row[of] == as_text(wanted)
    reason = f"it is {row[of] or 'undefined'}, predicted was {as_text(wanted) or 'undefined'}"
    return Finding(_VERDICT[equal], reason, row[of], n=1, rows=f"{of} at {in_words(at)}")


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
    return Finding(_VERDICT[verdict], reason, n=steps[0][1].estimate.n, rows=f"{claim.of} at {rows}")


def _slope(claim: Slope, evidence: Evidence) -> Finding:
    what = f"{evidence.place}: claim {claim.id}"
    if not evidence.values or not all(isinstance(value, int | float) for value in evidence.values):
        raise ConfigError(f"{what} needs a varied axis of numbers; {evidence.axis or 'none'} is varied")
    start, end = claim.start or min(evidence.values), claim.end or max(evidence.values)
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
    quantity = Quantity(slope, [bounds(interval) for interval in ratio.intervals], f"log-log of {ratio.rows}")
    low, high = claim.within
    return _within(quantity, low, high)


def _knee(claim: Knee, evidence: Evidence) -> Finding:
    factor = evidence.view.judge.knee_factor
    if factor is None:
        raise ConfigError(f"{evidence.place}: claim {claim.id} needs knee_factor under judge; declare it")
    (rest,) = _cells(claim, claim.at)
    knee = measured_knee(evidence, claim.of or "positions_per_s", rest, factor)
    low, high = claim.within  # infinite where the claim is not_reached: beyond everything measured
    if knee.lo is not None and knee.hi is not None:
        verdict = _VERDICT[within([(knee.lo, knee.hi)], low, high)]
    elif knee.answer == "Inconclusive":
        verdict = "Inconclusive"
    elif low == math.inf:
        verdict = "Supported"
    else:
        verdict = "Not reached" if high > knee.doublings[-1].value else "Refuted"
    rows = "; ".join(f"{step.gain.rows}: {short(step.gain.estimate.value)}" for step in knee.doublings)
    return Finding(verdict, str(knee), None, (knee.lo, knee.hi), knee.doublings[0].gain.estimate.n, rows)


_VERDICT = {True: "Supported", False: "Refuted", None: "Inconclusive"}


def _within(quantity: Quantity, low: float, high: float, words: str = "") -> Finding:
    words = words or f"inside [{low:.9g}, {high:.9g}]"
    answer = within(quantity.intervals, low, high)
    lies = {True: "lies", False: "does not lie", None: "does not surely lie"}[answer]
    return _of(quantity, answer, f"it {lies} {words}")


def _of(quantity: Quantity, answer: bool | None, reason: str) -> Finding:
    found = quantity.estimate
    return Finding(_VERDICT[answer], reason, found.value, (found.lo, found.hi), found.n, quantity.rows)

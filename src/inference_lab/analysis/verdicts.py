"""What a record says about a prediction: one verdict a claim, with interval, n and the rows it rests on.

Supported      the whole interval lies inside what was predicted
Refuted        the whole interval lies outside
Not reached    a knee was predicted beyond what was measured, and growth had not ended by then
Inconclusive   the interval straddles, a cell is flagged or the evidence is missing

"Less" is decided by the claim rule (claim_rule.py), over the same family as in the summary.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any

from inference_lab.analysis.comparisons import Cell, Evidence, NoEvidence, Quantity
from inference_lab.analysis.knee import measured_knee
from inference_lab.analysis.statistics import Estimate, Interval, short, within
from inference_lab.analysis.summary_table import View, as_text, in_words
from inference_lab.config.prediction import Prediction
from inference_lab.errors import ConfigError

COLUMNS = ("id", "kind", "says", "verdict", "value", "lo", "hi", "n", "rows", "reason")
CHANGED = "prediction changed after measuring"
Claim = Mapping[str, Any]


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
    """One row of verdicts.csv (COLUMNS) a claim, in the order of the prediction.

    Raises ConfigError when a claim names a column the summary does not have or a cell that fits several
    rows; a cell that was not measured makes the claim Inconclusive.
    """
    every = [{**claim, **_with_path(claim)} for claim in (claim.given() for claim in prediction.claims)]
    evidence = Evidence(view)
    findings = [_finding(claim, evidence) for claim in every]
    mark = f"{CHANGED}; " if prediction_changed else ""
    return [_row(claim, finding, mark) for claim, finding in zip(every, findings, strict=True)]


def verdicts_csv(verdicts: Iterable[Mapping[Any, str]]) -> str:
    """The text of verdicts.csv."""
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(verdicts)
    return text.getvalue()


def _row(claim: Claim, finding: Finding, mark: str) -> dict[str, str]:
    numbers = (finding.value, *finding.bounds, finding.n)
    texts = ["" if x is None else x if isinstance(x, str) else f"{x:.9g}" for x in numbers]
    first = (claim["id"], claim["kind"], claim["says"], finding.verdict)
    return dict(zip(COLUMNS, (*first, *texts, finding.rows, mark + finding.reason), strict=True))


def _with_path(claim: Claim) -> dict[str, Any]:
    """The cells of a claim, each with the claim's own path unless it names one."""
    default: Cell = {"path": claim["path"]} if "path" in claim else {}
    cells: dict[str, Any] = {key: {**default, **claim[key]} for key in ("at", "over") if key in claim}
    if "cells" in claim:
        cells["cells"] = [{**default, **cell} for cell in claim["cells"]]
    return cells


def _rest(claim: Claim) -> Cell:
    """What the cells of a claim over the whole axis have in common beside it."""
    path: Cell = {"path": claim["path"]} if "path" in claim else {}
    return {**path, **claim.get("at", {})}


def _finding(claim: Claim, evidence: Evidence) -> Finding:
    judges: Mapping[str, Callable[[Claim, Evidence], Finding]] = {
        "ratio": _ratio,
        "less_than": _less_than,
        "equal": _equal,
        "order": _order,
        "slope": _slope,
        "knee": _knee,
    }
    try:
        return judges[claim["kind"]](claim, evidence)
    except NoEvidence as missing:
        return Finding("Inconclusive", str(missing))


def _ratio(claim: Claim, evidence: Evidence) -> Finding:
    low, high = claim["within"]
    return _within(evidence.ratio(claim["of"], claim["at"], claim["over"]), low, high)


def _less_than(claim: Claim, evidence: Evidence) -> Finding:
    if "over" not in claim:
        value = evidence.value(claim["of"], claim["at"])
        return _within(value, -math.inf, math.nextafter(claim["value"], -math.inf), f"below {claim['value']}")
    less, ratio = evidence.less(claim["of"], claim["at"], claim["over"])
    return _of(ratio, less, "no difference may be claimed" if less is None else "by the claim rule")


def _equal(claim: Claim, evidence: Evidence) -> Finding:
    of, at = claim["of"], claim["at"]
    if "over" in claim:
        most = 1 + claim["tolerance"]
        return _within(evidence.ratio(of, at, claim["over"]), 1 / most, most)
    row, wanted = evidence.row(of, at), claim["value"]
    if not evidence.is_exact(of):
        raise NoEvidence(f"{of} is an estimate and equals no number exactly; compare cells, with a tolerance")
    if isinstance(wanted, int | float) and not isinstance(wanted, bool) and row[of]:
        equal = evidence.number(row, of) == wanted
    else:
        equal = row[of] == as_text(wanted)
    reason = f"it is {row[of] or 'undefined'}, predicted was {as_text(wanted) or 'undefined'}"
    return Finding(_VERDICT[equal], reason, row[of], n=1, rows=f"{of} at {in_words(at)}")


def _order(claim: Claim, evidence: Evidence) -> Finding:
    steps = [evidence.less(claim["of"], *pair) for pair in pairwise(claim["cells"])]
    answers = [less for less, _ in steps]
    verdict = False if False in answers else None if None in answers else True
    rows = " < ".join(in_words(cell) for cell in claim["cells"])
    reason = "each step up is claimed"
    if verdict is not True:
        ratio = steps[answers.index(verdict)][1]
        what = "no difference may be claimed" if verdict is None else "it descends"
        reason = f"{what}: {ratio.rows} is {ratio.estimate.value:.4g}"
    return Finding(_VERDICT[verdict], reason, n=steps[0][1].estimate.n, rows=f"{claim['of']} at {rows}")


def _slope(claim: Claim, evidence: Evidence) -> Finding:
    what = f"{evidence.place}: claim {claim['id']}"
    if not evidence.values or not all(isinstance(value, int | float) for value in evidence.values):
        raise ConfigError(f"{what} needs a varied axis of numbers; {evidence.axis or 'none'} is varied")
    start, end = claim.get("from", min(evidence.values)), claim.get("to", max(evidence.values))
    if start >= end:
        raise ConfigError(f"{what} goes from {start} to {end}; a slope needs a smaller and a larger value")
    rest = _rest(claim)
    ratio = evidence.ratio(claim["of"], {**rest, evidence.axis: end}, {**rest, evidence.axis: start})
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
    return _within(quantity, *claim["within"])


def _knee(claim: Claim, evidence: Evidence) -> Finding:
    factor = evidence.view.judge.knee_factor
    if factor is None:
        raise ConfigError(f"{evidence.place}: claim {claim['id']} needs knee_factor under judge; declare it")
    knee = measured_knee(evidence, claim.get("of", "positions_per_s"), _rest(claim), factor)
    low, high = claim.get("within", (math.inf, math.inf))  # not_reached: beyond everything measured
    if knee.lo is not None and knee.hi is not None:
        verdict = _VERDICT[within([(knee.lo, knee.hi)], low, high)]
    elif knee.answer == "Inconclusive":
        verdict = "Inconclusive"
    elif "within" in claim:
        verdict = "Not reached" if high > knee.doublings[-1].value else "Refuted"
    else:
        verdict = "Supported"
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

"""Verdicts for a reader: each claim in one sentence, with what was found and its unit."""

from collections.abc import Mapping, Sequence

from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import SummaryRow, as_text
from inference_lab.config.prediction import Claim, Equal

Verdict = Mapping[str, str]  # a row of verdicts.csv


def answers(
    claims: Sequence[Claim], verdicts: Sequence[Verdict], rows: Sequence[SummaryRow]
) -> list[dict[str, str]]:
    """Return the verdict on each claim, with what was `found` in words: interval, unit."""
    answered: list[dict[str, str]] = []
    for claim, verdict in zip(claims, verdicts, strict=True):
        answer = {**verdict, "found": _found(claim, verdict, rows)}
        decided = verdict["verdict"] in ("Supported", "Refuted")
        if decided and isinstance(claim, Equal) and not claim.over:
            is_so = verdict["verdict"] == "Supported"
            expected = as_text(claim.value) or "undefined"
            answer |= {"n": "", "reason": "as predicted" if is_so else f"predicted was {expected}"}
        answered.append(answer)
    return answered


def _found(claim: Claim, verdict: Verdict, rows: Sequence[SummaryRow]) -> str:
    value, *bounds = (verdict[name] for name in ("value", "lo", "hi"))
    if not value:
        return "undefined" if claim.kind == "equal" and verdict["n"] else ""
    try:
        lo, hi = (float(bound) if bound else None for bound in bounds)
        shown = with_interval(float(value), (lo, hi)) if any(bounds) and lo != hi else short(float(value))
    except ValueError:  # an observation in words
        shown = value
    return f"the power {shown}" if claim.kind == "slope" else f"{shown} {_unit(claim, rows)}".strip()


def _unit(claim: Claim, rows: Sequence[SummaryRow]) -> str:
    """Return the unit of what a claim is about: a ratio's is `times`, else its column's."""
    given = claim.given()
    if "over" in given:
        return "times"
    if claim.of in ("value", "median"):
        metric = given["at"].get("metric")
        return next((row["unit"] for row in rows if row.get("metric") == metric), "")
    if claim.of.endswith(("_ms", "_us")):
        return claim.of[-2:]
    return "positions/s" if claim.of == "positions_per_s" else ""

"""Verdicts for a reader: each claim in one sentence, with what was found and its unit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import SummaryRow, as_text


@dataclass(frozen=True)
class Answer:
    """A claim, its verdict, and the number with interval and unit that decided it."""

    claim: str
    verdict: str
    found: str
    n: str
    reason: str


def answers(
    claims: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, str]], rows: Sequence[SummaryRow]
) -> list[Answer]:
    """Return one answer per claim of a prediction."""
    return [_answer(claim, verdict, rows) for claim, verdict in zip(claims, verdicts, strict=True)]


def _answer(claim: Mapping[str, Any], verdict: Mapping[str, str], rows: Sequence[SummaryRow]) -> Answer:
    found, n, reason = _found(claim, verdict, rows), verdict["n"], verdict["reason"]
    if claim["kind"] == "equal" and "over" not in claim and verdict["verdict"] in ("Supported", "Refuted"):
        expected = as_text(claim["value"]) or "undefined"
        n, reason = "", "as predicted" if verdict["verdict"] == "Supported" else f"predicted was {expected}"
    return Answer(verdict["says"], verdict["verdict"], found, n, reason)


def _found(claim: Mapping[str, Any], verdict: Mapping[str, str], rows: Sequence[SummaryRow]) -> str:
    value, *bounds = (verdict[name] for name in ("value", "lo", "hi"))
    if not value:
        return "undefined" if claim["kind"] == "equal" and verdict["n"] else ""
    try:
        lo, hi = (float(bound) if bound else None for bound in bounds)
        shown = with_interval(float(value), (lo, hi)) if any(bounds) and lo != hi else short(float(value))
    except ValueError:  # an observation in words
        shown = value
    return f"the power {shown}" if claim["kind"] == "slope" else f"{shown} {_unit(claim, rows)}".strip()


def _unit(claim: Mapping[str, Any], rows: Sequence[SummaryRow]) -> str:
    """Return the unit of what a claim is about: a ratio's is `times`, else its column's."""
    if "over" in claim:
        return "times"
    of = str(claim["of"])
    if of in ("value", "median"):
        wanted = claim["at"].get("metric")
        return next((row["unit"] for row in rows if row.get("metric") == wanted), "")
    return (
        "positions/s"
        if of == "positions_per_s"
        else of.rpartition("_")[2]
        if of.endswith(("_ms", "_us"))
        else ""
    )

"""Views to draw: a synthetic record with summary rows computed here by plain order statistics.

The rows are made independently of `analysis`, so that a figure's tests stand on the contract alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from inference_lab.analysis.summary_table import View
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS, Sample
from tests.checkout import judge_of
from tests.synthetic import samples_of

SOURCE = {
    "experiment": "m1",
    "files": {"raw.csv": "c" * 64, "summary.csv": "e" * 64},
    "command": "uv run snakemake --cores 1 results/m1/latency-p50-p95.svg",
}


def view_of(record: Record, *, flags: Mapping[tuple[str, int], str] | None = None, **judge: Any) -> View:
    """A view of the record with the summary rows the contract lists; `flags` by (path, varied value)."""
    return View(
        record,
        summary_of(record, flags or {}),
        judge_of(**judge),
        SOURCE | {"experiment": record.experiment},
    )


def summary_of(record: Record, flags: Mapping[tuple[str, int], str]) -> list[dict[str, str]]:
    """Rows of summary.csv as text, by path as listed and varied value."""
    conditions = record.manifest["conditions"]
    axis, baseline = next(iter(conditions["vary"])), conditions["baseline"]
    grouped: dict[tuple[str, int], list[Sample]] = {}
    for sample in samples_of(record.samples):
        grouped.setdefault((sample.path, getattr(sample, axis)), []).append(sample)
    replicas: dict[int, dict[tuple[int, int], int]] = {}
    for sample in samples_of(record.controls):
        if sample.kind == "replica":
            replicas.setdefault(getattr(sample, axis), {})[sample.process, sample.round] = sample.elapsed_ns
    rows: list[dict[str, str]] = []
    for path, value in sorted(grouped, key=lambda key: (conditions["paths"].index(key[0]), key[1])):
        samples = grouped[path, value]
        first = asdict(samples[0])
        ms = sorted(sample.elapsed_ns / 1e6 for sample in samples)
        base = {(sample.process, sample.round): sample.elapsed_ns for sample in grouped[baseline, value]}
        row = {column: str(first[column]) for column in CELL_COLUMNS} | {"n": str(len(ms))}
        row |= _columns(_quantile(ms, 0.5), ("p50_ms", "p50_lo_ms", "p50_hi_ms"))
        row |= _columns(_quantile(ms, 0.95), ("p95_ms", "p95_lo_ms", "p95_hi_ms"))
        row |= {"min_ms": f"{ms[0]:.9g}", "max_ms": f"{ms[-1]:.9g}", "baseline": baseline}
        B, T = samples[0].batch_size, samples[0].sequence_length
        each = [time / B for time in ms]
        row |= _columns(_quantile(each, 0.5), ("per_sequence_ms", "per_sequence_lo_ms", "per_sequence_hi_ms"))
        rates = sorted(1e3 * B * T / time for time in ms)
        row |= _columns(
            _quantile(rates, 0.5), ("positions_per_s", "positions_per_s_lo", "positions_per_s_hi")
        )
        pairs = sorted(sample.elapsed_ns / base[sample.process, sample.round] for sample in samples)
        ratio = (None, None, None) if path == baseline else _quantile(pairs, 0.5)
        row |= _columns(ratio, ("ratio", "ratio_lo", "ratio_hi"))
        claimed = ratio[0] is not None and abs(ratio[0] - 1) > 0.02 and not flags.get((path, value))
        row["ratio_claimed"] = "" if path == baseline else "yes" if claimed else "no"
        again = sorted(elapsed / base[key] for key, elapsed in replicas.get(value, {}).items())
        aa = _quantile(again, 0.5) if again else (None, None, None)
        row |= _columns(aa, ("aa_ratio", "aa_lo", "aa_hi"))
        rows.append(row | {"flags": flags.get((path, value), ""), "advice": ""})
    widths = [float(row["aa_hi"]) - float(row["aa_lo"]) for row in rows if row["aa_lo"] and row["aa_hi"]]
    return [row | {"smallest_effect": f"{max([0.02, *widths]):.9g}"} for row in rows]


Bounds = tuple[float | None, float | None, float | None]


def _columns(numbers: Bounds, names: Sequence[str]) -> dict[str, str]:
    return {
        name: "" if number is None else f"{number:.9g}" for name, number in zip(names, numbers, strict=True)
    }


def _quantile(ordered: Sequence[float], q: float) -> Bounds:
    """The quantile and the order statistics that bound it with about 95%, None when n is too small."""
    n = len(ordered)
    wide = 1.96 * math.sqrt(n * q * (1 - q))
    place = (n - 1) * q
    lo, hi = min(math.floor(n * q - wide), math.floor(place)), max(math.ceil(n * q + wide), math.ceil(place))
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    value = median([low, high]) if q == 0.5 else low + (high - low) * (place - math.floor(place))
    return value, ordered[lo] if lo >= 0 else None, ordered[hi] if hi < n else None

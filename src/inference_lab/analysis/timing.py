"""summary.csv of a timing record: one row a cell, every number with its interval, every flag with its reason.

Answers: what does this record amount to? Does not know what was predicted.
"""

from collections.abc import Sequence

from inference_lab.analysis.flags import Judged, judge_rounds
from inference_lab.analysis.rounds import METRICS, CellKey, Rounds, rounds_of
from inference_lab.analysis.statistics import estimate
from inference_lab.analysis.summary_table import CODES, SEPARATOR, as_text, bounded, with_bounds
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record, csv_text
from inference_lab.records.samples import CELL_COLUMNS

COLUMNS = (
    *(*CELL_COLUMNS, "n", *bounded("p50_ms"), *bounded("p95_ms"), "min_ms", "max_ms"),
    *(*bounded("per_sequence_ms"), *bounded("per_step_us"), *bounded("positions_per_s")),
    *("baseline", *bounded("ratio"), "ratio_claimed", "smallest_effect", *bounded("aa_ratio")),
    *("flags", "advice"),
)


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv, one row a cell in the order of `paths` and varied values.

    An interval bound that n cannot support is empty. `ratio_claimed` is yes or no by
    claim_rule.py, empty for the baseline; `smallest_effect` is the least that rule claims here (0.02: 2%).
    Raises RecordError when the rows are not the measurement that the manifest declares.
    """
    return csv_text(COLUMNS, rows(record, rounds_of(record), judge))


def rows(record: Record, rounds: Rounds, judge: Judge) -> list[dict[str, str]]:
    """Return the rows of the summary."""
    judged = judge_rounds(record, rounds, judge)
    return [_row(rounds, judged, cell) for cell in rounds.times]


def _row(rounds: Rounds, judged: Judged, cell: CellKey) -> dict[str, str]:
    times, flags = rounds.times[cell], judged.flags[cell]
    codes = {flag.code for flag in flags}
    wall, tail = estimate(times, 0.5), estimate(times, 0.95)

    def of_times(of: str, ns: Sequence[float | None]) -> list[float | None]:
        return [None if time is None else rounds.of_time(of, cell, time) for time in ns]

    numbers = with_bounds("p95_ms", of_times("p50_ms", tail.bounds))
    numbers["min_ms"], numbers["max_ms"] = of_times("p50_ms", (int(times.min()), int(times.max())))
    for of in METRICS:  # the shortest time gives the highest rate
        bounds = (wall.value, wall.hi, wall.lo) if of == "positions_per_s" else wall.bounds
        numbers |= with_bounds(of, of_times(of, bounds))
    if compared := judged.ratios.get(cell):
        numbers |= with_bounds("ratio", compared.ratio.bounds)
    if same := judged.same.get(cell[1]):
        numbers |= with_bounds("aa_ratio", same.ratio.bounds)
    return {
        **{name: str(value) for name, value in rounds.cells[cell]._asdict().items()},
        "n": str(wall.n),
        **{name: as_text(number) for name, number in numbers.items()},
        "baseline": rounds.baseline,
        "ratio_claimed": {True: "yes", False: "no", None: ""}[judged.claimed.get(cell)],
        "smallest_effect": as_text(judged.smallest_effect),
        "flags": " ".join(code for code in CODES if code in codes),
        "advice": SEPARATOR.join(flag.advice for flag in flags),
    }

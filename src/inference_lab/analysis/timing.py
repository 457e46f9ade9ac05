"""summary.csv of a timing record: one row a cell, every number with its interval, every flag with its reason.

Answers: what does this record amount to? Does not know what was predicted.
"""

from collections.abc import Mapping

from inference_lab.analysis.flags import Judgement, judge_rounds
from inference_lab.analysis.rounds import Rounds, rounds_of
from inference_lab.analysis.statistics import estimate
from inference_lab.analysis.summary_table import CODES, SEPARATOR, bounded, with_bounds
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record, csv_text
from inference_lab.records.samples import CELL_COLUMNS

COLUMNS = (
    *CELL_COLUMNS,
    *("n", *bounded("p50_ms"), *bounded("p95_ms"), "min_ms", "max_ms"),
    *(*bounded("per_sequence_ms"), *bounded("per_step_us"), *bounded("positions_per_s")),
    *("baseline", *bounded("ratio"), "ratio_claimed", "smallest_effect", *bounded("aa_ratio")),
    *("flags", "advice"),
)
Number = float | int | None


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv, one row a cell in the order of `paths` and varied values.

    An interval bound that n cannot support is empty. `ratio_claimed` is yes or no by
    claim_rule.py, empty for the baseline; `smallest_effect` is the least that rule claims here (0.02: 2%).
    Raises RecordError when the rows are not the measurement that the manifest declares.
    """
    return csv_text(COLUMNS, rows(record, rounds_of(record), judge))


def rows(record: Record, rounds: Rounds, judge: Judge) -> list[dict[str, str]]:
    """Return the rows of the summary."""
    judgement = judge_rounds(record, rounds, judge)
    return [_row(rounds, judgement, *cell) for cell in rounds.times]


def _row(rounds: Rounds, judgement: Judgement, path: str, value: int) -> dict[str, str]:
    cell = path, value
    times = rounds.times[cell]
    wall, tail = estimate(times, 0.5), estimate(times, 0.95)

    def metric(of: str, time: Number) -> Number:
        return None if time is None else rounds.of_time(of, cell, time)

    numbers: dict[str, Number] = {
        **with_bounds("p50_ms", *(metric("p50_ms", t) for t in wall.bounds)),
        **with_bounds("p95_ms", *(metric("p50_ms", t) for t in tail.bounds)),
        "min_ms": metric("p50_ms", int(times.min())),
        "max_ms": metric("p50_ms", int(times.max())),
        **with_bounds("per_sequence_ms", *(metric("per_sequence_ms", t) for t in wall.bounds)),
        **with_bounds("per_step_us", *(metric("per_step_us", t) for t in wall.bounds)),
        # the shortest time gives the highest rate
        **with_bounds(
            "positions_per_s", *(metric("positions_per_s", t) for t in (wall.value, wall.hi, wall.lo))
        ),
    }
    if compared := judgement.ratios.get(cell):
        numbers |= with_bounds("ratio", *compared.ratio.bounds)
    if same := judgement.same.get(value):
        numbers |= with_bounds("aa_ratio", *same.ratio.bounds)
    numbers["smallest_effect"] = judgement.smallest_effect
    flags = judgement.flags[cell]
    codes = {flag.code for flag in flags}
    return {
        **{name: str(value) for name, value in rounds.cells[cell]._asdict().items()},
        "n": str(wall.n),
        **as_text(numbers),
        "baseline": rounds.baseline,
        "ratio_claimed": {True: "yes", False: "no", None: ""}[judgement.claimed.get(cell)],
        "flags": " ".join(code for code in CODES if code in codes),
        "advice": SEPARATOR.join(flag.advice for flag in flags),
    }


def as_text(numbers: Mapping[str, Number]) -> dict[str, str]:
    """Return numbers as a summary holds them: nine digits, empty for None."""
    return {name: "" if number is None else f"{number:.9g}" for name, number in numbers.items()}

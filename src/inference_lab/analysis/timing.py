"""summary.csv of a timing record: one row a cell, every number with its interval, every flag with its reason.

Answers: what does this record amount to? Does not know what was predicted.
"""

import csv
import io

from inference_lab.analysis.flags import Judgement, judge_rounds
from inference_lab.analysis.rounds import METRICS, Rounds, rounds_of
from inference_lab.analysis.statistics import estimate
from inference_lab.analysis.summary_table import CODES, SEPARATOR
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS

COLUMNS = (
    *CELL_COLUMNS,
    *("n", "p50_ms", "p50_lo_ms", "p50_hi_ms", "p95_ms", "p95_lo_ms", "p95_hi_ms", "min_ms", "max_ms"),
    *("per_sequence_ms", "per_sequence_lo_ms", "per_sequence_hi_ms"),
    *("per_step_us", "per_step_lo_us", "per_step_hi_us"),
    *("positions_per_s", "positions_per_s_lo", "positions_per_s_hi"),
    *(
        "baseline",
        "ratio",
        "ratio_lo",
        "ratio_hi",
        "ratio_claimed",
        "smallest_effect",
        "aa_ratio",
        "aa_lo",
        "aa_hi",
    ),
    *("flags", "advice"),
)
Number = float | int | None


def summarise(record: Record, judge: Judge) -> str:
    """The text of summary.csv, one row a cell in the order of `paths` and varied values.

    An interval bound that n cannot support is empty. `ratio_claimed` is yes or no by
    claim_rule.py, empty for the baseline; `smallest_effect` is the least that rule claims here (0.02: 2%).
    Raises RecordError when the rows are not the measurement that the manifest declares.
    """
    rounds = rounds_of(record)
    judgement = judge_rounds(record, rounds, judge)
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(_row(rounds, judgement, *cell) for cell in rounds.times)
    return text.getvalue()


def _row(rounds: Rounds, judgement: Judgement, path: str, value: int) -> dict[str, str]:
    cell = path, value
    times, sample = rounds.times[cell], rounds.cells[cell][0]
    wall, tail = estimate(times, 0.5), estimate(times, 0.95)

    def metric(of: str, time: Number) -> Number:
        return None if time is None else METRICS[of](time, sample.batch_size, rounds.positions(sample))

    numbers: dict[str, Number] = {
        **_with_bounds("p50{}_ms", *(metric("p50_ms", t) for t in wall.bounds)),
        **_with_bounds("p95{}_ms", *(metric("p50_ms", t) for t in tail.bounds)),
        "min_ms": metric("p50_ms", int(times.min())),
        "max_ms": metric("p50_ms", int(times.max())),
        **_with_bounds("per_sequence{}_ms", *(metric("per_sequence_ms", t) for t in wall.bounds)),
        **_with_bounds("per_step{}_us", *(metric("per_step_us", t) for t in wall.bounds)),
        **_with_bounds(
            "positions_per_s{}", *(metric("positions_per_s", t) for t in (wall.value, wall.hi, wall.lo))
        ),
    }
    if compared := judgement.ratios.get(cell):
        numbers |= _with_bounds("ratio{}", *compared.ratio.bounds)
    if same := judgement.same.get(value):
        numbers |= _with_bounds("aa{}", *same.ratio.bounds)
        numbers["aa_ratio"] = numbers.pop("aa")
    numbers["smallest_effect"] = judgement.smallest_effect
    flags = judgement.flags[cell]
    codes = {flag.code for flag in flags}
    return {
        **{name: str(getattr(sample, name)) for name in CELL_COLUMNS},
        "n": str(wall.n),
        **{name: "" if number is None else f"{number:.9g}" for name, number in numbers.items()},
        "baseline": rounds.baseline,
        "ratio_claimed": {True: "yes", False: "no", None: ""}[judgement.claimed.get(cell)],
        "flags": " ".join(code for code in CODES if code in codes),
        "advice": SEPARATOR.join(flag.advice for flag in flags),
    }


def _with_bounds(name: str, value: Number, lo: Number, hi: Number) -> dict[str, Number]:
    return {name.format(""): value, name.format("_lo"): lo, name.format("_hi"): hi}

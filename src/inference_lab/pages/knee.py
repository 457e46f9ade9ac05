"""knee-analysis.md: where throughput stops growing, the numbers behind it, and what it does not buy."""

from inference_lab.analysis.comparisons import Evidence, NoEvidence
from inference_lab.analysis.knee import Doubling, measured_knee
from inference_lab.analysis.statistics import short, with_interval
from inference_lab.analysis.summary_table import Row, View, bounds, number
from inference_lab.errors import ConfigError
from inference_lab.pages.render import made_from, table

_WHY = """\
A batch shares the fixed cost of every step (Python, the dispatch of each NumPy call, one pass over the
weights) between its sequences: each sequence costs less, so more positions are done in a second. But a
decode is over only when its whole batch is, and every request in it waits for all of them. Throughput counts
finished positions of all requests, latency the wait of one: batching buys the first with the second. This
page measures batches whose sequences start together; what a request waits before its batch starts comes on
top and is not seen here."""


def draw(view: View) -> str:
    """The text of knee-analysis.md.

    Raises ConfigError when the experiment does not vary batch_size or declares no knee_factor.
    """
    evidence, factor = Evidence(view), view.judge.get("knee_factor")
    if evidence.axis != "batch_size" or factor is None:
        raise ConfigError(
            f"{view.record.experiment}: a knee page needs vary: batch_size and judge.knee_factor;"
            " leave it out of judge.figures"
        )
    paths = list(dict.fromkeys(row["path"] for row in view.summary))
    answers: list[list[str]] = []
    numbers: list[str] = []
    for path in paths:
        rows = [row for row in view.summary if row["path"] == path]
        try:
            knee = measured_knee(evidence, "positions_per_s", {"path": path}, factor)
            between = f"B = {knee.lo}" if knee.lo == knee.hi else f"B = {knee.lo} to {knee.hi}"
            answers.append([path, between if knee.answer == "interval" else knee.answer, str(knee)])
            numbers += _numbers(path, rows, {step.value: step for step in knee.doublings}, factor)
        except NoEvidence as missing:
            answers.append([path, "Inconclusive", str(missing)])
            numbers += _numbers(path, rows, {}, factor)
    return "\n".join(
        [
            f"# Where throughput stops growing: {view.record.experiment}",
            "",
            made_from(view.source),
            "",
            "The knee is the smallest batch size B from which doubling B raises positions/s by less than",
            f"{factor} times, a factor fixed before measuring. It is an interval where some doubling cannot",
            "be told, `Not reached` when every doubling surely raised positions/s by more, else",
            "`Inconclusive`.",
            "",
            table(["path", "knee", "because"], answers),
            "",
            "## The numbers it rests on",
            "",
            "Median and 95% interval. The gain compares 2B with B in the same round, over all rounds.",
            *numbers,
            "",
            "## Why higher throughput is not a faster single request",
            "",
            *(_one_request(evidence, path) for path in paths),
            "",
            _WHY,
            "",
        ]
    )


def _numbers(path: str, rows: list[Row], steps: dict[int, Doubling], factor: float) -> list[str]:
    def shown(row: Row, column: str) -> str:
        return with_interval(number(row, column, path), bounds(row, column, path))

    def gain(step: Doubling | None) -> tuple[str, str]:
        if step is None:
            return "", ""
        found = step.gain.estimate
        return with_interval(found.value, found.bounds[1:]), step.growth(factor)

    columns = ("p50_ms", "per_sequence_ms", "positions_per_s")
    lines: list[list[str]] = []
    for row in rows:
        estimates = [shown(row, column) for column in columns]
        lines.append([B := row["batch_size"], row["n"], *estimates, *gain(steps.get(int(B))), row["flags"]])
    head = ["B", "n", "one decode, ms", "a sequence, ms", "positions/s", "gain at 2B", "growth", "flags"]
    return ["", f"### {path}", "", table(head, lines)]


def _one_request(evidence: Evidence, path: str) -> str:
    if len(evidence.values) == 1:
        return f"- `{path}`: one batch size was measured; there is nothing to compare."
    small, large = (
        {"path": path, "batch_size": value} for value in (min(evidence.values), max(evidence.values))
    )
    try:
        more, later = (evidence.ratio(of, large, small).estimate for of in ("positions_per_s", "p50_ms"))
        quick, slow = (evidence.value("p50_ms", cell).estimate for cell in (small, large))
    except NoEvidence as missing:
        return f"- `{path}`: no comparison is made: {missing}."
    return (
        f"- `{path}`: B={large['batch_size']} does {with_interval(more.value, more.bounds[1:])} times the"
        f" positions/s of B={small['batch_size']}, and its decode takes"
        f" {with_interval(later.value, later.bounds[1:])} times as long: {short(slow.value)} ms instead of"
        f" {short(quick.value)} ms until any one request is done."
    )

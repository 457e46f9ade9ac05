"""cause.md: where a factor that nobody believes comes from, looked for in the recorded rows alone.

In this order: all samples, threads and cores, warm-up, order, what was timed. Some of these cells are
flagged; the page describes their samples and claims nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from inference_lab.analysis.rounds import Rounds, rounds_of
from inference_lab.analysis.statistics import Times, estimate, short, with_interval
from inference_lab.analysis.summary_table import View
from inference_lab.errors import ConfigError
from inference_lab.pages.render import origin, table
from inference_lab.records.samples import Table

APART = 2.0  # factors that differ by less are of one kind


@dataclass(frozen=True)
class Situation:
    """A number of threads beside a neighbour, and the factor slow / fast in each round there."""

    threads: int
    busy: int  # cores the neighbour keeps busy
    slow: str
    fast: str
    factor: Times  # (processes, rounds)
    slow_first: Times  # whether the slow path ran first, the same shape

    @property
    def name(self) -> str:
        """The situation in words: 2 threads, busy neighbour."""
        words = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{words}, {'busy' if self.busy else 'idle'} neighbour"


def situations(view: View, rounds: Rounds) -> list[Situation]:
    """Every situation of the record, by threads, idle before busy.

    Raises ConfigError unless blas_threads was varied and two paths were timed beside both neighbours.
    """
    neighbours = view.record.manifest.get("neighbours", {})
    found: list[Situation] = []
    samples = view.record.samples
    for threads in rounds.values:
        here = samples[samples[rounds.axis] == threads]
        for busy in sorted(set(neighbours.values())):
            paths = [path for path in rounds.paths if neighbours[path] == busy]
            fast, *slow = sorted(paths, key=lambda path: not path.startswith(rounds.baseline))
            if len(slow) == 1:
                of, to = ((path, threads) for path in (slow[0], fast))
                first, second = (
                    here["position"][here["path"] == path].to_numpy() for path in (slow[0], fast)
                )
                factor = rounds.times[of] / rounds.times[to]
                order = (first < second).reshape(factor.shape)
                found.append(Situation(threads, busy, of[0], to[0], factor, order))
    if rounds.axis != "blas_threads" or len(found) != 2 * len(rounds.values):
        raise ConfigError(
            f"{view.record.experiment}: this page needs vary: blas_threads and two paths, each beside an idle"
            " and a busy neighbour; leave it out of judge.figures"
        )
    return found


def draw(view: View) -> str:
    """The text of cause.md. Raises ConfigError as `situations`."""
    rounds = rounds_of(view.record)
    found = situations(view, rounds)
    odd = max(found, key=lambda one: _p50(one.factor))
    cores = len(view.record.manifest["environment"].get("affinity") or ())
    samples, controls = view.record.samples, view.record.controls
    flags = {(r["path"], r["blas_threads"]): r["flags"] for r in view.summary}

    def every(one: Situation) -> list[str]:
        quarters = [float(q) for q in np.percentile(one.factor, (0, 25, 75, 100))]
        middle = estimate(one.factor, 0.5)
        codes = {code for p in (one.slow, one.fast) for code in flags[p, str(one.threads)].split()}
        return [
            *map(short, quarters[:2]),
            with_interval(middle.value, middle.bounds[1:]),
            *map(short, quarters[2:]),
            " ".join(sorted(codes)),
        ]

    def cells(one: Situation) -> list[str]:
        ms = [short(_p50(rounds.times[path, one.threads]) / 1e6) for path in (one.slow, one.fast)]
        return [*ms, str(one.threads + one.busy), str(cores or "not known")]

    def warmup(one: Situation) -> list[str]:
        first, last = np.hsplit(one.factor[:, : one.factor.shape[1] // 2 * 2], 2)
        of, to = (_control(controls, "warmup", one.threads, path) for path in (one.slow, one.fast))
        return [short(of / to) if of and to else "", *map(short, map(_p50, (first, last)))]

    def order(one: Situation) -> list[str]:
        orders = (one.factor[one.slow_first], one.factor[~one.slow_first])
        return [
            ", ".join(map(short, map(_p50, some))) for some in ([o for o in orders if o.size], one.factor)
        ]

    def timed(one: Situation) -> list[str]:
        gap = _least_gap(samples[samples["blas_threads"] == one.threads])
        probe = _control(controls, "probe", one.threads, "probe")
        return [short(probe / 1e6) if probe else "", short(gap / 1e6)]

    looks: Sequence[tuple[str, Sequence[str], Callable[[Situation], list[str]], str]] = (
        (
            f"All samples: {found[0].slow} / {found[0].fast}, round by round",
            ("least", "P25", "P50", "P75", "most", "flags"),
            every,
            "The figure beside this page shows every sample; none was dropped.",
        ),
        (
            "Threads and cores",
            (f"{found[0].slow}, ms", f"{found[0].fast}, ms", "threads that want to run", "cores"),
            cells,
            "Which of the two times moved, and does it move with the threads or with the neighbour?",
        ),
        (
            "Warm-up",
            ("factor of the warm-ups", "of the first half of the rounds", "of the second half"),
            warmup,
            "Cold calls would show in the first columns and be gone in the last.",
        ),
        (
            "Order",
            ("factor when the slow path ran first, second", "of each process, as they ran"),
            order,
            "A charge on whatever runs first would turn the factor round; one odd process would stand alone.",
        ),
        (
            "What was timed",
            ("probe without BLAS in these processes, ms", "least time between two samples, ms"),
            timed,
            "Every repeat of a cell gave the same bits. The neighbour starts and stops between samples.",
        ),
    )
    lines = [f"# Where a factor of {short(_p50(odd.factor))} comes from: {view.record.experiment}", ""]
    lines += [origin(view.source), "", "Flagged cells make no claim; this describes their samples.", ""]
    for number, (title, head, look, words) in enumerate(looks, 1):
        rows = [[one.name, *look(one)] for one in found]
        lines += [f"## {number}. {title}", "", words, "", table(rows, ["situation", *head]), ""]
    return "\n".join([*lines, "## What is left", "", _cause(found, odd, cores), ""])


def _cause(found: Sequence[Situation], odd: Situation, cores: int) -> str:
    """What the largest factor depends on, and what it does not."""
    most, least = _p50(odd.factor), min(_p50(one.factor) for one in found)
    if most < APART * least:
        return f"No anomaly: the factors lie between {short(least)} and {short(most)} in every situation."
    beside = [one for one in found if (one.threads == odd.threads) != (one.busy == odd.busy)]
    same = {
        "warm-up": [odd.factor[:, odd.factor.shape[1] // 2 :]],
        "order": [o for o in (odd.factor[odd.slow_first], odd.factor[~odd.slow_first]) if o.size],
        "one process": list(odd.factor),
    }
    other = {
        "the threads alone": [one.factor for one in beside if one.busy < odd.busy],
        "the neighbour alone": [one.factor for one in beside if one.threads < odd.threads],
    }
    stays = [name for name, some in same.items() if min(map(_p50, some)) * APART >= most]
    goes = [name for name, some in other.items() if some and max(map(_p50, some)) * APART <= most]
    text = f"The factor of {short(most)} is that of {odd.name}."
    text += f" It is not of {', '.join([*stays, *goes]) or 'anything looked at here'}."
    if len(stays) == len(same) and len(goes) == len(other) and odd.threads + odd.busy > cores > 0:
        text += (
            f" What is left is both at once: {odd.threads + odd.busy} threads that want to run on {cores}"
            f" cores. A product split over {odd.threads} threads is done when the last of them is, and one of"
            " them waits until the scheduler takes its core from the neighbour. The factor tells how long"
            f" `{found[0].slow}` waited, not what a cache saves."
        )
    return text


def _p50(values: Times) -> float:
    return float(np.percentile(values, 50))


def _control(controls: Table, kind: str, threads: int, path: str) -> float:
    """Median ns of the controls of one kind, 0 where there are none."""
    chosen = (controls["kind"] == kind) & (controls["blas_threads"] == threads) & (controls["path"] == path)
    return float(controls["elapsed_ns"][chosen].median()) if chosen.any() else 0.0


def _least_gap(samples: Table) -> int:
    """Least ns between the end of a sample and the start of the next in its round."""
    ends = samples["started_ns"] + samples["elapsed_ns"]
    before = ends.groupby([samples["process"], samples["round"]]).shift(fill_value=-1)
    gaps = (samples["started_ns"] - before)[before >= 0]
    return int(gaps.min()) if len(gaps) else 0

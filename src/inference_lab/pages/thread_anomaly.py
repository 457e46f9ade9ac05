"""cause.md: explains the implausible factor in an experiment over BLAS threads from its recorded samples.

Some of these cells are flagged; the page describes their samples and claims nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.statistics import Times, estimate, with_interval
from inference_lab.analysis.summary_table import View
from inference_lab.errors import ConfigError
from inference_lab.pages.render import page

FACTOR_APART = 2.0  # factors that differ by less have one cause


@dataclass(frozen=True)
class Situation:
    """A number of threads beside a neighbour, and the factor slow / fast of each round there."""

    threads: int
    busy: int  # cores that the neighbour keeps busy
    slow: str
    fast: str
    factor: Times  # (processes, rounds)
    slow_first: Times  # whether the slow path ran first, the same shape
    slow_ms: float
    fast_ms: float
    flags: str

    @property
    def name(self) -> str:
        """The situation in words: 2 threads, busy neighbour."""
        words = f"{self.threads} thread{'s' * (self.threads > 1)}"
        return f"{words}, {'busy' if self.busy else 'idle'} neighbour"

    @property
    def p50(self) -> float:
        """The median factor."""
        return _p50(self.factor)

    @property
    def shown(self) -> str:
        """The median factor with its interval."""
        middle = estimate(self.factor, 0.5)
        return with_interval(middle.value, middle.bounds[1:])

    @property
    def splits(self) -> dict[str, list[float]]:
        """The median factor of each part of the rounds, by what would differ between the parts."""
        orders = (self.factor[self.slow_first], self.factor[~self.slow_first])
        return {
            "warm-up": [_p50(half) for half in np.array_split(self.factor, 2, axis=1)],
            "order": [_p50(some) for some in orders if some.size],
            "one process": [_p50(process) for process in self.factor],
        }


def draw(view: View) -> str:
    """Return the text of cause.md. Raises ConfigError as `situations`."""
    found = situations(view)
    odd = max(found, key=lambda one: one.p50)
    cores = len(view.record.manifest["environment"].get("affinity") or ())
    excluded = [name for name, parts in odd.splits.items() if min(parts) * FACTOR_APART >= odd.p50]
    for name, others in (
        ("the threads alone", [one for one in found if one.threads == odd.threads and one.busy < odd.busy]),
        ("the neighbour alone", [one for one in found if one.threads < odd.threads and one.busy == odd.busy]),
    ):
        if others and max(one.p50 for one in others) * FACTOR_APART <= odd.p50:
            excluded.append(name)
    least = min(one.p50 for one in found)
    return page(
        "thread_anomaly",
        view,
        situations=found,
        odd=odd,
        cores=cores,
        least=least,
        anomaly=odd.p50 >= FACTOR_APART * least,
        excluded=excluded,
        waits=len(excluded) == len(odd.splits) + 2 and odd.threads + odd.busy > cores > 0,
    )


def situations(view: View) -> Sequence[Situation]:
    """Return every situation of the record, by threads, idle before busy.

    Raises ConfigError unless blas_threads was varied and two paths were timed beside both neighbours.
    """
    rounds, samples = rounds_of(view.record), view.record.samples
    neighbours = view.record.manifest.get("neighbours", {})
    flags = {(row["path"], row["blas_threads"]): row["flags"] for row in view.summary}
    found: list[Situation] = []
    values = rounds.values if rounds.axis == "blas_threads" else ()
    for threads in values:
        here = samples[samples[rounds.axis] == threads]
        for busy in sorted(set(neighbours.values())):
            paths = [path for path in rounds.paths if neighbours[path] == busy]
            pair = sorted(paths, key=lambda path: path.startswith(rounds.baseline))
            if len(pair) == 2:
                slow, fast = (rounds.times[path, threads] for path in pair)
                first, second = (here["position"][here["path"] == path].to_numpy() for path in pair)
                codes = " ".join(
                    sorted({code for path in pair for code in flags[path, str(threads)].split()})
                )
                order, ms = (first < second).reshape(slow.shape), (_p50(slow) / 1e6, _p50(fast) / 1e6)
                found.append(Situation(threads, busy, pair[0], pair[1], slow / fast, order, *ms, codes))
    if not found or len(found) != 2 * len(values):
        raise ConfigError(
            f"{view.record.experiment}: this page needs vary: blas_threads and two paths, each beside an idle"
            " and a busy neighbour; leave it out of judge.figures"
        )
    return found


def _p50(values: Times) -> float:
    return float(np.percentile(values, 50))

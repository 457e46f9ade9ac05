"""cause.md: explains the implausible factor in an experiment over BLAS threads from its recorded samples.

Some of these cells are flagged; the page describes their samples and claims nothing.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from inference_lab.analysis.rounds import rounds_of
from inference_lab.analysis.statistics import Estimate, Times, estimate
from inference_lab.analysis.summary_table import View
from inference_lab.errors import ConfigError
from inference_lab.pages.render import page

APART = 2.0  # factors that differ by less have one cause


@dataclass(frozen=True)
class Situation:
    """A number of threads beside `busy` busy cores."""

    threads: int
    busy: int
    factor: Times  # slow / fast of each round, (processes, rounds)
    slow_first: Times  # whether the slow path ran first, the same shape
    ms: list[float]  # the median of the slow path, of the fast one
    flags: str

    @property
    def p50(self) -> Estimate:
        """The median factor."""
        return estimate(self.factor, 0.5)

    @property
    def splits(self) -> dict[str, list[float]]:
        """The median factor of each part of the rounds, by what would differ between the parts."""
        factor = self.factor
        orders = [some for some in (factor[self.slow_first], factor[~self.slow_first]) if some.size]
        splits = {"warm-up": np.array_split(factor, 2, axis=1), "order": orders, "one process": factor}
        return {name: [float(np.median(part)) for part in parts] for name, parts in splits.items()}


def draw(view: View) -> str:
    """Return the text of cause.md.

    Raises ConfigError unless blas_threads was varied and two paths were timed beside both.
    """
    rounds, beside = rounds_of(view.record), view.record.manifest.get("neighbours", {})
    paths = sorted(rounds.paths, key=lambda path: path.startswith(rounds.baseline))  # the slow one first
    pairs = [[path for path in paths if beside.get(path) == busy] for busy in (0, 1)]
    if rounds.axis != "blas_threads" or not len(pairs[0]) == len(pairs[1]) == 2:
        raise ConfigError(
            f"{view.record.experiment}: this page needs vary: blas_threads and two paths, each beside an idle"
            " and a busy core; leave it out of judge.figures"
        )
    samples = view.record.samples.set_index([rounds.axis, "path"])["position"]
    flags = {(row["path"], row[rounds.axis]): row["flags"].split() for row in view.summary}
    found: list[Situation] = []
    for threads, (busy, pair) in product(rounds.values, enumerate(pairs)):
        slow, fast = times = [rounds.times[path, threads] for path in pair]
        first, second = (samples[threads, path].to_numpy().reshape(slow.shape) for path in pair)
        codes = " ".join(sorted({code for path in pair for code in flags[path, str(threads)]}))
        ms = [float(np.median(each)) / 1e6 for each in times]
        found.append(Situation(threads, busy, slow / fast, first < second, ms, codes))
    odd = max(found, key=lambda one: one.p50.value)
    top = odd.p50.value
    excluded = [name for name, parts in odd.splits.items() if min(parts) * APART >= top]
    for name, others in (
        ("the threads alone", [one for one in found if one.threads == odd.threads and one.busy < odd.busy]),
        ("the busy core alone", [one for one in found if one.threads < odd.threads and one.busy == odd.busy]),
    ):
        if others and max(one.p50.value for one in others) * APART <= top:
            excluded.append(name)
    cores = len(view.record.manifest["environment"].get("affinity") or ())
    waits = len(excluded) == len(odd.splits) + 2 and odd.threads + odd.busy > cores > 0
    facts = {"situations": found, "odd": odd, "excluded": excluded, "cores": cores, "waits": waits}
    return page("thread_anomaly", view, pair=pairs[0], apart=APART, **facts)

"""The laboratory on itself: the baseline under other names, and behind real work of known size: selfcheck.

null_1, null_2, ... are the very call of the baseline. plus_5 is that call behind as many small products as
take 5% of its time; how many, each process finds out once, before it times anything.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import numpy as np

from inference_lab.config import sections
from inference_lab.experiments.decode_paths import Inputs, cells, check
from inference_lab.mechanisms import attention
from inference_lab.mechanisms.arrays import Array
from inference_lab.records.record import Measurement
from inference_lab.timing import worker
from inference_lab.timing.protocol import Bench, Timed, digest_of_arrays, group_of

BASE, PLUS = "preallocated", "plus_"
PAIRS, PRODUCTS = 21, 1000  # of one calibration: a base call and about as long a loop of products, in turn

Call = Callable[[], Array]


def with_products(base: Call, product: Callable[[], object], count: int) -> Call:
    """A call of `base` behind `count` products; `base` itself for none."""
    if not count:
        return base

    def call() -> Array:
        for _ in range(count):
            product()
        return base()

    return call


def products_per_call(base: Call, product: Callable[[], object]) -> float:
    """How many products take as long as one base call: the median over pairs timed one after the other."""
    many = with_products(lambda: np.empty(0), product, PRODUCTS)
    ratios: list[float] = []
    for _ in range(PAIRS + 2):
        times = [time.thread_time_ns()]  # CPU time: who takes the core meanwhile does not change the size
        for call in (base, many):
            call()
            times.append(time.thread_time_ns())
        ratios.append(PRODUCTS * (times[1] - times[0]) / (times[2] - times[1]))
    return median(ratios[2:])  # the first two were cold


def bind(section: sections.SelfCheck) -> Bench:
    """Per sequence length the baseline, its replica, nulls and effects, over the same inputs."""
    every = cells(section)
    per_call: dict[str, float] = {}

    def group(cell: Inputs) -> list[Timed]:
        base, product = partial(attention.preallocated, *cell), partial(np.matmul, cell[0][0, 0], cell[1])
        products = round(products_per_call(base, product), 3)
        per_call[str(cell[0].shape[1])] = products
        counts = {path: round(products * effect(path) / 100) for path in section.paths}
        calls = {path: with_products(base, product, count) for path, count in counts.items()}
        return group_of(section, (Timed(path, call, *cell[0].shape) for path, call in calls.items()))

    return Bench(
        [group(cell) for cell in every],
        check=lambda: [finding for cell in every for finding in check(cell, [BASE])],
        data_sha256=digest_of_arrays(*(array for cell in every for array in cell)),
        facts={"products_per_call": per_call},
    )


def effect(path: str) -> int:
    """Percent of extra work in a path: that of its name, or none."""
    return int(path.removeprefix(PLUS)) if path.startswith(PLUS) else 0


def measure(section: sections.SelfCheck, progress: Callable[[int, int], None]) -> Measurement:
    """Measure `runs` times, one after another, each with its own wait, watch and processes: one record.

    Processes are numbered through; `runs` in the manifest holds what each of them saw of the machine.
    """
    each, runs = section.processes * section.rounds, list[Measurement]()
    for run in range(section.runs):

        def told(done: int, _: int, before: int = run * each) -> None:
            progress(before + done, section.runs * each)

        runs.append(worker.measure(__name__, section, told, first_process=run * section.processes))
    first = runs[0]
    always = {name: first.environment[name] for name in ("blas", "thread_variables")}
    surroundings = [{k: v for k, v in run.environment.items() if k not in always} for run in runs]
    processes = [facts for run in runs for facts in run.facts["processes"]]
    return Measurement(
        kind=first.kind,
        files={name: _one_table([run.files[name] for run in runs]) for name in first.files},
        rows={name: sum(run.rows[name] for run in runs) for name in first.rows},
        facts={**first.facts, "processes": processes, "runs": surroundings},
        environment=always,
    )


def _one_table(texts: Sequence[str]) -> str:
    """Tables of the same columns, one below the other."""
    return "".join([texts[0], *(text.partition("\n")[2] for text in texts[1:])])

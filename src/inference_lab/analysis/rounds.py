"""The rounds of a timing record: whole, unmixed, and as one array of times a cell.

Answers: are these the rows the manifest declares, no more and no fewer, in the order they happened?
Does not know what the times mean.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from inference_lab.analysis.statistics import Comparison, Times, compare
from inference_lab.errors import RecordError
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS, Sample

WAYS_OUT = "restore it from git or measure again"
OF_A_PROCESS = "blas_threads"  # an axis of which each process has one value: set before it starts
OTHER_UNIT = 500  # a time this far below its cell's median is written in another unit than ns

# What a column of summary.csv makes of t ns (a number or an array) over B sequences and T tokens.
METRICS: Mapping[str, Callable[[Any, int, int], Any]] = {
    "p50_ms": lambda t, B, T: t / 1e6,
    "per_sequence_ms": lambda t, B, T: t / B / 1e6,
    "per_step_us": lambda t, B, T: t / T / 1e3,
    "positions_per_s": lambda t, B, T: B * T * 1e9 / t,
}


@dataclass(frozen=True)
class Rounds:
    """Times in ns, each array (processes, rounds): of every cell, of the replicas, of the probe.

    Rows are the processes that timed the cell, in order: all there were, unless the axis is OF_A_PROCESS.
    """

    axis: str
    values: Sequence[int]
    paths: Sequence[str]
    baseline: str
    cells: Mapping[tuple[str, int], Sequence[Sample]]
    times: Mapping[tuple[str, int], Times]
    replica: Mapping[int, Times]  # by varied value; {} when A/A was not measured
    probe: Times | None
    decode_steps: int | None = None  # positions a call makes behind T cached ones; None: it makes all T

    def positions(self, sample: Sample) -> int:
        """Positions that one timed call makes of each sequence."""
        return self.decode_steps or sample.sequence_length

    def same(self) -> dict[int, Comparison]:
        """The baseline measured again, over the baseline, by varied value: A/A."""
        return {
            value: compare(again / self.times[self.baseline, value]) for value, again in self.replica.items()
        }

    def paired(self, value: object, other: object) -> bool:
        """Whether cells of these varied values were timed in the same rounds."""
        return value == other or self.axis != OF_A_PROCESS

    def metric(self, of: str, path: str, value: int) -> Times:
        """(processes, rounds) of the metric `of` (a key of METRICS) in one cell."""
        sample = self.cells[path, value][0]
        return METRICS[of](self.times[path, value], sample.batch_size, self.positions(sample))


def rounds_of(record: Record) -> Rounds:
    """The record as arrays, once every row has been checked against the manifest.

    Raises RecordError naming file, row and rule when a row is missing, doubled, out of order, of other
    conditions or of another unit than the rest.
    """
    conditions = record.manifest["conditions"]
    axis, values = next(iter(conditions["vary"].items()))
    names = list(record.manifest.get("outputs", {}))
    raw = next((name for name in names if "controls" not in name), "raw.csv")
    controls = next((name for name in names if "controls" in name), "controls.csv")
    raw, controls = f"{record.experiment}: {raw}", f"{record.experiment}: {controls}"
    lines = [_Row(f"{raw} line {n}", sample) for n, sample in enumerate(record.samples, 2)]
    others = [_Row(f"{controls} line {n}", sample) for n, sample in enumerate(record.controls, 2)]
    replicas = [row for row in others if row.sample.kind == "replica"]
    probes = [row for row in others if row.sample.kind == "probe"]

    _check_conditions([*lines, *replicas], conditions)
    groups: dict[tuple[str, str, int], list[_Row]] = defaultdict(list)
    for row in (*lines, *replicas):
        groups[row.sample.kind, row.sample.path, getattr(row.sample, axis)].append(row)
    processes = _processes(lines, axis, values, conditions["processes"] * conditions.get("runs", 1), raw)
    size = {value: (some, conditions["rounds"]) for value, some in processes.items()}
    cells = {
        (path, value): _whole(groups["sample", path, value], size[value], raw, f"{path} at {axis} {value}")
        for path in conditions["paths"]
        for value in values
    }
    baseline = conditions["baseline"]
    again = {
        value: _whole(
            groups["replica", baseline, value], size[value], controls, f"the replica at {axis} {value}"
        )
        for value in values
        if conditions["replica"]
    }
    every = sorted({process for some in processes.values() for process in some}), conditions["rounds"]
    probe = _whole(probes, every, controls, "the probe") if probes else None
    _check_order(lines)
    _check_clock([*lines, *replicas, *probes], numbered=bool(probes))
    for rows in cells.values():
        _check_one_work(rows)
    return Rounds(
        axis,
        values,
        conditions["paths"],
        baseline,
        {cell: [row.sample for row in rows] for cell, rows in cells.items()},
        {cell: _array(rows, conditions["rounds"]) for cell, rows in cells.items()},
        {value: _array(rows, conditions["rounds"]) for value, rows in again.items()},
        None if probe is None else _array(probe, conditions["rounds"]),
        conditions["fixed"].get("decode_steps"),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    place: str
    sample: Sample


def _array(rows: Sequence[_Row], rounds: int) -> Times:
    return np.array([row.sample.elapsed_ns for row in rows], dtype=np.int64).reshape(-1, rounds)


def _processes(
    rows: Sequence[_Row], axis: str, values: Sequence[Any], number: int, file: str
) -> dict[Any, Sequence[int]]:
    """The processes that timed each varied value, `number` of them: the same, or each value its own."""
    if axis != OF_A_PROCESS:
        return dict.fromkeys(values, range(number))
    had = {
        value: {row.sample.process for row in rows if getattr(row.sample, axis) == value} for value in values
    }
    every = sorted(process for some in had.values() for process in some)
    if every != list(range(number * len(values))) or {len(some) for some in had.values()} != {number}:
        told = "; ".join(f"{axis} {value}: {sorted(some)}" for value, some in had.items())
        raise RecordError(
            f"{file}: the manifest declares {number} processes of their own for each {axis}, there are"
            f" {told}; {WAYS_OUT}"
        )
    return {value: sorted(some) for value, some in had.items()}


def _whole(rows: Iterable[_Row], size: tuple[Sequence[int], int], file: str, what: str) -> list[_Row]:
    """The rows of one cell by process and round, each there exactly once; `size`: processes, rounds."""
    processes, rounds = size
    seen: dict[tuple[int, int], _Row] = {}
    for row in rows:
        key = (row.sample.process, row.sample.round)
        if key[0] not in processes or key[1] >= rounds:
            raise RecordError(
                f"{row.place}: process {key[0]} round {key[1]}, the manifest declares {len(processes)}"
                f" processes of {rounds} rounds; {WAYS_OUT}"
            )
        if key in seen:
            raise RecordError(
                f"{row.place}: {what} of process {key[0]} round {key[1]} stands twice; a round times it"
                f" once; {WAYS_OUT}"
            )
        seen[key] = row
    wanted = [(process, round_) for process in processes for round_ in range(rounds)]
    for process, round_ in wanted:
        if (process, round_) not in seen:
            raise RecordError(
                f"{file}: no row of {what} in process {process} round {round_}; it has {len(seen)} of"
                f" {len(wanted)}; every cell has the same number; {WAYS_OUT}"
            )
    return [seen[key] for key in wanted]


def _check_conditions(rows: Sequence[_Row], conditions: Mapping[str, Any]) -> None:
    if not rows:
        return
    allowed: dict[str, Sequence[Any]] = {name: [getattr(rows[0].sample, name)] for name in CELL_COLUMNS}
    allowed |= {name: [value] for name, value in conditions["fixed"].items()}
    allowed |= {"blas_threads": [conditions.get("blas_threads")], "path": conditions["paths"]}
    allowed |= conditions["vary"]
    for row in rows:
        for name in CELL_COLUMNS:
            if (value := getattr(row.sample, name)) not in allowed[name]:
                raise RecordError(
                    f"{row.place}: {name} is {value}, the manifest declares"
                    f" {' or '.join(map(str, allowed[name]))}; conditions are not mixed; {WAYS_OUT}"
                )
        if row.sample.kind == "replica" and row.sample.path != conditions["baseline"]:
            raise RecordError(
                f"{row.place}: path is {row.sample.path}, a replica repeats the baseline"
                f" {conditions['baseline']}; {WAYS_OUT}"
            )


def _check_order(rows: Sequence[_Row]) -> None:
    for before, row in pairwise(rows):
        if _when(before) >= _when(row):
            raise RecordError(
                f"{row.place}: process, round, position {_when(row)} stands after {_when(before)}; rows stand"
                f" in the order they happened; {WAYS_OUT}"
            )


def _check_clock(rows: Sequence[_Row], *, numbered: bool) -> None:
    """No call starts before the one before it ended; positions of a whole round count from 0."""
    ordered = sorted(rows, key=_when)
    for before, row in pairwise(ordered):
        ends = before.sample.started_ns + before.sample.elapsed_ns
        if before.sample.process == row.sample.process and ends > row.sample.started_ns:
            raise RecordError(
                f"{before.place}: started_ns and elapsed_ns end at {ends}, but the next call ({row.place})"
                f" started at {row.sample.started_ns}; calls do not overlap and times are ns; {WAYS_OUT}"
            )
    if not numbered:
        return
    for round_, calls in groupby(ordered, key=lambda row: _when(row)[:2]):
        for position, row in enumerate(calls):
            if row.sample.position != position:
                raise RecordError(
                    f"{row.place}: position is {row.sample.position}, must be {position}: calls of process"
                    f" {round_[0]} round {round_[1]} count from 0; {WAYS_OUT}"
                )


def _when(row: _Row) -> tuple[int, int, int]:
    return row.sample.process, row.sample.round, row.sample.position


def _check_one_work(rows: Sequence[_Row]) -> None:
    """The repeats of a cell gave one result and are written in one unit."""
    first = rows[0]
    median = float(np.percentile([row.sample.elapsed_ns for row in rows], 50))
    for row in rows:
        if row.sample.checksum != first.sample.checksum:
            raise RecordError(
                f"{row.place}: checksum is {row.sample.checksum}, on {first.place.rpartition(' line ')[2]}"
                f" the same cell gave {first.sample.checksum}; repeats do the same work; {WAYS_OUT}"
            )
        if row.sample.elapsed_ns * OTHER_UNIT < median:
            raise RecordError(
                f"{row.place}: elapsed_ns is {row.sample.elapsed_ns}, the cell's median is {median:.0f};"
                f" all times are ns; {WAYS_OUT}"
            )

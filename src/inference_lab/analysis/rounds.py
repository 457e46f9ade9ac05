"""The rounds of a timing record: whole, unmixed, and as one array of times per cell.

Answers: are these the rows the manifest declares, no more and no fewer, in the order they happened?
Does not know what the times mean. Every check marks rows of one table; the first marked one is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from inference_lab.analysis.statistics import Times
from inference_lab.errors import RecordError
from inference_lab.records.record import Record, varied
from inference_lab.records.samples import CELL_COLUMNS, Cell, Table

WAYS_OUT = "restore it from git or measure again"
OF_A_PROCESS = "blas_threads"  # an axis of which each process has one value: set before it starts
OTHER_UNIT = 500  # a time this far below its cell's median is written in another unit than ns
CellKey = tuple[str, int]  # path and varied value

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
    cells: Mapping[CellKey, Cell]
    times: Mapping[CellKey, Times]
    replica: Mapping[int, Times]  # by varied value; {} when A/A was not measured
    probe: Times | None
    decode_steps: int | None = None  # positions a call makes behind T cached ones; None: it makes all T

    def paired(self, value: object, other: object) -> bool:
        """Whether cells of these varied values were timed in the same rounds."""
        return value == other or self.axis != OF_A_PROCESS

    def of_time(self, metric: str, key: CellKey, ns: Any) -> Any:
        """Return what `metric` (a key of METRICS) makes of times of one cell."""
        cell = self.cells[key]
        return METRICS[metric](ns, cell.batch_size, self.decode_steps or cell.sequence_length)

    def metric(self, of: str, path: str, value: int) -> Times:
        """(processes, rounds) of the metric `of` in one cell."""
        return self.of_time(of, (path, value), self.times[path, value])

    def ratios(self, of: str, at: CellKey, over: CellKey) -> Times:
        """(processes, rounds) of the metric `of` in one cell over another that the same rounds timed."""
        if of == "p50_ms":  # of whole ns: the last bit is the same whoever asks
            return self.times[at] / self.times[over]
        return self.metric(of, *at) / self.metric(of, *over)


def rounds_of(record: Record) -> Rounds:
    """Return the record as arrays, once every row has been checked against the manifest.

    Raises RecordError naming file, line and rule when a row is missing, doubled, out of order, of other
    conditions or of another unit than the rest.
    """
    conditions = record.manifest["conditions"]
    axis, values = varied(record.manifest)
    paths, baseline = conditions["paths"], conditions["baseline"]
    calls, files = _calls(record)
    samples, has_probe = calls[calls["kind"] == "sample"], bool((calls["kind"] == "probe").any())
    _check_conditions(calls[calls["kind"].isin(("sample", "replica"))], conditions)
    another = f"path is {{row.path}}, a replica repeats the baseline {baseline}"
    _refuse(calls, (calls["kind"] == "replica") & (calls["path"] != baseline), another)
    number = conditions["processes"] * conditions.get("runs", 1)
    own = _processes(samples, axis, values, number, files[0])
    cells = [(path, value) for path in paths for value in values]
    again = [("replica", baseline, value) for value in values if conditions["replica"]]
    whole = {key: own[key[2]] for key in [*(("sample", *cell) for cell in cells), *again]}
    if has_probe:
        whole["probe", "probe", 0] = sorted({process for some in own.values() for process in some})
    calls["value"] = calls[axis].where(calls["kind"] != "probe", 0)
    calls = calls[calls["kind"] != "warmup"]
    first = samples.drop_duplicates(["path", axis])[[*CELL_COLUMNS]].itertuples(index=False)
    times = _times(calls, whole, conditions["rounds"], files)
    _check_order(samples)
    _check_clock(calls, numbered=has_probe)
    _check_one_work(samples, axis)
    by_cell = {(cell.path, getattr(cell, axis)): cell for cell in map(Cell._make, first)}
    of_cells = {cell: times["sample", *cell] for cell in cells}
    replica = {value: times["replica", baseline, value] for *_, value in again}
    probe, steps = times.get(("probe", "probe", 0)), conditions["fixed"].get("decode_steps")
    return Rounds(axis, values, paths, baseline, by_cell, of_cells, replica, probe, steps)


def _calls(record: Record) -> tuple[Table, Sequence[str]]:
    """Every row of the record in one table, with its file and line; the files of samples and of controls."""
    names = record.manifest.get("outputs", {})
    raw = next((name for name in names if "controls" not in name), "raw.csv")
    controls = next((name for name in names if "controls" in name), "controls.csv")
    files = [f"{record.experiment}: {name}" for name in (raw, controls)]
    tables = [
        table.assign(file=file, line=np.arange(2, len(table) + 2))
        for table, file in zip((record.samples, record.controls), files, strict=True)
        if table is not None and len(table)
    ]
    return pd.concat(tables, ignore_index=True), files


def _refuse(rows: Table, wrong: Any, rule: str) -> None:
    """Raise RecordError for the first row that is marked; `rule` is filled from `row`."""
    marked = np.asarray(wrong)
    if marked.any():
        row: Any = next(rows[marked][:1].itertuples(index=False))
        raise RecordError(f"{row.file} line {row.line}: {rule.format(row=row)}; {WAYS_OUT}")


def _check_conditions(rows: Table, conditions: Mapping[str, Any]) -> None:
    allowed: dict[str, Sequence[Any]] = {name: list(rows[name][:1]) for name in CELL_COLUMNS}
    allowed |= {name: [value] for name, value in conditions["fixed"].items()}
    allowed |= {"blas_threads": [conditions.get("blas_threads")], "path": conditions["paths"]}
    allowed |= conditions["vary"]
    for name in CELL_COLUMNS:
        declared = f"the manifest declares {' or '.join(map(str, allowed[name]))}"
        rule = f"{name} is {{row.{name}}}, {declared}; conditions are not mixed"
        _refuse(rows, ~rows[name].isin(allowed[name]), rule)


def _processes(
    rows: Table, axis: str, values: Sequence[int], number: int, file: str
) -> Mapping[int, Sequence[int]]:
    """The processes that timed each varied value, `number` of them: the same, or each value its own."""
    if axis != OF_A_PROCESS:
        return dict.fromkeys(values, range(number))
    had = {value: sorted(set(rows["process"][rows[axis] == value])) for value in values}
    every = sorted(process for some in had.values() for process in some)
    if every != list(range(number * len(values))) or {len(some) for some in had.values()} != {number}:
        listed = "; ".join(f"{axis} {value}: {some}" for value, some in had.items())
        rule = f"the manifest declares {number} processes of their own for each {axis}"
        raise RecordError(f"{file}: {rule}, there are {listed}; {WAYS_OUT}")
    return had


def _times(
    calls: Table, whole: Mapping[tuple[str, str, int], Sequence[int]], rounds: int, files: Sequence[str]
) -> Mapping[tuple[str, str, int], Times]:
    """(processes, rounds) of each kind, path and value, which its processes timed exactly once a round."""
    place = ["kind", "path", "value", "process", "round"]
    turns = [(*key, *turn) for key, its in whole.items() for turn in product(its, range(rounds))]
    wanted: Any = pd.MultiIndex.from_tuples(turns)
    found: Any = pd.MultiIndex.from_frame(calls[place])
    call = "{row.kind} of {row.path} in process {row.process} round {row.round}"
    number = len(next(iter(whole.values())))
    declared = f"the manifest declares {number} processes of {rounds} rounds"
    _refuse(calls, ~found.isin(wanted), f"{call}: {declared}")
    _refuse(calls, found.duplicated(), f"{call} is there twice; a round times it once")
    if len(lost := wanted[~wanted.isin(found)]):
        kind, path, value, process, round_ = lost[0]
        there = int(found.droplevel([3, 4]).isin([(kind, path, value)]).sum())
        cell = f"{kind} of {path} at {value}: no row in process {process} round {round_}"
        number = f"it has {there} of {len(whole[kind, path, value]) * rounds}"
        raise RecordError(f"{files[kind != 'sample']}: {cell}; {number}; {WAYS_OUT}")
    ends = np.cumsum([len(its) * rounds for its in whole.values()])
    ns = calls.set_index(place)["elapsed_ns"].reindex(wanted).to_numpy()
    return {key: part.reshape(-1, rounds) for key, part in zip(whole, np.split(ns, ends[:-1]), strict=True)}


def _check_order(samples: Table) -> None:
    place = samples.groupby(["process", "round", "position"]).ngroup()  # numbers the places in their order
    before = "process {row.process}, round {row.round}, position {row.position} is not after the line before"
    _refuse(samples, place.diff() <= 0, f"{before}; rows are in the order they happened")


def _check_clock(calls: Table, *, numbered: bool) -> None:
    """No call starts before the one before it ended; positions of a whole round count from 0."""
    calls = calls.sort_values(["process", "round", "position"], kind="stable")
    calls = calls.assign(
        ends=calls["started_ns"] + calls["elapsed_ns"],
        number=calls.groupby(["process", "round"]).cumcount(),
        next=[*calls["started_ns"][1:], 0],
    )
    last = ~calls.duplicated(["process"], keep="last")
    overlap = "started_ns and elapsed_ns end at {row.ends}, but the next call started at {row.next}"
    _refuse(calls, ~last & (calls["ends"] > calls["next"]), f"{overlap}; calls do not overlap, times are ns")
    if numbered:
        counts = "position is {row.position}, must be {row.number}: the calls of a round count from 0"
        _refuse(calls, calls["position"] != calls["number"], counts)


def _check_one_work(samples: Table, axis: str) -> None:
    """The repeats of a cell gave one result and are written in one unit."""
    cells = samples.groupby(["path", axis])
    samples = samples.assign(
        checksum_before=cells["checksum"].transform("first"),
        line_before=cells["line"].transform("first"),
        median=cells["elapsed_ns"].transform("median"),
    )
    another = "checksum is {row.checksum}, on line {row.line_before} the same cell gave {row.checksum_before}"
    _refuse(
        samples, samples["checksum"] != samples["checksum_before"], f"{another}; repeats do the same work"
    )
    unit = "elapsed_ns is {row.elapsed_ns}, the cell's median is {row.median:.0f}; all times are ns"
    _refuse(samples, samples["elapsed_ns"] < samples["median"] / OTHER_UNIT, unit)

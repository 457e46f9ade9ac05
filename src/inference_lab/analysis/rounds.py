"""The rounds of a timing record: whole, unmixed, and as one array of times per cell.

Answers: are these the rows the manifest declares, no more and no fewer, in the order they happened?
Does not know what the times mean. Every check marks rows of one table; the first marked one is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from inference_lab.analysis.statistics import Comparison, Times, compare
from inference_lab.errors import RecordError
from inference_lab.records.record import Record, varied
from inference_lab.records.samples import CELL_COLUMNS, Cell, Table, cell_of

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

    def aa_comparisons(self) -> dict[int, Comparison]:
        """The baseline measured again, over the baseline, by varied value: A/A."""
        return {
            value: compare(again / self.times[self.baseline, value]) for value, again in self.replica.items()
        }

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
    paths, baseline, rounds = conditions["paths"], conditions["baseline"], conditions["rounds"]
    calls, raw, controls = _calls(record)
    samples, replicas, probes = (calls[calls["kind"] == kind] for kind in ("sample", "replica", "probe"))
    _check_conditions(calls[calls["kind"].isin(("sample", "replica"))], conditions)
    another = "path is {row.path}, a replica repeats the baseline {baseline}"
    _refuse(replicas, replicas["path"] != baseline, another, baseline=baseline)
    processes = _processes(samples, axis, values, conditions["processes"] * conditions.get("runs", 1), raw)
    every = sorted({process for some in processes.values() for process in some})

    def whole(rows: Table, value: int, file: str, what: str) -> Table:
        return _whole(rows[rows[axis] == value], processes[value], rounds, f"{what} at {axis} {value}", file)

    by_path = dict(list(samples.groupby("path")))
    cells = {
        (path, value): whole(by_path.get(path, samples[:0]), value, raw, path)
        for path in paths
        for value in values
    }
    again = {
        value: whole(replicas, value, controls, "the replica") for value in values if conditions["replica"]
    }
    probe = _whole(probes, every, rounds, "the probe", controls) if len(probes) else None
    _check_order(samples)
    _check_clock(calls[calls["kind"] != "warmup"], numbered=probe is not None)
    _check_one_work(samples, axis)

    def times(rows: Table) -> Times:
        return rows["elapsed_ns"].to_numpy().reshape(-1, rounds)

    return Rounds(
        axis,
        values,
        paths,
        baseline,
        {key: cell_of(rows) for key, rows in cells.items()},
        {key: times(rows) for key, rows in cells.items()},
        {value: times(rows) for value, rows in again.items()},
        None if probe is None else times(probe),
        conditions["fixed"].get("decode_steps"),
    )


def _calls(record: Record) -> tuple[Table, str, str]:
    """Every row of the record in one table, with its file and line; the names of the two files."""
    names = record.manifest.get("outputs", {})
    raw = next((name for name in names if "controls" not in name), "raw.csv")
    controls = next((name for name in names if "controls" in name), "controls.csv")
    raw, controls = f"{record.experiment}: {raw}", f"{record.experiment}: {controls}"
    tables = [
        table.assign(file=file, line=np.arange(2, len(table) + 2))
        for table, file in ((record.samples, raw), (record.controls, controls))
        if table is not None and len(table)
    ]
    return pd.concat(tables, ignore_index=True), raw, controls


def _refuse(rows: Table, wrong: Any, rule: str, **facts: Any) -> None:
    """Raise RecordError for the first row that is marked; `rule` is filled from `row` and facts."""
    marked = np.asarray(wrong)
    if marked.any():
        row: Any = next(rows[marked][:1].itertuples(index=False))
        raise RecordError(f"{row.file} line {row.line}: {rule.format(row=row, **facts)}; {WAYS_OUT}")


def _check_conditions(rows: Table, conditions: Mapping[str, Any]) -> None:
    allowed: dict[str, Sequence[Any]] = {name: list(rows[name][:1]) for name in CELL_COLUMNS}
    allowed |= {name: [value] for name, value in conditions["fixed"].items()}
    allowed |= {"blas_threads": [conditions.get("blas_threads")], "path": conditions["paths"]}
    allowed |= conditions["vary"]
    for name in CELL_COLUMNS:
        rule = f"{name} is {{row.{name}}}, the manifest declares {{declared}}; conditions are not mixed"
        declared = " or ".join(map(str, allowed[name]))
        _refuse(rows, ~rows[name].isin(allowed[name]), rule, declared=declared)


def _processes(
    rows: Table, axis: str, values: Sequence[Any], number: int, file: str
) -> dict[Any, Sequence[int]]:
    """The processes that timed each varied value, `number` of them: the same, or each value its own."""
    if axis != OF_A_PROCESS:
        return dict.fromkeys(values, range(number))
    had: dict[Any, Sequence[int]] = {
        value: sorted(set(rows["process"][rows[axis] == value])) for value in values
    }
    every = sorted(process for some in had.values() for process in some)
    if every != list(range(number * len(values))) or {len(some) for some in had.values()} != {number}:
        listed = "; ".join(f"{axis} {value}: {some}" for value, some in had.items())
        raise RecordError(
            f"{file}: the manifest declares {number} processes of their own for each {axis}, there are"
            f" {listed}; {WAYS_OUT}"
        )
    return had


def _whole(rows: Table, processes: Sequence[int], rounds: int, what: str, file: str) -> Table:
    """The rows of one cell by process and round, each there exactly once."""
    facts = {"what": what, "processes": len(processes), "rounds": rounds}
    _refuse(
        rows,
        ~rows["process"].isin(processes) | (rows["round"] >= rounds),
        "process {row.process} round {row.round}, the manifest declares {processes} processes of {rounds}"
        " rounds",
        **facts,
    )
    _refuse(
        rows,
        rows.duplicated(["process", "round"]),
        "{what} of process {row.process} round {row.round} is there twice; a round times it once",
        **facts,
    )
    if len(rows) < len(processes) * rounds:
        there = set(zip(rows["process"], rows["round"], strict=True))
        process, round_ = next((p, r) for p in processes for r in range(rounds) if (p, r) not in there)
        raise RecordError(
            f"{file}: no row of {what} in process {process} round {round_}; it has {len(rows)} of"
            f" {len(processes) * rounds}; every cell has the same number; {WAYS_OUT}"
        )
    return rows.sort_values(["process", "round"])


def _check_order(samples: Table) -> None:
    place = samples.groupby(["process", "round", "position"]).ngroup()  # numbers the places in their order
    _refuse(
        samples,
        place.diff() <= 0,
        "process {row.process}, round {row.round}, position {row.position} is not after the line before; rows"
        " are in the order they happened",
    )


def _check_clock(calls: Table, *, numbered: bool) -> None:
    """No call starts before the one before it ended; positions of a whole round count from 0."""
    calls = calls.sort_values(["process", "round", "position"], kind="stable")
    calls = calls.assign(
        ends=calls["started_ns"] + calls["elapsed_ns"],
        number=calls.groupby(["process", "round"]).cumcount(),
        next=[*calls["started_ns"][1:], 0],
    )
    last = ~calls.duplicated(["process"], keep="last")
    _refuse(
        calls,
        ~last & (calls["ends"] > calls["next"]),
        "started_ns and elapsed_ns end at {row.ends}, but the next call started at {row.next}; calls do not"
        " overlap and times are ns",
    )
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
    _refuse(
        samples,
        samples["checksum"] != samples["checksum_before"],
        "checksum is {row.checksum}, on line {row.line_before} the same cell gave {row.checksum_before};"
        " repeats do the same work",
    )
    _refuse(
        samples,
        samples["elapsed_ns"] < samples["median"] / OTHER_UNIT,
        "elapsed_ns is {row.elapsed_ns}, the cell's median is {row.median:.0f}; all times are ns",
    )

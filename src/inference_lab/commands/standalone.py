"""The two standalone commands: measure into a raw file of any name, summarise a raw file into any folder."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inference_lab.commands import run_stage, terminal
from inference_lab.config.judge import read_judge
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records import stages, store
from inference_lab.records.files import sha256_file, write_file
from inference_lab.records.record import Record
from inference_lab.records.samples import CELL_COLUMNS, CONTROLS, Table, cell_of, read_samples

_PROTOCOL: dict[str, Any] = {
    "by": "decode_paths",
    "fixed": {"sequence_length": 128, "d_model": 64, "dtype": "float64", "seed": 42},
    "baseline": "dynamic",
    "replica": False,
    "blas_threads": 1,
    "processes": 1,
    "rounds": 30,
    "warmups": 3,
    "quiet_cores": 0.2,
    "quiet_wait_s": 30,
}
# experiment of the command line: (name in the record, its conditions). The first is the config's own
# section of that name, so the pipeline takes the record for its own; a check keeps the two equal.
SECTIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "batch-size": (
        "m1-batch-size-scan",
        {**_PROTOCOL, "vary": {"batch_size": [1, 2, 4, 8]}, "paths": ["dynamic", "preallocated"]},
    ),
    "cache": (
        "cache-comparison",
        {**_PROTOCOL, "vary": {"batch_size": [1]}, "paths": ["no_cache", "dynamic", "preallocated"]},
    ),
}
JUDGE: dict[str, Any] = {
    "by": "timing",
    "call": "one full decode",
    "knee_factor": 1.25,
    "max_others_cpu": 0.2,
    "max_probe_drift": 0.1,
    "figures": {
        "latency-p50-p95.svg": "figures.latency",
        "throughput-positions-per-second.svg": "figures.throughput",
        "knee-analysis.md": "pages.knee",
    },
}


def measure(words: Sequence[str] | None) -> int:
    """Exit status of p2-inference-systems."""
    parser = argparse.ArgumentParser(prog="p2-inference-systems", description="Measure decode paths.")
    parser.add_argument("--experiment", choices=SECTIONS, default="cache", help="default: %(default)s")
    parser.add_argument("--csv", type=Path, required=True, help="raw samples; its manifest stands beside it")
    parser.set_defaults(run=_measure)
    return terminal.run(parser, words)


def _measure(args: argparse.Namespace) -> str:
    experiment, section = SECTIONS[args.experiment]
    step = stages.step("measure", experiment, section)
    shown = terminal.progress(f"{experiment} measure")
    return run_stage.measure(step, manifest_of(args.csv), shown, in_pipeline=False)


def manifest_of(raw: Path) -> Path:
    """Where the manifest of a raw file stands: manifest.json for raw.csv, <stem>.manifest.json otherwise.

    Raises ConfigError for a name that is no .csv, or that names a file of controls.
    """
    if raw.suffix != ".csv" or raw.name.endswith(CONTROLS):
        raise ConfigError(f"{raw}: raw samples stand in a .csv file, not in ...{CONTROLS}; give such a name")
    return raw.with_name("manifest.json" if raw.name == "raw.csv" else f"{raw.stem}.manifest.json")


def summary(words: Sequence[str] | None) -> int:
    """Exit status of p2-inference-systems-summary."""
    parser = argparse.ArgumentParser(
        prog="p2-inference-systems-summary", description="Summarise a raw file: table, figures, knee."
    )
    parser.add_argument("--input", type=Path, required=True, help="raw samples")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--sequence-length", type=int, required=True, help="must be what every row says")
    parser.add_argument("--dtype", choices=("float32", "float64"), required=True)
    parser.add_argument("--blas-threads", type=int, required=True)
    parser.set_defaults(run=_summary, anywhere=True)
    return terminal.run(parser, words)


def _summary(args: argparse.Namespace) -> str:
    run_stage.check_code()
    record = _record(args.input)
    _check(args, record)
    judge = read_judge(JUDGE, "the standalone commands")
    table = run_stage.stage_module("analysis.timing").summarise(record, judge)
    files = {"summary.csv": table}
    for name, module in judge.figures.items():
        view = run_stage.view_of(record, table, judge, name)
        files[name] = run_stage.stage_module(module).draw(view)
    for name, text in files.items():
        write_file(args.output_dir / name, text)
    return f"{', '.join(files)} in {args.output_dir}"


def _record(raw: Path) -> Record:
    manifest = manifest_of(raw)
    if manifest.exists():
        return store.load_record(manifest)
    return bare_record(raw, read_samples(raw))


def bare_record(raw: Path, samples: Table) -> Record:
    """A record of rows alone: conditions as given, machine unknown.

    Raises RecordError when the rows mix more conditions than one axis.
    """
    first = cell_of(samples)
    axis = next(
        (name for name in ("batch_size", "sequence_length") if samples[name].nunique() > 1), "batch_size"
    )
    for name in CELL_COLUMNS:
        if name not in ("path", axis) and (other := _other(samples, name, there := getattr(first, name))):
            raise RecordError(
                f"{raw} line {other[0]}: {name} is {other[1]}, line 2 has {there}, and {axis} may vary alone;"
                " give the rows of one scan"
            )
    fixed = {name: getattr(first, name) for name in ("sequence_length", "d_model", "dtype") if name != axis}
    paths = sorted(samples["path"].unique())
    conditions = {
        "vary": {axis: sorted(map(int, samples[axis].unique()))},
        "fixed": fixed,
        "paths": paths,
        "baseline": paths[0],
        "replica": False,
        "blas_threads": first.blas_threads,
        "processes": samples["process"].nunique(),
        "rounds": samples["round"].nunique(),
        "warmups": 0,
    }
    moment = datetime.fromtimestamp(raw.stat().st_mtime, UTC).isoformat(timespec="seconds")
    experiment = raw.parent.name or raw.stem
    manifest: dict[str, Any] = {
        "kind": "timing",
        "experiment": experiment,
        "conditions": conditions,
        "outputs": {raw.name: {"sha256": sha256_file(raw), "rows": len(samples)}},
        "oracle": [],
        "environment": {},
        "prediction": None,
        "git": None,
        "started_at": moment,
        "finished_at": moment,
        "validity": {"valid": True, "reasons": ["no manifest: conditions as given, machine unknown"]},
    }
    return Record(experiment, manifest, samples)


def _other(samples: Table, name: str, value: object) -> tuple[int, object] | None:
    """The first line with another value in this column, and that value."""
    others = samples[name][samples[name] != value]
    return (others.index[0] + 2, others.iloc[0]) if len(others) else None


def _check(args: argparse.Namespace, record: Record) -> None:
    wanted = {
        "sequence_length": args.sequence_length,
        "dtype": args.dtype,
        "blas_threads": args.blas_threads,
    }
    for name, value in wanted.items():
        if other := _other(record.samples, name, value):
            line, found = other
            option = f"--{name.replace('_', '-')}"
            raise RecordError(
                f"{args.input} line {line}: {name} is {found}, {option} says {value}; give {found}"
            )
    conditions = record.manifest["conditions"]
    for name, value in wanted.items():
        declared = {**conditions["fixed"], "blas_threads": conditions["blas_threads"]}.get(name, value)
        if declared != value:
            raise RecordError(f"{manifest_of(args.input)}: declares {name} {declared}, the rows say {value}")

"""The two standalone commands: measure into a raw file of any name, summarise a raw file into any folder."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from inference_lab.commands import run_stage, terminal
from inference_lab.config.experiments import load_config
from inference_lab.config.judge import read_judge
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records import stages, store
from inference_lab.records.files import sha256_file, write_file
from inference_lab.records.plan import Plan
from inference_lab.records.record import Record
from inference_lab.records.samples import CONTROLS, Table, cell_of, read_samples

SCAN = "m1-batch-size-scan"  # the experiment of the config whose conditions and bounds hold here, too
CACHE = {"vary": {"batch_size": [1]}, "paths": ["no_cache", "dynamic", "preallocated"]}
# experiment of the command line: (name in the record, in what its conditions differ from the scan's)
EXPERIMENTS = {"batch-size": (SCAN, {}), "cache": ("cache-comparison", CACHE)}


def measure(words: Sequence[str] | None) -> int:
    """Exit status of p2-inference-systems."""
    parser = argparse.ArgumentParser(prog="p2-inference-systems", description="Measure decode paths.")
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="cache", help="default: %(default)s")
    parser.add_argument("--csv", type=Path, required=True, help="raw samples; its manifest stands beside it")
    parser.set_defaults(run=_measure)
    return terminal.run(parser, words)


def _measure(args: argparse.Namespace) -> str:
    (experiment, differs), manifest = EXPERIMENTS[args.experiment], manifest_of(args.csv)
    step = stages.step("measure", experiment, {**_scan("measure"), **differs})
    shown = terminal.progress(f"{experiment} measure")
    return run_stage.measure(step, manifest, shown, in_pipeline=False)


def _scan(stage: str) -> stages.Section:
    return Plan(load_config().given()).step(stage, SCAN).section


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
    parser.set_defaults(run=_summary)
    return terminal.run(parser, words)


def _summary(args: argparse.Namespace) -> str:
    terminal.enter_checkout(args)
    run_stage.check_code()
    raw, manifest = args.input, manifest_of(args.input)
    record = store.load_record(manifest) if manifest.exists() else bare_record(raw, read_samples(raw))
    if record.samples is None:
        raise RecordError(
            f"{raw}: its manifest is of no timed samples; give the raw.csv of a timing experiment"
        )
    for name in ("sequence_length", "dtype", "blas_threads"):
        found, given = record.samples[name], getattr(args, name)
        if len(others := found[found != given]):
            line, other, option = others.index[0] + 2, others.iloc[0], f"--{name.replace('_', '-')}"
            words = f"{name} is {other}, {option} says {given}; give {other}"
            raise RecordError(f"{raw} line {line}: {words}")
    judge = read_judge(_scan("summary"), SCAN)
    table = run_stage.stage_module("analysis.timing").summarise(record, judge)
    files = {"summary.csv": table}
    for name, module in judge.figures.items():
        view = run_stage.view_of(record, table, judge, name)
        files[name] = run_stage.stage_module(module).draw(view)
    for name, text in files.items():
        write_file(args.output_dir / name, text)
    return f"{', '.join(files)} in {args.output_dir}"


def bare_record(raw: Path, samples: Table) -> Record:
    """A record of rows alone: conditions are those of its first row, but for the batch; machine unknown."""
    first, paths = cell_of(samples), sorted(samples["path"].unique())
    conditions = {
        "vary": {"batch_size": sorted(map(int, samples["batch_size"].unique()))},
        "fixed": {name: getattr(first, name) for name in ("sequence_length", "d_model", "dtype")},
        "paths": paths,
        "baseline": paths[0],
        "replica": False,
        "blas_threads": first.blas_threads,
        "processes": samples["process"].nunique(),
        "rounds": samples["round"].nunique(),
    }
    outputs = {raw.name: {"sha256": sha256_file(raw), "rows": len(samples)}}
    manifest = {"conditions": conditions, "outputs": outputs, "environment": {}}
    return Record(raw.parent.name or raw.stem, manifest, samples)

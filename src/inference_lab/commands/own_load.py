"""A load of a user's own: recorded in a folder of its own, and summarised, drawn and explained there.

The folder is an experiment of its own, named with a slash at the end (`run1/`): the chain of receipts
inside it is the same as under results/, but for a prediction.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from inference_lab.commands import run_stage, terminal
from inference_lab.config.judge import read_judge
from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.records import receipts, stages, store
from inference_lab.records.files import read_text, sha256_file, write_json
from inference_lab.records.plan import Plan
from inference_lab.records.record import Measurement, Record
from inference_lab.stream_load import cli as load_cli
from inference_lab.stream_load.options import LoadOptions
from inference_lab.stream_load.requests import NAME, read_requests
from inference_lab.stream_load.session import INFO, Snapshot

MANIFEST = "manifest.json"
JUDGE: dict[str, Any] = {
    "by": "serving",
    "window": "steady",
    "max_client_lag_ms": 10,
    "figures": {"timeline.svg": "figures.timeline"},
}
CALIBRATION = "calibration"  # the record under results/ of the client's own timing error


def load(args: argparse.Namespace) -> tuple[str, int]:
    """Record, seal and summarise a load; return what happened, in words, and the exit status.

    A load that was stopped keeps its partial record, which --resume continues.
    """
    if args.slo:  # what is undeclared here costs no import
        from inference_lab.analysis.metrics import goodput

        goodput(dict(args.slo))
    options = load_cli.options_from(args)
    conditions = {**options.conditions(), "slo": dict(args.slo)}
    if args.prompts_file:
        read_text(args.prompts_file, "give a JSONL of prompts")
        conditions["prompts_sha256"] = sha256_file(
            args.prompts_file
        )  # the file's name does not identify them
    folder: Path = args.output
    step = stages.step("measure", _name(folder), conditions, own_folder=folder.as_posix())
    begun = run_stage.begin(step, folder / MANIFEST, in_pipeline=False)
    if args.resume and (folder / MANIFEST).exists():
        reopen(folder, options)
    began_s = monotonic()
    with terminal.live_line() as show:
        result = load_cli.run(args, lambda now: show(describe(now, args.requests, monotonic() - began_s)))
    if result.requests_path.name != NAME:
        said = f"stopped: kept in {result.requests_path}; --resume continues it"
        told = load_cli.reasons(read_requests(result.requests_path), result.info["sessions"])
        return "\n".join([load_cli.outcome(result), *told, said]), result.exit_code
    facts = {
        "command": args.words,
        "experiment": _name(Path(folder.name)),
        "clock": "monotonic_ns",
        "tests": None,  # asking whether they hold takes longer than starting a load
        "model": result.info["model"],
        "sessions": result.info["sessions"],
    }
    manifest = run_stage.end(step, begun, Measurement("serving", {}, {}, facts, {}))
    made = {"sha256": sha256_file(result.requests_path), "rows": sum(result.counts.values())}
    write_json(folder / MANIFEST, receipts.seal({**manifest, "outputs": {NAME: made}}))
    (folder / INFO).unlink()
    valid, reasons = run_stage.validity(manifest)
    if not valid:
        raise MeasurementRefused(f"{folder}: recorded and marked invalid, because {'; '.join(reasons)}")
    table, record = _summarised(folder)
    told = load_cli.reasons(record.requests, result.info["sessions"])
    return "\n".join([load_cli.outcome(result), *told, table]), result.exit_code


def reopen(folder: Path, options: LoadOptions) -> None:
    """Make a finished record one that a load goes on with: as it was recorded, or not at all."""
    manifest = store.load_record(folder / MANIFEST).manifest
    options.refuse_other_conditions(manifest["conditions"])
    write_json(folder / INFO, {name: manifest[name] for name in ("conditions", "sessions")})
    (folder / MANIFEST).unlink()


def describe(now: Snapshot, total: int | None, elapsed_s: float) -> str:
    """Return the state of a load as one line."""
    of_total = "" if total is None else f"/{total}"
    left = ""
    if total is not None and now.done:
        left = f", about {elapsed_s / now.done * (total - now.done):.0f} s to go"
    return (
        f"{elapsed_s:.0f} s: {now.in_flight} in flight, {now.done}{of_total} done,"
        f" {now.failed} failed, {now.tokens / elapsed_s:.0f} tokens/s{left}"
    )


def around(file: Path) -> Plan | None:
    """Return the plan of the load that a file or folder belongs to, None when it belongs to none."""
    for folder in (file, file.parent, file.parent.parent):
        if (folder / MANIFEST).is_file():
            manifest = receipts.read_receipt(folder / MANIFEST)
            own = stages.is_own_load(manifest["experiment"])
            return _plan(folder, manifest["conditions"]) if own else None
    return None


def walk(folder: Path) -> Plan:
    """Return the plan of the load in a folder. Raises ConfigError when it holds none."""
    if (found := around(folder)) is None:
        raise ConfigError(f"{folder}: holds no {MANIFEST} of a load; name its folder")
    return found


def _plan(folder: Path, conditions: Mapping[str, Any]) -> Plan:
    judge = {**JUDGE, "slo": conditions.get("slo", {})}
    own = {"own_folder": folder.as_posix()}
    experiment = {"refresh": "manual", "measure": conditions, "judge": judge, **own}
    return Plan({"experiments": {_name(folder): experiment}})


def summarise(folder: Path) -> str:
    """Make the summary.csv of a load; return its table, with the client's error from a calibration here.

    The summary leans on nothing outside the folder, so that it is the same wherever the folder goes.
    """
    return _summarised(folder)[0]


def _summarised(folder: Path) -> tuple[str, Record]:
    from inference_lab.analysis.serving import as_table, calibrated
    from inference_lab.analysis.summary_table import read_summary

    step = walk(folder).step("summary", _name(folder))
    made, rows = run_stage.derive(step), read_summary(Path(step.makes[0]))
    known = Path(stages.folder(CALIBRATION), "summary.csv").is_file()
    record = run_stage.read_record(folder, CALIBRATION if known else "")
    table = as_table([*rows, *calibrated(record, read_judge(JUDGE, "a load"))])
    if known:
        return f"{table}\n{made}", record
    words = f"{stages.folder(CALIBRATION)} holds no record, so what these times are worth is not known"
    return f"{table}\nnote: {words}\n{made}", record


def draw(folder: Path) -> str:
    """Make summary and figures of a load; return what happened, in words."""
    return "\n".join(run_stage.derive(step) for step in walk(folder).steps()[1:])


def _name(folder: Path) -> str:
    return f"{folder.as_posix()}/"

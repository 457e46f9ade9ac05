"""A load of a user's own: recorded in a folder of its own, and summarised, drawn and explained there.

The folder is an experiment of its own, named with a slash at the end (`run1/`): the chain of receipts
inside it is the same as under results/, but for a prediction.
"""

import argparse
from pathlib import Path
from time import monotonic

from inference_lab.commands import run_stage, terminal
from inference_lab.config.judge import read_judge
from inference_lab.errors import ConfigError, MeasurementRefused
from inference_lab.records import receipts, stages, store
from inference_lab.records.files import read_text, sha256_file, write_json
from inference_lab.records.plan import Plan
from inference_lab.records.record import Measurement, Record
from inference_lab.stream_load import cli as load_cli
from inference_lab.stream_load import session
from inference_lab.stream_load.options import LoadOptions
from inference_lab.stream_load.requests import NAME, read_requests
from inference_lab.stream_load.session import INFO, Snapshot

MANIFEST = "manifest.json"
FIGURES = {"timeline.svg": "figures.timeline"}
JUDGE = {"by": "serving", "window": "steady", "max_client_lag_ms": 10, "figures": FIGURES}
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
    if args.prompts:  # whose name does not identify them
        read_text(args.prompts, "give a JSONL of prompts")
        conditions["prompts_sha256"] = sha256_file(args.prompts)
    folder: Path = args.output
    step = stages.step("measure", _name(folder), conditions, own_folder=folder.as_posix())
    begun = run_stage.begin(step, folder / MANIFEST, in_pipeline=False)
    if args.resume and (folder / MANIFEST).exists():
        reopen(folder, options)
    began_s = monotonic()
    with terminal.live_line() as show:

        def watch(now: Snapshot) -> None:
            show(describe(now, args.requests, monotonic() - began_s))

        result = session.load(options, folder, resume=args.resume, watch=watch)
    sessions, requests = result.info["sessions"], result.requests_path
    if requests.name != NAME:
        why = load_cli.reasons(read_requests(requests), sessions)
        stopped = f"stopped: kept in {requests}; --resume continues it"
        return "\n".join([load_cli.outcome(result), *why, stopped]), result.exit_code
    facts = {
        "command": args.words,
        "experiment": _name(Path(folder.name)),
        "clock": "monotonic_ns",
        "tests": None,  # asking whether they hold takes longer than starting a load
        "model": result.info["model"],
        "sessions": sessions,
    }
    manifest = run_stage.end(step, begun, Measurement("serving", {}, {}, facts, {}))
    made = {"sha256": sha256_file(requests), "rows": sum(result.info["counts"].values())}
    write_json(folder / MANIFEST, receipts.seal({**manifest, "outputs": {NAME: made}}))
    (folder / INFO).unlink()
    if reasons := run_stage.invalid(manifest):
        raise MeasurementRefused(f"{folder}: recorded and marked invalid, because {reasons}")
    table, record = _summarised(folder)
    why = load_cli.reasons(record.requests, sessions)
    return "\n".join([load_cli.outcome(result), *why, table]), result.exit_code


def reopen(folder: Path, options: LoadOptions) -> None:
    """Make a finished record one that a load goes on with: as it was recorded, or not at all."""
    manifest = store.load_record(folder / MANIFEST).manifest
    options.refuse_other_conditions(manifest["conditions"])
    write_json(folder / INFO, {name: manifest[name] for name in ("conditions", "sessions")})
    (folder / MANIFEST).unlink()


def describe(now: Snapshot, total: int | None, elapsed_s: float) -> str:
    """Return the state of a load as one line."""
    of_total = left = ""
    if total is not None:
        of_total = f"/{total}"
        left = f", about {elapsed_s / now.done * (total - now.done):.0f} s to go" if now.done else ""
    line = f"{elapsed_s:.0f} s: {now.in_flight} in flight, {now.done}{of_total} done, {now.failed} failed"
    return f"{line}, {now.tokens / elapsed_s:.0f} tokens/s{left}"


def around(file: Path) -> Plan | None:
    """Return the plan of the load that a file or folder belongs to, None when it belongs to none."""
    for folder in (file, file.parent, file.parent.parent):
        if (folder / MANIFEST).is_file():
            manifest = receipts.read_receipt(folder / MANIFEST)
            measure, own = manifest["conditions"], {"own_folder": folder.as_posix()}
            judge = {**JUDGE, "slo": measure.get("slo", {})}
            experiment = {"refresh": "manual", "measure": measure, "judge": judge, **own}
            is_own = stages.is_own_load(manifest["experiment"])
            return Plan({"experiments": {_name(folder): experiment}}) if is_own else None
    return None


def _plan(folder: Path) -> Plan:
    if (found := around(folder)) is None:
        raise ConfigError(f"{folder}: holds no {MANIFEST} of a load; name its folder")
    return found


def summarise(folder: Path) -> str:
    """Make the summary.csv of a load; return its table, with the client's error from a calibration here.

    The summary leans on nothing outside the folder, so that it is the same wherever the folder goes.
    """
    return _summarised(folder)[0]


def _summarised(folder: Path) -> tuple[str, Record]:
    from inference_lab.analysis.serving import as_table, calibrated
    from inference_lab.analysis.summary_table import read_summary

    step = _plan(folder).step("summary", _name(folder))
    made, rows = run_stage.derive(step), read_summary(Path(step.makes[0]))
    at = Path(stages.folder(CALIBRATION))
    known = (at / "summary.csv").is_file()
    record = run_stage.read_record(folder, CALIBRATION if known else "")
    lines = [as_table([*rows, *calibrated(record, read_judge(JUDGE, "a load"))]), made]
    if not known:
        lines[1:1] = [f"note: {at} holds no record, so what these times are worth is not known"]
    return "\n".join(lines), record


def draw(folder: Path) -> str:
    """Make summary and figures of a load; return what happened, in words."""
    return "\n".join(run_stage.derive(step) for step in _plan(folder).steps()[1:])


def _name(folder: Path) -> str:
    return f"{folder.as_posix()}/"

"""A checkout of the real sources with one synthetic record of m1 and everything derived from it."""

import shutil
import tempfile
import unittest
from pathlib import Path
from typing import Any

from inference_lab.commands import run_stage
from inference_lab.records import receipts, store
from inference_lab.records.digests import Sources
from inference_lab.records.files import sha256_file
from inference_lab.records.plan import Plan
from inference_lab.records.record import Record
from inference_lab.records.samples import write_samples
from tests import checkout
from tests.synthetic import samples_of, timing_record

JUDGE = {
    **{"by": "timing", "knee_factor": 1.25},
    "figures": {"ratios.svg": "figures.ratios", "knee-analysis.md": "pages.knee"},
}
CONFIG: dict[str, Any] = {
    "experiments": {"m1": {"refresh": "auto", "measure": {"by": "decode_paths"}, "judge": JUDGE}}
}
_made = tempfile.TemporaryDirectory()  # filled by the first test, copied by each


def enter(test: unittest.TestCase) -> Path:
    """The root of a checkout, now the working directory, in which m1 is recorded and derived."""
    root, made = checkout.enter_copy(test), Path(_made.name)
    if not any(made.iterdir()):
        Path("predictions").mkdir()
        shutil.copy(checkout.ROOT / "predictions/m1.yaml", "predictions")
        record_m1()
        for step in Plan(CONFIG).steps("m1")[1:]:
            run_stage.derive(step)
        for folder in ("predictions", "results"):
            shutil.copytree(folder, made / folder)
    shutil.copytree(made, root, dirs_exist_ok=True)
    return root


def record_m1(*, seed: int = 0, at: str = "results/m1", tests: str | None = None, **environment: Any) -> Path:
    """The manifest of a synthetic record of m1 put in place at `at`; `tests` is what it says of them."""
    record = timing_record(processes=2, rounds=8, warmups=1, seed=seed, environment=environment)
    step, prediction = Plan(CONFIG).step("measure", "m1"), "predictions/m1.yaml"
    manifest = {
        **record.manifest,
        **{"schema": receipts.SCHEMA, "tests": tests, "command": list(step.command)},
        **{"inputs": step.inputs(Sources()), "pins": step.pins(Sources())},
        "prediction": {"file": prediction, "sha256": sha256_file(Path(prediction))},
    }
    files, rows = files_of(record)
    place = Path(at, "manifest.json")
    store.replace_record(place, files, rows, manifest)
    return place


def files_of(record: Record) -> tuple[dict[str, str], dict[str, int]]:
    """The raw files of a timing record in memory, and how many rows each has."""
    raw, controls = samples_of(record.samples), samples_of(record.controls)
    files = {"raw.csv": write_samples(raw), "controls.csv": write_samples(controls, controls=True)}
    return files, {"raw.csv": len(raw), "controls.csv": len(controls)}

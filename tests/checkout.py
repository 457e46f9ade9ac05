"""Checkouts in temporary folders, for tests of what reads and writes one.

root = checkout.enter(self)       a small made-up lab: one experiment, sources of a few lines
checkout.record(CONFIG)           ... with everything it can record in place
checkout.enter_copy(self)         the real sources, pins and schema, with no results
"""

import contextlib
import io
import os
import shutil
import tempfile
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.config.judge import Judge, read_judge
from inference_lab.config.sections import read_measure
from inference_lab.records import installed, store
from inference_lab.records.digests import Sources
from inference_lab.records.plan import Plan
from inference_lab.records.receipts import SCHEMA
from inference_lab.records.samples import Sample, write_samples
from inference_lab.records.stages import Step

ROOT = Path(__file__).resolve().parents[1]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # there fsync costs nothing

FILES = {
    "pyproject.toml": """
[tool.uv]
constraint-dependencies = ["matplotlib==3.11.2", "numpy==2.4.6", "pillow==13.0.0", "ruff==0.17.6"]
""",
    "src/inference_lab/__init__.py": "",
    "src/inference_lab/errors.py": "class LabError(Exception): ...\n",
    "src/inference_lab/mechanisms/__init__.py": "",
    "src/inference_lab/timing/__init__.py": "",
    "src/inference_lab/mechanisms/attention.py": '''"""What it answers."""
import numpy as np


def attend(x, y=2):
    """(T, C) -> (T, C)."""
    return np.exp(x) * y + 1  # a comment
''',
    "src/inference_lab/timing/protocol.py": "from inference_lab.errors import LabError\nclock = 1\n",
    "src/inference_lab/unused.py": "import ruff\n",
    "src/inference_lab/records/__init__.py": "",
    "src/inference_lab/records/samples.py": "import pillow\n",
    "src/inference_lab/experiments/__init__.py": "",
    "src/inference_lab/experiments/decode_paths.py": """from inference_lab.timing import protocol
from inference_lab.records.samples import Sample


def bind():
    from inference_lab.mechanisms.attention import attend

    return attend, protocol
""",
    "src/inference_lab/analysis/__init__.py": "",
    "src/inference_lab/analysis/timing.py": "import math\n",
    "src/inference_lab/analysis/summary_table.py": "import math\n",
    "src/inference_lab/pages/analysis.py": "import math\n",
    "src/inference_lab/analysis/verdicts.py": "import math\n",
    "src/inference_lab/figures/__init__.py": "",
    "src/inference_lab/figures/latency.py": "import matplotlib\n",
    "src/inference_lab/figures/throughput.py": "colour = 'blue'\n",
    "tests/__init__.py": "",
    "tests/test_attention.py": "answer = 42\n",
    "tests/workflow/check_chain.py": "slow = True\n",
    "predictions/m1.yaml": "question: does it?\n",
}

MEASURE: dict[str, Any] = {
    "by": "decode_paths",
    "vary": {"batch_size": [1, 2]},
    "fixed": {"sequence_length": 128, "d_model": 64, "dtype": "float64", "seed": 42},
    "paths": ["dynamic"],
    "baseline": "dynamic",
    "replica": False,
    "blas_threads": 1,
    "processes": 1,
    "rounds": 2,
    "warmups": 0,
    "quiet_cores": 0.2,
    "quiet_wait_s": 0,
}
JUDGE = {
    "by": "timing",
    "knee_factor": 1.25,
    "figures": {"latency.svg": "figures.latency", "throughput.svg": "figures.throughput"},
}
CONFIG: dict[str, Any] = {"experiments": {"m1": {"refresh": "auto", "measure": MEASURE, "judge": JUDGE}}}


def judge_of(**keys: Any) -> Judge:
    """A judge that draws nothing, with these keys."""
    return read_judge({"by": "timing", "figures": {}, **keys}, "judge")


def section(**changes: Any) -> Any:
    """The conditions of the made-up experiment as a measurement takes them, with other values."""
    conditions = {**MEASURE, **changes}
    if "blas_threads" in conditions["vary"]:
        del conditions["blas_threads"]
    return read_measure(conditions, "a test")


def section_of(by: str, **keys: Any) -> Any:
    """A `measure:` part of this kind with these keys, that waits for nothing."""
    return read_measure({"by": by, "quiet_cores": 9, "quiet_wait_s": 0, **keys}, "section")


def enter(test: unittest.TestCase) -> Path:
    """The root of a small checkout that is the working directory until the test ends."""
    root = _enter_folder(test)
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def enter_copy(test: unittest.TestCase) -> Path:
    """The root of a checkout with the real sources, pins and config schema and nothing recorded."""
    root = _enter_folder(test)
    (root / "src").symlink_to(ROOT / "src")
    (root / "workflow").symlink_to(ROOT / "workflow")
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def _enter_folder(test: unittest.TestCase) -> Path:
    root = Path(test.enterContext(tempfile.TemporaryDirectory(dir=MEMORY))).resolve()
    for check in ("check_running", "check_loaded"):  # the package that runs is no made-up one's
        test.enterContext(mock.patch.object(installed, check, return_value={}))
    test.enterContext(contextlib.chdir(root))
    return root


def run(command: Callable[[list[str]], int], *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = command(list(words))
        except SystemExit as stopped:  # argparse
            status = int(str(stopped.code))
    return status, out.getvalue(), err.getvalue()


def edit(path: str, old: str, new: str) -> None:
    """Replace the one place in a file that says `old`."""
    text = Path(path).read_text()
    if text.count(old) != 1:
        raise ValueError(f"{path} says {old!r} {text.count(old)} times")
    Path(path).write_text(text.replace(old, new))


def sample(round_: int = 0, batch_size: int = 1, kind: str = "sample", **fields: Any) -> Sample:
    """A plausible sample; `fields` replaces single values."""
    values: dict[str, Any] = {
        "process": 0,
        "round": round_,
        "position": batch_size,
        "path": "dynamic",
        "batch_size": batch_size,
        "sequence_length": 128,
        "d_model": 64,
        "num_heads": 1,
        "num_kv_heads": 1,
        "dtype": "float64",
        "blas_threads": 1,
        "elapsed_ns": 2_000_000 + round_,
        "started_ns": 1_000_000_000 * (round_ + 1) + batch_size,
        "checksum": "0123456789abcdef",
        "kind": kind,
    }
    return Sample(**values | fields)


SAMPLES = [sample(round_, batch_size) for round_ in (0, 1) for batch_size in (1, 2)]
CONTROLS = [sample(round_, position=0, path="probe", kind="probe") for round_ in (0, 1)]


def manifest(step: Step, **fields: Any) -> dict[str, Any]:
    """A manifest of the step's inputs as they are now; `fields` replaces single entries."""
    return {
        "schema": SCHEMA,
        "stage": "measure",
        "kind": "timing",
        "experiment": step.experiment,
        "command": list(step.command),
        "conditions": dict(step.section),
        "inputs": step.inputs(Sources()),
        "pins": step.pins(Sources()),
        "prediction": None,
        "environment": {"cpu_model": "Example CPU"},
        "started_at": "2026-11-02T10:00:00+00:00",
        "finished_at": "2026-11-02T10:01:00+00:00",
        "validity": {"valid": True, "reasons": []},
    } | fields


def replace_record(step: Step, **fields: Any) -> Path | None:
    """Put a record of SAMPLES and CONTROLS in place of the step's; returns where an older one went."""
    files = {"raw.csv": write_samples(SAMPLES), "controls.csv": write_samples(CONTROLS, controls=True)}
    rows = {"raw.csv": len(SAMPLES), "controls.csv": len(CONTROLS)}
    return store.replace_record(Path(step.receipt), files, rows, manifest(step, **fields))


def record(config: Mapping[str, Any]) -> None:
    """Measure, summarise, draw and analyse every experiment of the config, with made-up contents."""
    walk = Plan(config)
    for experiment in walk.experiments:
        measure, *derived = walk.steps(experiment)
        replace_record(measure)
        for step in derived:
            store.make(step, lambda step=step: {path: f"{path}\n" for path in step.makes})

"""Is everything that a stage really reads inside what its receipt covers?

Every Python process of a stage, its children included, runs with a hook that writes down each file it
opens: sources, their bytecode and data alike. What was opened of the package must be in the closure that
the receipt digests, what else was opened of the checkout among the files the step reads, and what was
imported of others among its pins. Each experiment runs on a section of a few samples.
"""

import contextlib
import copy
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import unittest
from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

from inference_lab.config.experiments import load_config
from inference_lab.records import receipts, stages
from inference_lab.records.digests import Sources, normal
from inference_lab.records.installed import digest_in_record
from inference_lab.records.plan import Plan
from inference_lab.records.stages import Step
from tests.checkout import ROOT
from tests.stream_load.support import reference_server

HOOK = """
import os, sys
log = os.open(os.environ["OPENED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def note(event, args):
    if event == "open" and isinstance(args[0], (str, os.PathLike)) and not (args[2] or 0) & os.O_ACCMODE:
        os.write(log, (os.path.abspath(os.fspath(args[0])) + "\\n").encode())
sys.addaudithook(note)
"""
MEASURE = """
import json, sys
from inference_lab.config.sections import read_measure
from inference_lab.experiments import {} as module
module.measure(read_measure(json.loads(sys.argv[1]), "section"), lambda done, total: None)
"""
DERIVE = """
import json, sys
from inference_lab.commands import run_stage
from inference_lab.records.plan import Plan
walk = Plan(json.loads(sys.argv[1]))
run_stage.texts(next(step for step in walk.steps(sys.argv[2]) if step.receipt == sys.argv[3]))
"""
SMALL = {
    **dict.fromkeys(("processes", "rounds", "runs", "warmups", "servers"), 1),
    **{"requests": 2, "output_tokens": 3, "requests_per_stream": 2, "quiet_wait_s": 0, "warmup_requests": 0},
    "server": {"kind": "reference"},  # vLLM's own processes run in another environment, by files of their own
}
# What carries a stage out, whatever it is; it decides where results are put, not what they are.
DISPATCH = {"src/inference_lab/commands/run_stage.py", "src/inference_lab/timing/machine.py"}
# Taken where they are found and not required: by numpy.f2py, which scipy imports, to read Fortran, and by
# jsonschema for a format that no schema here names.
OPTIONAL = {"charset-normalizer", "idna"}
STARTED = {  # children that must have been watched, or the hook saw nothing
    "threads": "experiments/spinner",
    "client_gate": "stream_load/reference/cli",
    "calibration": "stream_load/cli",
    "sweep": "stream_load/reference/cli",
    "decode_paths": "mechanisms/attention",
    "multi_head": "mechanisms/multi_head",
    "selfcheck": "mechanisms/attention",
    "observations": "mechanisms/numpy_semantics",
    "capacity": "mechanisms/kv_capacity",
}


def small(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section that measures the same things a few times."""
    found = copy.deepcopy(dict(section))
    for part in (found, found.get("fixed", {})):
        part.update({key: value for key, value in SMALL.items() if key in part})
    ((axis, values),) = found["vary"].items()
    found["vary"] = {axis: values if found["by"] == "threads" else values[:1]}
    return found


def opened(*words: str) -> set[str]:
    """All that a Python call here, or a child of it, opened to read. Raises AssertionError when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        hook, info, log = (Path(folder, name) for name in ("sitecustomize.py", "hook-1.dist-info", "opened"))
        hook.write_text(HOOK)
        info.mkdir()  # children import what is installed, and know each of its files
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hook\nVersion: 1\n")
        (info / "RECORD").write_text(f"{hook.name},{digest_in_record(str(hook))},\n")
        path = os.pathsep.join((folder, str(ROOT / "src")))
        environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OPENED": str(log)}
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True,
            text=True, check=False, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise AssertionError(done.stderr)
        return set(log.read_text().splitlines())


def of_checkout(files: set[str]) -> Iterator[str]:
    """The files of the checkout, bytecode under the name of its source; empty packages are left out."""
    for file in map(Path, files):
        if file.is_relative_to(ROOT) and file.is_file() and not file.is_relative_to(Path(sys.prefix)):
            path = file.relative_to(ROOT)
            if path.parent.name == "__pycache__":
                path = path.parent.with_name(path.name.partition(".")[0] + ".py")
            if path.name != "__init__.py":
                yield path.as_posix()


def distributions(files: set[str]) -> set[str]:
    """The pinned distributions of which a module was opened."""
    names = metadata.packages_distributions()
    found: set[str] = set()
    for file in map(Path, files):
        ours = file.is_relative_to(sysconfig.get_path("purelib"))  # a peer's packages are checked as a whole
        if ours and file.suffix in (".py", ".pyc", ".so"):
            top = file.parts[file.parts.index("site-packages") + 1].partition(".")[0]
            found |= set(map(normal, names.get(top, ())))
    return found & set(Sources(ROOT).pinned) - OPTIONAL


def recording() -> set[str]:
    """What no closure has: errors, config and records; and the reader of requests where no load is read."""
    at = ROOT / "src/inference_lab"
    left_out = (at / "errors.py", *at.glob("config/*.py"), *at.glob("records/*.py"))
    left_out += (at / "stream_load/requests.py",)  # in the closure of what reads loads, by its imports
    return {path.relative_to(ROOT).as_posix() for path in left_out}


def read_by(step: Step) -> set[str]:
    """The files whose digests the step's receipt holds, those that a manifest among them vouches for too."""
    found = set(step.reads)
    for manifest in (path for path in step.reads if path.endswith("/manifest.json")):
        outputs = receipts.read_receipt(ROOT / manifest)["outputs"]
        found |= {Path(manifest).with_name(name).as_posix() for name in outputs}
    return found


class Closure(unittest.TestCase):
    """What was opened against what is digested."""

    @classmethod
    def setUpClass(cls) -> None:
        """The real config, whose experiments these are."""
        cls.enterClassContext(contextlib.chdir(ROOT))
        cls.config = load_config().given()
        cls.sources = Sources(ROOT)

    def covers(self, step: Step, files: set[str], *, beside: Set[str] = frozenset()) -> set[str]:
        """Assert that the step's receipt covers these files; returns those that are its sources."""
        closure = set(step.sources(self.sources))
        seen, recorders = set(of_checkout(files)), recording()
        self.assertEqual(seen - closure - beside - recorders - read_by(step), set())
        pins = step.pins(self.sources) | self.sources.pins(sorted(recorders))
        self.assertEqual(distributions(files) - set(pins), set())
        return seen & closure

    def test_measuring(self) -> None:
        """Every experiment's module, with the processes it starts, opens no source outside its closure."""
        sections: dict[str, tuple[str, Any]] = {}
        for name, experiment in self.config["experiments"].items():
            sections.setdefault(experiment["measure"]["by"], (name, experiment["measure"]))
        self.assertLessEqual(set(STARTED), set(sections))
        for by, (name, section) in sections.items():
            with self.subTest(by):
                if by == "kernels_peers" and not os.environ.get("INFERENCE_LAB_VLLM"):
                    self.skipTest("PyTorch is in vLLM's environment: name it in INFERENCE_LAB_VLLM")
                files = opened("-c", MEASURE.format(by), json.dumps(small(section)))
                modules = {f"experiments/{by}", STARTED.get(by, f"experiments/{by}")}
                sources = {f"src/inference_lab/{module}.py" for module in modules}
                self.assertLessEqual(sources, self.covers(stages.step("measure", name, section), files))

    def test_a_load(self) -> None:
        """A load of the user's own opens no source outside the closure of its command."""
        with reference_server() as base_url, tempfile.TemporaryDirectory() as folder:
            run = f"{folder}/run1"
            words = ["--base-url", base_url, "--requests", "2", "--concurrency", "1", "--output", run]
            files = opened("-m", "inference_lab.stream_load.cli", *words)
            seen = self.covers(stages.step("measure", f"{run}/", {}, own_folder=run), files)
        self.assertIn("src/inference_lab/stream_load/client/client.py", seen)

    def test_deriving(self) -> None:
        """Every summary, figure, page and article opens no source and no file its receipt does not name."""
        walk = Plan(self.config)
        steps: dict[tuple[str, ...], Step] = {}
        for experiment in walk.experiments:
            if Path(stages.folder(experiment), "manifest.json").exists():
                for step in walk.steps(experiment)[1:]:
                    steps.setdefault((step.stage, *step.modules), step)
        self.assertGreaterEqual(len(steps), 12)
        config = json.dumps(self.config)
        with ThreadPoolExecutor(max_workers=2) as pool:
            opening = {
                step.name: (step, pool.submit(opened, "-c", DERIVE, config, step.experiment, step.receipt))
                for step in steps.values()
            }
            for name, (step, files) in opening.items():
                with self.subTest(name):
                    module = f"src/inference_lab/{step.modules[0].replace('.', '/')}.py"
                    self.assertIn(module, self.covers(step, files.result(), beside=DISPATCH))


if __name__ == "__main__":
    unittest.main()

"""Does a copy of this checkout rebuild its results, and is nothing in it done by another checkout's package?

Each case is a copy under this one's environment, as a worktree, a clone or `cp -a` leaves it.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from inference_lab.config.experiments import load_config
from tests.checkout import ROOT
from tests.workflow.harness import PROGRAMS

COPIED = ("Snakefile", "config.yaml", "predictions", "profiles", "pyproject.toml", "src", "tests", "workflow")
STANDALONE = [f"--{name}" for name in ("input=raw.csv", "output-dir=out", "sequence-length=8")]
STANDALONE += ["--dtype=float64", "--blas-threads=1"]
MEASURE = """
import json, sys
from inference_lab.config.sections import read_measure
from inference_lab.experiments import decode_paths
found = decode_paths.measure(read_measure(json.loads(sys.argv[1]), "m1"), lambda done, total: None)
print(found.rows)
"""


class RunningTest(unittest.TestCase):
    """A copy of this checkout, in which everything is different but the environment."""

    def setUp(self) -> None:
        """A folder for the copy, and the conditions of every experiment."""
        self.lab = Path(self.enterContext(tempfile.TemporaryDirectory())).resolve() / "a copy"
        config = load_config(ROOT / "config.yaml").given()
        self.measure = {name: section["measure"] for name, section in config["experiments"].items()}

    def copy(self) -> None:
        """Sources, tests and workflow, without what was recorded."""
        self.lab.mkdir()
        for name in COPIED:
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, self.lab / name)

    def run_here(self, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """A finished command in the copy."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "SNAKEMAKE_"))}
        path = {"PATH": f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(
            words,
            cwd=self.lab,
            env={**kept, **path, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def test_another_checkouts_package_does_nothing_here(self) -> None:
        """A plan, the tests, a measurement and verification are refused in one line; nothing is written."""
        self.copy()
        section = json.dumps(self.measure["m2_capacity"])
        for words in (
            ("snakemake", "-n", "all"),
            ("inference-lab", "test"),
            ("inference-lab", "verify"),
            ("inference-lab", "stage", "measure", "m2_capacity", "--section", section),
            ("p2-inference-systems-summary", *STANDALONE),
        ):
            with self.subTest(" ".join(words[:2])):
                done = self.run_here(PROGRAMS / words[0], *words[1:])
                said = done.stderr.strip().splitlines()[-1]
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertRegex(said, rf"runs from {ROOT}/src/.*, this checkout's is in {self.lab}/src/")
                self.assertNotIn("Traceback", done.stderr)
        self.assertFalse((self.lab / "results").exists())

    def test_its_unit_tests_say_so_by_hand(self) -> None:
        """Under `python -m unittest` one test fails and names both places."""
        self.copy()
        test = "tests.test_collection.CollectionTest.test_what_is_tested_is_this_checkout"
        done = self.run_here(sys.executable, "-m", "unittest", test)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"inference_lab runs from {ROOT}/src/inference_lab", done.stderr)

    def test_modules_of_the_working_directory_reach_no_child(self) -> None:
        """Where random.py and json.py lie at the top, measuring processes have the standard library's."""
        self.copy()
        for name in ("random", "json"):
            (self.lab / f"{name}.py").write_text("raise ValueError('not the library')\n")
        section = self.measure["m1-batch-size-scan"]
        section |= {"rounds": 1, "warmups": 0, "quiet_wait_s": 0, "vary": {"batch_size": [1]}}
        words = (sys.executable, "-P", "-c", MEASURE, json.dumps(section))
        done = self.run_here(*words, PYTHONPATH=str(self.lab / "src"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("'raw.csv': 2", done.stdout)

    def test_every_derived_file_of_m1_comes_back_the_same(self) -> None:
        """Deleted and asked for, each has the bytes it had; raw and manifest are not touched."""
        subprocess.run(["git", "clone", "-q", ROOT, self.lab], check=True)
        kept = {p: p.read_bytes() for p in (self.lab / "results/m1").glob("*") if p.is_file()}
        derived = [p for p in kept if p.name not in ("raw.csv", "controls.csv", "manifest.json")]
        self.assertGreaterEqual(len(derived), 6)
        for path in derived:
            path.unlink()
        words = ("snakemake", "--cores", "1", *(path.relative_to(self.lab) for path in derived))
        done = self.run_here(*words, PYTHONPATH=str(self.lab / "src"))
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertNotIn("rule measure", done.stderr)
        self.assertEqual({path: path.read_bytes() for path in kept}, kept)


if __name__ == "__main__":
    unittest.main()

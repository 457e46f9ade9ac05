"""Who may import whom: the contracts of pyproject.toml hold, and each of them can be broken."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import unittest
from pathlib import Path

from tests.checkout import MEMORY, ROOT

PACKAGE = Path("src/inference_lab")
# contract (its first words): (module that breaks it, the import that does)
BREACHES = {
    "layers": ("stream_load/schedule.py", "from inference_lab.records import files"),
    "the commands": ("commands/run_tests.py", "from inference_lab.commands import verify"),
    "measuring knows no analysis": (
        "experiments/decode_paths.py",
        "from inference_lab.analysis import statistics",
    ),
    "timing is given callables": (
        "timing/protocol.py",
        "from inference_lab.mechanisms.attention import dynamic",
    ),
    "mechanisms meet no clock": ("mechanisms/attention.py", "def late():\n    import time\n    return time"),
    "analysis recomputes from records": ("analysis/timing.py", "from time import monotonic_ns"),
    "measuring loads neither pandas": ("timing/machine.py", "import pandas"),
}
LOADED = "import sys, inference_lab.{}; print(*{{name.partition('.')[0] for name in sys.modules}})"


def lint(folder: Path) -> str:
    """What import-linter says of the package in a folder, as one line of words."""
    run = subprocess.run(
        [Path(sysconfig.get_path("scripts"), "lint-imports"), "--no-cache"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return " ".join(run.stdout.split()) + run.stderr


class LayersTest(unittest.TestCase):
    """import-linter's contracts."""

    def test_the_contracts_hold(self) -> None:
        """No module imports what its layer may not."""
        said = lint(ROOT)
        self.assertRegex(said, r"Contracts: [1-9]\d* kept, 0 broken\.$", said)

    def test_each_contract_can_be_broken(self) -> None:
        """One forbidden import a contract, put where it is forbidden, breaks every one of them."""
        copy = self.copy()
        for module, line in BREACHES.values():
            path = copy / PACKAGE / module
            path.write_text(f"{path.read_text()}\n{line}\n")
        said = lint(copy)
        options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
        names = [contract["name"] for contract in options["contracts"]]
        self.assertEqual(len(names), len(BREACHES))
        for name, begins in zip(names, BREACHES, strict=True):
            with self.subTest(begins):
                self.assertTrue(name.startswith(begins), name)
                self.assertRegex(said, rf"{re.escape(name)} ?BROKEN")

    def test_a_module_without_a_layer_is_an_error(self) -> None:
        """A new module has to be given its layer before anything passes."""
        copy = self.copy()
        (copy / PACKAGE / "utils.py").touch()
        self.assertIn("inference_lab.utils", lint(copy))

    def copy(self) -> Path:
        """A folder with a copy of the package and its contracts."""
        copy = Path(self.enterContext(tempfile.TemporaryDirectory(dir=MEMORY))).resolve()
        shutil.copy(ROOT / "pyproject.toml", copy)
        shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        return copy

    def test_what_measures_loads_little(self) -> None:
        """A plan loads no NumPy, a measuring process nothing of tables, plots and statistics."""
        heavy = {"pandas", "matplotlib", "scipy", "snakemake"}
        for name, not_loaded in (
            ("cli", {*heavy, "numpy", "yaml", "rich"}),
            ("commands.run_stage", {*heavy, "numpy"}),
            ("config.prediction", {*heavy, "numpy"}),
            ("timing.worker", heavy),
            ("experiments.decode_paths", heavy),
        ):
            with self.subTest(name):
                words = [sys.executable, "-c", LOADED.format(name)]
                run = subprocess.run(words, capture_output=True, text=True, check=True)
                self.assertEqual(not_loaded.intersection(run.stdout.split()), set())

    def test_planning_meets_records_alone(self) -> None:
        """The Snakefile and its rules import config, records and errors, nothing else of ours."""
        imports = re.compile(r"^\s*(?:from|import)\s+(inference_lab[\w.]*)", re.MULTILINE)
        for path in (ROOT / "Snakefile", *(ROOT / "workflow/rules").glob("*.smk")):
            with self.subTest(path.name):
                for module in imports.findall(path.read_text()):
                    self.assertRegex(module, r"^inference_lab\.(errors|config|records|commands$)(\.|$)")


if __name__ == "__main__":
    unittest.main()

"""What is here, and whether what runs is what is written."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.installed import digest_in_record, platform_and_packages, ran_elsewhere, versions
from tests import checkout

CHECK = """
import sys
from inference_lab.errors import MeasurementRefused
from inference_lab import errors
from inference_lab.mechanisms import kv_capacity
{}
from inference_lab.records import installed
try:
    installed.check_loaded()
except MeasurementRefused as refused:
    sys.exit(str(refused))
"""


class Folder(unittest.TestCase):
    """A folder for modules and packages."""

    def setUp(self) -> None:
        """An empty one."""
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir=checkout.MEMORY))).resolve()

    def install(self, name: str = "toy", text: str = "answer = 42\n", *, more: str = "") -> Path:
        """A package of one module, listed as an installer lists it; returns the module's path."""
        module, info = self.folder / f"{name}.py", self.folder / f"{name}-1.dist-info"
        module.write_text(text)
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        (info / "RECORD").write_text(
            f"{name}.py,{digest_in_record(str(module))},11\n{more}{info.name}/RECORD,,\n"
        )
        return module


class PinsTest(Folder):
    """Installed packages against pinned ones."""

    def setUp(self) -> None:
        """The folder's packages are installed."""
        super().setUp()
        self.enterContext(mock.patch.object(sys, "path", [str(self.folder), *sys.path]))

    def refused(self, words: str, **pins: str) -> None:
        """The pins are refused in these words, in one line."""
        with self.assertRaisesRegex(MeasurementRefused, words) as raised:
            installed.check_pins(pins)
        self.assertNotIn("\n", str(raised.exception))

    def test_another_version_is_refused(self) -> None:
        """A package that is missing or of another version is named with both versions and the way out."""
        self.install()
        self.refused(r"toy 1 installed, pyproject\.toml pins 2; run uv sync, or pip install", toy="2")
        self.refused("absent is not installed, pyproject.toml pins 1", absent="1")

    def test_a_changed_package_is_refused(self) -> None:
        """A file that was edited or is gone, and a list of files that is gone, are named with the way out."""
        module = self.install()
        module.write_text("answer = 43\n")
        self.refused(r"^toy 1: toy\.py was changed after it was .*--reinstall-package toy", toy="1")
        module.unlink()
        self.refused(r"^toy 1: toy\.py: no such file; install it anew", toy="1")
        (self.folder / "toy-1.dist-info/RECORD").unlink()
        self.refused("^toy 1: RECORD, its list of files, is missing", toy="1")

    def test_one_package_has_one_digest(self) -> None:
        """What an installer adds of its own leaves the digest as it is; another file's content does not."""
        (self.folder / "toy-1.dist-info").mkdir()
        note = self.folder / "toy-1.dist-info/INSTALLER"
        note.write_text("some installer")
        self.install()
        plain = installed.check_pins({"toy": "1"})
        own = f"{note.relative_to(self.folder)},{digest_in_record(str(note))},14\n"
        self.install(more=f"{own}__pycache__/toy.cpython-311.pyc,sha256=old,1\n")
        self.assertEqual(installed.check_pins({"toy": "1"}), plain)
        self.install(text="answer = 43\n")
        self.assertNotEqual(installed.check_pins({"toy": "1"}), plain)

    def test_evidence_is_of_one_platform(self) -> None:
        """A tests' receipt made with another Python, machine or package version is from elsewhere."""
        here = platform_and_packages(["numpy"])
        self.assertFalse(ran_elsewhere({"environment": {**here, "thread_variables": {}}}))
        for other in ({"python": "3.99"}, {"machine": "abacus"}, {"packages": {"numpy": "0.1"}}):
            self.assertTrue(ran_elsewhere({"environment": {**here, **other}}), other)


class RunningTest(Folder):
    """The modules of a process against the files that vouch for them."""

    def test_another_checkouts_package_is_refused(self) -> None:
        """A checkout whose ./src is not what runs is told both places and the way out; a link to it is it."""
        (self.folder / "src/inference_lab").mkdir(parents=True)
        words = rf"runs from {checkout.ROOT}/src/inference_lab, .* in {self.folder}/.*; remove .venv"
        with contextlib.chdir(self.folder):
            with self.assertRaisesRegex(MeasurementRefused, words):
                installed.check_running({})
            shutil.rmtree("src")
            Path("src").symlink_to(checkout.ROOT / "src")
            installed.check_package()

    def refusal(self, code: str = "", **variables: str) -> str:
        """What a process that imports this package says of the modules that it has loaded."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        variables = {"PYTHONPATH": f"{checkout.ROOT / 'src'}{os.pathsep}{self.folder}"} | variables
        command = [sys.executable, "-c", CHECK.format(code)]
        return subprocess.run(
            command, cwd=self.folder, env=kept | variables, stderr=subprocess.PIPE, text=True, check=False
        ).stderr

    def test_every_module_is_vouched_for(self) -> None:
        """A module that no package lists, or that hides one of the library, is named; a listed one passes."""
        self.install()
        self.assertEqual(self.refusal("import toy, numpy"), "")
        for name in ("colorsys", "loose", "sitecustomize"):
            (self.folder / f"{name}.py").write_text("")
            with self.subTest(name):
                said = self.refusal(f"import {name}")
                self.assertRegex(said, rf"^module {name} was taken from {self.folder}/{name}\.py.*\n$")
            (self.folder / f"{name}.py").unlink()
        (self.folder / "toy.py").write_text("answer = 43\n")
        self.assertRegex(self.refusal("import toy"), r"^toy 1: toy\.py was changed after .*\n$")

    def test_old_bytecode_is_refused_once(self) -> None:
        """An edit of equal size and time runs as what it was before: refused, and gone by the next run."""
        package = self.folder / "src/inference_lab"
        shutil.copytree(
            checkout.ROOT / "src/inference_lab", package, ignore=shutil.ignore_patterns("__pycache__")
        )
        source = package / "mechanisms/kv_capacity.py"
        for elsewhere in ({}, {"PYTHONPYCACHEPREFIX": str(self.folder / "bytecode")}):
            with self.subTest(elsewhere):
                at = {"PYTHONPATH": str(self.folder / "src"), **elsewhere}
                self.assertEqual(self.refusal(**at), "")
                text, stat = source.read_text(), source.stat()
                source.write_text(text.replace("2 *", "3 *") if "2 *" in text else text.replace("3 *", "2 *"))
                os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
                self.assertEqual(source.stat().st_size, stat.st_size)
                self.assertRegex(self.refusal(**at), r"^/.*/kv_capacity\.py: old bytecode ran, .* again\n$")
                self.assertEqual(self.refusal(**at), "")


class MachineTest(unittest.TestCase):
    """What a manifest says of the machine."""

    def test_everything_asked_for_is_there(self) -> None:
        """Each fact of the contract has a key; what this kernel does not show is None, not left out."""
        shell = {"OMP_NUM_THREADS": "5", "MKL_CBWR": "AVX2", "HOME": "/secret"}
        with mock.patch.dict(os.environ, shell, clear=True):
            found = installed.machine(["numpy", "no-such-package"])
        self.assertEqual(found["thread_variables"], {"MKL_CBWR": "AVX2", "OMP_NUM_THREADS": "5"})
        self.assertEqual(found["packages"], {**versions(["numpy"]), "no-such-package": None})
        self.assertLessEqual({"cores", "affinity", "kernel", "governor", "python", "machine"}, set(found))
        self.assertTrue(found["cpu_model"])
        with mock.patch.object(installed, "kernel_says", return_value=None):
            self.assertIsNone(installed.machine([])["governor"])


if __name__ == "__main__":
    unittest.main()

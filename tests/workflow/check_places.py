"""Does the README's main job hold wherever the repository is put: clones, archives, a folder that moved?

Each case is a stranger's copy of HEAD with an environment of its own, made by the README's commands. The main
job must end with 0, measure nothing, change no committed file and say no word of doubt that is not true.
By hand, a few minutes: every case rebuilds every figure. INFERENCE_LAB_UNIT_TESTS=1 runs the unit tests too.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOUBTS = re.compile(r"out of date|does not follow|younger than|mismatch|Traceback", re.IGNORECASE)
TESTS = ("python", "-m", "unittest", "discover", "-s", "tests")


def call(*words: str | Path, at: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A finished command; what Python and uv of this process are set to does not reach it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "UV_", "VIRTUAL_ENV", "GIT_"))}
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(word) for word in words], cwd=at, env={**kept, **threads, **variables}, text=True,
        capture_output=True, check=False, timeout=900, stdin=subprocess.DEVNULL, errors="replace",
    )  # fmt: skip


class PlacesTest(unittest.TestCase):
    """One copy a case."""

    def setUp(self) -> None:
        """A folder whose name holds a space and a letter outside ASCII."""
        self.outside = Path(tempfile.mkdtemp(prefix="a plâce "))
        self.addCleanup(shutil.rmtree, self.outside)

    def done(self, *words: str | Path, at: Path | None = None, **variables: str) -> str:
        """What a command that has to end with 0 said."""
        ended = call(*words, at=at or self.outside, **variables)
        self.assertEqual(ended.returncode, 0, f"{words}\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        return ended.stdout + ended.stderr

    def holds(self, lab: Path, *run: str) -> str:
        """Assert that main job, second main job and `verify` hold here; `run` is how a program is started."""
        said = self.done(*run, "snakemake", "--cores", "1", "all", at=lab)
        self.assertIsNone(DOUBTS.search(said), said[-3000:])
        self.assertNotRegex(said, r"(?m)^rule measure")
        again = self.done(*run, "snakemake", "--cores", "1", "all", at=lab)
        self.assertIn("Nothing to be done", again)
        verified = self.done(*run, "inference-lab", "verify", at=lab)
        self.assertIsNone(DOUBTS.search(verified), verified[-3000:])
        if os.environ.get("INFERENCE_LAB_UNIT_TESTS"):
            self.assertRegex(self.done(*run, *TESTS, at=lab), r"(?m)^OK")
        if (lab / ".git").exists():
            self.assertEqual(self.done("git", "status", "--porcelain", at=lab), "")
        return said + verified

    def archive(self) -> Path:
        """HEAD unpacked, without git."""
        lab = self.outside / "lab"
        lab.mkdir()
        self.done("git", "archive", "--output", self.outside / "lab.tar", "HEAD", at=REPOSITORY)
        self.done("tar", "-xf", self.outside / "lab.tar", "-C", lab)
        return lab

    def clone(self, *options: str) -> Path:
        """A clone of HEAD by git's own protocol, which `--depth` needs."""
        self.done("git", "clone", "--quiet", *options, f"file://{REPOSITORY}", "lab")
        return self.outside / "lab"

    def test_a_clone(self) -> None:
        """A fresh clone: every prediction stands in the commit its run names."""
        self.holds(self.clone(), "uv", "run")

    def test_a_shallow_clone(self) -> None:
        """History that does not reach back is not checked, and that is what is said."""
        self.assertIn("not checked", self.holds(self.clone("--depth", "1"), "uv", "run"))

    def test_an_archive_without_git(self) -> None:
        """No git: the age of predictions is not checked."""
        self.assertIn("not checked", self.holds(self.archive(), "uv", "run"))

    def test_an_archive_in_a_new_repository(self) -> None:
        """An import has one commit, younger than every run: its date is no evidence of anything."""
        lab = self.archive()
        who = ("-c", "user.name=a", "-c", "user.email=a@invalid")
        for words in (("init", "-q"), ("add", "--all"), (*who, "commit", "-qm", "import")):
            self.done("git", *words, at=lab)
        self.assertIn("not checked", self.holds(lab, "uv", "run"))

    def test_an_archive_inside_another_repository(self) -> None:
        """The commits around it are not this project's."""
        self.done("git", "init", "-q")
        self.assertIn("not checked", self.holds(self.archive(), "uv", "run"))

    def test_a_clone_that_converts_line_ends(self) -> None:
        """`* -text` keeps every byte under core.autocrlf."""
        self.holds(self.clone("-c", "core.autocrlf=true"), "uv", "run")

    def test_pip_editable(self) -> None:
        """Without uv: a virtual environment and `pip install -e '.[test]'`."""
        lab = self.clone()
        self.done(sys.executable, "-m", "venv", self.outside / "env")
        self.done(self.outside / "env/bin/pip", "install", "-q", "-e", ".[test]", at=lab)
        self.holds(lab, "env", f"PATH={self.outside / 'env/bin'}:{os.environ['PATH']}")

    def test_a_folder_that_moved(self) -> None:
        """Moved, its environment deleted as README says: no record is out of date."""
        lab = self.clone()
        self.done("uv", "sync", "--quiet", at=lab)
        moved = lab.rename(self.outside / "moved")
        shutil.rmtree(moved / ".venv")  # its programs name the old folder
        self.holds(moved, "uv", "run")


if __name__ == "__main__":
    unittest.main()

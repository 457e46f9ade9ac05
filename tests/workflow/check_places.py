"""Does the README's main job hold wherever the repository is put: clones, archives, a folder that moved?

Each case is a stranger's copy of HEAD with an environment of its own, made by the README's commands. The main
job must end with 0, measure nothing, change no committed file and report nothing wrong that is not so.
By hand, a few minutes: every case rebuilds every figure. INFERENCE_LAB_UNIT_TESTS=1 runs the unit tests too.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tests.checkout import ROOT

WRONG = re.compile(r"out of date|does not follow|younger than|mismatch|Traceback", re.IGNORECASE)
TESTS = "python -m unittest discover -s tests"
ARCHIVE = "mkdir lab; git -C {root} archive HEAD | tar -x -C lab"
NEW = "cd lab; git init -q; git add --all; git -c user.name=a -c user.email=a@invalid commit -qm import"
PIP = "{python} -m venv env; cd lab; ../env/bin/pip install -q -e '.[test]'"
MOVED = "(cd lab; uv sync --quiet); rm -r lab/.venv; mv lab other"  # its programs name `lab`
# How a copy is made, the folder it is in, what is said of the age of predictions, how a program is started.
PLACES = {
    "a clone": ("git clone -q {url} lab", "lab", "", "uv run"),
    "a shallow clone": ("git clone -q --depth 1 {url} lab", "lab", "not checked", "uv run"),
    "a clone that converts line ends": ("git clone -q -c core.autocrlf=true {url} lab", "lab", "", "uv run"),
    "an archive without git": (ARCHIVE, "lab", "not checked", "uv run"),
    "an archive in a new repository": (f"{ARCHIVE}; {NEW}", "lab", "not checked", "uv run"),
    "an archive inside another repository": (f"git init -q; {ARCHIVE}", "lab", "not checked", "uv run"),
    "pip without uv": (f"git clone -q {{url}} lab; {PIP}", "lab", "", 'env "PATH={env}:{path}"'),
    "a folder that moved": (f"git clone -q {{url}} lab; {MOVED}", "other", "", "uv run"),
}


class PlacesTest(unittest.TestCase):
    """One copy a case."""

    def done(self, command: str, at: Path) -> str:
        """What a shell command that has to end with 0 said, without the settings of our Python and uv."""
        foreign = ("PYTHON", "UV_", "VIRTUAL_ENV", "GIT_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(
            ["bash", "-ec", command], cwd=at, env={**kept, **threads}, text=True, errors="replace",
            capture_output=True, check=False, timeout=900, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self.assertEqual(ended.returncode, 0, f"{command}\n{ended.stdout[-3000:]}{ended.stderr[-3000:]}")
        return ended.stdout + ended.stderr

    def test_places(self) -> None:
        """Main job, second main job and `verify` hold in every place."""
        given = {
            "root": shlex.quote(str(ROOT)),
            "url": shlex.quote(f"file://{ROOT}"),
            "python": sys.executable,
        }
        for name, (made, folder, says, run) in PLACES.items():
            outside = Path(tempfile.mkdtemp(prefix="a plâce "))
            self.addCleanup(shutil.rmtree, outside)
            with self.subTest(name):
                self.done(made.format(**given), outside)
                self.holds(
                    outside / folder, says, run.format(env=outside / "env/bin", path=os.environ["PATH"])
                )

    def holds(self, lab: Path, says: str, run: str) -> None:
        """Assert that the jobs end well here and say what they should."""
        first = self.done(f"{run} snakemake --cores 1 all", lab)
        self.assertNotRegex(first, r"(?m)^rule measure")
        self.assertIn("Nothing to be done", self.done(f"{run} snakemake --cores 1 all", lab))
        said = first + self.done(f"{run} inference-lab verify", lab)
        self.assertNotRegex(said, WRONG)
        self.assertIn(says, said)
        if os.environ.get("INFERENCE_LAB_UNIT_TESTS"):
            self.assertRegex(self.done(f"{run} {TESTS}", lab), r"(?m)^OK")
        if (lab / ".git").exists():
            self.assertEqual(self.done("git status --porcelain", lab), "")


if __name__ == "__main__":
    unittest.main()

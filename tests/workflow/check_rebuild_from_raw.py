"""Summaries and figures are rebuilt, byte for byte, from what was measured; nothing is measured for it."""

import hashlib
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class RebuildTest(unittest.TestCase):
    """A copy of the committed files."""

    def test_every_derived_file_of_m1_comes_back_the_same(self) -> None:
        """Deleted and asked for, each has the bytes it had; raw and manifest are not touched."""
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "a copy")
            subprocess.run(["git", "clone", "-q", str(ROOT), str(copy)], check=True)
            kept = {p: digest(p) for p in (copy / "results/m1").glob("*") if p.is_file()}
            derived = [p for p in kept if p.name not in ("raw.csv", "controls.csv", "manifest.json")]
            self.assertGreaterEqual(len(derived), 6)
            for path in derived:
                path.unlink()
            done = subprocess.run(
                ["snakemake", "--cores", "1"] + [p.relative_to(copy).as_posix() for p in derived],
                cwd=copy,
                env=environment(copy),
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            self.assertNotIn("rule measure", done.stderr)
            self.assertEqual({p: digest(p) for p in kept}, kept)


def digest(path: Path) -> str:
    """sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def environment(checkout: Path) -> dict[str, str]:
    """Variables under which the package of `checkout` is the one that is imported."""
    tools = Path(sys.executable).parent
    path = os.pathsep.join((str(tools), os.environ["PATH"]))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(checkout / "src")}


if __name__ == "__main__":
    unittest.main()

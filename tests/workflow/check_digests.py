"""The digest of a source is the same on every Python found here."""

import itertools
import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import packaging

from tests import checkout
from tests.records.test_digests import EVERY_SYNTAX

DIGESTS = """
import ast, json, sys
sys.path[:0] = sys.argv[1:]
from inference_lab.records.digests import digest_of_tree
print(json.dumps({name: digest_of_tree(ast.parse(text)) for name, text in json.load(sys.stdin).items()}))
"""


def interpreters() -> dict[str, str]:
    """`{version: path}` of every Python from 3.11 on that is found here; the running one among them."""
    roots = [os.environ.get("PYENV_ROOT", "~/.pyenv"), "~/.local/share/uv/python", "/usr/local", "/usr"]
    installed = ("versions/3.*/bin/python3", "*/bin/python3", "bin/python3.[0-9]*")
    places = itertools.chain(*(Path(r).expanduser().glob(g) for r, g in itertools.product(roots, installed)))
    named = filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 20)))
    found: dict[str, str] = {}
    for candidate in (sys.executable, *named, *map(str, places)):
        asked = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)  # a shim may lead nowhere
        version = answer.stdout.strip()
        if answer.returncode == 0 and tuple(map(int, version.split("."))) >= (3, 11):
            found.setdefault(version, candidate)
    return found


class EveryPythonTest(unittest.TestCase):
    """What a receipt says on one Python holds on another."""

    def test_one_source_has_one_digest_on_every_python(self) -> None:
        """Each interpreter found here gives the running one's digests of all sources and all syntax."""
        texts = {str(path): path.read_text() for path in (checkout.ROOT / "src").rglob("*.py")}
        task = json.dumps(texts | {"every syntax": EVERY_SYNTAX})
        folders = [str(checkout.ROOT / "src"), str(Path(packaging.__file__).parents[1])]
        expected: dict[str, str] = {}
        for version, python in interpreters().items():
            with self.subTest(python=version):
                words = [python, "-I", "-B", "-c", DIGESTS, *folders]
                run = subprocess.run(words, input=task, capture_output=True, text=True, check=False)
                self.assertEqual(run.returncode, 0, run.stderr)
                found = json.loads(run.stdout)
                expected = expected or found
                self.assertEqual(found, expected)
        self.assertGreater(len(expected), 20)

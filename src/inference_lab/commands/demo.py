"""The demonstrations of docs/handover.md, run in a throwaway clone. Its commands are written there alone."""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from inference_lab.errors import LabError
from inference_lab.records import files

PAGE = Path("docs/handover.md")
PARTS = re.compile(r"^## (.+?)\n\n(.*?)\n\n```sh\n(.*?)```\n\n(.*?)\n(?=\n## |\Z)", re.MULTILINE | re.DOTALL)


class DemoFailed(LabError):
    """A demonstration did not go as its page says."""


def demo(page: Path = PAGE) -> str:
    """Return how long it took to run every part of the page; each prints what it does and what to look at.

    Raises DemoFailed when a command does not end as the page says, or git cannot make a clone.
    """
    parts = PARTS.findall(files.read_text(page, f"restore it: git checkout {page}"))
    if not parts:
        raise DemoFailed(f"{page}: holds no part with commands; restore it: git checkout {page}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "inference_lab")
        _run(["git", "clone", "--quiet", ".", str(clone)], Path(), "no clone of this folder")
        for title, does, commands, look in parts:
            print(f"\n== {title}\n{does}\n\n{commands}", flush=True)
            # Each command is one that must succeed; a part that ends with `! command` expects a failure.
            _run(["bash", "-euxc", commands], clone, f"{page}: {title}: a command failed")
            print(f"\n{look}", flush=True)
    return f"\n{len(parts)} demonstrations in {time.monotonic() - began:.0f} s; the clone is deleted"


def _run(command: list[str], folder: Path, refusal: str) -> None:
    # The clone has an environment of its own.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "VIRTUAL_ENV"}
    if status := subprocess.run(command, cwd=folder, env=variables, check=False).returncode:
        raise DemoFailed(f"{refusal} (status {status}); its own words are above")

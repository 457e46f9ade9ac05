"""Where a check may stop a stage: it names itself in a file and waits to be killed, or breaks half-way."""

import os
import time
from pathlib import Path

from inference_lab.errors import LabError


def here(stage: str) -> None:
    """Nothing, unless TOY_PAUSE names this stage: then wait until TOY_GO exists."""
    if os.environ.get("TOY_PAUSE") == stage:
        Path(os.environ["TOY_HERE"]).write_text(str(os.getpid()))
        while not Path(os.environ["TOY_GO"]).exists():
            time.sleep(0.02)


def half_written(stage: str, file: str) -> None:
    """Nothing, unless TOY_BREAK names this stage: then leave half of `file` under its own name and fail."""
    if os.environ.get("TOY_BREAK") == stage:
        Path(file).write_text("half of w")
        raise LabError(f"{stage} broke half-way, as TOY_BREAK asked")

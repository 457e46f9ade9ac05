"""Folders for the time of one piece of work: gone with whoever made them, however that ended."""

import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

# Children that die with their parent may still write for a moment, so that a folder is not empty at once.
_KEEPER = 'read -r kept || for _ in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 0.2; done'


@contextmanager
def temporary_folder(name: str) -> Generator[Path]:
    """A new folder, removed at the end of the block; kept when the block raises an error, which may name it.

    A small shell outlives this process and removes the folder when it was killed.
    """
    place = Path(tempfile.mkdtemp(prefix=f"inference-lab-{name}-"))
    keeper = subprocess.Popen(
        ["sh", "-c", _KEEPER, "sh", place], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0
    )
    try:
        yield place
    except Exception:
        keeper.communicate(b"kept\n")
        raise
    finally:
        if keeper.returncode is None:
            keeper.communicate()

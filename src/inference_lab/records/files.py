"""Files that are whole or absent: digests, canonical JSON, writing by temporary, fsync and rename."""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from inference_lab.errors import RecordError, unread

JSON: TypeAlias = Mapping[str, Any]  # an object of a JSON file; what is in a receipt, `forms` says
_MADE_HERE = ("results", "docs")  # where a killed run can leave a temporary
_WAY_OUT = "restore it from git or remake it"
# Children that die with their parent may still write for a moment, so that a folder is not empty at once.
_KEEPER = 'read -r kept || for _ in 1 2 3 4 5; do rm -rf -- "$1" && break; sleep 0.2; done'


class Conflicted(RecordError):
    """A recorded file holds the conflict markers of a merge."""


def sha256_file(path: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(value: object) -> str:
    """One JSON text for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def sha256_value(value: object) -> str:
    """sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def read_text(path: Path, way_out: str) -> str:
    """The text of a file. Raises RecordError that names the file, why it gave none, and the way out."""
    try:
        return path.read_text(encoding="utf-8-sig")  # a spreadsheet writes a mark of its own in front
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: {unread(error)}; {way_out}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises RecordError when it is missing, torn or no object."""
    text = read_text(path, _WAY_OUT)
    if text.startswith("<<<<<<< ") or "\n<<<<<<< " in text:
        whole = {"manifest.json": path.parent, "receipts": path.parent.parent}
        side = f"git checkout --theirs -- {whole.get(path.name, whole.get(path.parent.name, path))}"
        ways_out = f"take one side of it whole ({side}) or make it again (snakemake -R {path} -- all)"
        raise Conflicted(f"{path}: holds git's conflict markers; {ways_out}")
    try:
        value = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{path}: not readable JSON ({error}); {_WAY_OUT}") from None
    if not isinstance(value, dict):
        raise RecordError(f"{path}: holds no JSON object; {_WAY_OUT}")
    return value  # pyright: ignore[reportUnknownVariableType]


def write_file(path: Path, text: str | bytes) -> None:
    """Put `text` at `path` in one step: readers see the old file or the whole new one, never a part."""
    data = text.encode() if isinstance(text, str) else text
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = staging(path)
        try:
            write_through(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        words = f"cannot be written ({error.strerror or error}); nothing was changed there"
        raise RecordError(f"{path}: {words}") from error


def write_through(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def staging(target: Path) -> Path:
    """A path for what will become `target`: beside it, so on its file system; ignored by git.

    It names its process, so that `clear_leftovers` can tell what a killed one left.
    """
    return target.with_name(f".{target.name}.{os.getpid()}.partial")


def clear_leftovers() -> None:
    """Remove from this checkout what processes that no longer live were about to put in place."""
    for left in [left for folder in _MADE_HERE for left in Path(folder).rglob(".*.partial")]:
        pid = left.name.split(".")[-2]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def sync_folder(folder: Path) -> None:
    """Make the renames inside `folder` last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: JSON) -> None:
    """Write `value` as indented JSON, sorted by key, in one step."""
    write_file(path, json_text(value))


def json_text(value: JSON) -> str:
    """Indented JSON for people and diffs, sorted by key, ending in a line end."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


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

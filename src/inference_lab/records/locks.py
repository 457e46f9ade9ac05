"""One measurement at a time on a machine, and no measuring process without its run.

The kernel frees both with the process that holds them, however it ends.
"""

import contextlib
import ctypes
import fcntl
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

from inference_lab.errors import MeasurementRefused

# Not tempfile.gettempdir(): that writes there first, and on a full disk no command would start.
MACHINE_LOCK = Path(os.environ.get("TMPDIR") or "/tmp", "inference-lab-measuring.lock")
RUN_VARIABLE = "INFERENCE_LAB_RUN"
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def one_measurement(lock: Path = MACHINE_LOCK) -> Generator[None]:
    """Hold the machine for one measurement; wait for a living holder and say who it is."""
    handle = _open(lock)
    try:
        hold(handle, "measures on this machine")
        yield
    finally:
        os.close(handle)


def hold(handle: int, doing: str) -> None:
    """Take an flock on an open file or folder; while another process has it, name that one and wait."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting: {holder(handle)} {doing}", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)


def holder(handle: int) -> str:
    """The processes that hold an flock on the open file, in words."""
    inode = f":{os.fstat(handle).st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # no /proc on this system: the holder has no name here
        return "another process"
    found = [line.split() for line in lines if "FLOCK" in line and "->" not in line]
    pids = [words[4] for words in found if words[5].endswith(inode)]
    named = [f"process {pid} ({_command(pid)})" for pid in pids]
    return ", ".join(named) or "another process"


def _command(pid: str) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "ended meanwhile"
    return " ".join(Path(word).name if word.startswith("/") else word for word in words[:6]).strip()


def _open(lock: Path) -> int:
    try:
        with contextlib.suppress(FileNotFoundError):
            return os.open(lock, os.O_RDONLY)  # another user's file in a sticky folder opens only like this
        return os.open(lock, os.O_RDONLY | os.O_CREAT, 0o666)
    except OSError as error:
        raise MeasurementRefused(
            f"{lock}: the lock of measuring cannot be opened ({error.strerror}); let this user read it"
        ) from None


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies; refuse to start without one.

    `parent` is the process that started this one, where that is known. Where it is not, a parent that was
    gone before this call is noticed only when process 1 took its place.
    """
    if sys.platform != "linux":
        return
    expected = parent or os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != expected or (parent is None and expected == 1):
        raise MeasurementRefused("the run that started this measurement is gone; start it again")


def die_with_run() -> None:
    """When a run of Snakemake started this process, as RUN_VARIABLE says, live no longer than that run."""
    if run := os.environ.pop(RUN_VARIABLE, None):
        die_with_parent(int(run))

"""One measurement at a time on a machine, and no measuring process without its run.

The kernel frees both with the process that holds them, however it ends.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Generator
from pathlib import Path

from inference_lab.errors import MeasurementRefused

# The machine's one lock is a name that the kernel keeps (an abstract socket): it is no file, so no other
# TMPDIR, cleaner or user's rights make a second one. Containers that have a network of their own do not see
# each other's. The variable is for checks, which measure nothing real.
MACHINE_LOCK = os.environ.get("INFERENCE_LAB_LOCK") or "inference-lab-measuring"
RUN_VARIABLE = "INFERENCE_LAB_RUN"
_PR_SET_PDEATHSIG = 1


@contextlib.contextmanager
def one_measurement(lock: str = MACHINE_LOCK) -> Generator[None]:
    """Hold the machine for one measurement; wait for a living holder and say who it is."""
    if sys.platform != "linux":  # no abstract sockets there
        handle = os.open("/tmp", os.O_RDONLY)
        try:
            hold(handle, "/tmp", "measures on this machine")
            yield
        finally:
            os.close(handle)
        return
    with socket.socket(socket.AF_UNIX) as held:
        while not _bound(held, lock):
            _wait_for_holder(lock)
        held.listen()  # whoever waits connects, and reads until this end is gone
        yield


def _bound(held: socket.socket, lock: str) -> bool:
    try:
        held.bind(f"\0{lock}")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise MeasurementRefused(f"the machine's lock {lock!r} cannot be taken ({error})") from None
    return True


def _wait_for_holder(lock: str) -> None:
    with socket.socket(socket.AF_UNIX) as waiting:
        try:
            waiting.connect(f"\0{lock}")
            pid, _, _ = struct.unpack("3i", waiting.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            print(f"waiting: {_named(pid)} measures on this machine", file=sys.stderr, flush=True)
            waiting.recv(1)
        except ConnectionError:  # it is gone, or does not listen yet
            time.sleep(0.01)
        except OSError as error:
            raise MeasurementRefused(f"the machine's lock {lock!r} cannot be awaited ({error})") from None


def hold(handle: int, name: str, doing: str) -> None:
    """Take an flock on an open file or folder; while another process has it, name that one and wait.

    Raises MeasurementRefused where the file system keeps no locks, as some network ones.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting: {_holder(handle)} {doing}", file=sys.stderr, flush=True)
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError as error:
        words = f"its file system keeps no locks ({error.strerror}), so two runs could write the same files"
        raise MeasurementRefused(f"{name}: {words}; use a folder on a local disk") from None


def _holder(handle: int) -> str:
    inode = f":{os.fstat(handle).st_ino}"
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # no /proc on this system: the holder has no name here
        return "another process"
    found = [line.split() for line in lines if "FLOCK" in line and "->" not in line]
    pids = [words[4] for words in found if words[5].endswith(inode)]
    return ", ".join(_named(int(pid)) for pid in pids) or "another process"


def _named(pid: int) -> str:
    if not pid:  # it is not seen from here
        return "another process"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return f"process {pid} (ended meanwhile)"
    shown = " ".join(Path(word).name if word.startswith("/") else word for word in words[:6])
    return f"process {pid} ({shown.strip()})"


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

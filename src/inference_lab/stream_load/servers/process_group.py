"""Runs a command and ends its family of processes when the starter is gone: `process_group.py PARENT CMD...`.

The starter holds the other end of stdin. When that closes, however the starter ended, every process of the
command's group gets SIGTERM and soon SIGKILL. Ends as the command ends. It waits for those that lose their
parent, too: what they used is counted as used by this family. Runs as a script: standard library alone, so
that it is there at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

_GRACE_S = 8.0  # for the command after SIGTERM
_LEFT_S = 1.0  # for those it left behind
_KILLED_S = 5.0  # for those that were killed
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main() -> int:
    """Exit code of the command; 128 + N when signal N ended it."""
    parent, *command = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None)  # loaded before the fork
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # for the case that the guard itself is killed

    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=bind)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    ended = os.pidfd_open(child.pid)
    ready, _, _ = select.select([sys.stdin, ended], [], [])
    if ended not in ready or os.getppid() != int(parent):
        _end(child, ended)
    _signal_group(child.pid, signal.SIGKILL)  # what outlived the command: children that it left
    code = child.wait()
    _wait_for_all(time.monotonic() + _KILLED_S)
    return code if code >= 0 else 128 - code


def _end(child: "subprocess.Popen[bytes]", ended: int) -> None:
    _signal_group(child.pid, signal.SIGTERM)
    select.select([ended], [], [], _GRACE_S)
    if child.poll() is not None:  # the command may end before the children it was to wait for
        _wait_for_all(time.monotonic() + _LEFT_S)


def _wait_for_all(give_up_s: float) -> None:
    """Return when no child is left, own or adopted, or at that time of the monotonic clock."""
    while time.monotonic() < give_up_s:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(0.02)


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main())

"""Processes that live no longer than the one that needs them."""

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from inference_lab.errors import MeasurementRefused

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Ask the kernel to kill this process when the thread that started it ends (Linux only).

    Raises MeasurementRefused when that parent is gone already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise MeasurementRefused(f"parent process {parent_pid} has ended; start it from a living one")


@contextmanager
def reference_server(arguments: Sequence[str] = ()) -> Generator[str]:
    """The base URL of a reference server in a process of its own, on a free port of 127.0.0.1.

    `arguments` are those of `serve-reference`. Stopped by SIGTERM at the end, so that its truth file is
    whole; dies with this process whatever happens. Raises MeasurementRefused when it does not start.
    """
    command = [sys.executable, "-m", "inference_lab.serving.serve_reference", "--port", "0"]
    command += ["--parent-pid", str(os.getpid()), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            first_line = process.stdout.readline()
            if not first_line:
                raise MeasurementRefused("the reference server did not start; its message is above")
            yield json.loads(first_line)["base_url"]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

"""The event loop that load and reference server run in: uvloop where it installs, asyncio elsewhere."""

import asyncio
import fcntl
import gc
import os
import resource
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

try:
    from uvloop import new_event_loop
except ImportError:
    new_event_loop = asyncio.new_event_loop

LOOP_NAME = new_event_loop.__module__.partition(".")[0]
_FILES = 4096
Result = TypeVar("Result")


def _widen_file_table() -> None:
    # Once a process has threads (a look-up of a host name starts one), the kernel's table of its files grows
    # only when every core has passed the scheduler: 5 to 15 ms in which the 64th connection stops all others.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    with socket.socket() as any_file:
        os.close(fcntl.fcntl(any_file, fcntl.F_DUPFD, files - 1))


def run_in_event_loop(start: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Return the result of the coroutine, run in a new event loop.

    Objects that exist by now are hidden from the garbage collector: its passes over imported modules would
    be the longest pauses of a run.
    """
    _widen_file_table()
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(start())
    finally:
        gc.unfreeze()

"""The event loop that load and reference server run in: uvloop where it installs, asyncio elsewhere."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

try:
    from uvloop import new_event_loop

except ImportError:
    new_event_loop = asyncio.new_event_loop

LOOP_NAME = new_event_loop.__module__.partition(".")[0]

Result = TypeVar("Result")


def run_in_event_loop(start: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """The result of the coroutine, run in a new event loop.

    What exists by now is taken from the garbage collector: its passes over imported modules would be
    the longest pauses of a run.
    """
    gc.collect()
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(start())
    finally:
        gc.unfreeze()

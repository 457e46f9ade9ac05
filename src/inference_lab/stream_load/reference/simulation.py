"""The reference server without a network and without waiting: the same scheduler in virtual time.

An hour takes a moment, and every run gives the same nanoseconds.
"""

import asyncio
import json
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.reference.completion import asked_in
from inference_lab.stream_load.reference.scheduler import EngineSettings, EngineStep, Job, Scheduler

Result = TypeVar("Result")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock starts at 0 and jumps to the next timer when nothing else is to do."""

    def __init__(self) -> None:
        self._now_ns = 0
        selector = selectors.SelectSelector()
        select = selector.select

        def jump(timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            ready = select(0)
            if not ready and timeout is None:
                raise RuntimeError("the simulation waits for something that will never happen")
            self._now_ns += 0 if ready else round((timeout or 0) * 1e9)
            return ready

        selector.select = jump
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_ns / 1e9


def run_in_virtual_time(start: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run the coroutine in a virtual-time loop and return its result."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(start())


def now_ns() -> int:
    """Return the running loop's time."""
    return round(asyncio.get_running_loop().time() * 1e9)


async def sleep_until(deadline_ns: int) -> None:
    """Sleep in the running loop's time."""
    await asyncio.sleep(max(deadline_ns - now_ns(), 0) / 1e9)


class InProcessServer:
    """The in-process front of the scheduler. Use as an async context manager; `steps` is its truth."""

    def __init__(self, settings: EngineSettings) -> None:
        self._scheduler = Scheduler(settings)
        self.steps: list[EngineStep] = []

    async def __aenter__(self) -> "InProcessServer":
        engine = self._scheduler.run(
            now_ns=now_ns, sleep_until=sleep_until, on_step=lambda step, _: self.steps.append(step)
        )
        self._engine = asyncio.create_task(engine)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._engine.cancel()

    async def send(self, body: bytes) -> Capture:
        """Return what a client would see of the completion request with this JSON body, in virtual time."""
        asked = asked_in(body, is_chat=False)
        capture = Capture(sent_ns=now_ns(), http_status=200)
        over = asyncio.Event()

        def emit(number: int) -> None:
            last = number == asked.output_tokens
            choice = {"text": " t", "finish_reason": "length" if last else None}
            capture.add(json.dumps({"choices": [choice]}).encode(), now_ns(), 0)
            if last:
                capture.end("complete", now_ns())
                over.set()

        job = Job(asked.prompt_tokens, asked.output_tokens, emit)
        self._scheduler.submit(job)
        try:
            await over.wait()
        except asyncio.CancelledError:
            job.is_aborted = True
            capture.end("cancelled", now_ns(), "cancelled")
        return capture

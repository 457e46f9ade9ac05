"""Starts requests on a schedule, within the concurrency limit, and delivers every attempt as it ends.

Knows neither HTTP nor files: the same driver drives the real client and the simulation.
"""

import asyncio
import math
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from inference_lab.stream_load.client.outcome import Attempt
from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.schedule import Schedule

_RETRY_WAIT_S = 0.1
_NONE_YET = Capture()  # of a request that is due: making one would delay its sending


@dataclass(kw_only=True)
class Driver:
    """Drives one schedule once: `run`, and meanwhile perhaps `drain` or `stop`.

    In a closed loop a request is created as soon as fewer than `concurrency` are in flight. Otherwise it is
    created when it is due, and may then have to wait for that. `prepare(index, request_id)` does all that can
    be done before a request is due; `send` waits for its end and, when cancelled, returns the capture as it
    is. `deliver` is called with every attempt as it ends, in that order. A retry waits as long as the server
    asks; it is not made if that would end later than `retry_within_s` after the request was admitted.
    """

    schedule: Schedule
    prepare: Callable[[int, str], bytes]
    send: Callable[[bytes], Awaitable[Capture]]
    concurrency: int | None
    deliver: Callable[[Attempt], None]
    now_ns: Callable[[], int]
    sleep_until: Callable[[int], Awaitable[None]]
    name: str = "r"
    retries: int = 0
    retry_within_s: float = math.inf

    def __post_init__(self) -> None:
        self._limit = asyncio.Semaphore(sys.maxsize if self.concurrency is None else self.concurrency)
        self._dispatcher: asyncio.Task[None] | None = None
        self._waiting: set[asyncio.Task[None]] = set()
        self._requests: set[asyncio.Task[None]] = set()
        self.in_flight = 0
        self.is_interrupted = False

    async def run(self, recorded: Mapping[str, tuple[int, bool]] | None = None) -> None:
        """Start every request that has not finished, and return when the last one has ended.

        `recorded` holds (attempts made, whether it finished) of request ids of an earlier session.
        """
        async with asyncio.TaskGroup() as group:
            self._dispatcher = group.create_task(self._dispatch(group, recorded or {}))

    def drain(self) -> None:
        """Start nothing more; what waits is cancelled, what is in flight goes on to its end."""
        self.is_interrupted = True
        for task in (self._dispatcher, *self._waiting):
            if task is not None:
                task.cancel()

    def stop(self) -> None:
        """Cancel everything; what has arrived so far is delivered."""
        self.drain()
        for task in tuple(self._requests):
            task.cancel()

    async def _dispatch(self, group: asyncio.TaskGroup, recorded: Mapping[str, tuple[int, bool]]) -> None:
        schedule, start_ns = self.schedule, self.now_ns()
        skipped_ns: int | None = None
        for index, offset_ns in enumerate(schedule.offsets_ns()):
            request_id = f"{self.name}{index:06d}"
            attempts, is_finished = recorded.get(request_id, (0, False))
            if is_finished:
                continue
            prepared = self.prepare(index, request_id)
            if schedule.is_closed:
                await self._limit.acquire()
                arrival_ns = scheduled_ns = self.now_ns()
                if schedule.duration_s and arrival_ns - start_ns >= schedule.duration_s * 1e9:
                    return
            else:
                if skipped_ns is None:  # a resumed schedule goes on from its first open request
                    skipped_ns = offset_ns if recorded else 0
                scheduled_ns = start_ns + offset_ns - skipped_ns
                await self.sleep_until(scheduled_ns)
                arrival_ns = self.now_ns()
            due = Attempt(request_id, attempts + 1, scheduled_ns, arrival_ns, None, _NONE_YET, self.name)
            task = group.create_task(self._request(index, due, prepared))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            await asyncio.sleep(0)  # it is sent before the next one is prepared

    async def _request(self, index: int, due: Attempt, prepared: bytes) -> None:
        if not self.schedule.is_closed and not await self._wait(self._limit.acquire()):
            capture = Capture()
            capture.end("cancelled", self.now_ns(), "cancelled while it waited for others to end")
            self.deliver(replace(due, capture=capture))
            return
        admitted_ns = self.now_ns()
        self.in_flight += 1
        try:
            for retry in range(self.retries + 1):
                capture = await self.send(prepared)
                attempt = replace(due, attempt=due.attempt + retry, admitted_ns=admitted_ns, capture=capture)
                wait_s = self._retry_wait_s(attempt, retry)
                self.deliver(attempt)
                if wait_s is None or not await self._wait(asyncio.sleep(wait_s)):
                    return
                prepared = self.prepare(index, due.request_id)
        finally:
            self.in_flight -= 1
            self._limit.release()

    def _retry_wait_s(self, attempt: Attempt, retry: int) -> float | None:
        """Return how long to wait before the attempt after this one; None when there is none."""
        capture = attempt.capture
        # The server did nothing for it, but may do so later.
        may_help = capture.http_status is None or capture.http_status in (429, 500, 502, 503, 504)
        if retry == self.retries or capture.ended == "cancelled" or not may_help:
            return None
        wait_s = max(_RETRY_WAIT_S * 2**retry, _asked_wait_s(capture))
        if (self.now_ns() - (attempt.admitted_ns or 0)) / 1e9 + wait_s > self.retry_within_s:
            capture.notes.append(f"no retry: its wait of {wait_s:g} s ends after the time-out")
            return None
        return wait_s

    async def _wait(self, something: Awaitable[object]) -> bool:
        """Wait for something; return False when the load is to start nothing more before it comes."""
        task = asyncio.current_task()
        assert task is not None
        self._waiting.add(task)
        try:
            await something
        except asyncio.CancelledError:
            return False
        finally:
            self._waiting.discard(task)
        return True


def _asked_wait_s(capture: Capture) -> float:
    """Return how long Retry-After (seconds or a date) asks to wait; an unreadable one becomes a note."""
    asked = capture.headers.get("retry-after", "").strip()
    if not asked or re.fullmatch(r"[0-9]+(\.[0-9]*)?", asked):
        return float(asked or 0)
    try:
        return (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a zone
        capture.notes.append(f"Retry-After cannot be read: {asked}")
        return 0.0

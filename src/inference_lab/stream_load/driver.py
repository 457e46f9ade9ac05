"""Starts requests on a schedule, within the concurrency limit, and delivers every attempt as it ends.

Knows neither HTTP nor files: the same driver drives the real client and the simulation.
"""

import asyncio
import math
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from inference_lab.errors import InputError
from inference_lab.stream_load.client.outcome import Attempt
from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.schedule import Schedule

_RETRY_WAIT_S = 0.1


class Transport(Protocol):
    """Sends requests and returns their captures."""

    def prepare(self, index: int, request_id: str) -> Any:
        """Do everything that can be done before request `index` is due."""
        ...

    async def send(self, prepared: Any, /) -> Capture:
        """Send it and wait for its end; when cancelled, return the capture as it is."""
        ...


class Driver:
    """Drives one schedule once: `run`, and meanwhile perhaps `drain` or `stop`.

    In a closed loop a request is created as soon as fewer than `concurrency` are in flight. Otherwise it is
    created when it is due, and may then have to wait for that. `deliver` is called with every attempt as it
    ends, in that order. A retry waits as long as the server asks; it is not made if that would end later
    than `retry_within_s` after the request was admitted.
    """

    def __init__(
        self,
        schedule: Schedule,
        transport: Transport,
        *,
        concurrency: int | None,
        deliver: Callable[[Attempt], None],
        now_ns: Callable[[], int],
        sleep_until: Callable[[int], Awaitable[None]],
        name: str = "r",
        retries: int = 0,
        retry_within_s: float = math.inf,
    ) -> None:
        if concurrency is not None and concurrency < 1:
            raise InputError(f"concurrency is {concurrency}, must be at least 1")
        self._schedule = schedule
        self._transport = transport
        self._limit = asyncio.Semaphore(sys.maxsize if concurrency is None else concurrency)
        self._deliver = deliver
        self._now_ns = now_ns
        self._sleep_until = sleep_until
        self._name = name
        self._retries = retries
        self._retry_within_s = retry_within_s
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
        if self._dispatcher is not None:
            self._dispatcher.cancel()
        for task in tuple(self._waiting):
            task.cancel()

    def stop(self) -> None:
        """Cancel everything; what has arrived so far is delivered."""
        self.drain()
        for task in tuple(self._requests):
            task.cancel()

    async def _dispatch(self, group: asyncio.TaskGroup, recorded: Mapping[str, tuple[int, bool]]) -> None:
        schedule = self._schedule
        start_ns = self._now_ns()
        skipped_ns: int | None = None
        for index, offset_ns in enumerate(schedule.offsets_ns()):
            request_id = f"{self._name}{index:06d}"
            attempts, is_finished = recorded.get(request_id, (0, False))
            if is_finished:
                continue
            prepared = self._transport.prepare(index, request_id)
            if schedule.is_closed:
                await self._limit.acquire()
                arrival_ns = scheduled_ns = self._now_ns()
                if schedule.duration_s and arrival_ns - start_ns >= schedule.duration_s * 1e9:
                    return
            else:
                if skipped_ns is None:  # a resumed schedule goes on from its first open request
                    skipped_ns = offset_ns if recorded else 0
                scheduled_ns = start_ns + offset_ns - skipped_ns
                await self._sleep_until(scheduled_ns)
                arrival_ns = self._now_ns()
            due = _Due(index, request_id, attempts, scheduled_ns, arrival_ns)
            task = group.create_task(self._request(due, prepared))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            await asyncio.sleep(0)  # it is sent before the next one is prepared

    async def _request(self, due: "_Due", prepared: Any) -> None:
        if not self._schedule.is_closed and not await self._wait(self._limit.acquire()):
            capture = Capture()
            capture.end("cancelled", self._now_ns(), "cancelled while it waited for others to end")
            self._deliver_attempt(due, 1, None, capture)
            return
        admitted_ns = self._now_ns()
        self.in_flight += 1
        try:
            for number in range(1, self._retries + 2):
                capture = await self._transport.send(prepared)
                wait_s = self._retry_wait_s(capture, number, admitted_ns)
                self._deliver_attempt(due, number, admitted_ns, capture)
                if wait_s is None or not await self._wait(asyncio.sleep(wait_s)):
                    return
                prepared = self._transport.prepare(due.index, due.request_id)
        finally:
            self.in_flight -= 1
            self._limit.release()

    def _deliver_attempt(self, due: "_Due", number: int, admitted_ns: int | None, capture: Capture) -> None:
        times_ns = (due.scheduled_ns, due.arrival_ns, admitted_ns)
        self._deliver(Attempt(due.request_id, due.attempts + number, *times_ns, capture, load=self._name))

    def _retry_wait_s(self, capture: Capture, number: int, admitted_ns: int) -> float | None:
        """Return how long to wait before the attempt after this one; None when there is none."""
        if number > self._retries or not _may_retry(capture):
            return None
        wait_s = max(_RETRY_WAIT_S * 2 ** (number - 1), _asked_wait_s(capture))
        if (self._now_ns() - admitted_ns) / 1e9 + wait_s > self._retry_within_s:
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


@dataclass(frozen=True, slots=True)
class _Due:
    """A request that is due, and how many attempts an earlier session made of it."""

    index: int
    request_id: str
    attempts: int
    scheduled_ns: int
    arrival_ns: int


def _may_retry(capture: Capture) -> bool:
    """Return whether the server did nothing for this request but may do so later."""
    if capture.ended == "cancelled":
        return False
    return capture.http_status is None or capture.http_status in (429, 500, 502, 503, 504)


def _asked_wait_s(capture: Capture) -> float:
    """Return how long the server asks to wait (Retry-After: seconds or a date), 0 if it does not ask.

    An unreadable value becomes a note of the capture.
    """
    asked = capture.headers.get("retry-after", "").strip()
    if not asked or re.fullmatch(r"[0-9]+(\.[0-9]*)?", asked):
        return float(asked or 0)
    try:
        return (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a zone
        capture.notes.append(f"Retry-After cannot be read: {asked}")
        return 0.0

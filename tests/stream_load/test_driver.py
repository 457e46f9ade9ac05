"""The driver keeps to schedule and gate: shown in virtual time, to the nanosecond."""

import asyncio
import unittest
from typing import Any

from inference_lab.stream_load.client.outcome import Attempt
from inference_lab.stream_load.client.stream import Capture
from inference_lab.stream_load.driver import Driver
from inference_lab.stream_load.reference.scheduler import EngineSettings
from inference_lab.stream_load.reference.simulation import (
    InProcessServer,
    now_ns,
    run_in_virtual_time,
    sleep_until,
)
from inference_lab.stream_load.requests import RequestRecord
from inference_lab.stream_load.schedule import Schedule
from inference_lab.stream_load.workload import Length, Workload
from tests.stream_load.support import record_of

MS = 1_000_000


class InProcess:
    """The transport of the simulation; counts what is in flight at once."""

    def __init__(self, server: InProcessServer, output_tokens: int = 4) -> None:
        self.workload = Workload("m", output_tokens=Length(output_tokens, output_tokens))
        self.server = server
        self.now = self.peak = 0

    def prepare(self, index: int, request_id: str) -> bytes:
        """The body of a request."""
        return self.workload.body(index)

    async def send(self, prepared: bytes, /) -> Capture:
        """What the in-process server answers."""
        self.now += 1
        self.peak = max(self.peak, self.now)
        capture = await self.server.send(prepared)
        self.now -= 1
        return capture


def drive(
    schedule: Schedule, concurrency: int | None, *, batch: int = 64, **extra: Any
) -> tuple[list[Attempt], InProcess]:
    """The attempts of one simulated load, and its transport."""

    async def run() -> tuple[list[Attempt], InProcess]:
        attempts: list[Attempt] = []
        async with InProcessServer(EngineSettings(max_num_seqs=batch)) as server:
            transport = InProcess(server, extra.pop("output_tokens", 4))
            driver = Driver(
                schedule,
                transport,
                concurrency=concurrency,
                deliver=attempts.append,
                now_ns=now_ns,
                sleep_until=sleep_until,
            )
            if interrupt_ms := extra.pop("interrupt_ms", None):
                act = driver.stop if extra.pop("stop", False) else driver.drain
                asyncio.get_running_loop().call_later(interrupt_ms / 1000, act)
            await driver.run(extra.pop("recorded", None))
        return attempts, transport

    return run_in_virtual_time(run)


def records(attempts: list[Attempt]) -> list[RequestRecord]:
    """What the exchanges of these attempts mean."""
    return [record_of(attempt.capture) for attempt in attempts]


class TestDriver(unittest.TestCase):
    """Arrivals, admissions, interrupts."""

    def test_burst_waits_at_the_gate(self) -> None:
        """16 at once, gate 4, batch 2: all arrive at 0, 4 are in flight, the server steps with 2."""
        attempts, transport = drive(Schedule("burst", requests=16), 4, batch=2)
        self.assertEqual({attempt.arrival_ns for attempt in attempts}, {0})
        self.assertEqual(transport.peak, 4)
        self.assertEqual(max(len(step.batch) for step in transport.server.steps), 2)
        admitted = sorted(attempt.admitted_ns or 0 for attempt in attempts)
        ended = sorted(record.finish_ns for record in records(attempts))
        self.assertEqual(admitted, [0, 0, 0, 0, *ended[:12]])

    def test_without_a_gate_all_are_in_flight(self) -> None:
        """With no limit of concurrency nothing waits."""
        _, transport = drive(Schedule("burst", requests=16), None, batch=2)
        self.assertEqual(transport.peak, 16)

    def test_closed_loop(self) -> None:
        """In a closed loop the next request arrives when another ends, and never waits."""
        attempts, transport = drive(Schedule("closed", requests=7), 2)
        self.assertEqual((len(attempts), transport.peak), (7, 2))
        for attempt in attempts:
            self.assertEqual(attempt.scheduled_ns, attempt.arrival_ns)
            self.assertEqual(attempt.arrival_ns, attempt.admitted_ns)
        arrived = sorted(attempt.arrival_ns for attempt in attempts)
        ended = sorted(record.finish_ns for record in records(attempts))
        self.assertEqual(arrived, [0, 0, *ended[:5]])

    def test_closed_loop_over_a_duration(self) -> None:
        """No request arrives after the duration; what is in flight ends."""
        attempts, _ = drive(Schedule("closed", duration_s=0.12), 1)
        self.assertEqual([attempt.arrival_ns // MS for attempt in attempts], [0, 50, 100])
        self.assertEqual({record.status for record in records(attempts)}, {"ok"})

    def test_open_loop_keeps_to_its_schedule(self) -> None:
        """Slow answers delay no arrival, and waiting at the gate is not hidden."""
        schedule = Schedule("constant", requests=10, rate_per_s=100.0)
        attempts, transport = drive(schedule, 1)
        attempts.sort(key=lambda attempt: attempt.scheduled_ns)
        self.assertEqual([a.scheduled_ns for a in attempts], [10 * MS * i for i in range(10)])
        self.assertEqual([a.arrival_ns for a in attempts], [a.scheduled_ns for a in attempts])
        self.assertEqual((attempts[9].admitted_ns or 0) // MS, 9 * 50)
        self.assertEqual(transport.peak, 1)

    def test_draining(self) -> None:
        """After one interrupt nothing starts, what is in flight ends, what waits is cancelled."""
        attempts, _ = drive(Schedule("burst", requests=8), 2, interrupt_ms=45)
        found = records(attempts)
        self.assertEqual([record.status for record in found].count("ok"), 2)
        self.assertEqual([record.status for record in found].count("cancelled"), 6)
        self.assertEqual([a.admitted_ns for a in attempts].count(None), 6)

    def test_stopping(self) -> None:
        """After a stop, what is in flight is cancelled at once and keeps its tokens."""
        attempts, transport = drive(Schedule("closed", requests=8), 2, interrupt_ms=45, stop=True)
        found = sorted((record.status, record.output_tokens) for record in records(attempts))
        self.assertEqual(found, [("cancelled", 1), ("cancelled", 2)])
        self.assertEqual({record.finish_ns for record in records(attempts)}, {45 * MS})
        self.assertEqual(transport.now, 0)

    def test_resuming(self) -> None:
        """Finished requests are not repeated, cancelled ones get their next attempt, times go on."""
        recorded = {"r000000": (1, True), "r000001": (1, True), "r000002": (1, False)}
        schedule = Schedule("constant", requests=5, rate_per_s=100.0)
        attempts, _ = drive(schedule, None, recorded=recorded)
        made = [(a.request_id, a.attempt, a.scheduled_ns // MS) for a in attempts]
        self.assertEqual(made, [("r000002", 2, 0), ("r000003", 1, 10), ("r000004", 1, 20)])

    def test_same_nanoseconds_every_time(self) -> None:
        """The simulation is deterministic."""
        first, second = (drive(Schedule("burst", requests=9), 3, batch=2)[0] for _ in range(2))
        self.assertEqual(
            [r.token_times_ns for r in records(first)], [r.token_times_ns for r in records(second)]
        )


class Refusing:
    """A transport whose first answers are refusals."""

    def __init__(self, *statuses: int | None) -> None:
        self.statuses = list(statuses)

    def prepare(self, index: int, request_id: str) -> str:
        """Nothing to do."""
        return request_id

    async def send(self, prepared: str, /) -> Capture:
        """The next status; `None` is no answer."""
        capture = Capture(sent_ns=now_ns(), http_status=self.statuses.pop(0))
        capture.end("complete", now_ns())
        return capture


class TestRetries(unittest.TestCase):
    """Retries are off by default, and recorded."""

    def attempts(self, retries: int, *statuses: int | None) -> list[tuple[int, int | None]]:
        """(attempt, status) of every attempt that was delivered."""

        async def run() -> list[Attempt]:
            attempts: list[Attempt] = []
            driver = Driver(
                Schedule("closed", requests=1),
                Refusing(*statuses),
                concurrency=1,
                deliver=attempts.append,
                now_ns=now_ns,
                sleep_until=sleep_until,
                retries=retries,
            )
            await driver.run()
            return attempts

        return [(a.attempt, a.capture.http_status) for a in run_in_virtual_time(run)]

    def test_retries(self) -> None:
        """A request is tried again only where that may help, at most so often."""
        for retries, answers, attempts in (
            (0, (503, 200), [(1, 503)]),
            (3, (429, None, 200), [(1, 429), (2, None), (3, 200)]),
            (1, (503, 503, 200), [(1, 503), (2, 503)]),
            (3, (400, 200), [(1, 400)]),  # understood and refused: it would fail again
        ):
            with self.subTest(answers):
                self.assertEqual(self.attempts(retries, *answers), attempts)

"""The driver keeps to schedule and gate: shown in virtual time, to the nanosecond."""

import asyncio
import unittest
from collections.abc import Iterator, Mapping

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


class Load:
    """One simulated load: its attempts, its server's steps, and how many were in flight at most."""

    def __init__(
        self,
        schedule: Schedule,
        concurrency: int | None,
        *,
        batch: int = 64,
        interrupt: str = "",
        recorded: Mapping[str, tuple[int, bool]] | None = None,
        answers: Iterator[int | None] | None = None,
        retries: int = 0,
    ) -> None:
        workload = Workload("m", output_tokens=Length(4, 4))
        self.attempts: list[Attempt] = []
        self.server = InProcessServer(EngineSettings(max_num_seqs=batch))
        self.now = self.peak = 0
        self._answers = answers

        async def run() -> None:
            async with self.server:
                driver = Driver(
                    schedule=schedule,
                    prepare=lambda index, _: workload.body(index),
                    send=self._send,
                    concurrency=concurrency,
                    deliver=self.attempts.append,
                    now_ns=now_ns,
                    sleep_until=sleep_until,
                    retries=retries,
                )
                if interrupt:
                    asyncio.get_running_loop().call_later(0.045, getattr(driver, interrupt))
                await driver.run(recorded)

        run_in_virtual_time(run)

    async def _send(self, body: bytes) -> Capture:
        """What the in-process server answers, or the next of the answers, where None is no answer."""
        if self._answers is not None:
            capture = Capture(sent_ns=now_ns(), http_status=next(self._answers))
            capture.end("complete", now_ns())
            return capture
        self.now += 1
        self.peak = max(self.peak, self.now)
        capture = await self.server.send(body)
        self.now -= 1
        return capture

    def records(self) -> list[RequestRecord]:
        """What the exchanges of the attempts mean."""
        return [record_of(attempt.capture) for attempt in self.attempts]


class TestDriver(unittest.TestCase):
    """Arrivals, admissions, interrupts, retries."""

    def test_burst_waits_at_the_gate(self) -> None:
        """16 at once, gate 4, batch 2: all arrive at 0, 4 are in flight, the server steps with 2."""
        load = Load(Schedule("burst", requests=16), 4, batch=2)
        self.assertEqual({attempt.arrival_ns for attempt in load.attempts}, {0})
        self.assertEqual(load.peak, 4)
        self.assertEqual(max(len(step.batch) for step in load.server.steps), 2)
        admitted = sorted(attempt.admitted_ns or 0 for attempt in load.attempts)
        ended = sorted(record.finish_ns for record in load.records())
        self.assertEqual(admitted, [0, 0, 0, 0, *ended[:12]])

    def test_without_a_gate_all_are_in_flight(self) -> None:
        """With no limit of concurrency nothing waits; the simulation is the same every time."""
        first, again = (Load(Schedule("burst", requests=16), None, batch=2) for _ in range(2))
        self.assertEqual(first.peak, 16)
        self.assertEqual(first.records(), again.records())

    def test_closed_loop(self) -> None:
        """In a closed loop the next request arrives when another ends, and never waits."""
        load = Load(Schedule("closed", requests=7), 2)
        self.assertEqual((len(load.attempts), load.peak), (7, 2))
        for attempt in load.attempts:
            self.assertEqual([attempt.scheduled_ns, attempt.admitted_ns], [attempt.arrival_ns] * 2)
        arrived = sorted(attempt.arrival_ns for attempt in load.attempts)
        self.assertEqual(arrived, [0, 0, *sorted(record.finish_ns for record in load.records())[:5]])

    def test_closed_loop_over_a_duration(self) -> None:
        """No request arrives after the duration; what is in flight ends."""
        load = Load(Schedule("closed", duration_s=0.12), 1)
        self.assertEqual([attempt.arrival_ns // MS for attempt in load.attempts], [0, 50, 100])
        self.assertEqual({record.status for record in load.records()}, {"ok"})

    def test_open_loop_keeps_to_its_schedule(self) -> None:
        """Slow answers delay no arrival, and waiting at the gate is not hidden."""
        load = Load(Schedule("constant", requests=10, rate_per_s=100.0), 1)
        attempts = sorted(load.attempts, key=lambda attempt: attempt.scheduled_ns)
        self.assertEqual([a.scheduled_ns for a in attempts], [10 * MS * i for i in range(10)])
        self.assertEqual([a.arrival_ns for a in attempts], [a.scheduled_ns for a in attempts])
        self.assertEqual((attempts[9].admitted_ns or 0) // MS, 9 * 50)
        self.assertEqual(load.peak, 1)

    def test_draining(self) -> None:
        """After one interrupt nothing starts, what is in flight ends, what waits is cancelled."""
        load = Load(Schedule("burst", requests=8), 2, interrupt="drain")
        self.assertEqual(sorted(record.status for record in load.records()), [*["cancelled"] * 6, "ok", "ok"])
        self.assertEqual([attempt.admitted_ns for attempt in load.attempts].count(None), 6)

    def test_stopping(self) -> None:
        """After a stop, what is in flight is cancelled at once and keeps its tokens."""
        load = Load(Schedule("closed", requests=8), 2, interrupt="stop")
        found = sorted((record.status, record.output_tokens) for record in load.records())
        self.assertEqual(found, [("cancelled", 1), ("cancelled", 2)])
        self.assertEqual({record.finish_ns for record in load.records()}, {45 * MS})
        self.assertEqual(load.now, 0)

    def test_resuming(self) -> None:
        """Finished requests are not repeated, cancelled ones get their next attempt, times go on."""
        recorded = {"r000000": (1, True), "r000001": (1, True), "r000002": (1, False)}
        load = Load(Schedule("constant", requests=5, rate_per_s=100.0), None, recorded=recorded)
        made = [(a.request_id, a.attempt, a.scheduled_ns // MS) for a in load.attempts]
        self.assertEqual(made, [("r000002", 2, 0), ("r000003", 1, 10), ("r000004", 1, 20)])

    def test_retries(self) -> None:
        """A request is tried again only where that may help, at most so often, by default never."""
        for retries, answers, attempts in (
            (0, (503, 200), [(1, 503)]),
            (3, (429, None, 200), [(1, 429), (2, None), (3, 200)]),
            (1, (503, 503, 200), [(1, 503), (2, 503)]),
            (3, (400, 200), [(1, 400)]),  # understood and refused: it would fail again
        ):
            with self.subTest(answers):
                load = Load(Schedule("closed", requests=1), 1, answers=iter(answers), retries=retries)
                self.assertEqual([(a.attempt, a.capture.http_status) for a in load.attempts], attempts)

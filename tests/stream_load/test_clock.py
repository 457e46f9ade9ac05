"""Kernel stamps become monotonic times, whatever the wall clock does; the timer wakes at its time."""

import asyncio
import struct
import unittest
from time import monotonic_ns

from inference_lab.stream_load.clock import ArrivalClock, PreciseTimer

MS = 1_000_000


class Clocks:
    """A wall clock that can be stepped, beside a monotonic one."""

    def __init__(self) -> None:
        self.now_ns = 5_000 * MS
        self.wall_minus_monotonic_ns = 1_000_000_000 * MS

    def monotonic_ns(self) -> int:
        """The monotonic clock; every look at it takes 50 ns."""
        self.now_ns += 50
        return self.now_ns

    def wall_ns(self) -> int:
        """The wall clock; every look at it takes 50 ns."""
        return self.monotonic_ns() + self.wall_minus_monotonic_ns

    def stamp(self, at_ns: int) -> list[tuple[int, int, bytes]]:
        """What the kernel says of a packet that arrived at this monotonic time."""
        wall = divmod(at_ns + self.wall_minus_monotonic_ns, 1_000_000_000)
        return [(1, 35, struct.pack("@ll", *wall))]


class TestArrivalClock(unittest.TestCase):
    """The conversion and its refusals."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.clocks = Clocks()
        self.clock = ArrivalClock(wall_ns=self.clocks.wall_ns, monotonic_ns=self.clocks.monotonic_ns)
        self.addCleanup(self.clock.close)

    def read(self, stamp: list[tuple[int, int, bytes]]) -> int | None:
        """What the clock says of a stamp read now."""
        read_ns = self.clocks.monotonic_ns()
        self.clock.compare()
        return self.clock.arrival_ns(stamp, read_ns)

    def arrive(self) -> tuple[int, list[tuple[int, int, bytes]]]:
        """(time, stamp) of a packet that arrives now."""
        return self.clocks.now_ns, self.clocks.stamp(self.clocks.now_ns)

    def check(self, arrived: tuple[int, list[tuple[int, int, bytes]]]) -> None:
        """The packet's time is that of its arrival."""
        self.assertAlmostEqual(self.read(arrived[1]) or 0, arrived[0], delta=200)

    def test_a_late_read_keeps_the_arrival(self) -> None:
        """The stamp is of the arrival, however late the bytes are read; without one nothing is made up."""
        arrived = self.arrive()
        self.clocks.now_ns += 30 * MS
        self.check(arrived)
        self.assertIsNone(self.read([]))

    def test_steps_of_the_wall_clock(self) -> None:
        """Around a step a packet has its own time or none, never one shifted by the step."""
        for step_ns in (3_600_000 * MS, 500_000, -500_000, -3_600_000 * MS):
            with self.subTest(step_ns=step_ns):
                steps = self.clock.steps
                self.clocks.now_ns += 2_000 * MS
                self.check(self.arrive())
                between = self.arrive()
                self.clocks.now_ns += 3 * MS
                late = self.arrive()
                self.clocks.wall_minus_monotonic_ns += step_ns
                self.clocks.now_ns += MS
                for arrived in (between, late, self.arrive()):  # this read finds the step
                    found = self.read(arrived[1])
                    if found is not None:
                        self.assertAlmostEqual(found, arrived[0], delta=200)
                self.assertEqual(self.clock.steps, steps + 1)
                self.clocks.now_ns += 2_000 * MS
                self.read(self.arrive()[1])
                self.check(self.arrive())

    def test_after_a_step_forward_stamps_count_at_once(self) -> None:
        """What arrives after the step was found has its time; so has what arrived well before it."""
        self.check(self.arrive())
        before = self.arrive()
        self.clocks.now_ns += MS
        self.check(self.arrive())
        self.clocks.wall_minus_monotonic_ns += 500_000
        self.clocks.now_ns += MS
        self.read([])
        self.check(before)
        self.check(self.arrive())

    def test_a_pause_between_the_two_looks_is_no_step(self) -> None:
        """When the process is put aside between its looks at both clocks, no step is counted."""
        arrived_ns, stamp = self.arrive()
        read_ns = self.clocks.monotonic_ns()
        self.clocks.now_ns += 5 * MS
        self.assertAlmostEqual(self.clock.arrival_ns(stamp, read_ns) or 0, arrived_ns, delta=100)
        self.assertEqual(self.clock.steps, 0)

    def test_an_arrival_is_never_after_its_read(self) -> None:
        """An error of the offset cannot put an arrival into the future."""
        stamp = self.clocks.stamp(self.clocks.now_ns + 2 * MS)
        read_ns = self.clocks.monotonic_ns()
        self.assertEqual(self.clock.arrival_ns(stamp, read_ns), read_ns)


class TestPreciseTimer(unittest.IsolatedAsyncioTestCase):
    """Sleeping until an absolute time."""

    async def asyncSetUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.timer = PreciseTimer()
        self.addCleanup(self.timer.close)

    async def test_never_early(self) -> None:
        """It returns at or after each of a row of deadlines."""
        deadline_ns = monotonic_ns()
        for _ in range(20):
            deadline_ns += 700_000
            await self.timer.sleep_until(deadline_ns)
            self.assertGreaterEqual(monotonic_ns(), deadline_ns)

    async def test_a_time_that_has_passed(self) -> None:
        """The loop gets a turn, so that a load behind its schedule still reads."""
        turns: list[int] = []
        asyncio.get_running_loop().call_soon(turns.append, 1)
        await self.timer.sleep_until(monotonic_ns() - 1)
        self.assertEqual(turns, [1])

    async def test_a_cancelled_sleep(self) -> None:
        """After a sleep was cancelled, the next one still ends at its own time."""
        sleeper = asyncio.create_task(self.timer.sleep_until(monotonic_ns() + 10**12))
        await asyncio.sleep(0)
        sleeper.cancel()
        deadline_ns = monotonic_ns() + 1_000_000
        await asyncio.wait_for(self.timer.sleep_until(deadline_ns), 20)
        self.assertGreaterEqual(monotonic_ns(), deadline_ns)

"""The alarm wakes at its time, not before, and at once for a time that has passed."""

import asyncio
import unittest
from contextlib import closing
from time import monotonic_ns

from inference_lab.stream_load.clock import PreciseTimer


class TestAlarm(unittest.TestCase):
    """Sleeping until an absolute time."""

    def test_never_early(self) -> None:
        """It returns at or after each of a row of deadlines."""

        async def run() -> None:
            with closing(PreciseTimer()) as alarm:
                deadline_ns = monotonic_ns()
                for _ in range(20):
                    deadline_ns += 700_000
                    await alarm.sleep_until(deadline_ns)
                    self.assertGreaterEqual(monotonic_ns(), deadline_ns)

        asyncio.run(run())

    def test_a_time_that_has_passed(self) -> None:
        """The loop gets a turn, so that a load behind its schedule still reads."""

        async def run() -> None:
            turns: list[int] = []
            asyncio.get_running_loop().call_soon(turns.append, 1)
            with closing(PreciseTimer()) as alarm:
                await alarm.sleep_until(monotonic_ns() - 1)
            self.assertEqual(turns, [1])

        asyncio.run(run())

    def test_a_cancelled_sleep(self) -> None:
        """After a sleep was cancelled, the next one still ends at its own time."""

        async def run() -> None:
            with closing(PreciseTimer()) as alarm:
                sleeper = asyncio.create_task(alarm.sleep_until(monotonic_ns() + 10**12))
                await asyncio.sleep(0)
                sleeper.cancel()
                deadline_ns = monotonic_ns() + 1_000_000
                await asyncio.wait_for(alarm.sleep_until(deadline_ns), 20)
                self.assertGreaterEqual(monotonic_ns(), deadline_ns)

        asyncio.run(run())

"""Schedules are pure, seeded, absolute, and stop."""

import unittest
from itertools import islice, pairwise
from statistics import mean, pstdev

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import InputError
from inference_lab.stream_load.schedule import Schedule


class TestSchedule(unittest.TestCase):
    """When requests are due."""

    def test_constant_rate_does_not_drift(self) -> None:
        """Request i is due at i / rate, rounded once, however many came before."""
        offsets = list(Schedule("constant", requests=30_001, rate_per_s=3.0).offsets_ns())
        self.assertEqual(offsets[30_000], 10_000 * 1_000_000_000)
        self.assertEqual(offsets[:3], [0, 333_333_333, 666_666_667])

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.integers(0, 2**32), st.floats(0.01, 1e5))
    def test_poisson_is_seeded_and_ordered(self, seed: int, rate: float) -> None:
        """The same seed gives the same times in order, another seed others."""
        times, again, other = (
            list(Schedule("poisson", requests=50, rate_per_s=rate, seed=one).offsets_ns())
            for one in (seed, seed, seed + 1)
        )
        self.assertEqual(times, again)
        self.assertEqual(times, sorted(times))
        self.assertNotEqual(times, other)

    def test_poisson_has_exponential_gaps(self) -> None:
        """Mean and standard deviation of the gaps are both 1 / rate."""
        times = Schedule("poisson", requests=20_000, rate_per_s=100.0).offsets_ns()
        gaps = [(b - a) / 1e9 for a, b in pairwise(times)]
        self.assertAlmostEqual(mean(gaps), 0.01, delta=0.0005)
        self.assertAlmostEqual(pstdev(gaps), 0.01, delta=0.0005)

    def test_stops(self) -> None:
        """A schedule stops at its number of requests or before its duration is over."""
        for schedule, count in (
            (Schedule("constant", duration_s=1.0, rate_per_s=10.0), 10),
            (Schedule("constant", requests=3, duration_s=1.0, rate_per_s=10.0), 3),
            (Schedule("burst", requests=3), 3),
            (Schedule("closed", duration_s=1.0), 1000),  # endless: its driver watches the time
        ):
            with self.subTest(schedule):
                self.assertEqual(len(list(islice(schedule.offsets_ns(), 1000))), count)
        self.assertEqual(list(Schedule("burst", requests=3).offsets_ns()), [0, 0, 0])

    def test_refusals(self) -> None:
        """What never stops, or has a rate without use or none it needs, is refused."""
        for process, requests, duration_s, rate in (
            ("closed", None, None, None),
            ("burst", None, 5.0, None),
            ("constant", 5, None, None),
            ("closed", 5, None, 2.0),
            ("poisson", 5, None, 0.0),
            ("poisson", 5, None, float("nan")),
            ("constant", 5, None, float("inf")),
            ("closed", 0, None, None),
        ):
            with self.subTest(process=process, requests=requests), self.assertRaises(InputError):
                Schedule(process, requests, duration_s, rate)  # pyright: ignore[reportArgumentType]

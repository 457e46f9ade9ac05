"""The knee as an interval, and the page that explains it, on scans whose answer is known."""

import unittest
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from inference_lab.analysis.comparisons import Quantity
from inference_lab.analysis.knee import Doubling, find_knee
from inference_lab.analysis.statistics import Estimate, Interval
from inference_lab.errors import ConfigError
from inference_lab.pages.knee import draw
from tests.analysis.views import view_of
from tests.synthetic import first_pays, steady, timing_record, together

GROWS, STOPS, UNSURE, OPEN = (1.6, 1.7), (1.0, 1.1), (1.2, 1.3), (None, None)


class Knees(unittest.TestCase):
    """`find_knee` at a factor of 1.25."""

    def test_three_answers(self) -> None:
        """interval, Not reached and Inconclusive, each from the scan that deserves it."""
        cases: Sequence[tuple[Sequence[Sequence[Interval]], str, int | None, int | None]] = (
            ([[GROWS], [GROWS], [STOPS]], "interval", 4, 4),
            ([[STOPS], [STOPS], [STOPS]], "interval", 1, 1),
            ([[GROWS], [UNSURE], [STOPS]], "interval", 2, 4),
            ([[GROWS], [STOPS], [GROWS]], "interval", 2, 2),
            ([[GROWS], [GROWS], [GROWS]], "Not reached", None, None),
            ([[GROWS], [GROWS], [UNSURE]], "Inconclusive", None, None),
            ([[UNSURE], [GROWS], [GROWS]], "Inconclusive", None, None),
            ([[OPEN]], "Inconclusive", None, None),
            ([[GROWS, (1.1, 1.8)]], "Inconclusive", None, None),  # processes disagree
        )
        for gains, *expected in cases:
            with self.subTest(gains):
                quantities = [Quantity(Estimate(1.5, None, None, 120), gain, "") for gain in gains]
                knee = find_knee([Doubling(2**i, gain) for i, gain in enumerate(quantities)], 1.25)
                self.assertEqual([knee.answer, knee.lo, knee.hi], expected)


def page(*gains: float, **how: Any) -> str:
    """knee-analysis.md of a scan over B = 1, 2, 4, ... with these true gains."""
    times = [*accumulate(gains, lambda time, gain: time * 2 / gain, initial=1e6)]
    of_size = {2**i: time for i, time in enumerate(times)}
    how = {"rounds": 6, "cost": lambda _, cell: of_size[cell["batch_size"]], **how}
    return draw(view_of(timing_record(vary={"batch_size": tuple(of_size)}, **how), knee_factor=1.25))


class KneePage(unittest.TestCase):
    """knee-analysis.md."""

    def test_what_the_page_says(self) -> None:
        """Each answer with the numbers it rests on; a flagged cell has its flag instead of a knee."""
        flagged = {"machine": together(first_pays(0.1), steady(0.002)), "shuffle": False}
        for text, *words in (
            (
                page(1.8, 1.6, 1.1, rounds=20),
                *("| preallocated | B = 4 | growth ends at 4 |", "growing", "stopped"),
                *("positions/s", "120", "1.25"),
            ),
            (page(1.8, 1.7, 1.6), "| preallocated | Not reached | every doubling up to 8 still grew |"),
            (
                page(1.8, 1.7, 1.25, machine=steady(0.02), rounds=4),
                "| preallocated | Inconclusive | up to 8 the intervals cannot tell",
            ),
            (
                page(1.8, 1.6, 1.1, **flagged),
                *("| preallocated | Inconclusive |", "flagged aa", "no comparison is made"),
                "### preallocated",
            ),
            (  # why throughput is not latency
                page(1.8, 1.6, 1.1, machine=lambda _: 1.0),
                "B=8 does 3.168 [3.168, 3.168] times the positions/s of B=1",
                "its decode takes 2.525 [2.525, 2.525] times as long: 2.525 ms instead of 1 ms",
                "every request in it waits for all of them",
            ),
        ):
            for word in words:
                with self.subTest(word):
                    self.assertIn(word, text)

    def test_other_axes_have_no_knee_page(self) -> None:
        """An experiment over T, or without a declared factor, is refused in one line."""
        record = timing_record(vary={"sequence_length": (8, 16)}, rounds=6)
        with self.assertRaisesRegex(ConfigError, "vary: batch_size"):
            draw(view_of(record, knee_factor=1.25))
        with self.assertRaisesRegex(ConfigError, "knee_factor"):
            draw(view_of(timing_record(rounds=6)))

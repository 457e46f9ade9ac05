"""The knee as an interval, and the page that explains it, on scans whose answer is known."""

import unittest
from collections.abc import Mapping, Sequence
from typing import Any

from inference_lab.analysis.comparisons import Quantity
from inference_lab.analysis.knee import Doubling, find_knee
from inference_lab.analysis.statistics import Estimate
from inference_lab.errors import ConfigError
from inference_lab.pages.knee import draw
from tests.analysis.views import view_of
from tests.synthetic import Machine, first_pays, steady, timing_record, together


def steps(*gains: tuple[float, float]) -> list[Doubling]:
    """Doublings of 1, 2, 4, ... whose gain lies in the given intervals."""
    return [
        Doubling(2**i, Quantity(Estimate((lo + hi) / 2, lo, hi, 120), [(lo, hi)], ""))
        for i, (lo, hi) in enumerate(gains)
    ]


GROWS, STOPS, UNSURE = (1.6, 1.7), (1.0, 1.1), (1.2, 1.3)


class Knees(unittest.TestCase):
    """`find_knee` at a factor of 1.25."""

    def test_three_answers(self) -> None:
        """interval, Not reached and Inconclusive, each from the scan that deserves it."""
        for gains, answer, lo, hi in (
            ((GROWS, GROWS, STOPS), "interval", 4, 4),
            ((STOPS, STOPS, STOPS), "interval", 1, 1),
            ((GROWS, UNSURE, STOPS), "interval", 2, 4),
            ((GROWS, STOPS, GROWS), "interval", 2, 2),
            ((GROWS, GROWS, GROWS), "Not reached", None, None),
            ((GROWS, GROWS, UNSURE), "Inconclusive", None, None),
            ((UNSURE, GROWS, GROWS), "Inconclusive", None, None),
        ):
            with self.subTest(gains=gains):
                knee = find_knee(steps(*gains), 1.25)
                self.assertEqual((knee.answer, knee.lo, knee.hi), (answer, lo, hi))

    def test_an_open_bound_decides_nothing(self) -> None:
        """A gain whose lower bound is open has not surely grown."""
        gain = Quantity(Estimate(1.9, None, None, 5), [(None, None)], "")
        self.assertEqual(find_knee([Doubling(1, gain)], 1.25).answer, "Inconclusive")

    def test_processes_that_disagree_decide_nothing(self) -> None:
        """Every interval of a gain has to lie on one side of the factor."""
        gain = Quantity(Estimate(1.6, 1.5, 1.7, 120), [(1.5, 1.7), (1.1, 1.8)], "")
        self.assertEqual(find_knee([Doubling(1, gain)], 1.25).answer, "Inconclusive")


def page(gains: Sequence[float], machine: Machine | None = None, **how: Any) -> str:
    """knee-analysis.md of a scan over B = 1, 2, 4, ... with these true gains."""
    times = [1e6]
    for gain in gains:
        times.append(times[-1] * 2 / gain)
    values = tuple(2**i for i in range(len(times)))

    def cost(_: str, cell: Mapping[str, Any]) -> float:
        return times[values.index(cell["batch_size"])]

    record = timing_record(vary={"batch_size": values}, cost=cost, machine=machine, **how)
    return draw(view_of(record, knee_factor=1.25))


class KneePage(unittest.TestCase):
    """knee-analysis.md."""

    def test_an_interval(self) -> None:
        """Growth that ends at B=4 is said to end at 4, with every number it rests on."""
        text = page([1.8, 1.6, 1.1])
        self.assertIn("| preallocated | B = 4 | growth ends at 4 |", text)
        for word in ("growing", "stopped", "positions/s", "120", "1.25"):
            self.assertIn(word, text)

    def test_not_reached(self) -> None:
        """Growth up to the largest batch is `Not reached`, whatever may come beyond it."""
        self.assertIn(
            "| preallocated | Not reached | every doubling up to 8 still grew |", page([1.8, 1.7, 1.6])
        )

    def test_inconclusive(self) -> None:
        """A gain that its interval cannot tell from the factor is Inconclusive."""
        text = page([1.8, 1.7, 1.25], machine=steady(0.02), rounds=4)
        self.assertIn("| preallocated | Inconclusive | up to 8 the intervals cannot tell", text)

    def test_a_flagged_cell_makes_no_claim(self) -> None:
        """With A/A in disagreement the page says so instead of a knee, and keeps the numbers."""
        machine = together(first_pays(0.1), steady(0.002))
        text = page([1.8, 1.6, 1.1], machine=machine, shuffle=False)
        self.assertIn("| preallocated | Inconclusive |", text)
        self.assertIn("flagged aa", text)
        self.assertIn("no comparison is made", text)
        self.assertIn("### preallocated", text)

    def test_why_throughput_is_not_latency(self) -> None:
        """The page sets, for each path, what B=8 does to throughput beside what it does to one request."""
        text = page([1.8, 1.6, 1.1], machine=lambda _: 1.0)
        self.assertIn("B=8 does 3.168 [3.168, 3.168] times the positions/s of B=1", text)
        self.assertIn("its decode takes 2.525 [2.525, 2.525] times as long: 2.525 ms instead of 1 ms", text)
        self.assertIn("every request in it waits for all of them", text)

    def test_other_axes_have_no_knee_page(self) -> None:
        """An experiment over T, or without a declared factor, is refused in one line."""
        record = timing_record(vary={"sequence_length": (8, 16)}, rounds=6)
        with self.assertRaisesRegex(ConfigError, "vary: batch_size"):
            draw(view_of(record, knee_factor=1.25))
        with self.assertRaisesRegex(ConfigError, "knee_factor"):
            draw(view_of(timing_record(rounds=6)))

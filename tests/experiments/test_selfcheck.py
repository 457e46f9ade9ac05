"""Nulls and effects put in on purpose: what is called, how much is added, how runs become one record."""

import contextlib
import os
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from inference_lab.analysis.selfcheck import trials
from inference_lab.experiments import selfcheck
from inference_lab.experiments.selfcheck import bind, effect, measure, products_per_call, with_products
from inference_lab.records.record import Measurement, Record
from inference_lab.records.samples import read_samples
from inference_lab.timing import machine
from tests import checkout
from tests.checkout import judge_of

PATHS = ["preallocated", "null_1", "plus_5", "plus_10"]
CONDITIONS: dict[str, Any] = {
    "by": "selfcheck",
    "vary": {"sequence_length": [4, 6]},
    "fixed": {"batch_size": 1, "d_model": 2, "dtype": "float64", "seed": 42},
    "paths": PATHS,
    "baseline": "preallocated",
    "replica": True,
    "runs": 2,
    "warmups": 1,
}
SECTION: Any = checkout.section(**CONDITIONS)


class EffectsTest(unittest.TestCase):
    """The work that is put in."""

    def test_extra_work_is_done_inside_the_call(self) -> None:
        """So many products, then the base call, whose result is returned; for none the base call itself."""
        calls = mock.Mock()
        self.assertIs(with_products(calls.base, calls.product, 3)(), calls.base.return_value)
        self.assertEqual(calls.mock_calls, [*[mock.call.product()] * 3, mock.call.base()])
        self.assertIs(with_products(calls.base, calls.product, 0), calls.base)
        self.assertEqual([effect(path) for path in PATHS], [0, 0, 5, 10])

    def test_it_is_sized_by_timing(self) -> None:
        """Products a call is the ratio of their times, whatever the machine's speed and one slow pair."""
        now = 0

        def takes(ns: int) -> Callable[[], Any]:
            def call() -> Any:
                nonlocal now
                slow = 50 if len(calls) in (0, 7) else 1
                speed = 2 if len(calls) > 12 else 1
                calls.append(ns)
                now += ns * slow * speed if ns > 100 else ns * speed
                return np.empty(0)

            return call

        calls: list[int] = []
        with mock.patch("time.thread_time_ns", side_effect=lambda: now):
            self.assertAlmostEqual(products_per_call(takes(1200), takes(3)), 400, delta=1)


class BindTest(unittest.TestCase):
    """Paths as calls."""

    def setUp(self) -> None:
        """Each call takes as long as 200 products."""
        self.enterContext(mock.patch.object(selfcheck, "products_per_call", return_value=200.0))

    def test_nulls_are_the_call_itself(self) -> None:
        """Every length is a group: paths in order and the replica; 5% of a call worth 200 products are 10."""
        with mock.patch.object(selfcheck, "with_products", wraps=with_products) as made:
            bench = bind(SECTION)
        self.assertEqual([call.args[2] for call in made.call_args_list], [0, 0, 10, 20] * 2)
        for T, group in zip((4, 6), bench.groups, strict=True):
            called = [(call.path, call.sequence_length) for call in group]
            self.assertEqual(called, [(path, T) for path in (*PATHS, "preallocated")])
            base, null, five, _, replica = (call.call for call in group)
            self.assertIs(base, null)
            self.assertIs(base, replica)
            np.testing.assert_array_equal(base(), five())
        self.assertEqual(bench.facts, {"products_per_call": {"4": 200.0, "6": 200.0}})
        checked = [(f.path, f.shape[1], f.passed) for f in bench.check()]  # all return what that call returns
        self.assertEqual(checked, [("preallocated", 4, True), ("preallocated", 6, True)])


class MeasureTest(unittest.TestCase):
    """Runs as one record."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.enterContext(contextlib.chdir(checkout.ROOT))
        self.enterContext(mock.patch.dict(os.environ, dict.fromkeys(machine.THREAD_VARIABLES, "1")))

    def test_each_run_is_a_measurement(self) -> None:
        """Runs follow each other with processes numbered through; what each saw is kept apart."""
        told: list[tuple[int, int]] = []
        numbers: list[int] = []

        def one(
            module: str, section: Any, progress: Callable[[int, int], None], *, first_process: int
        ) -> Any:
            self.assertEqual(module, selfcheck.__name__)
            numbers.append(first_process)
            progress(6, 6)
            return Measurement(
                "timing",
                {"raw.csv": f"head\nrow {first_process}\n", "controls.csv": "head\n"},
                {"raw.csv": 1, "controls.csv": 0},
                {"oracle": [], "data_sha256": "same", "processes": [{"of": first_process}]},
                {"blas": {"threads": 1}, "thread_variables": {}, "others_used_cores": first_process},
            )

        with mock.patch("inference_lab.timing.worker.measure", one):
            asked = checkout.section(**CONDITIONS | {"runs": 3, "processes": 3})
            found = measure(asked, lambda *now: told.append(now))
        self.assertEqual(numbers, [0, 3, 6])
        self.assertEqual(told, [(6, 18), (12, 18), (18, 18)])
        self.assertEqual(found.files, {"raw.csv": "head\nrow 0\nrow 3\nrow 6\n", "controls.csv": "head\n"})
        self.assertEqual(found.rows, {"raw.csv": 3, "controls.csv": 0})
        self.assertEqual(found.facts["runs"], [{"others_used_cores": number} for number in (0, 3, 6)])
        self.assertEqual(found.facts["processes"], [{"of": number} for number in (0, 3, 6)])
        self.assertEqual(found.environment, {"blas": {"threads": 1}, "thread_variables": {}})

    def test_real_runs_can_be_judged(self) -> None:
        """Two real runs of one process each make one whole record with a comparison of every cell."""
        with mock.patch.object(selfcheck, "PAIRS", 3):
            found = measure(SECTION, lambda done, total: None)
        root = checkout.enter(self)
        for name, text in found.files.items():
            (root / name).write_text(text)
        samples, controls = (read_samples(root / name, controls=name[0] == "c") for name in found.files)
        self.assertEqual(len(samples), 2 * 2 * 2 * len(PATHS))
        lengths = [list(facts["products_per_call"]) for facts in found.facts["processes"]]
        self.assertEqual(lengths, [["4", "6"]] * 2)
        manifest = {"conditions": SECTION.given(), **found.facts, "environment": found.environment}
        record = Record("selfcheck", manifest, samples, controls)
        self.assertEqual(len(trials(record, judge_of())), 2 * 2 * 3)


if __name__ == "__main__":
    unittest.main()

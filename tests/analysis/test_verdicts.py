"""The six kinds of claim on records whose answer is known."""

import csv
import io
import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference_lab.analysis.summary_table import View
from inference_lab.analysis.verdicts import COLUMNS, evaluate
from inference_lab.config.prediction import read_prediction
from inference_lab.errors import ConfigError
from inference_lab.records.record import csv_text
from tests.analysis.views import table_view, view_of
from tests.checkout import judge_of
from tests.synthetic import first_pays, steady, timing_record, together, two_states

TIMES = {"slow": (4.0, 6.0, 10.0, 19.0), "fast": (2.0, 2.4, 3.2, 5.0)}  # ms at B = 1, 2, 4, 8
SMALL, LARGE = {"path": "fast", "batch_size": 1}, {"path": "fast", "batch_size": 8}
RATIO: Mapping[str, Any] = {
    **{"kind": "ratio", "of": "p50_ms", "path": "fast"},
    **{"at": {"batch_size": 8}, "over": {"batch_size": 1}, "within": [0, 100]},
}
LESS = {"kind": "less_than", "of": "p50_ms"}
KNEE = {"kind": "knee", "path": "fast"}


def made(machine: Any, **how: Any) -> Any:
    """A record of both paths with the times of TIMES."""

    def cost(path: str, cell: Mapping[str, Any]) -> float:
        return 1e6 * TIMES[path][(1, 2, 4, 8).index(cell["batch_size"])]

    return timing_record(**{"paths": ("slow", "fast"), "cost": cost, "machine": machine, "rounds": 6, **how})


VIEW = view_of(made(steady(0.01)), knee_factor=1.4)


def judged(view: View, *, prediction_changed: bool = False, **claim: Any) -> dict[str, str]:
    """The one row of verdicts for one claim."""
    prediction = {"question": "?", "prediction": "!", "claims": [{"id": "it", "says": "so", **claim}]}
    (row,) = evaluate(read_prediction(prediction, "p"), view, prediction_changed=prediction_changed)
    return row


def unflagged(view: View) -> View:
    """The view as if nothing were wrong with its cells."""
    return replace(view, summary=[{**row, "flags": ""} for row in view.summary])


class VerdictCase(unittest.TestCase):
    """Claims with the verdict that each deserves."""

    def assert_verdicts(self, view: View, *cases: tuple[str, Mapping[str, Any]]) -> None:
        """Each claim gets the verdict beside it."""
        for expected, claim in cases:
            with self.subTest(claim=claim):
                row = judged(view, **claim)
                self.assertEqual(row["verdict"], expected, row["reason"])


class Verdicts(VerdictCase):
    """Each kind on a timing record."""

    def test_what_shares_no_rounds_is_not_paired(self) -> None:
        """Cells of other thread counts are compared by their medians and intervals, not round by round."""
        machine, vary = steady(0.01), {"blas_threads": (1, 2)}
        view = view_of(
            made(machine, vary=vary, cost=lambda p, c: 1e6 * (4 if p == "slow" else 2) / c["blas_threads"])
        )
        cell = {"path": "slow", "blas_threads": 1}
        for other, paired in (({"blas_threads": 2}, False), ({"path": "fast"}, True)):
            row = judged(view, kind="ratio", of="p50_ms", at=cell, over={**cell, **other}, within=[1.9, 2.1])
            self.assertEqual((row["verdict"], "round by round" in row["rows"]), ("Supported", paired))

    def test_ratio(self) -> None:
        """Inside, outside, astride; per path by default or by cell; rates and times count opposite ways."""
        rate = {**RATIO, "of": "positions_per_s"}
        cells = {"at": {**LARGE, "path": "slow"}, "over": LARGE}
        self.assert_verdicts(
            VIEW,
            ("Supported", {**rate, "within": [3, 3.4]}),
            ("Refuted", {**rate, "within": [4, 6]}),
            ("Inconclusive", {**rate, "within": [3.2, 4]}),
            ("Supported", {**rate, "path": "slow", "within": [1.6, 1.75]}),
            ("Supported", {**rate, "of": "per_step_us", "within": [2.4, 2.6]}),
            ("Supported", {**rate, "of": "per_sequence_ms", "within": [0.3, 0.32]}),
            ("Supported", {"kind": "ratio", "of": "p50_ms", **cells, "within": [3.7, 3.9]}),
        )

    def test_every_number_is_in_the_row(self) -> None:
        """A verdict carries value, interval, n and the rows it rests on; a cell has many spellings."""
        row = judged(VIEW, **RATIO)
        self.assertEqual((tuple(row), row["n"]), (COLUMNS, "36"))
        self.assertAlmostEqual(float(row["value"]), 2.5, delta=0.02)
        self.assertTrue(float(row["lo"]) < float(row["value"]) < float(row["hi"]))
        self.assertIn("path=fast batch_size=8 over path=fast batch_size=1, round by round", row["rows"])
        self.assertEqual(list(csv.DictReader(io.StringIO(csv_text(COLUMNS, [row])))), [row])
        for value in (8, 8.0, "8"):
            self.assertEqual(judged(VIEW, **LESS, at={**LARGE, "batch_size": value}, value=9)["n"], "36")

    def test_less_than(self) -> None:
        """Less by the claim rule, not less, and no difference to claim; against a number by interval."""
        self.assert_verdicts(
            VIEW,
            ("Supported", {**LESS, "at": SMALL, "over": LARGE}),
            ("Refuted", {**LESS, "at": LARGE, "over": SMALL}),
            ("Inconclusive", {**LESS, "at": SMALL, "over": SMALL}),
            ("Supported", {**LESS, "at": LARGE, "value": 5.5}),
            ("Refuted", {**LESS, "at": LARGE, "value": 4.5}),
            ("Inconclusive", {**LESS, "at": LARGE, "value": 5.0}),
        )

    def test_columns_that_rounds_do_not_pair(self) -> None:
        """P95 is compared by its intervals: told at n=72, not at n=36, where the upper bound is open."""
        claim = {"kind": "less_than", "of": "p95_ms", "at": SMALL, "over": LARGE}
        self.assert_verdicts(VIEW, ("Inconclusive", claim))
        self.assert_verdicts(view_of(made(steady(0.01), rounds=12)), ("Supported", claim))

    def test_equal(self) -> None:
        """Equal within a tolerance, not so, and too near its edge to tell; an estimate equals no number."""
        same = {"kind": "equal", "of": "per_step_us", "at": SMALL, "over": {**SMALL, "batch_size": 2}}
        self.assert_verdicts(
            VIEW,
            ("Supported", {**same, "tolerance": 0.3}),
            ("Refuted", {**same, "tolerance": 0.05}),
            ("Inconclusive", {**same, "tolerance": 0.2}),
            ("Inconclusive", {"kind": "equal", "of": "p50_ms", "at": SMALL, "value": 2.0}),
            ("Supported", {"kind": "equal", "of": "num_heads", "at": SMALL, "value": 1}),
        )

    def test_order(self) -> None:
        """Ascending by the claim rule, descending somewhere, and one step that cannot be told."""
        cells = [{"batch_size": size} for size in (1, 2, 4, 8)]
        order = {"kind": "order", "of": "p50_ms", "path": "fast"}
        self.assert_verdicts(
            VIEW,
            ("Supported", {**order, "cells": cells}),
            ("Refuted", {**order, "cells": cells[::-1]}),
            ("Refuted", {**order, "cells": [*cells[:2], cells[1], cells[0]]}),
            ("Inconclusive", {**order, "cells": [*cells[:2], cells[1]]}),
        )

    def test_slope(self) -> None:
        """Time from B=1 to 8 grows like B to the power ln 2.5 / ln 8 = 0.4406; ends may be named."""
        slope = {"kind": "slope", "of": "p50_ms", "path": "fast"}
        row = judged(VIEW, **slope, within=[0.42, 0.46])
        self.assertEqual(row["verdict"], "Supported")
        self.assertAlmostEqual(float(row["value"]), 0.4406, delta=0.005)
        self.assert_verdicts(
            VIEW,
            ("Refuted", {**slope, "within": [0.5, 1]}),
            ("Inconclusive", {**slope, "within": [0.44, 1]}),
            ("Supported", {**slope, "from": 4, "to": 8, "within": [0.6, 0.68]}),
        )

    def test_slope_is_exact(self) -> None:
        """A time that doubles with B has slope 1 to nine digits; what is not positive has none."""
        exact = made(lambda _: 1.0, cost=lambda _, cell: 1e6 * cell["batch_size"])
        row = judged(view_of(exact), kind="slope", of="p50_ms", path="fast", within=[1, 1])
        self.assertEqual((row["value"], row["lo"], row["hi"], row["verdict"]), ("1", "1", "1", "Supported"))
        for last in ("0", "-2"):
            view = table_view([{"B": "1", "x": "4"}, {"B": "2", "x": last}], {"B": [1, 2]})
            row = judged(view, kind="slope", of="x", within=[-9, 9])
            self.assertEqual((row["verdict"], row["value"]), ("Inconclusive", ""))
            self.assertIn("no logarithm", row["reason"])

    def test_knee(self) -> None:
        """Gains of fast are 1.67, 1.5, 1.28 and of slow 1.33, ...: at a factor of 1.4 knees at 4 and 1."""
        row = judged(VIEW, **KNEE, within=[2, 4])
        self.assertEqual((row["lo"], row["hi"], row["n"]), ("4", "4", "36"))
        for factor, cases in {
            1.4: (
                ("Supported", {**KNEE, "within": [2, 4]}),
                ("Refuted", {**KNEE, "within": [1, 2]}),
                ("Refuted", {**KNEE, "not_reached": True}),
                ("Supported", {**KNEE, "path": "slow", "within": [1, 1]}),
            ),
            1.1: (  # still growing at 8
                ("Not reached", {**KNEE, "within": [4, 16]}),
                ("Refuted", {**KNEE, "within": [1, 2]}),
                ("Supported", {**KNEE, "not_reached": True}),
            ),
            1.28: (  # the gain itself
                ("Inconclusive", {**KNEE, "within": [2, 4]}),
                ("Inconclusive", {**KNEE, "not_reached": True}),
            ),
        }.items():
            self.assert_verdicts(replace(VIEW, judge=judge_of(knee_factor=factor)), *cases)

    def test_processes_that_disagree_are_inconclusive(self) -> None:
        """An interval inside the prediction is not enough when whole processes lie outside."""

        def machine(call: Any) -> float:
            return 3.0 if call.path == "slow" and call.process < 2 else 1.0 + call.number / 1e6

        view = unflagged(view_of(made(machine, rounds=20, cost=lambda *_: 1e6)))
        claim = {**RATIO, "at": {**SMALL, "path": "slow"}, "over": SMALL, "within": [0.9, 1.1]}
        row = judged(view, **claim)
        self.assertEqual(row["verdict"], "Inconclusive")
        self.assertTrue(0.9 < float(row["lo"]) < float(row["hi"]) < 1.1)

    def test_states_that_disagree_are_no_less(self) -> None:
        """A path that is slower in stretches alone is not called slower, whatever the sign test says."""
        machine = together(two_states(0.4, 8, path="slow", seed=1), steady(0.01))
        view = unflagged(view_of(made(machine, rounds=20, cost=lambda *_: 1e6)))
        for value in (1, 2, 4, 8):
            at, over = ({"path": path, "batch_size": value} for path in ("fast", "slow"))
            row = judged(view, **LESS, at=at, over=over)
            self.assertEqual((row["verdict"], float(row["hi"]) < 1), ("Inconclusive", True))


class Doubtful(VerdictCase):
    """What makes a verdict Inconclusive, marked or an error whatever the numbers say."""

    def test_a_flagged_cell_is_inconclusive(self) -> None:
        """Every kind that rests on a flagged cell says which cell and which flag."""
        machine = together(first_pays(0.2), steady(0.002))
        flagged = view_of(made(machine, shuffle=False), knee_factor=1.4)
        for claim in (RATIO, {**KNEE, "within": [1, 8]}, {**LESS, "at": LARGE, "value": 1e9}):
            row = judged(flagged, **claim)
            self.assertEqual(row["verdict"], "Inconclusive")
            self.assertIn("flagged aa", row["reason"])

    def test_what_reasons_say(self) -> None:
        """Evidence that is missing is named, it is no error; so is a prediction edited after measuring."""
        row = judged(VIEW, **{**RATIO, "at": {"batch_size": 64}})
        self.assertEqual(row["verdict"], "Inconclusive")
        self.assertIn("no cell path=fast batch_size=64", row["reason"])
        edited = judged(VIEW, prediction_changed=True, **RATIO)["reason"]
        self.assertIn("prediction changed after measuring", edited)
        self.assertNotIn("changed", judged(VIEW, **RATIO)["reason"])

    def test_claims_nobody_can_judge_are_errors(self) -> None:
        """An unknown column, a selector of several cells, a knee without factor: one line each."""
        slope = {"kind": "slope", "of": "p50_ms", "path": "fast", "within": [0, 1]}
        words = table_view([{"model": "a", "x": "1", "flags": ""}], {"model": ["a"]})
        for view, claim, message in (
            (VIEW, {**RATIO, "of": "p99_ms"}, "no column 'p99_ms'"),
            (VIEW, {**RATIO, "at": {"batchsize": 8}}, "no column 'batchsize'"),
            (VIEW, {**RATIO, "path": "", "at": {"path": "fast"}}, "fits 4 rows"),
            (VIEW, {**RATIO, "of": "dtype"}, "dtype is 'float64', no number"),
            (VIEW, {"kind": "equal", "of": "dtype", "at": LARGE, "value": 8}, "'float64', no number"),
            (VIEW, {**slope, "from": 8}, "from 8 to 8"),
            (VIEW, {**slope, "to": 1.0}, "from 1 to 1.0"),
            (words, {"kind": "slope", "of": "x", "within": [0, 1]}, "axis of numbers; model is varied"),
            (replace(VIEW, judge=judge_of()), {**KNEE, "within": [1, 2]}, "knee_factor"),
        ):
            with self.subTest(message), self.assertRaisesRegex(ConfigError, message):
                judged(view, **{key: value for key, value in claim.items() if value})


class Tables(VerdictCase):
    """Records without samples: counts are exact, serving columns bring their own intervals."""

    def test_counts_and_words(self) -> None:
        """Numbers, words, true and undefined are equal exactly; ratios and order need no interval."""
        rows = [
            {"model": "a", "bytes": "524288", "shape": "2 3", "view": "true", "none": ""},
            {"model": "b", "bytes": "131072", "shape": "", "view": "false", "none": ""},
        ]
        a, b = {"model": "a"}, {"model": "b"}
        self.assert_verdicts(
            table_view(rows, {"dtype": ["float16"]}),
            ("Supported", {"kind": "equal", "of": "bytes", "at": a, "value": 524288}),
            ("Refuted", {"kind": "equal", "of": "bytes", "at": a, "value": 524289}),
            ("Supported", {"kind": "equal", "of": "shape", "at": a, "value": "2 3"}),
            ("Supported", {"kind": "equal", "of": "shape", "at": b, "value": None}),
            ("Refuted", {"kind": "equal", "of": "none", "at": a, "value": 0}),
            ("Supported", {"kind": "equal", "of": "view", "at": a, "value": True}),
            ("Refuted", {"kind": "equal", "of": "view", "at": b, "value": True}),
            ("Supported", {"kind": "ratio", "of": "bytes", "at": b, "over": a, "within": [0.25, 0.25]}),
            ("Supported", {"kind": "less_than", "of": "bytes", "at": b, "over": a}),
            ("Refuted", {"kind": "less_than", "of": "bytes", "at": a, "over": a}),
            ("Supported", {"kind": "order", "of": "bytes", "cells": [b, a]}),
            ("Refuted", {"kind": "order", "of": "bytes", "cells": [a, b]}),
            ("Inconclusive", {"kind": "ratio", "of": "none", "at": b, "over": a, "within": [0, 9]}),
        )

    def test_serving_columns(self) -> None:
        """of: ttft_p50_ms finds its interval before the unit; ratios and knees go by the outer bounds."""
        rows = [
            {"concurrency": str(c), "n": "200", "flags": "", "advice": ""}
            | {f"ttft_p50{end}_ms": str(ttft * by) for end, by in (("", 1), ("_lo", 0.95), ("_hi", 1.05))}
            | {f"tokens_per_s{end}": str(rate * by) for end, by in (("", 1), ("_lo", 0.98), ("_hi", 1.02))}
            for c, ttft, rate in ((1, 20, 100), (2, 21, 190), (4, 30, 200))
        ]
        view = table_view(rows, {"concurrency": [1, 2, 4]}, knee_factor=1.25)
        one, two, four = ({"concurrency": value} for value in (1, 2, 4))
        less = {"kind": "less_than", "of": "ttft_p50_ms", "at": one}
        ratio = {"kind": "ratio", "of": "ttft_p50_ms", "at": four, "over": one}
        knee = {"kind": "knee", "of": "tokens_per_s", "within": [2, 2]}
        self.assert_verdicts(
            view,
            ("Supported", {**less, "over": four}),
            ("Inconclusive", {**less, "over": two}),
            ("Supported", {**less, "value": 22}),
            ("Supported", {**ratio, "within": [1.3, 1.7]}),
            ("Inconclusive", {**ratio, "within": [1.4, 1.7]}),
            ("Supported", knee),
            ("Supported", {"kind": "slope", "of": "ttft_p50_ms", "within": [0.1, 0.5]}),
        )
        self.assertEqual(judged(view, **knee)["n"], "200")

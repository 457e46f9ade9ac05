"""The six kinds of claim on records whose answer is known."""

import csv
import io
import unittest
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from inference_lab.analysis.summary_table import View
from inference_lab.analysis.verdicts import COLUMNS, evaluate, verdicts_csv
from inference_lab.config.prediction import read_prediction
from inference_lab.errors import ConfigError
from tests.analysis.views import table_view, view_of
from tests.checkout import judge_of
from tests.synthetic import first_pays, steady, timing_record, together, two_states

TIMES = {"slow": (4.0, 6.0, 10.0, 19.0), "fast": (2.0, 2.4, 3.2, 5.0)}  # ms at B = 1, 2, 4, 8


def cost(path: str, cell: Mapping[str, Any]) -> float:
    """ns of a cell of TIMES."""
    return 1e6 * TIMES[path][(1, 2, 4, 8).index(cell["batch_size"])]


RECORD = timing_record(paths=("slow", "fast"), cost=cost, machine=steady(0.01), rounds=6)
VIEW = view_of(RECORD, knee_factor=1.4)
FLAGGED = view_of(
    timing_record(
        paths=("slow", "fast"),
        cost=cost,
        machine=together(first_pays(0.2), steady(0.002)),
        shuffle=False,
        rounds=6,
    ),
    knee_factor=1.4,
)


def judged(view: View, *, prediction_changed: bool = False, **claim: Any) -> dict[str, str]:
    """The one row of verdicts for one claim."""
    claim = {"id": "it", "says": "so", **claim}
    prediction = {"question": "?", "prediction": "!", "claims": [claim]}
    (row,) = evaluate(read_prediction(prediction, "p"), view, prediction_changed=prediction_changed)
    return row


class Verdicts(unittest.TestCase):
    """Each kind on a timing record."""

    def assert_verdicts(self, view: View, *cases: tuple[str, Mapping[str, Any]]) -> None:
        """Each claim gets the verdict beside it."""
        for expected, claim in cases:
            with self.subTest(claim=claim):
                row = judged(view, **claim)
                self.assertEqual(row["verdict"], expected, row["reason"])

    def test_what_shares_no_rounds_is_not_paired(self) -> None:
        """Cells of other thread counts are compared by their medians and intervals, not round by round."""
        record = timing_record(
            paths=("slow", "fast"),
            vary={"blas_threads": (1, 2)},
            cost=lambda path, cell: 1e6 * (4 if path == "slow" else 2) / cell["blas_threads"],
            machine=steady(0.01),
        )
        environment = {**record.manifest["environment"], "blas": {"threads": [1, 2]}}
        view = view_of(replace(record, manifest={**record.manifest, "environment": environment}))
        cells = ({"path": "slow", "blas_threads": 1}, {"path": "slow", "blas_threads": 2})
        across = judged(view, kind="ratio", of="p50_ms", at=cells[0], over=cells[1], within=[1.9, 2.1])
        self.assertEqual((across["verdict"], "round by round" in across["rows"]), ("Supported", False))
        inside = judged(
            view, kind="ratio", of="p50_ms", at=cells[0], over={**cells[0], "path": "fast"}, within=[1.9, 2.1]
        )
        self.assertEqual((inside["verdict"], "round by round" in inside["rows"]), ("Supported", True))

    def test_ratio(self) -> None:
        """Inside, outside, astride; per path by default or by cell; rates and times count opposite ways."""
        b8, b1 = {"batch_size": 8}, {"batch_size": 1}
        rate = {"kind": "ratio", "of": "positions_per_s", "path": "fast", "at": b8, "over": b1}
        cells = {"at": {**b8, "path": "slow"}, "over": {**b8, "path": "fast"}}
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

    def test_every_number_stands_in_the_row(self) -> None:
        """A verdict carries value, interval, n and the rows it rests on."""
        row = judged(
            VIEW,
            kind="ratio",
            of="p50_ms",
            path="fast",
            at={"batch_size": 8},
            over={"batch_size": 1},
            within=[2, 3],
        )
        self.assertEqual(tuple(row), COLUMNS)
        self.assertAlmostEqual(float(row["value"]), 2.5, delta=0.02)
        self.assertLess(float(row["lo"]), float(row["value"]))
        self.assertLess(float(row["value"]), float(row["hi"]))
        self.assertEqual(row["n"], "36")
        self.assertIn("path=fast batch_size=8 over path=fast batch_size=1, round by round", row["rows"])
        self.assertEqual(list(csv.DictReader(io.StringIO(verdicts_csv([row])))), [row])

    def test_less_than(self) -> None:
        """Less by the claim rule, not less, and no difference to claim; against a number by interval."""
        small, large = {"path": "fast", "batch_size": 1}, {"path": "fast", "batch_size": 8}
        less = {"kind": "less_than", "of": "p50_ms"}
        self.assert_verdicts(
            VIEW,
            ("Supported", {**less, "at": small, "over": large}),
            ("Refuted", {**less, "at": large, "over": small}),
            ("Inconclusive", {**less, "at": small, "over": small}),
            ("Supported", {**less, "at": large, "value": 5.5}),
            ("Refuted", {**less, "at": large, "value": 4.5}),
            ("Inconclusive", {**less, "at": large, "value": 5.0}),
        )

    def test_columns_that_rounds_do_not_pair(self) -> None:
        """P95 is compared by its intervals: told at n=72, not at n=36, where the upper bound is open."""
        small, large = {"path": "fast", "batch_size": 1}, {"path": "fast", "batch_size": 8}
        claim = {"kind": "less_than", "of": "p95_ms", "at": small, "over": large}
        record = timing_record(paths=("slow", "fast"), cost=cost, machine=steady(0.01), rounds=12)
        self.assert_verdicts(VIEW, ("Inconclusive", claim))
        self.assert_verdicts(view_of(record), ("Supported", claim))

    def test_equal(self) -> None:
        """Equal within a tolerance, not so, and too near its edge to tell; an estimate equals no number."""
        small, large = {"path": "fast", "batch_size": 1}, {"path": "fast", "batch_size": 2}
        same = {"kind": "equal", "of": "per_step_us", "at": small, "over": large}
        self.assert_verdicts(
            VIEW,
            ("Supported", {**same, "tolerance": 0.3}),
            ("Refuted", {**same, "tolerance": 0.05}),
            ("Inconclusive", {**same, "tolerance": 0.2}),
            ("Inconclusive", {"kind": "equal", "of": "p50_ms", "at": small, "value": 2.0}),
            ("Supported", {"kind": "equal", "of": "num_heads", "at": small, "value": 1}),
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

    def test_what_is_not_positive_has_no_slope(self) -> None:
        """Neither 0 nor a negative number has a logarithm: no evidence, and no error."""
        for last in ("0", "-2"):
            view = table_view([{"B": "1", "x": "4"}, {"B": "2", "x": last}], {"B": [1, 2]})
            row = judged(view, kind="slope", of="x", within=[-9, 9])
            self.assertEqual((row["verdict"], row["value"]), ("Inconclusive", ""))
            self.assertIn("no logarithm", row["reason"])

    def test_a_cell_is_the_same_in_every_spelling(self) -> None:
        """8, 8.0 and "8" name one cell."""
        for value in (8, 8.0, "8"):
            cell = {"path": "fast", "batch_size": value}
            self.assertEqual(judged(VIEW, kind="less_than", of="p50_ms", at=cell, value=9)["n"], "36")

    def test_slope_is_exact(self) -> None:
        """A time that doubles with B has slope 1 to nine digits, with interval [1, 1]."""
        record = timing_record(cost=lambda _, cell: 1e6 * cell["batch_size"], machine=lambda _: 1.0, rounds=6)
        row = judged(view_of(record), kind="slope", of="p50_ms", path="dynamic", within=[1, 1])
        self.assertEqual((row["value"], row["lo"], row["hi"], row["verdict"]), ("1", "1", "1", "Supported"))

    def test_knee(self) -> None:
        """Gains of fast are 1.67, 1.5, 1.28 and of slow 1.33, ...: at a factor of 1.4 knees at 4 and 1."""
        self.assert_verdicts(
            VIEW,
            ("Supported", {"kind": "knee", "path": "fast", "within": [2, 4]}),
            ("Refuted", {"kind": "knee", "path": "fast", "within": [1, 2]}),
            ("Refuted", {"kind": "knee", "path": "fast", "not_reached": True}),
            ("Supported", {"kind": "knee", "path": "slow", "within": [1, 1]}),
        )
        row = judged(VIEW, kind="knee", path="fast", within=[2, 4])
        self.assertEqual((row["lo"], row["hi"], row["n"]), ("4", "4", "36"))

    def test_knee_not_reached(self) -> None:
        """Still growing at 8: a knee beyond is `Not reached`, one within is refuted, none is supported."""
        growing = replace(VIEW, judge=judge_of(knee_factor=1.1))
        self.assert_verdicts(
            growing,
            ("Not reached", {"kind": "knee", "path": "fast", "within": [4, 16]}),
            ("Refuted", {"kind": "knee", "path": "fast", "within": [1, 2]}),
            ("Supported", {"kind": "knee", "path": "fast", "not_reached": True}),
        )

    def test_knee_that_cannot_be_told(self) -> None:
        """A gain of 1.28 against a factor of 1.28 says nothing, whatever was predicted."""
        unsure = replace(VIEW, judge=judge_of(knee_factor=1.28))
        self.assert_verdicts(
            unsure,
            ("Inconclusive", {"kind": "knee", "path": "fast", "within": [2, 4]}),
            ("Inconclusive", {"kind": "knee", "path": "fast", "not_reached": True}),
        )

    def test_processes_that_disagree_are_inconclusive(self) -> None:
        """An interval inside the prediction is not enough when whole processes lie outside."""
        record = timing_record(
            paths=("slow", "fast"),
            cost=lambda *_: 1e6,
            machine=lambda call: 3.0 if call.path == "slow" and call.process < 2 else 1.0 + call.number / 1e6,
        )
        view = view_of(record)
        view = replace(view, summary=[{**row, "flags": ""} for row in view.summary])
        claim = {"at": {"path": "slow", "batch_size": 1}, "over": {"path": "fast", "batch_size": 1}}
        row = judged(view, kind="ratio", of="p50_ms", **claim, within=[0.9, 1.1])
        self.assertEqual(row["verdict"], "Inconclusive")
        self.assertGreater(float(row["lo"]), 0.9)
        self.assertLess(float(row["hi"]), 1.1)

    def test_states_that_disagree_are_no_less(self) -> None:
        """A path that is slower in stretches alone is not called slower, whatever the sign test says."""
        record = timing_record(
            paths=("slow", "fast"),
            cost=lambda *_: 1e6,
            machine=together(two_states(0.4, 8, path="slow", seed=1), steady(0.01)),
        )
        view = view_of(record)
        view = replace(view, summary=[{**row, "flags": ""} for row in view.summary])
        for value in (1, 2, 4, 8):
            cells = [{"path": path, "batch_size": value} for path in ("fast", "slow")]
            row = judged(view, kind="less_than", of="p50_ms", at=cells[0], over=cells[1])
            self.assertEqual(row["verdict"], "Inconclusive")
            self.assertLess(float(row["hi"]), 1)


class Doubtful(unittest.TestCase):
    """What makes a verdict Inconclusive, marked or an error whatever the numbers say."""

    CLAIM: Mapping[str, Any] = {
        "kind": "ratio",
        "of": "p50_ms",
        "path": "fast",
        "at": {"batch_size": 8},
        "over": {"batch_size": 1},
        "within": [0, 100],
    }

    def test_a_flagged_cell_is_inconclusive(self) -> None:
        """Every kind that rests on a flagged cell says which cell and which flag."""
        for claim in (
            self.CLAIM,
            {"kind": "knee", "path": "fast", "within": [1, 8]},
            {"kind": "less_than", "of": "p50_ms", "at": {"path": "fast", "batch_size": 8}, "value": 1e9},
        ):
            row = judged(FLAGGED, **claim)
            self.assertEqual(row["verdict"], "Inconclusive")
            self.assertIn("flagged aa", row["reason"])

    def test_a_cell_that_was_not_measured_is_inconclusive(self) -> None:
        """Evidence that is missing is named; it is no error, as a smaller scan may lack it."""
        row = judged(VIEW, **{**self.CLAIM, "at": {"batch_size": 64}})
        self.assertEqual(row["verdict"], "Inconclusive")
        self.assertIn("no cell path=fast batch_size=64", row["reason"])

    def test_a_changed_prediction_is_marked(self) -> None:
        """A prediction edited after measuring is marked in the reason of every verdict."""
        row = judged(VIEW, prediction_changed=True, **self.CLAIM)
        self.assertIn("prediction changed after measuring", row["reason"])
        self.assertNotIn("changed", judged(VIEW, **self.CLAIM)["reason"])

    def test_claims_nobody_can_judge_are_errors(self) -> None:
        """An unknown column, a selector of several cells, a knee without factor: one line each."""
        for claim, words in (
            ({**self.CLAIM, "of": "p99_ms"}, "no column 'p99_ms'"),
            ({**self.CLAIM, "at": {"batchsize": 8}}, "no column 'batchsize'"),
            ({**self.CLAIM, "path": None, "at": {"path": "fast"}}, "fits 4 rows"),
            ({**self.CLAIM, "of": "dtype"}, "dtype is 'float64', no number"),
            (
                {"kind": "equal", "of": "dtype", "at": {"path": "fast", "batch_size": 8}, "value": 8},
                "dtype is 'float64', no number",
            ),
            ({"kind": "slope", "of": "p50_ms", "path": "fast", "from": 8, "within": [0, 1]}, "from 8 to 8"),
            ({"kind": "slope", "of": "p50_ms", "path": "fast", "to": 1.0, "within": [0, 1]}, "from 1 to 1.0"),
        ):
            with self.assertRaisesRegex(ConfigError, words):
                judged(VIEW, **{key: value for key, value in claim.items() if value is not None})
        words_view = table_view([{"model": "a", "x": "1", "flags": ""}], {"model": ["a"]})
        with self.assertRaisesRegex(ConfigError, "axis of numbers; model is varied"):
            judged(words_view, kind="slope", of="x", within=[0, 1])
        with self.assertRaisesRegex(ConfigError, "knee_factor"):
            judged(replace(VIEW, judge=judge_of()), kind="knee", path="fast", within=[1, 2])


class Tables(unittest.TestCase):
    """Records without samples: counts are exact, serving columns bring their own intervals."""

    def test_counts_and_words(self) -> None:
        """Numbers, words, true and undefined are equal exactly; ratios and order need no interval."""
        view = table_view(
            [
                {"model": "a", "bytes": "524288", "shape": "2 3", "view": "true", "none": ""},
                {"model": "b", "bytes": "131072", "shape": "", "view": "false", "none": ""},
            ],
            {"dtype": ["float16"]},
        )
        a, b = {"model": "a"}, {"model": "b"}
        for expected, claim in (
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
        ):
            with self.subTest(claim=claim):
                self.assertEqual(judged(view, **claim)["verdict"], expected)

    def test_serving_columns(self) -> None:
        """of: ttft_p50_ms finds its interval before the unit; ratios and knees go by the outer bounds."""

        def row(concurrency: int, ttft: float, rate: float) -> dict[str, str]:
            return {
                "concurrency": str(concurrency),
                "n": "200",
                "ttft_p50_ms": str(ttft),
                "ttft_p50_lo_ms": str(ttft * 0.95),
                "ttft_p50_hi_ms": str(ttft * 1.05),
                "tokens_per_s": str(rate),
                "tokens_per_s_lo": str(rate * 0.98),
                "tokens_per_s_hi": str(rate * 1.02),
                "flags": "",
                "advice": "",
            }

        rows = [row(1, 20, 100), row(2, 21, 190), row(4, 30, 200)]
        view = table_view(rows, {"concurrency": [1, 2, 4]}, knee_factor=1.25)
        one, two, four = ({"concurrency": value} for value in (1, 2, 4))
        for expected, claim in (
            ("Supported", {"kind": "less_than", "of": "ttft_p50_ms", "at": one, "over": four}),
            ("Inconclusive", {"kind": "less_than", "of": "ttft_p50_ms", "at": one, "over": two}),
            ("Supported", {"kind": "less_than", "of": "ttft_p50_ms", "at": one, "value": 22}),
            (
                "Supported",
                {"kind": "ratio", "of": "ttft_p50_ms", "at": four, "over": one, "within": [1.3, 1.7]},
            ),
            (
                "Inconclusive",
                {"kind": "ratio", "of": "ttft_p50_ms", "at": four, "over": one, "within": [1.4, 1.7]},
            ),
            ("Supported", {"kind": "knee", "of": "tokens_per_s", "within": [2, 2]}),
            ("Supported", {"kind": "slope", "of": "ttft_p50_ms", "within": [0.1, 0.5]}),
        ):
            with self.subTest(claim=claim):
                self.assertEqual(judged(view, **claim)["verdict"], expected)
        self.assertEqual(judged(view, kind="knee", of="tokens_per_s", within=[2, 2])["n"], "200")

"""summary.csv of a load: one row a cell and metric, its interval, its flags, and what it leans on."""

import unittest

from inference_lab.analysis.serving import as_table
from inference_lab.analysis.summary_table import SEPARATOR, SummaryRow
from inference_lab.records.record import Calibration
from tests.loads import MS, record, request, row, rows_of, session, step


class TestSummary(unittest.TestCase):
    """Rows and their numbers."""

    def test_a_time_has_quantiles_with_intervals(self) -> None:
        """72 requests bound P95 on both sides, not P99; mean, least and most are there, in ms."""
        found = row(rows_of(record([request(n, n, tokens=(n + 1,)) for n in range(72)])), "ttft")
        expected = {"n": "72", "unit": "ms", "formula": "first token - sent", "value": "", "p99_hi_ms": ""}
        expected |= {"p50_ms": "36.5", "mean_ms": "36.5", "min_ms": "1", "max_ms": "72"}
        self.assertLessEqual(expected.items(), found.items())
        self.assertTrue(found["p95_lo_ms"] and found["p95_hi_ms"] and found["p99_lo_ms"])

    def test_a_number_of_runs_has_a_median(self) -> None:
        """Two runs of a cell: the median of both, and a value where they had the same."""
        made = [request(0, name="a"), request(0, name="b"), request(1, 500, name="b", tokens=(10,))]
        cell = {"path": "kernel", "streams": 1}
        rows = rows_of(record(made, session("a", cell=cell), session("b", cell=cell)), window="all")
        found = row(rows, "ok", path="kernel", streams="1")
        expected = {"n": "2", "value": "", "median": "1.5", "median_lo": ""}
        self.assertLessEqual(expected.items(), found.items())
        self.assertEqual(row(rows, "peak_in_flight")["value"], "1")
        self.assertEqual(row(rows, "peak_in_flight_together")["value"], "2")

    def test_steps_belong_to_their_cell(self) -> None:
        """The batch of a cell is read from the server's steps under the same cell."""
        made = [request(n, name=name) for name in ("a", "b") for n in range(4)]
        sessions = (session("a", cell={"setup": "one"}), session("b", cell={"setup": "two"}))
        steps = [step(decodes=2, setup="one"), step(decodes=4, setup="two")]
        rows = rows_of(record(made, *sessions, rows=steps))
        self.assertEqual(row(rows, "peak_step_batch", setup="two")["value"], "4")

    def test_undefined_is_no_row(self) -> None:
        """A metric that is undefined in a cell is not written; counts of nothing are 0."""
        rows = rows_of(record([request(0, status="http_error", tokens=())]))
        self.assertEqual((row(rows, "http_error")["value"], row(rows, "ok")["value"]), ("1", "0"))
        self.assertFalse({"ttft", "goodput_per_s"} & {found["metric"] for found in rows})

    def test_goodput_of_what_the_judge_declares(self) -> None:
        """Declared bounds give a row, and its formula says them."""
        found = row(rows_of(record([request(0), request(1)]), slo={"ttft_ms": 40}), "goodput_per_s")
        self.assertIn("ttft_ms <= 40", found["formula"])

    def test_a_run_too_short_says_so(self) -> None:
        """The row of how many are measured names why there is no steady window."""
        found = rows_of(record([request(0)], session(concurrency=4)))
        self.assertIn("too short for a steady window", row(found, "measured")["advice"])


class TestFlags(unittest.TestCase):
    """What may be wrong with the times."""

    def test_a_late_client_flags_its_times(self) -> None:
        """Lag or slip beyond the bound: times and rates are client-limited, counts are not."""
        slipped = {"scheduled_ns": -20 * MS}, {"schedule": "poisson"}
        for late, facts in (({"max_read_lag_ns": 20 * MS}, {}), slipped):
            rows = rows_of(record([request(0, **late)], session(**facts)), max_client_lag_ms=10)
            with self.subTest(late):
                self.assertEqual(row(rows, "ttft")["flags"], "client-limited")
                self.assertIn("is 20 ms, allowed are 10", row(rows, "requests_per_s")["advice"])
                self.assertEqual((row(rows, "ok")["flags"], row(rows, "peak_in_flight")["flags"]), ("", ""))
        rows = rows_of(record([request(0)]), max_client_lag_ms=10)
        self.assertEqual({found["flags"] for found in rows}, {""})

    def test_a_busy_machine_flags_times_alone(self) -> None:
        """Others' work moves times and no count."""
        busy = {"others_used_cores": {"median": 0.9, "max": 1.5}}
        rows = rows_of(record([request(0)], environment=busy), max_others_cpu=0.2)
        self.assertEqual((row(rows, "ttft")["flags"], row(rows, "ok")["flags"]), ("busy", ""))


class TestCalibrated(unittest.TestCase):
    """Every summary says what the client's own times are worth."""

    def setUp(self) -> None:
        """A calibration at 1 and 4 streams."""
        common = dict.fromkeys(rows_of(record([request(0)]))[0], "")
        common |= {"metric": "token_error", "unit": "ms", "formula": "f", "n": "9"}
        self.rows = [
            {**common, "path": path, "streams": streams, "p99_ms": p99}
            for path, streams, p99 in (("kernel", "1", "0.01"), ("kernel", "4", "0.04"), ("user", "4", "0.4"))
        ]

    def leaning(self, in_flight: int, stamps: str = "kernel") -> SummaryRow:
        """The calibrated row of that many requests at once."""
        requests = [request(n, clock=stamps) for n in range(in_flight)]
        calibration = Calibration("calibration of noon", self.rows)
        return row(rows_of(record(requests, calibration=calibration)), "calibrated_token_error")

    def test_it_names_the_record_it_leans_on(self) -> None:
        """Same stamps as were got, and as many streams as were in flight, the next more, or the most."""
        for in_flight, stamps, p99, words in (
            (1, "kernel", "0.01", "kernel timestamps, 1 streams"),
            (2, "kernel", "0.04", "kernel timestamps, 4 streams"),
            (2, "user", "0.4", "user timestamps, 4 streams"),
            (6, "kernel", "0.04", "kernel timestamps, 4 streams, fewer than the 6 in flight here"),
        ):
            found = self.leaning(in_flight, stamps)
            self.assertEqual((found["p99_ms"], found["flags"]), (p99, ""))
            self.assertIn(f"taken from calibration of noon: {words}", found["advice"])
        through_tls = self.leaning(2, "user")["advice"]
        self.assertIn("asked for stamps of the kernel, got those of the read", through_tls)

    def test_a_flagged_cell_is_leant_on_aloud(self) -> None:
        """Flags of the errors of that cell are named, and those of this error are its own; others are not."""
        late = {"metric": "ttft_error", "flags": "client-limited", "advice": "late"}
        aside = {"metric": "itl", "flags": "busy", "advice": "busy"}
        self.rows[1] |= {"flags": "stands-out", "advice": "far"}
        self.rows += [{**self.rows[1], **late}, {**self.rows[1], **aside}]
        self.rows.append({**self.rows[0], **late, "path": "user"})
        found = self.leaning(2)
        self.assertIn("that cell is flagged there: stands-out, client-limited", found["advice"])
        self.assertEqual(found["flags"], "stands-out")
        self.assertNotIn("flagged", self.leaning(1)["advice"])

    def test_virtual_time_has_no_error(self) -> None:
        """A simulation, which has no clock, leans on nothing."""
        facts = {"name": "r", "schedule": "burst"}
        rows = rows_of(record([request(0)], facts, calibration=Calibration("calibration", self.rows)))
        self.assertNotIn("calibrated_token_error", {found["metric"] for found in rows})


class TestTable(unittest.TestCase):
    """What a load prints."""

    def test_table(self) -> None:
        """Metrics with their units, zeros left out, every note once below; a goodput of 0 is an answer."""
        slow = [request(n, n, max_read_lag_ns=30 * MS) for n in range(3)]
        rows = rows_of(record(slow, session(concurrency=9)), max_client_lag_ms=10, slo={"ttft_ms": 1e-6})
        text = as_table(rows)
        named = {line.split()[0]: line.split() for line in text.splitlines()}
        self.assertEqual(named["metric"][:3], ["metric", "unit", "n"])
        self.assertIn("ttft", named)
        self.assertNotIn("http_error", named)
        self.assertEqual(named["goodput_per_s"][3], "0")
        self.assertEqual(text.count("too short for a steady window"), 1)
        self.assertIn("flag: client-limited", text.splitlines())
        self.assertNotIn(SEPARATOR, text)

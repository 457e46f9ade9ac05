"""Metrics of a load by hand: what each is of known times, and where it is undefined."""

import unittest
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from inference_lab.analysis.load_runs import Run, runs_of
from inference_lab.analysis.metrics import (
    AGAINST_TRUTH,
    OF_CELL,
    OF_RUN,
    SLO,
    TIMES,
    Metric,
    goodput,
)
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.requests import RequestRecord
from tests.loads import MS, record, request, session, truth


def run_of(requests: Sequence[RequestRecord], facts: dict[str, Any] | None = None, **parts: Any) -> Run:
    """The one run of these requests."""
    (run,) = runs_of(record(requests, session(**facts or {}), **parts), steady=False)
    return run


def times(run: Run) -> dict[str, list[float]]:
    """Every time of a run, ms."""
    return {metric.name: [value / MS for value in metric.values(run)] for metric in (*TIMES, *AGAINST_TRUTH)}


def numbers(run: Run) -> dict[str, float | None]:
    """Every number of a run."""
    return {metric.name: metric.of(run) for metric in OF_RUN}


class TestTimes(unittest.TestCase):
    """Formulas of the glossary."""

    def test_every_time_of_one_request(self) -> None:
        """Arrival 10, admitted 13, sent 14, tokens at 44, 54, 69, over at 70 ms."""
        found = times(run_of([request(0, 10, queue=3, tokens=(30, 40, 55))]))
        self.assertEqual(
            {name: values for name, values in found.items() if values},
            {
                "queue": [3],
                "connection_wait": [1],
                "ttft": [30],
                "ttft_from_arrival": [34],
                "itl": [10, 15],
                "itl_chunk": [10, 15],
                "tpot": [12.5],
                "e2e": [60],
                "service_time": [56],
                "client_lag": [0.005],
            },
        )

    def test_tokens_of_one_chunk_share_its_time(self) -> None:
        """Per token the second of a chunk comes 0 ms after the first; per chunk it is no arrival at all."""
        found = times(run_of([request(0, tokens=(30, 30, 50), chunk_tokens=(2, 1))]))
        self.assertEqual((found["itl"], found["itl_chunk"]), ([0, 20], [20]))
        self.assertEqual(found["tpot"], [10])

    def test_what_is_undefined_has_no_value(self) -> None:
        """One token has no ITL and no TPOT, none has no TTFT, user stamps have no lag: never 0."""
        one = times(run_of([request(0, tokens=(30,), max_read_lag_ns=None)]))
        self.assertEqual((one["itl"], one["tpot"], one["client_lag"], one["ttft"]), ([], [], [], [30]))
        none = times(run_of([request(0, tokens=())]))
        self.assertEqual((none["ttft"], none["ttft_from_arrival"], none["e2e"]), ([], [], [3]))

    def test_failures_enter_no_time(self) -> None:
        """Whatever ended in another way than success has no times here."""
        found = times(run_of([request(0, status="timeout")]))
        self.assertEqual([values for values in found.values() if values], [])

    def test_slip_is_of_open_loops(self) -> None:
        """How late a request was created for its schedule; a closed loop has no schedule to be late for."""
        late = request(0, 10, scheduled_ns=8 * MS)
        self.assertEqual(times(run_of([late], {"schedule": "poisson"}))["slip"], [2])
        self.assertEqual(times(run_of([late]))["slip"], [])

    def test_against_the_truth(self) -> None:
        """Writes 0.5, 0.5 and 2.5 ms before they were seen, the request received 0.25 ms after sending."""
        seen = request(0)
        found = times(run_of([seen], truth=[truth(seen, late=(0.5, 0.5, 2.5), received=0.25)]))
        self.assertEqual(found["token_error"], [0, 2])
        self.assertEqual(found["token_delay"], [0.5, 0.5, 2.5])
        self.assertEqual(found["ttft_error"], [0.75])
        self.assertEqual(found["server_itl"], [10, 8])

    def test_two_sides_that_count_different_tokens_are_not_judged(self) -> None:
        """A request of which the server wrote another number of tokens, or nothing, is named."""
        first, second = request(0), request(1, 20)
        whole = truth(second, late=(0, 0, 0))
        fewer = truth(first, late=(0, 0, 0)) | {"token_ns": [1]}
        for written, count in (([whole], 0), ([whole, fewer], 1)):
            words = f"request r000000: the client saw 3 tokens, the server wrote {count};"
            with self.assertRaisesRegex(RecordError, words):
                times(run_of([first, second], truth=written))


class TestNumbers(unittest.TestCase):
    """Numbers of whole runs."""

    def test_rates_and_counts(self) -> None:
        """Two successes of 3 tokens and a failure in 153 ms; a retried attempt counts apart."""
        made = [
            request(0, 0, tokens=(), status="http_error", http_status=500),
            request(0, 0, attempt=2),
            request(1, 50, status="stream_error"),
            request(2, 100),
        ]
        found = numbers(run_of(made))
        self.assertEqual(found["duration"], 0.153)
        self.assertEqual(found["requests_per_s"], 2 / 0.153)
        self.assertEqual(found["output_tokens_per_s"], 6 / 0.153)
        counted = (
            "measured",
            "outside",
            "ok",
            "stream_error",
            "http_error",
            "retries",
            "length_disagreements",
        )
        self.assertEqual([found[name] for name in counted], [3, 0, 2, 1, 0, 1, 0])

    def test_in_flight(self) -> None:
        """Three requests of 52 ms admitted at 1, 11 and 101 ms of a run of 153 ms."""
        found = numbers(run_of([request(0, 0), request(1, 10), request(2, 100)]))
        self.assertEqual(found["peak_in_flight"], 2)
        self.assertAlmostEqual(found["mean_in_flight"] or 0, 3 * 52 / 153, 12)

    def test_what_the_client_cost(self) -> None:
        """CPU a token, memory, and the time to the first request, from what the session says."""
        facts = {"client_cpu_ns": 90_000, "client_max_rss_kib": 2048, "launched_ns": -500 * MS}
        found = numbers(run_of([request(0)], facts))
        self.assertEqual((found["client_cpu_a_token"], found["client_memory"]), (30, 2))
        self.assertEqual(found["start_to_first_request"], 0.502)
        silent = numbers(run_of([request(0)]))
        for name in ("client_cpu_a_token", "client_memory", "start_to_first_request", "token_error_p99"):
            self.assertIsNone(silent[name], name)

    def test_coalesced_chunks(self) -> None:
        """How many reads held several chunks, for each hundred chunks."""
        self.assertEqual(numbers(run_of([request(0, coalesced_reads=1)]))["coalesced"], 100 / 3)
        self.assertIsNone(numbers(run_of([request(0, tokens=())]))["coalesced"])

    def test_errors_of_a_run(self) -> None:
        """P99 and mean of what the run's own tokens and requests were wrong by."""
        seen = request(0)
        found = numbers(run_of([seen], truth=[truth(seen, late=(0.5, 0.5, 2.5), received=0.25)]))
        self.assertAlmostEqual(found["token_error_p99"] or 0, 1.98, 9)
        self.assertEqual((found["ttft_error_mean"], found["ttft_error_p99"]), (0.75, 0.75))

    def test_an_empty_run_has_no_rates(self) -> None:
        """Without requests counts are 0 and every rate is undefined."""
        found = numbers(run_of([]))
        self.assertEqual([found[name] for name in ("measured", "ok", "peak_in_flight")], [0, 0, 0])
        for name in ("duration", "requests_per_s", "output_tokens_per_s", "mean_in_flight", "coalesced"):
            self.assertIsNone(found[name], name)

    def test_of_a_cell(self) -> None:
        """Clients together, and the steps of the server, which nobody infers from the clients."""
        runs = [run_of([request(0)]), run_of([request(1, 20)])]
        found = {metric.name: metric.of(runs, [{"batch": "2"}, {"batch": "5"}]) for metric in OF_CELL}
        self.assertEqual(found, {"peak_in_flight_together": 2, "peak_step_batch": 5, "mean_step_batch": 3.5})
        self.assertIsNone(OF_CELL[1].of(runs, []))

    def test_goodput(self) -> None:
        """Successful requests that met every bound; undefined without one, refused for an unknown one."""
        run = run_of([request(0), request(1, tokens=(50, 60)), request(2, status="truncated")])
        self.assertEqual(goodput({"ttft_ms": 30}).of(run), 1 / (run.duration_s or 0))
        self.assertEqual(goodput({"ttft_ms": 50, "itl_ms": 9.9}).of(run), 0)
        self.assertIsNone(goodput({}).of(run))
        with self.assertRaisesRegex(ConfigError, "slo 'ttft' is no bound; there are queue_ms, "):
            goodput({"ttft": 30})

    def test_an_undefined_slo_is_not_met(self) -> None:
        """A request without a first token, or with one token under an ITL bound, met nothing."""
        run = run_of([request(0, tokens=()), request(1, tokens=(30,)), request(2)])
        self.assertEqual(goodput({"ttft_ms": 100}).of(run), 2 / (run.duration_s or 0))
        self.assertEqual(goodput({"itl_ms": 100}).of(run), 1 / (run.duration_s or 0))
        self.assertEqual(goodput({"slip_ms": 100}).of(run), 0)  # a closed loop has no schedule to slip from

    def test_bounds_that_are_none(self) -> None:
        """Zero, less, and what is no number are refused."""
        for bound in (0, -1.0, float("nan")):
            with self.assertRaisesRegex(ConfigError, "ttft_ms is .* positive number of ms"):
                goodput({"ttft_ms": bound})

    def test_goodput_says_its_bounds_in_one_order(self) -> None:
        """The order of the keys, which canonical JSON and config.yaml hold differently, changes no byte."""
        one, other = (goodput(slo) for slo in ({"ttft_ms": 1, "itl_ms": 2}, {"itl_ms": 2, "ttft_ms": 1}))
        self.assertEqual((one.formula, one.needs), (other.formula, other.needs))


class TestDeclarations(unittest.TestCase):
    """Each metric is declared once, whole."""

    def test_names_and_needs(self) -> None:
        """No name stands twice; what a metric needs is a field that records have."""
        metrics: list[Metric] = [*TIMES, *AGAINST_TRUTH, *OF_RUN, *OF_CELL, goodput({"ttft_ms": 1})]
        names = [metric.name for metric in metrics]
        self.assertEqual(len(names), len(set(names)))
        known = {field.name for field in fields(RequestRecord)} | {"received_ns", "token_ns", "batch"}
        known |= {"client_cpu_ns", "client_max_rss_kib", "launched_ns"}
        for metric in metrics:
            self.assertLessEqual(set(metric.needs), known, metric.name)
            self.assertTrue(metric.unit and metric.formula and metric.undefined and metric.needs, metric.name)
        self.assertEqual(len(SLO), len(TIMES))

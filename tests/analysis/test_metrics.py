"""Metrics of a load by hand: what each is of known times, and where it is undefined."""

import unittest
from collections.abc import Sequence
from typing import Any

from inference_lab.analysis.load_runs import Cell, EngineStepRow, cells_of
from inference_lab.analysis.metrics import AGAINST_TRUTH, OF_CELL, OF_RUN, SLO, TIMES, goodput
from inference_lab.analysis.server_metrics import OF_CACHE, OF_FRESH, OF_SERVER, STEPS
from inference_lab.errors import ConfigError, RecordError
from inference_lab.stream_load.requests import RequestRecord
from tests.loads import MS, record, request, session, truth


def cell_of(requests: Sequence[RequestRecord], facts: dict[str, Any] | None = None, **parts: Any) -> Cell:
    """The one run of these requests."""
    (cell,) = cells_of(record(requests, session(**facts or {}), **parts), steady=False)
    return cell


def times(*args: Any, **parts: Any) -> dict[str, list[float]]:
    """Every time of a run that has values, ms."""
    cell = cell_of(*args, **parts)
    values = {metric.name: metric.values(cell) for metric in (*TIMES, *AGAINST_TRUTH)}
    return {name: [value / MS for value in found] for name, found in values.items() if found}


def numbers(*args: Any, **parts: Any) -> dict[str, float]:
    """Every number of a run that is defined."""
    cell = cell_of(*args, **parts)
    return {metric.name: found[0] for metric in OF_RUN if (found := metric.values(cell))}


class TestTimes(unittest.TestCase):
    """Formulas of the glossary."""

    def test_every_time_of_one_request(self) -> None:
        """Arrival 10, admitted 13, sent 14, tokens at 44, 54, 69, over at 70 ms; two tokens in one chunk."""
        expected = {
            **{"queue": [3], "connection_wait": [1], "ttft": [30], "ttft_from_arrival": [34]},
            **{"itl": [10, 15], "itl_chunk": [10, 15], "tpot": [12.5]},
            **{"e2e": [60], "service_time": [56], "client_lag": [0.005]},
        }
        self.assertEqual(times([request(0, 10, queue=3, tokens=(30, 40, 55))]), expected)
        found = times([request(0, tokens=(30, 30, 50), chunk_tokens=(2, 1))])
        self.assertEqual((found["itl"], found["itl_chunk"], found["tpot"]), ([0, 20], [20], [10]))

    def test_what_is_undefined_has_no_value(self) -> None:
        """One token has no ITL and no TPOT, none has no TTFT, user stamps have no lag: never 0."""
        for made, undefined in (
            (request(0, tokens=(30,), max_read_lag_ns=None), {"itl", "tpot", "client_lag"}),
            (request(0, tokens=()), {"itl", "tpot", "ttft", "ttft_from_arrival"}),
            (request(0, status="timeout"), {metric.name for metric in TIMES}),
        ):
            self.assertEqual(undefined & set(times([made])), set())

    def test_slip_is_of_open_loops(self) -> None:
        """A closed loop has no schedule to be late for."""
        late = request(0, 10, scheduled_ns=8 * MS)
        self.assertEqual(times([late], {"schedule": "poisson"})["slip"], [2])
        self.assertNotIn("slip", times([late]))

    def test_against_the_truth(self) -> None:
        """Writes 0.5, 0.5 and 2.5 ms before they were seen, the request received 0.25 ms after sending."""
        seen = request(0)
        written = [truth(seen, late=(0.5, 0.5, 2.5), received=0.25)]
        expected = {
            **{"token_error": [0, 2], "ttft_error": [0.75]},
            **{"token_delay": [0.5, 0.5, 2.5], "server_itl": [10, 8]},
        }
        self.assertLessEqual(expected.items(), times([seen], truth=written).items())
        errors = numbers([seen], truth=written)
        self.assertAlmostEqual(errors["token_error_p99"], 1.98, 9)
        self.assertEqual((errors["ttft_error_mean"], errors["ttft_error_p99"]), (0.75, 0.75))

    def test_two_sides_that_count_different_tokens_are_not_judged(self) -> None:
        """A request of which the server wrote another number of tokens, or nothing, is named."""
        first, second = request(0), request(1, 20)
        whole = truth(second, late=(0, 0, 0))
        fewer = truth(first, late=(0, 0, 0)) | {"token_ns": [1]}
        for written, count in (([whole], 0), ([whole, fewer], 1)):
            with self.assertRaisesRegex(RecordError, f"r000000: the client saw 3 .* wrote {count};"):
                times([first, second], truth=written)


class TestNumbers(unittest.TestCase):
    """Numbers of whole runs and cells."""

    def test_rates_and_counts(self) -> None:
        """Two successes of 3 tokens and a failure in 153 ms; a retried attempt counts apart."""
        failed = request(0, 0, tokens=(), status="http_error", http_status=500)
        found = numbers(
            [failed, request(0, 0, attempt=2), request(1, 50, status="stream_error"), request(2, 100)]
        )
        expected = {
            **{"duration": 0.153, "requests_per_s": 2 / 0.153, "output_tokens_per_s": 6 / 0.153},
            **{"measured": 3, "outside": 0, "ok": 2, "stream_error": 1, "http_error": 0, "retries": 1},
            "length_disagreements": 0,
        }
        self.assertLessEqual(expected.items(), found.items())

    def test_in_flight(self) -> None:
        """Three requests of 52 ms admitted at 1, 11 and 101 ms of a run of 153 ms."""
        found = numbers([request(0, 0), request(1, 10), request(2, 100)])
        self.assertEqual(found["peak_in_flight"], 2)
        self.assertAlmostEqual(found["mean_in_flight"], 3 * 52 / 153, 12)

    def test_what_the_client_cost(self) -> None:
        """CPU per token, memory, time to the first request and chunks read together, where they are known."""
        facts = {"client_cpu_ns": 90_000, "client_max_rss_kib": 2048, "launched_ns": -500 * MS}
        found = numbers([request(0, coalesced_reads=1)], facts)
        expected = {"client_cpu_a_token": 30, "client_memory": 2, "start_to_first_request": 0.502}
        self.assertLessEqual({**expected, "coalesced": 100 / 3}.items(), found.items())
        self.assertFalse({*expected, "token_error_p99"} & set(numbers([request(0)])))

    def test_an_empty_run_has_no_rates(self) -> None:
        """Without requests counts are 0 and every rate is undefined; without tokens so is what they share."""
        found = numbers([])
        self.assertLessEqual({"measured": 0, "ok": 0, "peak_in_flight": 0}.items(), found.items())
        rates = {"duration", "requests_per_s", "output_tokens_per_s", "mean_in_flight", "coalesced"}
        self.assertFalse(rates & set(found))
        self.assertNotIn("coalesced", numbers([request(0, tokens=())]))

    def test_of_a_cell(self) -> None:
        """Clients together, and the steps of the server, which nobody infers from the clients."""
        runs = [run for n in (0, 1) for run in cell_of([request(n, 20 * n)]).runs]
        steps = [EngineStepRow(0, 0, batch, 0, 0, batch, 0) for batch in (2, 5)]
        for known, expected in ((steps, [[2], [5], [3.5]]), ([], [[2], [], []])):
            self.assertEqual([metric.values(Cell({}, runs, known)) for metric in OF_CELL], expected)

    def test_goodput(self) -> None:
        """Successful requests that met every bound; what is undefined in a request is not met."""
        made = [request(0), request(1, tokens=(50, 60)), request(2, status="truncated")]
        # No first token, one token under an ITL bound, no schedule to slip from: nothing is met.
        odd = [request(0, tokens=()), request(1, tokens=(30,)), request(2)]
        for requests, slo, met in (
            (made, {"ttft_ms": 30}, 1),
            (made, {"ttft_ms": 50, "itl_ms": 9.9}, 0),
            (odd, {"ttft_ms": 100}, 2),
            (odd, {"itl_ms": 100}, 1),
            (odd, {"slip_ms": 100}, 0),
        ):
            with self.subTest(slo):
                cell = cell_of(requests)
                self.assertEqual(goodput(slo).values(cell), [met / (cell.runs[0].duration_s or 0)])
        self.assertEqual(goodput({}).values(cell_of(made)), [])
        # Canonical JSON and config.yaml hold the keys in different orders: no byte may change.
        one, other = (goodput(slo) for slo in ({"ttft_ms": 1, "itl_ms": 2}, {"itl_ms": 2, "ttft_ms": 1}))
        self.assertEqual(one.formula, other.formula)

    def test_bounds_that_are_none(self) -> None:
        """An unknown name, zero, less, and what is no number are refused."""
        with self.assertRaisesRegex(ConfigError, "slo 'ttft' is no bound; there are queue_ms, "):
            goodput({"ttft": 30})
        for bound in (0, -1.0, float("nan")):
            with self.assertRaisesRegex(ConfigError, "ttft_ms is .* positive number of ms"):
                goodput({"ttft_ms": bound})

    def test_each_metric_is_declared_once(self) -> None:
        """No name is there twice, and each has a unit and a formula."""
        metrics = [*TIMES, *AGAINST_TRUTH, *OF_RUN, *OF_CELL, goodput({"ttft_ms": 1})]
        metrics += [*STEPS, *OF_SERVER, *OF_CACHE, *OF_FRESH]
        self.assertEqual(len({metric.name for metric in metrics}), len(metrics))
        self.assertTrue(all(metric.unit and metric.formula for metric in metrics))
        self.assertEqual(len(SLO), len(TIMES))

"""What is kept of a /metrics page."""

import unittest
from unittest import mock

from inference_lab.serving import scraper
from inference_lab.serving.scraper import Scraper, metrics_of

PAGE = b"""# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="model"} 3.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",engine="0"} 1.0
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="length",model_name="model"} 5.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="model"} 2.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="model"} 7.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="model"} 7.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="model"} 0.5
"""


class TestMetrics(unittest.TestCase):
    """A page as numbers."""

    def test_the_families_of_the_engine_are_kept(self) -> None:
        """Gauges, counters by what tells them apart, sums and counts; nothing of the process around them."""
        expected = {
            "num_requests_waiting": 3,
            'request_success_total{finished_reason="length"}': 5,
            'request_success_total{finished_reason="stop"}': 2,
            "time_to_first_token_seconds_count": 7,
            "time_to_first_token_seconds_sum": 0.5,
        }
        self.assertEqual(metrics_of(PAGE), expected)

    def test_a_look_in_between_keeps_gauges(self) -> None:
        """Counters are read before and after a load; between them only what comes and goes is kept."""
        self.assertEqual(metrics_of(PAGE, gauges=True), {"num_requests_waiting": 3})

    def test_no_page_is_no_number(self) -> None:
        """A server that did not answer said nothing, which is not zero."""
        self.assertIsNone(metrics_of(None))

    def test_it_looks_until_the_load_ends(self) -> None:
        """Pages come in the order of their times, and none after the block has ended."""
        with mock.patch.object(scraper, "get", return_value=PAGE) as get:
            with Scraper("http://127.0.0.1:1/v1", 0.001) as looks:
                while len(looks.samples) < 3:
                    pass
            seen = list(looks.samples)
            self.assertEqual(get.call_args.args, ("http://127.0.0.1:1/metrics",))
        times = [at for at, _ in seen]
        self.assertEqual((times, {page for _, page in seen}), (sorted(times), {PAGE}))
        self.assertEqual(looks.samples, seen)

"""What is kept of a /metrics page."""

import contextlib
import io
import socket
import threading
import unittest
from unittest import mock

from inference_lab.stream_load.servers import metrics_page as scraper
from inference_lab.stream_load.servers.metrics_page import metrics_of, scraping
from inference_lab.stream_load.servers.process import get

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


def answer_once(listener: socket.socket, answer: bytes) -> None:
    """Accept one connection, read a request, answer with these bytes."""
    peer, _ = listener.accept()
    with peer, contextlib.suppress(ConnectionError):
        peer.recv(4096)
        peer.sendall(answer)


class TestMetrics(unittest.TestCase):
    """A page as numbers."""

    def test_the_families_of_the_engine_are_kept(self) -> None:
        """Gauges, counters by what tells them apart, sums and counts; gauges alone; nothing of no page."""
        expected = {
            "num_requests_waiting": 3,
            'request_success_total{finished_reason="length"}': 5,
            'request_success_total{finished_reason="stop"}': 2,
            "time_to_first_token_seconds_count": 7,
            "time_to_first_token_seconds_sum": 0.5,
        }
        self.assertEqual(metrics_of(PAGE), expected)
        self.assertEqual(metrics_of(PAGE, gauges=True), {"num_requests_waiting": 3})
        self.assertIsNone(metrics_of(None))

    def test_several_engines_are_one_server(self) -> None:
        """Counts and sums are added over engines and models; of the KV caches the fullest counts."""
        page = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="model"} 3.0
vllm:num_requests_running{engine="1",model_name="model"} 4.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="model"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="model"} 0.25
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="model"} 100.0
vllm:generation_tokens_total{engine="1",model_name="model"} 200.0
# TYPE vllm:inter_token_latency_seconds histogram
vllm:inter_token_latency_seconds_sum{engine="0",model_name="model"} NaN
vllm:inter_token_latency_seconds_sum{engine="1",model_name="model"} 0.5
"""
        expected = {
            "num_requests_running": 7,
            "kv_cache_usage_perc": 0.5,
            "generation_tokens_total": 300,
            "inter_token_latency_seconds_sum": 0.5,
        }
        self.assertEqual(metrics_of(page), expected)

    def test_what_is_no_page(self) -> None:
        """HTML, JSON, other bytes, a time beyond floats and every cut of a page are no page, said once."""
        wrong = [b"<html><body>Bad gateway</body></html>\n", b'{"detail": "Not Found"}', b"\xff\xfe\n", b""]
        wrong += [b"vllm:x 1 " + b"9" * 400 + b"\n"]
        wrong += [PAGE[:end] for end in range(1, len(PAGE)) if not PAGE[:end].endswith(b"\n")]
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            scraper._say_unreadable.cache_clear()  # pyright: ignore[reportPrivateUsage]
            self.assertEqual([metrics_of(page) for page in wrong], [None] * len(wrong))
        self.assertEqual(errors.getvalue().count("\n"), 1)

    def test_pages_that_are_not_whole_or_never_end(self) -> None:
        """A page shorter than announced, cut in a chunk, without end, and one of no HTTP are no page."""
        endless = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (18 << 20)
        for answer, expected in (
            (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab\n", b"ab\n"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab\n", None),
            (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab\n", None),
            (b"HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\nab\n", None),
            (b"hello\n", None),
            (endless, None),
        ):
            with self.subTest(answer[:60]), socket.create_server(("127.0.0.1", 0)) as listener:
                server = threading.Thread(target=answer_once, args=(listener, answer))
                server.start()
                self.assertEqual(get(f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"), expected)
                server.join()

    def test_it_looks_until_the_load_ends(self) -> None:
        """Pages come in the order of their times, and none after the block has ended."""
        with mock.patch.object(scraper, "get", return_value=PAGE) as got:
            with scraping("http://127.0.0.1:1/v1", 0.001) as pages:
                while len(pages) < 3:
                    pass
            seen = list(pages)
            self.assertEqual(got.call_args.args, ("http://127.0.0.1:1/metrics",))
        times = [at for at, _ in seen]
        self.assertEqual((times, {page for _, page in seen}), (sorted(times), {PAGE}))
        self.assertEqual(pages, seen)

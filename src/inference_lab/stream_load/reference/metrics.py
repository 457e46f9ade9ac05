"""What the reference server counts, as Prometheus text under the names of vLLM.

Times are of the server's own clock. Nothing here is done for each token: the tokens of a step share their
inter-token time, for a request that decodes is in every step.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference_lab.stream_load.reference.scheduler import Scheduler, Step

# Bounds in s, as vLLM 0.32 has them.
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1),
    *(2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, elapsed_ns: int, times: int = 1) -> None:
        elapsed_s = elapsed_ns / 1e9
        self._counts[bisect_left(self._bounds, elapsed_s)] += times
        self._sum += elapsed_s * times

    def buckets(self) -> tuple[list[tuple[str, int]], float]:
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True)), self._sum


class Exposition(Collector):
    """The page /metrics of a server with this scheduler; told of every step and every finished request."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler = scheduler
        self._model = model
        counted = ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions")
        self._totals = dict.fromkeys((*counted, "prefix_cache_queries", "prefix_cache_hits"), 0)
        self._itl, self._ttft = _Histogram(_ITL_S), _Histogram(_TTFT_S)
        spans = ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time")
        self._spans = {name: _Histogram(_REQUEST_S) for name in spans}
        self._stepped_ns = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add_step(self, step: Step, ended_ns: int, tokens: int) -> None:
        """Count a step that emitted so many tokens."""
        self._totals["prompt_tokens"] += step.prefill_tokens
        self._totals["generation_tokens"] += tokens
        if step.decode_tokens:
            self._itl.observe(ended_ns - self._stepped_ns, step.decode_tokens)
        self._stepped_ns = ended_ns

    def add_request(self, truth: Mapping[str, Any]) -> None:
        """Count a request that is over."""
        self._totals["request_success"] += truth["ended"] == "whole"
        received_ns, started_ns, token_ns = (truth[key] for key in ("received_ns", "started_ns", "token_ns"))
        if started_ns is None or not token_ns:
            return
        self._ttft.observe(token_ns[0] - received_ns)
        times = (token_ns[-1] - received_ns, started_ns - received_ns)
        times += (token_ns[0] - started_ns, token_ns[-1] - token_ns[0])
        for histogram, elapsed_ns in zip(self._spans.values(), times, strict=True):
            histogram.observe(max(elapsed_ns, 0))  # a step may have started while the request was read

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry for every page."""
        labels = {"model_name": self._model, "engine": "0"}
        names, values = list(labels), list(labels.values())
        for name, value in self._gauges().items():
            gauge = GaugeMetricFamily(f"vllm:{name}", name, labels=names)
            gauge.add_metric(values, value)
            yield gauge
        for name, total in self._totals.items():
            more = {"finished_reason": "length"} if name == "request_success" else {}
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=[*names, *more])
            counter.add_metric([*values, *more.values()], total)
            yield counter
        timed = {"time_to_first_token": self._ttft, "inter_token_latency": self._itl, **self._spans}
        for name, histogram in timed.items():
            family = HistogramMetricFamily(f"vllm:{name}_seconds", name, labels=names)
            buckets, total_s = histogram.buckets()
            family.add_metric(values, buckets, total_s)
            yield family

    def _gauges(self) -> dict[str, int]:
        scheduler = self._scheduler
        return {
            "num_requests_running": sum(not job.is_over for job in scheduler.running),
            "num_requests_waiting": sum(not job.is_over for job in scheduler.waiting),
        }

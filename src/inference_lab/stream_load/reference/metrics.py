"""The page /metrics of the reference server: its counts as Prometheus text, under the names of vLLM.

Nothing here is done per token: the tokens of a step share their inter-token time, because a request that
decodes is in every step. Of a histogram there is one bucket, for its sum and count are what is read of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from inference_lab.stream_load.reference.scheduler import EngineStep, Scheduler

_COUNTERS = ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions",
             "prefix_cache_queries", "prefix_cache_hits")  # fmt: skip
_TIMES = ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time",
          "request_prefill_time", "request_decode_time")  # fmt: skip


@dataclass(slots=True)
class _Total:
    count: int = 0
    sum_s: float = 0.0

    def add(self, elapsed_ns: int, times: int = 1) -> None:
        self.count += times
        self.sum_s += elapsed_ns * times / 1e9


class MetricsPage(Collector):
    """The page of a server with this scheduler; it is given every step and every finished request."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler = scheduler
        self._labels = {"model_name": model, "engine": "0"}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._times = {name: _Total() for name in _TIMES}
        self._stepped_ns = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def add_step(self, step: EngineStep, ended_ns: int, tokens: int) -> None:
        """Count a step that emitted so many tokens."""
        self._counts["prompt_tokens"] += step.prefill_tokens
        self._counts["generation_tokens"] += tokens
        if step.decode_tokens:
            self._times["inter_token_latency"].add(ended_ns - self._stepped_ns, step.decode_tokens)
        self._stepped_ns = ended_ns

    def add_request(self, truth: Mapping[str, Any]) -> None:
        """Count a request that is over."""
        self._counts["request_success"] += truth["ended"] == "whole"
        received_ns, started_ns, token_ns = (truth[key] for key in ("received_ns", "started_ns", "token_ns"))
        if started_ns is None or not token_ns:
            return
        first_ns, last_ns = token_ns[0], token_ns[-1]
        for name, elapsed_ns in (
            ("time_to_first_token", first_ns - received_ns),
            ("e2e_request_latency", last_ns - received_ns),
            ("request_queue_time", started_ns - received_ns),
            ("request_prefill_time", first_ns - started_ns),
            ("request_decode_time", last_ns - first_ns),
        ):
            self._times[name].add(max(elapsed_ns, 0))  # a step may have started while the request was read

    def text(self) -> bytes:
        """Return the page."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every family; called by the registry for each page."""
        names, values = list(self._labels), list(self._labels.values())
        for name, jobs in (("running", self._scheduler.running), ("waiting", self._scheduler.waiting)):
            gauge = GaugeMetricFamily(f"vllm:num_requests_{name}", name, labels=names)
            gauge.add_metric(values, sum(not job.is_over for job in jobs))
            yield gauge
        for name, count in self._counts.items():
            more = {"finished_reason": "length"} if name == "request_success" else {}
            counter = CounterMetricFamily(f"vllm:{name}", name, labels=[*names, *more])
            counter.add_metric([*values, *more.values()], count)
            yield counter
        for name, total in self._times.items():
            histogram = HistogramMetricFamily(f"vllm:{name}_seconds", name, labels=names)
            histogram.add_metric(values, [("+Inf", total.count)], total.sum_s)
            yield histogram

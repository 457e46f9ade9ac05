"""The page /metrics of the reference server: its counts as Prometheus text, under the names of vLLM.

Nothing here is done per token: the tokens of a step share their inter-token time, because a request that
decodes is in every step. Of a histogram there is one bucket, for its sum and count are what is read of it.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from inference_lab.stream_load.reference.scheduler import EngineStep, Scheduler

_COUNTERS = ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions",
             "prefix_cache_queries", "prefix_cache_hits")  # fmt: skip
_TIMES = ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time",
          "request_prefill_time", "request_decode_time")  # fmt: skip


class MetricsPage(Collector):
    """The page of a server with this scheduler; it is given every step and every finished request."""

    def __init__(self, scheduler: Scheduler, model: str) -> None:
        self._scheduler = scheduler
        self._labels = {"model_name": model, "engine": "0"}
        self._counts = dict.fromkeys(_COUNTERS, 0)
        self._observed: dict[str, int] = dict.fromkeys(_TIMES, 0)
        self._sums_s: dict[str, float] = dict.fromkeys(_TIMES, 0.0)
        self._stepped_ns = 0

    def add_step(self, step: EngineStep, ended_ns: int, tokens: int) -> None:
        """Count a step that emitted so many tokens."""
        self._counts["prompt_tokens"] += step.prefill_tokens
        self._counts["generation_tokens"] += tokens
        self._add("inter_token_latency", ended_ns - self._stepped_ns, step.decode_tokens)
        self._stepped_ns = ended_ns

    def add_request(
        self, received_ns: int, started_ns: int | None, token_ns: Sequence[int], ended: str
    ) -> None:
        """Count a request that is over."""
        self._counts["request_success"] += ended == "whole"
        if started_ns is not None and token_ns:
            first_ns, last_ns = token_ns[0], token_ns[-1]
            self._add("time_to_first_token", first_ns - received_ns)
            self._add("e2e_request_latency", last_ns - received_ns)
            self._add("request_queue_time", started_ns - received_ns)
            self._add("request_prefill_time", first_ns - started_ns)
            self._add("request_decode_time", last_ns - first_ns)

    def _add(self, name: str, elapsed_ns: int, times: int = 1) -> None:
        self._observed[name] += times
        # At least 0: a step may have started while the request was read.
        self._sums_s[name] += max(elapsed_ns, 0) * times / 1e9

    def text(self) -> bytes:
        """Return the page."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

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
        for name, count in self._observed.items():
            histogram = HistogramMetricFamily(f"vllm:{name}_seconds", name, labels=names)
            histogram.add_metric(values, [("+Inf", count)], self._sums_s[name])
            yield histogram

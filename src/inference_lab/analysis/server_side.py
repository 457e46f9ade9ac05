"""Every number that a server under load says of itself, declared once: from its counters, gauges and steps.

Answers: what did queue, scheduler and engine do meanwhile? Counters and histograms count from the scrape
before a load to the one after it; gauges are what single scrapes saw, so a peak between two is missed.
STEPS have a value for each step of the engine, OF_SERVER one for a load, OF_FRESH one for a fresh server,
OF_CACHE one for each server. vLLM counts a request that is computed again after a preemption as decode.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inference_lab.analysis.load_runs import Run, Step
from inference_lab.analysis.metrics import TIMES, Metric, RunMetric, TimeMetric
from inference_lab.mechanisms.kv_capacity import BYTES_PER_ELEMENT, GIB, Capacity, KVShape
from inference_lab.records.record import Record

_NO_COUNTER = "the server does not count it"
_NO_STEPS = "steps unknown"


@dataclass(frozen=True)
class StepMetric(Metric):
    """A time of each step of a kind."""

    of: Callable[[Step], bool]

    def values(self, run: Run) -> list[float]:
        """Its values in a run, ns."""
        return [1e6 * float(step["elapsed_ms"]) for step in run.steps if self.of(step)]


def _number(step: Step, column: str) -> int:
    return int(step[column] or 0)


def _is_prefill(step: Step) -> bool:
    return _number(step, "prefill_tokens") > 0


def _is_decode(step: Step) -> bool:
    return not _is_prefill(step)


STEPS = (
    StepMetric("step", "ms", "elapsed, said by the engine", ("elapsed_ms",), _NO_STEPS, lambda _: True),
    StepMetric(
        *("decode_step", "ms", "the same of steps without a prompt", ("elapsed_ms", "prefill_tokens")),
        *(_NO_STEPS, _is_decode),
    ),
    StepMetric(
        *("prefill_step", "ms", "the same of steps with a prompt or a part of one"),
        *(("elapsed_ms", "prefill_tokens"), _NO_STEPS, _is_prefill),
    ),
)


def growth(run: Run, name: str) -> float | None:
    """By how much a counter grew over a load, over all its labels; None where it was not scraped."""
    pages = {line["phase"]: line["metrics"] for line in run.server if line["phase"] != "sample"}
    found = [_total(pages.get(phase), name) for phase in ("before", "after")]
    return None if found[0] is None or found[1] is None else found[1] - found[0]


def _total(page: Mapping[str, float] | None, name: str) -> float | None:
    values = [value for key, value in (page or {}).items() if key.partition("{")[0] == name]
    return sum(values) if values else None


def _mean_ms(*histograms: str) -> Callable[[Run], float | None]:
    """The mean over a load of the first of these histograms that the server has."""

    def of(run: Run) -> float | None:
        for name in histograms:
            total, count = (growth(run, f"{name}_{end}") for end in ("sum", "count"))
            if total is not None and count:
                return 1e3 * total / count
        return None

    return of


def _counted(name: str) -> Callable[[Run], float | None]:
    return lambda run: growth(run, f"{name}_total")


def _peak(name: str, per: float = 1) -> Callable[[Run], float | None]:
    """The largest value of a gauge in any scrape of a load."""

    def of(run: Run) -> float | None:
        seen = [_total(line["metrics"], name) for line in run.server]
        return max((value * per for value in seen if value is not None), default=None)

    return of


def _of_steps(of: Callable[[Sequence[Step]], float]) -> Callable[[Run], float | None]:
    return lambda run: of(run.steps) if run.steps else None


def _share(steps: Sequence[Step]) -> float:
    both = sum(_number(s, "prefill_requests") > 0 and _number(s, "decode_requests") > 0 for s in steps)
    return 100 * both / len(steps)


def _chunks(run: Run) -> float | None:
    parts = sum(_number(step, "prefill_requests") for step in run.steps)
    return parts / len(run.requests) if parts and run.requests else None


def _prefill_tokens(steps: Sequence[Step]) -> float:
    found = [tokens for step in steps if (tokens := _number(step, "prefill_tokens"))]
    return sum(found) / len(found) if found else 0.0


_QUEUE = "request_queue_time_seconds"
_TIME = "time_to_first_token_seconds"
_ITL = ("inter_token_latency_seconds", "time_per_output_token_seconds")  # its name until vLLM 0.11
OF_SERVER = (
    RunMetric("server_queue_mean", "ms", f"mean of {_QUEUE}", (_QUEUE,), _NO_COUNTER, _mean_ms(_QUEUE)),
    RunMetric("server_ttft_mean", "ms", f"mean of {_TIME}", (_TIME,), _NO_COUNTER, _mean_ms(_TIME)),
    RunMetric("server_itl_mean", "ms", f"mean of {_ITL[0]}", _ITL, _NO_COUNTER, _mean_ms(*_ITL)),
    RunMetric("server_prompt_tokens", "tokens", "growth of prompt_tokens", ("prompt_tokens_total",),
              _NO_COUNTER, _counted("prompt_tokens")),
    RunMetric("server_generation_tokens", "tokens", "growth of generation_tokens",
              ("generation_tokens_total",), _NO_COUNTER, _counted("generation_tokens")),
    RunMetric("preemptions", "requests", "growth of num_preemptions", ("num_preemptions_total",),
              _NO_COUNTER, _counted("num_preemptions")),
    RunMetric("prefix_cache_queries", "tokens", "growth of prefix_cache_queries",
              ("prefix_cache_queries_total",), _NO_COUNTER, _counted("prefix_cache_queries")),
    RunMetric("prefix_cache_hits", "tokens", "growth of prefix_cache_hits", ("prefix_cache_hits_total",),
              _NO_COUNTER, _counted("prefix_cache_hits")),
    RunMetric("peak_waiting", "requests", "largest num_requests_waiting scraped", ("num_requests_waiting",),
              "not scraped", _peak("num_requests_waiting")),
    RunMetric("peak_running", "requests", "largest num_requests_running scraped", ("num_requests_running",),
              "not scraped", _peak("num_requests_running")),
    RunMetric("peak_kv_cache_usage", "%", "largest kv_cache_usage_perc scraped", ("kv_cache_usage_perc",),
              "not scraped", _peak("kv_cache_usage_perc", 100)),
    RunMetric("steps", "steps", "of the engine", ("step",), _NO_STEPS, _of_steps(len)),
    RunMetric("step_prefill_tokens_peak", "tokens", "most prompt tokens in a step", ("prefill_tokens",),
              _NO_STEPS, _of_steps(lambda steps: max(_number(step, "prefill_tokens") for step in steps))),
    RunMetric("step_prefill_tokens_mean", "tokens", "mean over the steps with prompt tokens",
              ("prefill_tokens",), _NO_STEPS, _of_steps(_prefill_tokens)),
    RunMetric("prefill_chunks_a_request", "steps", "prompts and parts of them in steps / requests",
              ("prefill_requests",), _NO_STEPS, _chunks),
    RunMetric("mixed_steps", "%", "steps with prefill and decode / steps",
              ("prefill_requests", "decode_requests"), _NO_STEPS, _of_steps(_share)),
)  # fmt: skip
BAND = 0.95  # of the second half of a fresh server's requests lie below what counts as steady


@dataclass(frozen=True)
class FreshMetric(Metric):
    """One number of each server that was watched from its first request on."""

    of: Callable[[Sequence[float]], float | None]
    time: TimeMetric

    def values(self, runs: Sequence[Run]) -> list[float]:
        """Its value for each fresh server under these runs."""
        found = (
            self.of([value for _, value in times]) for times in by_fresh_server(runs, self.time).values()
        )
        return [value for value in found if value is not None]


def by_fresh_server(runs: Sequence[Run], metric: TimeMetric) -> dict[int, list[tuple[int, float]]]:
    """`{server: [(how many requests it had before, mean of a time in the request, ns)]}` in order of arrival.

    Of servers alone whose first request is among the runs; requests without success have no time.
    """
    servers: dict[int, list[Run]] = {}
    for run in runs:
        if "server" in run.sessions[0]:
            servers.setdefault(run.sessions[0]["server"], []).append(run)
    return {
        server: list(_means(own, metric))
        for server, own in sorted(servers.items())
        if any(run.sessions[0]["requests_before"] == 0 for run in own)
    }


def _means(runs: Sequence[Run], metric: TimeMetric) -> Iterator[tuple[int, float]]:
    for run in runs:
        for number, request in enumerate(run.requests):
            if request.status == "ok" and (values := metric.times(request)):
                yield run.sessions[0]["requests_before"] + number, sum(values) / len(values)


def steady_below(values: Sequence[float]) -> float | None:
    """The quantile BAND of the second half; None of fewer than 20 values."""
    return float(np.quantile(values[len(values) // 2 :], BAND)) if len(values) >= 20 else None


def warmup(values: Sequence[float]) -> int | None:
    """How many values from the first on lie above what the second half shows to be steady.

    By chance alone the first one does in 1 - BAND of all servers, the first two hardly ever.
    """
    bound = steady_below(values)
    return bound if bound is None else next((n for n, value in enumerate(values) if value <= bound), 0)


@dataclass(frozen=True)
class CacheMetric(Metric):
    """One number of each server: from its `settings` and what it said when it started, its `facts`."""

    of: Callable[[Mapping[str, Any], Mapping[str, Any]], int | None]

    def values(self, record: Record, runs: Sequence[Run]) -> list[float]:
        """Its value for each server under these runs."""
        numbers = dict.fromkeys(run.sessions[0].get("server") for run in runs)
        servers = [told for told in record.manifest.get("servers", ()) if told["server"] in numbers]
        found = (self.of(told["settings"], told["facts"]) for told in servers)
        return [value for value in found if value is not None]


def _capacity(settings: Mapping[str, Any], facts: Mapping[str, Any]) -> int | None:
    """What the capacity formula says that a server of this model, budget and block size holds."""
    model: Mapping[str, int] = settings.get("model") or {}
    gib, dtype, block = settings.get("kv_cache_gib"), settings.get("dtype"), facts.get("block_size")
    if not (gib and block and dtype in BYTES_PER_ELEMENT and "num_layers" in model):
        return None
    shape = KVShape(model["num_layers"], model["num_kv_heads"], model["hidden_size"] // model["num_heads"])
    return Capacity(round(gib * GIB), shape.bytes_per_token(dtype), block).tokens


OF_CACHE = (
    CacheMetric("kv_cache_tokens", "tokens", "size of the KV cache in the server's log", ("facts",),
                "the server does not say", lambda _, facts: facts.get("kv_cache_tokens")),
    CacheMetric("kv_capacity_tokens", "tokens", "whole blocks in kv_cache_gib, by kv_capacity.py",
                ("settings", "facts"), "no shape, dtype or block size", _capacity),
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in TIMES}
OF_FRESH = tuple(
    FreshMetric(
        f"warmup_{name}",
        "requests",
        f"first ones in a row whose {name} is above P{100 * BAND:.0f} of the server's second half",
        needs=("requests_before",),
        undefined="no fresh server of at least 20 requests",
        of=warmup,
        time=_BY_NAME[name],
    )
    for name in ("ttft", "itl")
)

"""All metrics that a server reports of itself under load, declared once: from counters, gauges and steps.

Counters and histograms count from the scrape before a load to the one after it; gauges are what single
scrapes saw, so a peak between two is missed. vLLM counts a request that is computed again after a preemption
as decode.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from inference_lab.analysis.load_runs import Cell, EngineStepRow, Run, Server
from inference_lab.analysis.metrics import ITL, TTFT, Metric, per_run
from inference_lab.mechanisms.kv_capacity import BYTES_PER_ELEMENT, GIB, Capacity, KVShape


def _step_time(name: str, formula: str, of: Callable[[EngineStepRow], bool]) -> Metric:
    def values(cell: Cell) -> list[float]:
        return [step.elapsed_ns for run in cell.runs for step in run.steps if of(step)]

    return Metric(name, "ms", formula, values)


_PREFILL = "the same of steps with a prompt or a part of one"
STEPS = (
    _step_time("step", "elapsed, said by the engine", lambda _: True),
    _step_time("decode_step", "the same of steps without a prompt", lambda step: step.prefill_tokens == 0),
    _step_time("prefill_step", _PREFILL, lambda step: step.prefill_tokens > 0),
)


def growth(run: Run, name: str) -> float | None:
    """By how much a counter grew over a load, over all its labels; None where it was not scraped."""
    pages = {scrape["phase"]: scrape["metrics"] for scrape in run.scrapes if scrape["phase"] != "sample"}
    before, after = (_total(pages.get(phase), name) for phase in ("before", "after"))
    return None if before is None or after is None else after - before


def _total(page: Mapping[str, float] | None, name: str) -> float | None:
    values = [value for key, value in (page or {}).items() if key.partition("{")[0] == name]
    return sum(values) if values else None


def _mean(name: str, *histograms: str) -> Metric:
    """The mean over a load of the first of these histograms that the server has."""

    def of(run: Run) -> float | None:
        for histogram in histograms:
            total, count = (growth(run, f"{histogram}_{end}") for end in ("sum", "count"))
            if total is not None and count:
                return 1e3 * total / count
        return None

    return per_run(name, "ms", f"mean of {histograms[0]}", of)


def _counted(name: str, unit: str, counter: str) -> Metric:
    return per_run(name, unit, f"growth of {counter}", lambda run: growth(run, f"{counter}_total"))


def _peak(name: str, unit: str, gauge: str, per: float = 1) -> Metric:
    """The largest value of a gauge in any scrape of a load."""

    def of(run: Run) -> float | None:
        values = [_total(scrape["metrics"], gauge) for scrape in run.scrapes]
        return max((value * per for value in values if value is not None), default=None)

    return per_run(name, unit, f"largest {gauge} scraped", of)


def _of_steps(name: str, unit: str, formula: str, of: Callable[[Sequence[EngineStepRow]], float]) -> Metric:
    return per_run(name, unit, formula, lambda run: of(run.steps) if run.steps else None)


def _prefill_tokens(steps: Sequence[EngineStepRow]) -> float:
    tokens = [step.prefill_tokens for step in steps if step.prefill_tokens]
    return sum(tokens) / len(tokens) if tokens else 0.0


def _chunks(run: Run) -> float | None:
    parts = sum(step.prefill_requests for step in run.steps)
    return parts / len(run.requests) if parts and run.requests else None


OF_SERVER = (
    _mean("server_queue_mean", "request_queue_time_seconds"),
    _mean("server_ttft_mean", "time_to_first_token_seconds"),
    _mean("server_itl_mean", "inter_token_latency_seconds", "time_per_output_token_seconds"),  # vLLM < 0.11
    _counted("server_prompt_tokens", "tokens", "prompt_tokens"),
    _counted("server_generation_tokens", "tokens", "generation_tokens"),
    _counted("preemptions", "requests", "num_preemptions"),
    _counted("prefix_cache_queries", "tokens", "prefix_cache_queries"),
    _counted("prefix_cache_hits", "tokens", "prefix_cache_hits"),
    _peak("peak_waiting", "requests", "num_requests_waiting"),
    _peak("peak_running", "requests", "num_requests_running"),
    _peak("peak_kv_cache_usage", "%", "kv_cache_usage_perc", 100),
    _of_steps("steps", "steps", "of the engine", len),
    _of_steps("step_prefill_tokens_peak", "tokens", "most prompt tokens in a step",
              lambda steps: max(step.prefill_tokens for step in steps)),
    _of_steps("step_prefill_tokens_mean", "tokens", "mean over the steps with prompt tokens",
              _prefill_tokens),
    per_run("prefill_chunks_a_request", "steps", "prompts and parts of them in steps / requests", _chunks),
    _of_steps("mixed_steps", "%", "steps with prefill and decode / steps",
              lambda own: 100 * sum(s.prefill_requests > 0 < s.decode_requests for s in own) / len(own)),
)  # fmt: skip


def _per_server(name: str, formula: str, of: Callable[[Server], int | None]) -> Metric:
    """A number of tokens of each server, from its settings and what it logged when it started."""

    def values(cell: Cell) -> list[float]:
        servers = {run.server["server"]: run.server for run in cell.runs if run.server}
        return [value for server in servers.values() if (value := of(server)) is not None]

    return Metric(name, "tokens", formula, values)


def _capacity(server: Server) -> int | None:
    """The tokens that a server of this model, budget and block size holds by the capacity formula."""
    settings, block = server["settings"], server["facts"].get("block_size")
    model: Mapping[str, int] = settings.get("model") or {}
    gib, dtype = settings.get("kv_cache_gib"), settings.get("dtype")
    if not (gib and block and dtype in BYTES_PER_ELEMENT and "num_layers" in model):
        return None
    shape = KVShape(model["num_layers"], model["num_kv_heads"], model["hidden_size"] // model["num_heads"])
    return Capacity(round(gib * GIB), shape.bytes_per_token(dtype), block).tokens


OF_CACHE = (
    _per_server("kv_cache_tokens", "size of the KV cache in the server's log",
                lambda server: server["facts"].get("kv_cache_tokens")),
    _per_server("kv_capacity_tokens", "whole blocks in kv_cache_gib, by kv_capacity.py", _capacity),
)  # fmt: skip

STEADY_QUANTILE = 0.95  # of the second half of a fresh server's requests: below it they count as steady


def by_fresh_server(runs: Sequence[Run], time: Metric) -> dict[int, list[tuple[int, float]]]:
    """`{server: [(how many requests it had before, mean of a time in the request, ns)]}` in order of arrival.

    Only of servers whose first request is among the runs; requests without success have no time.
    """
    firsts = [run.sessions[0] for run in runs if "server" in run.sessions[0]]
    fresh = {first["server"] for first in firsts if first.get("requests_before", 0) == 0}
    return {
        server: [
            (number, sum(values) / len(values))
            for run in runs
            if run.sessions[0].get("server") == server
            for number, request in enumerate(run.requests, run.sessions[0].get("requests_before", 0))
            if request.status == "ok" and (values := time.in_request(request))
        ]
        for server in sorted(fresh)
    }


def steady_below(values: Sequence[float]) -> float | None:
    """The STEADY_QUANTILE of the second half; None of fewer than 20 values."""
    return float(np.quantile(values[len(values) // 2 :], STEADY_QUANTILE)) if len(values) >= 20 else None


def warmup(values: Sequence[float]) -> int | None:
    """How many values from the first on lie above what the second half shows to be steady.

    By chance alone the first one does in 1 - STEADY_QUANTILE of all servers, the first two hardly ever.
    """
    bound = steady_below(values)
    return None if bound is None else next((n for n, value in enumerate(values) if value <= bound), 0)


def _warmup(time: Metric) -> Metric:
    def values(cell: Cell) -> list[float]:
        servers = by_fresh_server(cell.runs, time).values()
        counts = [warmup([value for _, value in times]) for times in servers]
        return [count for count in counts if count is not None]

    band = f"P{100 * STEADY_QUANTILE:.0f} of the server's second half"
    formula = f"first ones in a row whose {time.name} is above {band}"
    return Metric(f"warmup_{time.name}", "requests", formula, values)


OF_FRESH = (_warmup(TTFT), _warmup(ITL))

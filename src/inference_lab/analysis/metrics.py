"""All client-side metrics of a load, each declared once: name, unit, formula.

Times are ns until they are written; a metric has no value where it is undefined. Quantiles and intervals are
made in the summary. The server's own metrics are in server_metrics.py.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from inference_lab.analysis.load_runs import Cell, Run, Truth, peak_in_flight
from inference_lab.errors import ConfigError, RecordError
from inference_lab.stream_load.requests import STATUSES, RequestRecord

OfRequest = Callable[[RequestRecord], Sequence[float]]
OfBoth = Callable[[RequestRecord, Truth], Sequence[float]]
OfRun = Callable[[Run], float | None]


@dataclass(frozen=True)
class Metric:
    """One reported number; of a time, `in_request` gives the values in one successful request, ns."""

    name: str
    unit: str
    formula: str
    values: Callable[[Cell], Sequence[float]]
    in_request: OfRequest = lambda _: ()


def per_run(name: str, unit: str, formula: str, of: OfRun) -> Metric:
    """A metric with one value per run, where `of` is not None."""

    def values(cell: Cell) -> list[float]:
        return [value for run in cell.runs if (value := of(run)) is not None]

    return Metric(name, unit, formula, values)


def token_times(request: RequestRecord) -> list[int]:
    """When each token arrived, ns."""
    return [] if request.first_token_ns is None else [request.first_token_ns, *request.token_times_ns]


def chunk_times(request: RequestRecord) -> list[int]:
    """When each chunk arrived, ns."""
    times = token_times(request)
    return [times[end - 1] for end in accumulate(request.chunk_tokens)]


def _gaps(times: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(times)]


def _tpot(request: RequestRecord) -> list[float]:
    times = token_times(request)
    return [(times[-1] - times[0]) / (len(times) - 1)] if len(times) > 1 else []


def _span(start: str, end: str) -> OfRequest:
    """From one of a request's times to another; nothing where it lacks one of them."""

    def of(request: RequestRecord) -> list[float]:
        first, last = getattr(request, start), getattr(request, end)
        return [] if first is None or last is None else [last - first]

    return of


def _time(name: str, formula: str, in_request: OfRequest) -> Metric:
    """A time of every successful request."""

    def values(cell: Cell) -> list[float]:
        runs = [run for run in cell.runs if name != "slip" or run.is_open_loop]
        return [value for run in runs for request in run.succeeded for value in in_request(request)]

    return Metric(name, "ms", formula, values, in_request)


TIMES = (
    _time("queue", "admitted - arrival", _span("arrival_ns", "admitted_ns")),
    _time("connection_wait", "sent - admitted", _span("admitted_ns", "sent_ns")),
    TTFT := _time("ttft", "first token - sent", _span("sent_ns", "first_token_ns")),
    _time("ttft_from_arrival", "first token - arrival", _span("arrival_ns", "first_token_ns")),
    ITL := _time("itl", "from token to token", lambda request: _gaps(token_times(request))),
    _time("itl_chunk", "from chunk to chunk", lambda request: _gaps(chunk_times(request))),
    _time("tpot", "(last token - first) / (tokens - 1)", _tpot),
    _time("e2e", "finish - arrival", _span("arrival_ns", "finish_ns")),
    _time("service_time", "finish - sent", _span("sent_ns", "finish_ns")),
    SLIP := _time("slip", "arrival - scheduled", _span("scheduled_ns", "arrival_ns")),
    CLIENT_LAG := _time("client_lag", "longest wait of a read's last bytes for the client",
                        lambda r: [] if r.max_read_lag_ns is None else [r.max_read_lag_ns]),
)  # fmt: skip


def _against_truth(name: str, formula: str, of: OfBoth) -> Metric:
    """A time that client and server both know of every successful request, or of each of its tokens."""

    def of_run(run: Run) -> list[float]:
        if name not in run.known:
            run.known[name] = [value for both in _with_truth(run) for value in of(*both)]
        return run.known[name]

    return Metric(name, "ms", formula, lambda cell: [value for run in cell.runs for value in of_run(run)])


def _with_truth(run: Run) -> Iterable[tuple[RequestRecord, Truth]]:
    """Each successful request and what the server wrote of it; nothing where the server wrote none.

    Raises RecordError when the two sides count different tokens.
    """
    for request in run.succeeded if run.truth else ():
        truth = run.truth.get(request.request_id)
        written = len(truth["token_ns"]) if truth else 0
        if written != request.output_tokens:
            seen = f"the client saw {request.output_tokens} tokens, the server wrote {written}"
            raise RecordError(f"request {request.request_id}: {seen}; the record cannot be judged")
        if truth:
            yield request, truth


def _differ(seen: Sequence[int], written: Sequence[int]) -> list[int]:
    return [a - b for a, b in zip(seen, written, strict=True)]


def _token_error(request: RequestRecord, truth: Truth) -> list[int]:
    return list(map(abs, _differ(_gaps(token_times(request)), _gaps(truth["token_ns"]))))


def _ttft_error(request: RequestRecord, truth: Truth) -> list[float]:
    return [abs(ttft - (truth["token_ns"][0] - truth["received_ns"])) for ttft in TTFT.in_request(request)]


_TTFT_ERROR = "|TTFT seen - (first token written - request received)|"
AGAINST_TRUTH = (
    TOKEN_ERROR := _against_truth("token_error", "|ITL seen - ITL written|", _token_error),
    TTFT_ERROR := _against_truth("ttft_error", _TTFT_ERROR, _ttft_error),
    TOKEN_DELAY := _against_truth("token_delay", "token seen - token written",
                                  lambda request, t: _differ(token_times(request), t["token_ns"])),
    _against_truth("server_itl", "from token written to token written", lambda _, t: _gaps(t["token_ns"])),
)  # fmt: skip


def _of_one(metric: Metric, run: Run) -> Sequence[float]:
    return metric.values(Cell(run.cell, [run], run.steps))


def p99_ms(metric: Metric, run: Run) -> float | None:
    """The P99 of a time in a run."""
    values = _of_one(metric, run)
    return float(np.percentile(values, 99)) / 1e6 if values else None


def _mean_ms(metric: Metric, run: Run) -> float | None:
    values = _of_one(metric, run)
    return math.fsum(values) / len(values) / 1e6 if values else None


def _per(amount: float, of: float | None) -> float | None:
    return amount / of if of else None


def _mean_in_flight(run: Run) -> float | None:
    if run.span is None:
        return None
    start, end = run.span
    admitted = [(r.admitted_ns, r.finish_ns) for r in run.requests if r.admitted_ns is not None]
    return sum(max(min(last, end) - max(first, start), 0) for first, last in admitted) / (end - start)


def _tokens(requests: Iterable[RequestRecord]) -> int:
    return sum(request.output_tokens for request in requests)


def _coalesced(run: Run) -> float | None:
    reads = sum(request.coalesced_reads for request in run.attempts)
    return _per(100 * reads, sum(len(request.chunk_tokens) for request in run.attempts))


def _cpu(run: Run) -> float | None:
    spent = sum(session.get("client_cpu_ns", 0) for session in run.sessions)
    return _per(spent / 1e3, _tokens(run.attempts)) or None


def _start(run: Run) -> float | None:
    sent = [request.sent_ns for request in run.requests if request.sent_ns is not None]
    launched = run.sessions[0].get("launched_ns")
    return (min(sent) - launched) / 1e9 if sent and launched is not None else None


_PEAK = "most of a client's between admission and finish at once"
OF_RUN = (
    per_run("duration", "s", "first arrival to last finish of those measured", lambda run: run.duration_s),
    per_run("measured", "requests", "arrived in the window", lambda run: len(run.measured)),
    per_run("outside", "requests", "arrived outside the window",
            lambda run: len(run.requests) - len(run.measured)),
    *(per_run(status, "requests", f"ended as {status}",
              lambda run, status=status: sum(r.status == status for r in run.requests))
      for status in STATUSES),
    per_run("retries", "attempts", "attempts after a request's first",
            lambda run: len(run.attempts) - len(run.requests)),
    per_run("requests_per_s", "1/s", "successful requests / duration",
            lambda run: _per(len(run.succeeded), run.duration_s)),
    per_run("output_tokens_per_s", "1/s", "their output tokens / duration",
            lambda run: _per(_tokens(run.succeeded), run.duration_s)),
    per_run("peak_in_flight", "requests", _PEAK, lambda run: peak_in_flight(run.requests)),
    per_run("mean_in_flight", "requests", "time between admission and finish / duration", _mean_in_flight),
    per_run("length_disagreements", "requests", "usage and count of tokens differ",
            lambda run: sum(r.counted_tokens != r.output_tokens for r in run.attempts)),
    per_run("coalesced", "%", "reads that held several chunks / chunks", _coalesced),
    per_run("token_error_p99", "ms", "P99 of token_error in the run", lambda run: p99_ms(TOKEN_ERROR, run)),
    per_run("ttft_error_mean", "ms", "mean of ttft_error in the run", lambda run: _mean_ms(TTFT_ERROR, run)),
    per_run("ttft_error_p99", "ms", "P99 of ttft_error in the run", lambda run: p99_ms(TTFT_ERROR, run)),
    per_run("client_cpu_a_token", "us", "CPU time of the client / output tokens", _cpu),
    per_run("client_memory", "MiB", "largest resident set of the client",
            lambda run: max(one.get("client_max_rss_kib", 0) for one in run.sessions) / 1024 or None),
    per_run("start_to_first_request", "s", "first request sent - process launched", _start),
)  # fmt: skip


OF_CELL = (
    Metric("peak_in_flight_together", "requests", "the same of all clients of the cell",
           lambda cell: [peak_in_flight(cell.requests)]),
    Metric("peak_step_batch", "requests", "most in a step of the server's engine",
           lambda cell: [max(step.batch for step in cell.steps)] if cell.steps else []),
    Metric("mean_step_batch", "requests", "mean over the steps of the server's engine",
           lambda cell: [sum(s.batch for s in cell.steps) / len(cell.steps)] if cell.steps else []),
)  # fmt: skip

SLO = {f"{metric.name}_ms": metric for metric in TIMES}


def goodput(slo: Mapping[str, float]) -> Metric:
    """Requests per second that met every bound of `slo` (named as in SLO, ms); what is undefined is not met.

    Raises ConfigError for a bound of no such name, or that is no positive number.
    """
    if unknown := [name for name in slo if name not in SLO]:
        raise ConfigError(f"slo {unknown[0]!r} is no bound; there are {', '.join(SLO)}")
    if wrong := [name for name, bound in slo.items() if not bound > 0]:
        raise ConfigError(f"slo {wrong[0]} is {slo[wrong[0]]}, must be a positive number of ms")

    def met(request: RequestRecord, name: str) -> bool:
        times = SLO[name].in_request(request)
        return len(times) > 0 and max(times) <= slo[name] * 1e6

    def of(run: Run) -> float | None:
        judged = run.succeeded if run.is_open_loop or "slip_ms" not in slo else ()  # no schedule to slip from
        return _per(sum(all(met(request, name) for name in slo) for request in judged), run.duration_s)

    words = " and ".join(f"{name} <= {bound:g}" for name, bound in sorted(slo.items()))
    formula = f"successful requests with {words} / duration"
    return per_run("goodput_per_s", "1/s", formula, lambda run: of(run) if slo else None)

"""Every number that is reported of a load, declared once: name, unit, formula, what it needs, when undefined.

Answers: what are the values of a metric in a run? TIMES have one for each request or token, AGAINST_TRUTH
too, where the server's own times are known; OF_RUN have one for the whole run. Times are ns until written.
Quantiles and intervals are the summary's.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from inference_lab.analysis.runs import Run, peak_in_flight
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.requests import STATUSES, RequestRecord

Truth = Mapping[str, Any]  # one request as the server wrote it: received_ns, token_ns


@dataclass(frozen=True)
class TimeMetric:
    """A time in ms of every request that succeeded, or of each of its tokens."""

    name: str
    formula: str
    undefined: str
    of: Callable[[RequestRecord], Sequence[float]]
    open_loop: bool = False

    def values(self, run: Run) -> list[float]:
        """Its values in a run, ns."""
        if self.open_loop and run.sessions[0].get("schedule") == "closed":
            return []
        return [value for request in run.succeeded for value in self.of(request)]


@dataclass(frozen=True)
class TruthMetric:
    """A time in ms that the client and the server both know of a request, or of each of its tokens."""

    name: str
    formula: str
    undefined: str
    of: Callable[[RequestRecord, Truth], Sequence[float]]

    def values(self, run: Run) -> list[float]:
        """Its values in a run, ns. Raises RecordError when the two sides count different tokens."""
        known: list[tuple[RequestRecord, Truth]] = []
        for request in run.succeeded if run.truth else ():
            truth = run.truth.get(request.request_id, {"token_ns": ()})
            known.append((request, truth))
            if len(truth["token_ns"]) != request.output_tokens:
                raise RecordError(
                    f"request {request.request_id}: the client saw {request.output_tokens} tokens, the server"
                    f" wrote {len(truth['token_ns'])}; the record cannot be judged"
                )
        return [value for pair in known for value in self.of(*pair)]


@dataclass(frozen=True)
class RunMetric:
    """One number of a whole run, in its own unit; None where it is undefined."""

    name: str
    unit: str
    formula: str
    undefined: str
    of: Callable[[Run], float | None]


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


def _between(start: str, end: str, request: RequestRecord) -> list[int]:
    first, last = getattr(request, start), getattr(request, end)
    return [] if first is None or last is None else [last - first]


def _lag(request: RequestRecord) -> list[int]:
    return [] if request.max_read_lag_ns is None else [request.max_read_lag_ns]


TIMES = (
    TimeMetric("queue", "admitted - arrival", "not admitted", partial(_between, "arrival_ns", "admitted_ns")),
    TimeMetric("connection_wait", "sent - admitted", "not sent", partial(_between, "admitted_ns", "sent_ns")),
    TimeMetric("ttft", "first token - sent", "no token", partial(_between, "sent_ns", "first_token_ns")),
    TimeMetric(
        "ttft_from_arrival",
        "first token - arrival",
        "no token",
        partial(_between, "arrival_ns", "first_token_ns"),
    ),
    TimeMetric("itl", "from token to token", "fewer than 2 tokens", lambda r: _gaps(token_times(r))),
    TimeMetric("itl_chunk", "from chunk to chunk", "fewer than 2 chunks", lambda r: _gaps(chunk_times(r))),
    TimeMetric("tpot", "(last token - first) / (tokens - 1)", "fewer than 2 tokens", _tpot),
    TimeMetric("e2e", "finish - arrival", "not finished", partial(_between, "arrival_ns", "finish_ns")),
    TimeMetric("service_time", "finish - sent", "not sent", partial(_between, "sent_ns", "finish_ns")),
    TimeMetric(
        "slip",
        "arrival - scheduled",
        "closed loop",
        partial(_between, "scheduled_ns", "arrival_ns"),
        open_loop=True,
    ),
    TimeMetric("client_lag", "longest wait of received bytes for the client's read", "user stamps", _lag),
)
SLO = {f"{metric.name}_ms": metric.of for metric in TIMES}


def _token_error(request: RequestRecord, truth: Truth) -> list[int]:
    seen, written = _gaps(token_times(request)), _gaps(truth["token_ns"])
    return [abs(a - b) for a, b in zip(seen, written, strict=True)]


def _ttft_error(request: RequestRecord, truth: Truth) -> list[int]:
    seen = _between("sent_ns", "first_token_ns", request)
    return [abs(ttft - (truth["token_ns"][0] - truth["received_ns"])) for ttft in seen]


def _delay(request: RequestRecord, truth: Truth) -> list[int]:
    return [seen - written for seen, written in zip(token_times(request), truth["token_ns"], strict=True)]


TOKEN_ERROR = TruthMetric("token_error", "|ITL seen - ITL written|", "server's times unknown", _token_error)
TTFT_ERROR = TruthMetric(
    "ttft_error", "|TTFT seen - (first token written - request received)|", TOKEN_ERROR.undefined, _ttft_error
)
AGAINST_TRUTH = (
    TOKEN_ERROR,
    TTFT_ERROR,
    TruthMetric("token_delay", "token seen - token written", TOKEN_ERROR.undefined, _delay),
    TruthMetric(
        "server_itl",
        "from token written to token written",
        TOKEN_ERROR.undefined,
        lambda _, truth: _gaps(truth["token_ns"]),
    ),
)


def _tokens(requests: Iterable[RequestRecord]) -> int:
    return sum(request.output_tokens for request in requests)


def _rate(count: float, run: Run) -> float | None:
    return count / run.duration_s if run.duration_s else None


def _mean_in_flight(run: Run) -> float | None:
    if run.span is None:
        return None
    start, end = run.span
    held = (
        max(min(r.finish_ns, end) - max(r.admitted_ns, start), 0)
        for r in run.requests
        if r.admitted_ns is not None
    )
    return sum(held) / (end - start)


def _of_sessions(name: str, run: Run, per: float) -> float | None:
    found = [session[name] for session in run.sessions if name in session]
    return sum(found) / per if found and per else None


def _start(run: Run) -> float | None:
    sent = [request.sent_ns for request in run.requests if request.sent_ns is not None]
    launched = run.sessions[0].get("launched_ns")
    return (min(sent) - launched) / 1e9 if sent and launched is not None else None


def _quantile(metric: TruthMetric, quantile: float, run: Run) -> float | None:
    values = metric.values(run)
    return float(np.percentile(values, 100 * quantile)) / 1e6 if values else None


def _mean(metric: TruthMetric, run: Run) -> float | None:
    values = metric.values(run)
    return math.fsum(values) / len(values) / 1e6 if values else None


def _chunks(run: Run) -> int:
    return sum(len(request.chunk_tokens) for request in run.attempts)


def _with_status(status: str, run: Run) -> int:
    return sum(request.status == status for request in run.requests)


OF_RUN = (
    RunMetric("duration", "s", "first arrival to last finish of the measured requests", "no request",
              lambda run: run.duration_s),
    RunMetric("measured", "requests", "arrived in the window", "never", lambda run: len(run.measured)),
    RunMetric("outside", "requests", "arrived outside the window", "never",
              lambda run: len(run.requests) - len(run.measured)),
    *(
        RunMetric(status, "requests", f"ended as {status}", "never", partial(_with_status, status))
        for status in STATUSES
    ),
    RunMetric("retries", "attempts", "attempts after a request's first", "never",
              lambda run: len(run.attempts) - len(run.requests)),
    RunMetric("requests_per_s", "1/s", "successful requests / duration", "no duration",
              lambda run: _rate(len(run.succeeded), run)),
    RunMetric("output_tokens_per_s", "1/s", "their output tokens / duration", "no duration",
              lambda run: _rate(_tokens(run.succeeded), run)),
    RunMetric("peak_in_flight", "requests", "most between admission and finish at once", "never",
              lambda run: peak_in_flight(run.requests)),
    RunMetric("mean_in_flight", "requests", "time between admission and finish / duration", "no duration",
              _mean_in_flight),
    RunMetric("length_disagreements", "requests", "usage and count of tokens differ", "never",
              lambda run: sum(r.counted_tokens != r.output_tokens for r in run.attempts)),
    RunMetric("coalesced", "%", "chunks read together with a later one", "no chunk",
              lambda run: 100 * sum(len(r.censored_chunks) for r in run.attempts) / _chunks(run)
              if _chunks(run) else None),
    RunMetric("token_error_p99", "ms", "P99 of token_error in the run", TOKEN_ERROR.undefined,
              partial(_quantile, TOKEN_ERROR, 0.99)),
    RunMetric("ttft_error_mean", "ms", "mean of ttft_error in the run", TOKEN_ERROR.undefined,
              partial(_mean, TTFT_ERROR)),
    RunMetric("ttft_error_p99", "ms", "P99 of ttft_error in the run", TOKEN_ERROR.undefined,
              partial(_quantile, TTFT_ERROR, 0.99)),
    RunMetric("client_cpu_a_token", "us", "CPU time of the client / output tokens", "not recorded",
              lambda run: _of_sessions("client_cpu_ns", run, 1e3 * _tokens(run.attempts))),
    RunMetric("client_memory", "MiB", "largest resident set of the client", "not recorded",
              lambda run: _of_sessions("client_max_rss_kib", run, 1024 * len(run.sessions))),
    RunMetric("start_to_first_request", "s", "first request sent - process started", "not recorded", _start),
)  # fmt: skip


def goodput(slo: Mapping[str, float]) -> RunMetric:
    """Requests that met every bound of `slo` (names as in SLO, ms) a second.

    Raises ConfigError for a bound of no such name.
    """
    if unknown := [name for name in slo if name not in SLO]:
        raise ConfigError(f"slo {unknown[0]!r} is no bound; there are {', '.join(SLO)}")

    def met(request: RequestRecord) -> bool:
        return all(value <= bound * 1e6 for name, bound in slo.items() for value in SLO[name](request))

    words = ", ".join(f"{name} <= {bound:g}" for name, bound in slo.items())
    return RunMetric(
        "goodput_per_s",
        "1/s",
        f"requests with {words} / duration",
        "no SLO declared",
        lambda run: _rate(sum(map(met, run.succeeded)), run) if slo else None,
    )

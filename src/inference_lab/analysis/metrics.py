"""Every number that is reported of a load, declared once: name, unit, formula, what it needs, when undefined.

Answers: what are the values of a metric? TIMES have one for each request or token, AGAINST_TRUTH too, where
the server's own times are known; OF_RUN have one for a run, OF_CELL one for all runs of a cell together.
Times are ns until they are written. Quantiles and intervals are the summary's.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from inference_lab.analysis.load_runs import Run, Step, peak_in_flight
from inference_lab.errors import ConfigError, RecordError
from inference_lab.records.requests import STATUSES, RequestRecord

Truth = Mapping[str, Any]  # one request as the server wrote it: received_ns, token_ns


@dataclass(frozen=True)
class Metric:
    """What is reported under a name; `needs` are fields of requests, sessions, truth or steps."""

    name: str
    unit: str
    formula: str
    needs: tuple[str, ...]
    undefined: str


@dataclass(frozen=True)
class TimeMetric(Metric):
    """A time of every successful request, or of each of its tokens; from `needs` to `needs` unless told."""

    of: Callable[[RequestRecord], Sequence[float]] | None = None
    open_loop: bool = False

    def times(self, request: RequestRecord) -> Sequence[float]:
        """Its values in a request, ns; none where it is undefined."""
        if self.of:
            return self.of(request)
        start, end = (getattr(request, name) for name in self.needs)
        return [] if start is None or end is None else [end - start]

    def values(self, run: Run) -> list[float]:
        """Its values in a run, ns."""
        return [value for request in run.succeeded for value in self.times(request)] if self.has(run) else []

    def has(self, run: Run) -> bool:
        """Whether it is defined for such a run."""
        return not (self.open_loop and run.sessions[0].get("schedule") == "closed")


@dataclass(frozen=True)
class TruthMetric(Metric):
    """A time that client and server both know of a successful request, or of each of its tokens."""

    of: Callable[[RequestRecord, Truth], Sequence[float]]

    def values(self, run: Run) -> list[float]:
        """Its values in a run, ns. Raises RecordError when the two sides count different tokens."""
        if self.name not in run.known:
            run.known[self.name] = list(self._values(run.succeeded, run.truth)) if run.truth else []
        return run.known[self.name]

    def _values(self, requests: Iterable[RequestRecord], truths: Mapping[str, Truth]) -> Iterator[float]:
        for request in requests:
            truth = truths.get(request.request_id, {"token_ns": ()})
            if len(truth["token_ns"]) != request.output_tokens:
                raise RecordError(
                    f"request {request.request_id}: the client saw {request.output_tokens} tokens, the server"
                    f" wrote {len(truth['token_ns'])}; the record cannot be judged"
                )
            yield from self.of(request, truth)

    def p99(self, run: Run) -> float | None:
        """Its P99 in a run, ns."""
        values = self.values(run)
        return float(np.percentile(values, 99)) if values else None


@dataclass(frozen=True)
class RunMetric(Metric):
    """One number of a run; None where it is undefined."""

    of: Callable[[Run], float | None]


@dataclass(frozen=True)
class CellMetric(Metric):
    """One number of all runs of a cell and of the server's steps under them; None where it is undefined."""

    of: Callable[[Sequence[Run], Sequence[Step]], float | None]


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


def _lag(request: RequestRecord) -> list[int]:
    return [] if request.max_read_lag_ns is None else [request.max_read_lag_ns]


_TOKENS = ("first_token_ns", "token_times_ns")
TTFT = TimeMetric("ttft", "ms", "first token - sent", ("sent_ns", "first_token_ns"), "no token")
SLIP = TimeMetric(
    *("slip", "ms", "arrival - scheduled", ("scheduled_ns", "arrival_ns"), "closed loop"), open_loop=True
)
CLIENT_LAG = TimeMetric(
    *("client_lag", "ms", "longest wait of a read's last bytes for the client", ("max_read_lag_ns",)),
    *("user stamps", _lag),
)
TIMES = (
    TimeMetric("queue", "ms", "admitted - arrival", ("arrival_ns", "admitted_ns"), "not admitted"),
    TimeMetric("connection_wait", "ms", "sent - admitted", ("admitted_ns", "sent_ns"), "not sent"),
    TTFT,
    TimeMetric(
        "ttft_from_arrival", "ms", "first token - arrival", ("arrival_ns", "first_token_ns"), "no token"
    ),
    TimeMetric(
        *("itl", "ms", "from token to token", _TOKENS, "fewer than 2 tokens"), lambda r: _gaps(token_times(r))
    ),
    TimeMetric(
        *("itl_chunk", "ms", "from chunk to chunk", (*_TOKENS, "chunk_tokens"), "fewer than 2 chunks"),
        lambda r: _gaps(chunk_times(r)),
    ),
    TimeMetric(*("tpot", "ms", "(last token - first) / (tokens - 1)", _TOKENS, "fewer than 2 tokens"), _tpot),
    TimeMetric("e2e", "ms", "finish - arrival", ("arrival_ns", "finish_ns"), "not finished"),
    TimeMetric("service_time", "ms", "finish - sent", ("sent_ns", "finish_ns"), "not sent"),
    SLIP,
    CLIENT_LAG,
)


def _token_error(request: RequestRecord, truth: Truth) -> list[int]:
    seen, written = _gaps(token_times(request)), _gaps(truth["token_ns"])
    return [abs(a - b) for a, b in zip(seen, written, strict=True)]


def _ttft_error(request: RequestRecord, truth: Truth) -> list[float]:
    return [abs(seen - (truth["token_ns"][0] - truth["received_ns"])) for seen in TTFT.times(request)]


def _delay(request: RequestRecord, truth: Truth) -> list[int]:
    return [seen - written for seen, written in zip(token_times(request), truth["token_ns"], strict=True)]


_UNKNOWN = "server's times unknown"
TOKEN_ERROR = TruthMetric(
    "token_error", "ms", "|ITL seen - ITL written|", (*_TOKENS, "token_ns"), _UNKNOWN, _token_error
)
TTFT_ERROR = TruthMetric(
    *("ttft_error", "ms", "|TTFT seen - (first token written - request received)|"),
    *((*TTFT.needs, "received_ns", "token_ns"), _UNKNOWN, _ttft_error),
)
TOKEN_DELAY = TruthMetric(
    "token_delay", "ms", "token seen - token written", TOKEN_ERROR.needs, _UNKNOWN, _delay
)
AGAINST_TRUTH = (
    TOKEN_ERROR,
    TTFT_ERROR,
    TOKEN_DELAY,
    TruthMetric(
        *("server_itl", "ms", "from token written to token written", ("token_ns",), _UNKNOWN),
        lambda _, truth: _gaps(truth["token_ns"]),
    ),
)


def _rate(count: float, run: Run) -> float | None:
    return count / run.duration_s if run.duration_s else None


def _mean_in_flight(run: Run) -> float | None:
    if run.span is None:
        return None
    start, end = run.span
    admitted = [(r.admitted_ns, r.finish_ns) for r in run.requests if r.admitted_ns is not None]
    return sum(max(min(last, end) - max(first, start), 0) for first, last in admitted) / (end - start)


def _tokens(requests: Iterable[RequestRecord]) -> int:
    return sum(request.output_tokens for request in requests)


def _coalesced(run: Run) -> float | None:
    chunks = sum(len(request.chunk_tokens) for request in run.attempts)
    several = sum(request.coalesced_reads for request in run.attempts)
    return 100 * several / chunks if chunks else None


def _cpu(run: Run) -> float | None:
    spent, tokens = sum(session.get("client_cpu_ns", 0) for session in run.sessions), _tokens(run.attempts)
    return spent / 1e3 / tokens if spent and tokens else None


def _memory(run: Run) -> float | None:
    most = max(session.get("client_max_rss_kib", 0) for session in run.sessions)
    return most / 1024 if most else None


def _start(run: Run) -> float | None:
    sent = [request.sent_ns for request in run.requests if request.sent_ns is not None]
    launched = run.sessions[0].get("launched_ns")
    return (min(sent) - launched) / 1e9 if sent and launched is not None else None


def _p99_ms(metric: TruthMetric, run: Run) -> float | None:
    p99_ns = metric.p99(run)
    return None if p99_ns is None else p99_ns / 1e6


def _mean(metric: TruthMetric, run: Run) -> float | None:
    values = metric.values(run)
    return math.fsum(values) / len(values) / 1e6 if values else None


def _with_status(status: str) -> RunMetric:
    def of(run: Run) -> int:
        return sum(request.status == status for request in run.requests)

    return RunMetric(status, "requests", f"ended as {status}", ("status",), "never", of)


_SPAN = ("arrival_ns", "finish_ns")
OF_RUN = (
    RunMetric("duration", "s", "first arrival to last finish of those measured", _SPAN, "none measured",
              lambda run: run.duration_s),
    RunMetric("measured", "requests", "arrived in the window", ("arrival_ns",), "never",
              lambda run: len(run.measured)),
    RunMetric("outside", "requests", "arrived outside the window", ("arrival_ns",), "never",
              lambda run: len(run.requests) - len(run.measured)),
    *map(_with_status, STATUSES),
    RunMetric("retries", "attempts", "attempts after a request's first", ("attempt",), "never",
              lambda run: len(run.attempts) - len(run.requests)),
    RunMetric("requests_per_s", "1/s", "successful requests / duration", (*_SPAN, "status"), "no duration",
              lambda run: _rate(len(run.succeeded), run)),
    RunMetric("output_tokens_per_s", "1/s", "their output tokens / duration", (*_SPAN, "output_tokens"),
              "no duration", lambda run: _rate(_tokens(run.succeeded), run)),
    RunMetric("peak_in_flight", "requests", "most of a client's between admission and finish at once",
              ("admitted_ns", "finish_ns"), "never", lambda run: peak_in_flight(run.requests)),
    RunMetric("mean_in_flight", "requests", "time between admission and finish / duration",
              ("admitted_ns", "finish_ns"), "no duration", _mean_in_flight),
    RunMetric("length_disagreements", "requests", "usage and count of tokens differ",
              ("output_tokens", "counted_tokens"), "never",
              lambda run: sum(r.counted_tokens != r.output_tokens for r in run.attempts)),
    RunMetric("coalesced", "%", "reads that held several chunks / chunks",
              ("coalesced_reads", "chunk_tokens"), "no chunk", _coalesced),
    RunMetric("token_error_p99", "ms", "P99 of token_error in the run", TOKEN_ERROR.needs, _UNKNOWN,
              lambda run: _p99_ms(TOKEN_ERROR, run)),
    RunMetric("ttft_error_mean", "ms", "mean of ttft_error in the run", TTFT_ERROR.needs, _UNKNOWN,
              lambda run: _mean(TTFT_ERROR, run)),
    RunMetric("ttft_error_p99", "ms", "P99 of ttft_error in the run", TTFT_ERROR.needs, _UNKNOWN,
              lambda run: _p99_ms(TTFT_ERROR, run)),
    RunMetric("client_cpu_a_token", "us", "CPU time of the client / output tokens",
              ("client_cpu_ns", "output_tokens"), "not recorded", _cpu),
    RunMetric("client_memory", "MiB", "largest resident set of the client", ("client_max_rss_kib",),
              "not recorded", _memory),
    RunMetric("start_to_first_request", "s", "first request sent - process launched",
              ("launched_ns", "sent_ns"), "not recorded", _start),
)  # fmt: skip


def _batch(steps: Sequence[Step]) -> list[int]:
    return [int(step["batch"]) for step in steps]


OF_CELL = (
    CellMetric("peak_in_flight_together", "requests", "the same of all clients of the cell",
               ("admitted_ns", "finish_ns"), "never",
               lambda runs, _: peak_in_flight(request for run in runs for request in run.requests)),
    CellMetric("peak_step_batch", "requests", "most in a step of the server's engine", ("batch",),
               "steps unknown", lambda _, steps: max(_batch(steps), default=None)),
    CellMetric("mean_step_batch", "requests", "mean over the steps of the server's engine", ("batch",),
               "steps unknown", lambda _, steps: sum(_batch(steps)) / len(steps) if steps else None),
)  # fmt: skip

SLO = {f"{metric.name}_ms": metric for metric in TIMES}


def goodput(slo: Mapping[str, float]) -> RunMetric:
    """Requests that met every bound of `slo` (named as in SLO, ms) a second; what is undefined is not met.

    Raises ConfigError for a bound of no such name, or that is no positive number.
    """
    if unknown := [name for name in slo if name not in SLO]:
        raise ConfigError(f"slo {unknown[0]!r} is no bound; there are {', '.join(SLO)}")
    if wrong := [name for name, bound in slo.items() if not bound > 0]:
        raise ConfigError(f"slo {wrong[0]} is {slo[wrong[0]]}, must be a positive number of ms")

    def met(request: RequestRecord, run: Run) -> bool:
        metrics = [(SLO[name], bound * 1e6) for name, bound in slo.items()]
        times = [(metric.times(request) if metric.has(run) else (), bound_ns) for metric, bound_ns in metrics]
        return all(len(values) > 0 and max(values) <= bound_ns for values, bound_ns in times)

    words = " and ".join(f"{name} <= {bound:g}" for name, bound in sorted(slo.items()))
    needs = tuple(need for name in sorted(slo) for need in SLO[name].needs)
    return RunMetric(
        *("goodput_per_s", "1/s", f"successful requests with {words} / duration", needs, "no SLO declared"),
        lambda run: _rate(sum(met(request, run) for request in run.succeeded), run) if slo else None,
    )

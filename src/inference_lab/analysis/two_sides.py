"""What may be wrong with a load: what its client saw held against itself and against what its server says.

Answers: do two records of one load tell one story, and did either side stand still? Each doubt names the
rows of the summary that it concerns. Bounds that `judge` does not name stand here.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from inference_lab.analysis.flags import Flag
from inference_lab.analysis.load_runs import Run, Step, peak_in_flight
from inference_lab.analysis.metrics import (
    CLIENT_LAG,
    SLIP,
    TIMES,
    TOKEN_DELAY,
    TOKEN_ERROR,
    TTFT_ERROR,
    chunk_times,
    token_times,
)
from inference_lab.analysis.server_side import growth
from inference_lab.analysis.statistics import Times, estimate
from inference_lab.records.record import Record

Concerns = Callable[[Mapping[str, str]], bool]

COUNTED = ("requests", "attempts", "tokens", "steps")  # units of what no lateness can move
COALESCED = 0.01  # of the tokens: beyond it P99 rests on times that are not known
APART = 10.0  # times what is usual beside it: far out
LEAST_ERROR_NS = 1e6  # an error below it is far out of nothing
LEAST_SILENCE_NS = 1e9
CLOCK_NS = 1_000_000  # by which two processes' times may contradict each other; kernel stamps know it better
_ON_ITS_WAY_NS = 5e7  # what a step made is seen by then
_GAUGES = ("peak_waiting", "peak_running", "peak_kv_cache_usage")


@dataclass(frozen=True)
class Doubt:
    """A flag, and which rows of a cell it concerns."""

    flag: Flag
    concerns: Concerns


def is_timed(row: Mapping[str, str]) -> bool:
    """Whether the row is no mere count."""
    return row["unit"] not in COUNTED


def _everything(_: Mapping[str, str]) -> bool:
    return True


def _named(*starts: str) -> Concerns:
    return lambda row: row["metric"].startswith(starts)


_FIRST = _named("ttft")
_LATER = _named("itl", "tpot", "token_error", "token_delay")
_OF_SERVER_PACE = (*(metric.name for metric in TIMES if metric not in (SLIP, CLIENT_LAG)), "duration")


def _of_pace(row: Mapping[str, str]) -> bool:
    """Whether a server that is late moves the row: times and rates, not how far two records are apart."""
    return row["metric"] in _OF_SERVER_PACE or row["unit"] == "1/s"


def doubts(
    runs: Sequence[Run],
    beside: Sequence[Run],
    steps: Sequence[Step],
    record: Record,
    judge: Mapping[str, Any],
) -> Iterator[Doubt]:
    """Everything doubtful about the runs of a cell; `steps` are its engine's, where none name their load.

    `beside` are the runs of this cell and of those that differ from it in what was varied alone.
    """
    steps = [step for run in runs for step in run.steps] or steps
    yield from _late_client(runs, judge.get("max_client_lag_ms", math.inf))
    yield from _coalesced(runs)
    yield from _stands_out(runs, beside)
    conditions: Mapping[str, Any] = record.manifest["conditions"]
    yield from _late_server(steps, {**conditions.get("server", {}), **conditions.get("fixed", {})})
    yield from _silent(runs, steps)
    yield from _stamps(runs)
    yield from _clocks(runs)
    yield from _counts(runs, steps)
    yield from _strangers(runs, record)
    yield from _scrapes(runs, record)


def _late_client(runs: Sequence[Run], bound_ms: float) -> Iterator[Doubt]:
    """The client itself was too late, to read (kernel stamps) or to send (open loop), to be believed."""
    for metric in (CLIENT_LAG, SLIP):
        values = [value for run in runs for value in metric.values(run)]
        late_ms = estimate(np.array(values), 0.99).value / 1e6 if values else 0.0
        words = "times are the client's, too; give it a core of its own, or load less"
        if late_ms > bound_ms:
            said = f"P99 of {metric.name} is {late_ms:.3g} ms, allowed are {bound_ms:.3g}"
            yield Doubt(Flag("client-limited", f"{said}: {words}"), is_timed)
        elif (most_ns := max(values, default=0)) > LEAST_SILENCE_NS:
            said = f"{metric.name} was up to {most_ns / 1e9:.3g} s, so the client stood still"
            yield Doubt(Flag("client-limited", f"{said}: {words}"), is_timed)


def _coalesced(runs: Sequence[Run]) -> Iterator[Doubt]:
    """Tokens that lay unread until later ones came: all stand at the last one's time."""
    late = {"first": 0, "later": 0}
    seen = {"first": 0, "later": 0}
    for run in runs:
        for request in run.succeeded:
            chunks = len(request.chunk_tokens)
            seen["first"] += chunks > 0
            seen["later"] += max(chunks - 1, 0)
            if request.coalesced_reads:
                times = chunk_times(request)
                for index in request.censored_chunks:  # with what follows the last token it was one write
                    if index + 1 < chunks and times[index + 1] == times[index]:
                        late["later" if index else "first"] += 1
    for which, concerns in (("first", _FIRST), ("later", _LATER)):
        if late[which] > COALESCED * seen[which]:
            words = (
                f"{late[which] / seen[which]:.2%} of the {which} tokens lay unread until the next one came:"
                " a read has one stamp, that of its last bytes, and how much earlier these came is unknown;"
                " the client was kept from its core for longer than an interval: give it one of its own"
            )
            yield Doubt(Flag("client-limited", words), concerns)


def _stands_out(runs: Sequence[Run], beside: Sequence[Run]) -> Iterator[Doubt]:
    """One run's error is far from that of the runs beside it."""
    for metric in (TOKEN_ERROR, TTFT_ERROR):
        usual_ns = [value for run in beside if (value := metric.p99(run)) is not None]
        for run in runs:
            error_ns = metric.p99(run)
            if error_ns is None or error_ns < LEAST_ERROR_NS:
                continue
            middle_ns = float(np.median(usual_ns))
            if error_ns > APART * middle_ns:
                words = (
                    f"{run.sessions[0]['name']} has a P99 of {metric.name} of {error_ns / 1e6:.3g} ms, usual"
                    f" beside it are {middle_ns / 1e6:.2g}: something kept one of the two processes from its"
                    " core; read its requests, then measure again"
                )
                yield Doubt(Flag("stands-out", words), _named(metric.name))


def _late_server(steps: Sequence[Step], declared: Mapping[str, Any]) -> Iterator[Doubt]:
    """A server that keeps declared times was late by more than a step: its pace is its machine's."""
    if not steps or not {"ttft_ms", "itl_ms"} <= set(declared):
        return
    longest = 1 + declared.get("spread", 0.0)  # a step of prompts may be due earlier, too
    due_ms = [longest * declared["ttft_ms" if int(step["prefill_requests"]) else "itl_ms"] for step in steps]
    took_ms = [(int(step["ended_ns"]) - int(step["started_ns"])) / 1e6 for step in steps]
    late_ms = float(np.percentile(np.subtract(took_ms, due_ms), 99))
    if late_ms > declared["itl_ms"]:
        words = (
            f"P99 of how late the server ended its steps is {late_ms:.3g} ms, more than a step"
            f" ({declared['itl_ms']:g} ms): client and server had too few cores for it; load less"
        )
        yield Doubt(Flag("server-late", words), _of_pace)


def _silent(runs: Sequence[Run], steps: Sequence[Step]) -> Iterator[Doubt]:
    """Nothing came for any request in flight, for far longer than is usual in this cell."""
    ended = np.sort([int(step["ended_ns"]) for step in steps])
    for start, lasted in _silences(runs):
        at = np.searchsorted(ended, (start + _ON_ITS_WAY_NS, start + lasted - _ON_ITS_WAY_NS))
        went_on = len(ended) > 0 and at[1] > at[0]
        who = "the server's engine went on: the client" if went_on else "the server"
        unknown = "" if len(ended) else ", or the way to it,"
        words = (
            f"no request in flight got anything for {lasted / 1e9:.3g} s, {APART:g} times what is usual here;"
            f" {who}{unknown} stood still; see what stopped it, then measure again"
        )
        yield Doubt(Flag("client-limited" if went_on else "server-late", words), is_timed)


def _silences(runs: Sequence[Run]) -> Iterator[tuple[float, float]]:
    """(start, length), ns, of silences far out: beside others before first tokens, or beside the rest."""
    sent = [request for run in runs for request in run.requests if request.sent_ns is not None]
    if not sent:
        return
    starts = np.array([request.sent_ns for request in sent], dtype=np.int64)
    ends = np.array([request.finish_ns for request in sent], dtype=np.int64)
    firsts = np.sort([r.first_token_ns for r in sent if r.first_token_ns is not None])
    tokens = np.concatenate([np.array(token_times(request), dtype=np.int64) for request in sent])
    times = np.concatenate((starts, tokens, ends))
    change = np.repeat((1, 0, -1), (len(starts), len(tokens), len(ends)))
    order = np.argsort(times, kind="stable")
    times, in_flight = times[order], np.cumsum(change[order])
    gaps = np.diff(times)
    waited = in_flight[:-1] > 0
    from_ns, gaps = times[:-1][waited], gaps[waited]
    until = from_ns + gaps
    following = np.append(firsts, np.iinfo(np.int64).max)[np.searchsorted(firsts, until)]
    is_first = following - until <= gaps // 10  # tokens of one step arrive shortly after each other
    for kind in (is_first, ~is_first):
        lengths, began = gaps[kind], from_ns[kind]
        for index in np.flatnonzero(lengths > LEAST_SILENCE_NS):
            usual = _usual(np.delete(lengths, index))
            if usual is not None and lengths[index] > APART * usual:
                yield float(began[index]), float(lengths[index])


def _usual(lengths: Times) -> float | None:
    """The length of the silences in which half of all silent time passed; None of none."""
    ordered = np.sort(lengths)
    passed = np.cumsum(ordered)
    return float(ordered[np.searchsorted(passed, passed[-1] / 2)]) if len(ordered) and passed[-1] else None


def stamps_of(runs: Iterable[Run]) -> str:
    """Which clock nearly every chunk of these runs really bears: kernel or user."""
    kernel = chunks = 0
    for run in runs:
        for request in run.attempts:
            chunks += len(request.chunk_tokens)
            if request.clock == "kernel":
                kernel += len(request.chunk_tokens) - len(request.user_stamped_chunks)
    return "kernel" if kernel >= (1 - COALESCED) * chunks else "user"


def _stamps(runs: Sequence[Run]) -> Iterator[Doubt]:
    """Stamps of the kernel were asked for, and others were got."""
    clocks = [session["clock"] for run in runs for session in run.sessions if "clock" in session]
    asked = {clock.get("asked", clock["stamps"]) for clock in clocks}
    if asked == {"kernel"} and stamps_of(runs) != "kernel":
        words = (
            "asked for stamps of the kernel, got those of the read, which are later by what the client did"
        )
        # A calibration is of the stamps that its cells name; of any other load it is good to know.
        code = "stamps" if "path" in runs[0].cell else ""
        yield Doubt(Flag(code, f"{words}; TLS and unix sockets have no others"), is_timed)


def _clocks(runs: Sequence[Run]) -> Iterator[Doubt]:
    """Something arrived before it was written, by more than clocks may differ."""
    early_ns = 0.0
    for run in runs:
        early_ns = max(early_ns, -min(TOKEN_DELAY.values(run), default=0.0))
        for request in run.succeeded:
            if request.sent_ns is not None:
                received_ns = run.truth.get(request.request_id, {}).get("received_ns", request.sent_ns)
                early_ns = max(early_ns, request.sent_ns - received_ns)
                early_ns = max(early_ns, request.sent_ns - (request.first_token_ns or request.sent_ns))
    if early_ns > CLOCK_NS:
        words = (
            f"something arrived {early_ns / 1e6:.3g} ms before it was sent: the two sides have no clock in"
            " common; measure both on one machine, whose wall clock is not stepped"
        )
        yield Doubt(Flag("two-sides", words), is_timed)


def _counts(runs: Sequence[Run], steps: Sequence[Step]) -> Iterator[Doubt]:
    """What the server counted over a load against what its client sent and got."""
    for run in runs:
        wrong = _counted_otherwise(run) if run.server else None
        if wrong:
            yield Doubt(Flag("two-sides", f"{run.sessions[0]['name']}: {wrong}"), _everything)
    requests = [request for run in runs for request in run.attempts]
    most = max((int(step["batch"]) for step in steps), default=0)
    if all(request.status == "ok" for request in requests) and most > (sent := peak_in_flight(requests)):
        words = f"a step held {most} requests, and at most {sent} were in flight here"
        yield Doubt(Flag("two-sides", f"{words}: {_OTHERS}"), _everything)


_OTHERS = "requests of others are in the server's numbers; let nobody else use it, then measure again"


def _counted_otherwise(run: Run) -> str | None:
    finished, said = growth(run, "request_success_total"), growth(run, "generation_tokens_total")
    ok = sum(request.status == "ok" for request in run.attempts)
    # The server may have finished what its client gave up, or sent once more.
    others = len(run.attempts) - ok + sum(request.resent or 0 for request in run.attempts)
    usages = [(request.usage or {}).get("completion_tokens") for request in run.attempts]
    usages = [tokens for tokens in usages if isinstance(tokens, int) and tokens]  # anything may stand there
    got = sum(usages)
    if finished is not None and finished > ok + others:
        return f"the server finished {finished:g} requests, this client sent {ok + others}: {_OTHERS}"
    if finished is not None and finished < ok:
        return f"the server finished {finished:g} requests, this client saw {ok} succeed: {_ANEW}"
    if said is None or len(usages) < len(run.attempts):  # chunks alone do not say how many tokens they hold
        return None
    if said < got:
        return f"the server counted {said:g} tokens, this client got {got}: {_ANEW}"
    if said > got and not others:
        return f"the server counted {said:g} tokens, this client got {got}: {_OTHERS}"
    return None


_ANEW = "its counters began anew, or are another server's; the two are not of one load, measure again"


def _strangers(runs: Sequence[Run], record: Record) -> Iterator[Doubt]:
    """The server wrote of requests that no client of this record made."""
    if not record.truth:
        return
    known = {request.request_id for request in record.requests}
    if strange := [line["received_ns"] for line in record.truth if line["request_id"] not in known]:
        spans = [
            (session["start_ns"], session["end_ns"])
            for run in runs
            for session in run.sessions
            if "end_ns" in session
        ]
        if here := sum(any(a <= at <= b for a, b in spans) for at in strange):
            words = f"the server wrote of {here} requests that no client of this record made"
            yield Doubt(Flag("two-sides", f"{words}: {_OTHERS}"), _everything)


def _scrapes(runs: Sequence[Run], record: Record) -> Iterator[Doubt]:
    """Pages of /metrics that are missing, or too long apart."""
    kinds = {told["facts"].get("kind") for told in record.manifest.get("servers", ())}
    missing = longest_ns = 0
    for run in runs:
        missing += any(line["metrics"] is None for line in run.server if line["phase"] != "sample")
        seen = [line["at_ns"] for line in run.server if line["metrics"] is not None]
        longest_ns = max(longest_ns, *(after - before for before, after in pairwise(seen)), 0)
    if missing:
        words = f"no page of /metrics before or after {missing} loads: what the server counted is not known"
        if kinds == {"external"}:  # it need not have one
            yield Doubt(Flag("", words), _named("measured"))
        else:
            yield Doubt(Flag("unscraped", f"{words}; see why it did not answer, measure again"), _everything)
    usual_s = record.manifest["conditions"].get("sample_s", math.inf)
    if longest_ns / 1e9 > APART * usual_s:
        words = f"nothing was read from /metrics for {longest_ns / 1e9:.3g} s, asked were {usual_s:g}"
        yield Doubt(Flag("unscraped", f"{words}: a peak in between is not known"), _named(*_GAUGES))

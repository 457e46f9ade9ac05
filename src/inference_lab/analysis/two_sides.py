"""Flags of a load: what its client recorded, checked against itself and against the server's record.

Answers: do both records of one load agree, and did either side stand still? A flag names the rows of the
summary that it concerns.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from inference_lab.analysis import metrics
from inference_lab.analysis.flags import Concerns, Flag, is_timed
from inference_lab.analysis.load_runs import Cell, EngineStepRow, Run, peak_in_flight
from inference_lab.analysis.metrics import chunk_times, p99_ms, token_times
from inference_lab.analysis.server_metrics import growth
from inference_lab.analysis.statistics import Times, estimate
from inference_lab.config.judge import Judge
from inference_lab.records.record import Record

COALESCED = 0.01  # of the tokens: beyond it P99 rests on times that are not known
FAR_OUT = 10.0  # times what is usual beside it
LEAST_ERROR_MS = 1.0  # a smaller error never stands out
LEAST_SILENCE_NS = 1e9
CLOCK_NS = 1_000_000  # by which two processes' times may contradict each other; kernel stamps know it better
_ON_ITS_WAY_NS = 5e7  # what a step made is seen by then
_OF_CLIENT = (metrics.CLIENT_LAG, metrics.SLIP)
_OF_SERVER_PACE = (*(metric.name for metric in metrics.TIMES if metric not in _OF_CLIENT), "duration")
_OTHERS = "requests of others are in the server's numbers; let nobody else use it, then measure again"
_ANEW = "its counters began anew, or are another server's; the two are not of one load, measure again"


def _named(*starts: str) -> Concerns:
    return lambda row: row["metric"].startswith(starts)


_FIRST = _named("ttft")
_LATER = _named("itl", "tpot", "token_error", "token_delay")
_GAUGES = _named("peak_waiting", "peak_running", "peak_kv_cache_usage")


def _of_pace(row: Mapping[str, str]) -> bool:
    """Whether a server that is late moves the row: times and rates, not how far two records are apart."""
    return row["metric"] in _OF_SERVER_PACE or row["unit"] == "1/s"


def flags_of(cell: Cell, beside: Sequence[Run], record: Record, judge: Judge) -> Iterator[Flag]:
    """Every flag of the runs of a cell.

    `beside` are the runs of this cell and of those that differ from it in what was varied alone.
    """
    conditions = record.manifest["conditions"]
    steps = [step for run in cell.runs for step in run.steps] or cell.steps
    yield from _late_client(cell, judge.max_client_lag_ms or math.inf)
    yield from _coalesced(cell)
    yield from _stands_out(cell, beside)
    yield from _late_server(steps, {**conditions.get("server", {}), **conditions.get("fixed", {})})
    yield from _silent(cell, steps)
    yield from _stamps(cell)
    yield from _clocks(cell)
    yield from _counts(cell, steps)
    yield from _strangers(cell, record)
    yield from _scrapes(cell, conditions.get("sample_s", math.inf))


def _late_client(cell: Cell, bound_ms: float) -> Iterator[Flag]:
    """The client itself was too late, to read (kernel stamps) or to send (open loop), to be believed."""
    for metric in _OF_CLIENT:
        if not (values := metric.values(cell)):
            continue
        late_ms, most_ns = estimate(np.array(values), 0.99).value / 1e6, max(values)
        if late_ms > bound_ms:
            words = f"P99 of {metric.name} is {late_ms:.3g} ms, allowed are {bound_ms:.3g}"
        elif most_ns > LEAST_SILENCE_NS:
            words = f"{metric.name} was up to {most_ns / 1e9:.3g} s, so the client stood still"
        else:
            continue
        way_out = "times are the client's, too; give it a core of its own, or load less"
        yield Flag("client-limited", f"{words}: {way_out}", is_timed)


def _coalesced(cell: Cell) -> Iterator[Flag]:
    """Tokens that lay unread until later ones came: a read has one stamp, so all have the last one's time."""
    late, seen = {"first": 0, "later": 0}, {"first": 0, "later": 0}
    for request in (request for run in cell.runs for request in run.succeeded):
        chunks = len(request.chunk_tokens)
        seen["first"] += chunks > 0
        seen["later"] += max(chunks - 1, 0)
        times = chunk_times(request) if request.coalesced_reads else []
        for index in request.censored_chunks:  # with what follows the last token it was one write
            if index + 1 < len(times) and times[index + 1] == times[index]:
                late["later" if index else "first"] += 1
    for which, concerns in (("first", _FIRST), ("later", _LATER)):
        if late[which] > COALESCED * seen[which]:
            words = (
                f"{late[which] / seen[which]:.2%} of the {which} tokens lay unread until the next one came"
            )
            cause = "how much earlier they came is unknown; give the client a core of its own"
            yield Flag("client-limited", f"{words}: {cause}", concerns)


def _stands_out(cell: Cell, beside: Sequence[Run]) -> Iterator[Flag]:
    """One run's error is far from that of the runs beside it."""
    for metric in (metrics.TOKEN_ERROR, metrics.TTFT_ERROR):
        far = {run.name: ms for run in cell.runs if (ms := p99_ms(metric, run) or 0) >= LEAST_ERROR_MS}
        if not far:
            continue
        usual_ms = float(np.median([error for run in beside if (error := p99_ms(metric, run)) is not None]))
        for name, error_ms in far.items():
            if error_ms > FAR_OUT * usual_ms:
                words = f"{name} has a P99 of {metric.name} of {error_ms:.3g} ms, usual beside it are"
                way_out = "read its requests, then measure again"
                yield Flag("stands-out", f"{words} {usual_ms:.2g}; {way_out}", _named(metric.name))


def _late_server(steps: Sequence[EngineStepRow], declared: Mapping[str, float]) -> Iterator[Flag]:
    """A server that keeps declared times was late by more than a step: its pace is its machine's."""
    if not steps or not {"ttft_ms", "itl_ms"} <= set(declared):
        return
    longest = 1 + declared.get("spread", 0.0)  # a step of prompts may be due earlier, too
    due_ms = [longest * declared["ttft_ms" if step.prefill_requests else "itl_ms"] for step in steps]
    took_ms = [(step.ended_ns - step.started_ns) / 1e6 for step in steps]
    late_ms = float(np.percentile(np.subtract(took_ms, due_ms), 99))
    if late_ms > declared["itl_ms"]:
        words = f"P99 of how late the server ended its steps is {late_ms:.3g} ms"
        step = f"more than a step ({declared['itl_ms']:g} ms): there were too few cores for it; load less"
        yield Flag("server-late", f"{words}, {step}", _of_pace)


def _silent(cell: Cell, steps: Sequence[EngineStepRow]) -> Iterator[Flag]:
    """Nothing came for any request in flight, for far longer than is usual in this cell."""
    ended = np.sort([step.ended_ns for step in steps])
    for start, lasted in _silences(cell):
        at = np.searchsorted(ended, (start + _ON_ITS_WAY_NS, start + lasted - _ON_ITS_WAY_NS))
        went_on = len(ended) > 0 and at[1] > at[0]
        who = "the server's engine went on: the client" if went_on else "the server"
        who += "" if len(ended) else ", or the way to it,"
        usual = f"{lasted / 1e9:.3g} s, {FAR_OUT:g} times what is usual here"
        words = f"no request in flight got anything for {usual}; {who} stood still; measure again"
        yield Flag("client-limited" if went_on else "server-late", words, is_timed)


def _silences(cell: Cell) -> Iterator[tuple[float, float]]:
    """(start, length), ns, of silences far out: beside others before first tokens, or beside the rest."""
    sent = [request for request in cell.requests if request.sent_ns is not None]
    if not sent:
        return
    starts = np.array([request.sent_ns for request in sent], dtype=np.int64)
    ends = np.array([request.finish_ns for request in sent], dtype=np.int64)
    firsts = np.sort([r.first_token_ns for r in sent if r.first_token_ns is not None])
    tokens = np.concatenate([np.array(token_times(request), dtype=np.int64) for request in sent])
    times = np.concatenate((starts, tokens, ends))
    order = np.argsort(times, kind="stable")
    in_flight = np.cumsum(np.repeat((1, 0, -1), (len(starts), len(tokens), len(ends)))[order])
    waited = in_flight[:-1] > 0
    from_ns, gaps = times[order][:-1][waited], np.diff(times[order])[waited]
    until = from_ns + gaps
    following = np.append(firsts, np.iinfo(np.int64).max)[np.searchsorted(firsts, until)]
    is_first = following - until <= gaps // 10  # tokens of one step arrive shortly after each other
    for kind in (is_first, ~is_first):
        lengths, began = gaps[kind], from_ns[kind]
        for index in np.flatnonzero(lengths > LEAST_SILENCE_NS):
            usual = _usual(np.delete(lengths, index))
            if usual is not None and lengths[index] > FAR_OUT * usual:
                yield float(began[index]), float(lengths[index])


def _usual(lengths: Times) -> float | None:
    """The length of the silences in which half of all silent time passed; None of none."""
    ordered = np.sort(lengths)
    passed = np.cumsum(ordered)
    return float(ordered[np.searchsorted(passed, passed[-1] / 2)]) if len(ordered) and passed[-1] else None


def stamps_of(cell: Cell) -> str:
    """Which clock nearly every chunk of the cell really bears: kernel or user."""
    chunks = sum(len(request.chunk_tokens) for request in cell.attempts)
    by_kernel = [request for request in cell.attempts if request.clock == "kernel"]
    kernel = sum(len(request.chunk_tokens) - len(request.user_stamped_chunks) for request in by_kernel)
    return "kernel" if kernel >= (1 - COALESCED) * chunks else "user"


def _stamps(cell: Cell) -> Iterator[Flag]:
    """Stamps of the kernel were asked for, and others were got."""
    clocks = [session["clock"] for run in cell.runs for session in run.sessions if "clock" in session]
    asked = {clock.get("asked", clock["stamps"]) for clock in clocks}
    if asked == {"kernel"} and stamps_of(cell) != "kernel":
        # A calibration is of the stamps that its cells name; of any other load it is good to know.
        code = "stamps" if "path" in cell.conditions else ""
        words = (
            "asked for stamps of the kernel, got those of the read, which are later by what the client did"
        )
        yield Flag(code, f"{words}; TLS and unix sockets have no others", is_timed)


def _clocks(cell: Cell) -> Iterator[Flag]:
    """Something arrived before it was written, by more than clocks may differ."""
    early_ns = max([0.0, *(-delay for delay in metrics.TOKEN_DELAY.values(cell))])
    for run in cell.runs:
        for request in run.succeeded:
            if (sent_ns := request.sent_ns) is not None:
                truth = run.truth.get(request.request_id)
                received_ns = truth["received_ns"] if truth else sent_ns
                early_ns = max(early_ns, sent_ns - received_ns, sent_ns - (request.first_token_ns or sent_ns))
    if early_ns > CLOCK_NS:
        words = f"something arrived {early_ns / 1e6:.3g} ms before it was sent: the two sides share no clock"
        yield Flag("two-sides", f"{words}; measure both on one machine, whose clock is not stepped", is_timed)


def _counts(cell: Cell, steps: Sequence[EngineStepRow]) -> Iterator[Flag]:
    """What the server counted over a load against what its client sent and got."""
    for run in cell.runs:
        if run.scrapes and (wrong := _counted_otherwise(run)):
            yield Flag("two-sides", f"{run.name}: {wrong}")
    most, sent = max((step.batch for step in steps), default=0), peak_in_flight(cell.attempts)
    if most > sent and all(request.status == "ok" for request in cell.attempts):
        words = f"a step held {most} requests, and at most {sent} were in flight here"
        yield Flag("two-sides", f"{words}: {_OTHERS}")


def _counted_otherwise(run: Run) -> str | None:
    finished, said = growth(run, "request_success_total"), growth(run, "generation_tokens_total")
    ok = sum(request.status == "ok" for request in run.attempts)
    # The server may have finished what its client gave up, or sent once more.
    others = len(run.attempts) - ok + sum(request.resent for request in run.attempts)
    if finished is not None and finished > ok + others:
        return f"the server finished {finished:g} requests, this client sent {ok + others}: {_OTHERS}"
    if finished is not None and finished < ok:
        return f"the server finished {finished:g} requests, this client saw {ok} succeed: {_ANEW}"
    usages = [(request.usage or {}).get("completion_tokens") for request in run.attempts]
    usages = [tokens for tokens in usages if isinstance(tokens, int) and tokens]  # it may be anything
    if said is None or len(usages) < len(run.attempts):  # chunks alone do not say how many tokens they hold
        return None
    if said < sum(usages) or (said > sum(usages) and not others):
        reason = _ANEW if said < sum(usages) else _OTHERS
        return f"the server counted {said:g} tokens, this client got {sum(usages)}: {reason}"
    return None


def _strangers(cell: Cell, record: Record) -> Iterator[Flag]:
    """The server wrote of requests that no client of this record made."""
    known = {request.request_id for request in record.requests} if record.truth else set[str]()
    strange = [line["received_ns"] for line in record.truth if line["request_id"] not in known]
    sessions = [session for run in cell.runs for session in run.sessions]
    spans = [(session.get("start_ns", 0), session.get("end_ns", 0)) for session in sessions]
    if here := sum(any(start <= at <= end for start, end in spans) for at in strange):
        words = f"the server wrote of {here} requests that no client of this record made"
        yield Flag("two-sides", f"{words}: {_OTHERS}")


def _scrapes(cell: Cell, usual_s: float) -> Iterator[Flag]:
    """Pages of /metrics that are missing, or too long apart."""
    missing = longest_ns = 0
    for run in cell.runs:
        missing += any(scrape["metrics"] is None for scrape in run.scrapes if scrape["phase"] != "sample")
        read = [scrape["at_ns"] for scrape in run.scrapes if scrape["metrics"] is not None]
        longest_ns = max(longest_ns, *(after - before for before, after in pairwise(read)), 0)
    if missing:
        words = f"no page of /metrics before or after {missing} loads: what the server counted is not known"
        if all(run.server and run.server["facts"].get("kind") == "external" for run in cell.runs):
            yield Flag("", words, _named("measured"))  # such a server need not have one
        else:
            yield Flag("unscraped", f"{words}; see why it did not answer, measure again")
    if longest_ns / 1e9 > FAR_OUT * usual_s:
        words = f"nothing was read from /metrics for {longest_ns / 1e9:.3g} s, asked were {usual_s:g}"
        yield Flag("unscraped", f"{words}: a peak in between is not known", _GAUGES)

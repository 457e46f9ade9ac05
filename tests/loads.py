"""Requests, sessions and records of a load made by hand, for what is computed from them."""

from collections.abc import Mapping, Sequence
from typing import Any

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import SummaryRow, pick, summary_rows
from inference_lab.records.record import Record
from inference_lab.stream_load.requests import RequestRecord
from tests.checkout import judge_of

MS = 1_000_000


def request(
    number: int = 0,
    arrival: float = 0,
    *,
    name: str = "r",
    queue: float = 1,
    tokens: Sequence[float] = (30, 40, 50),
    end: float = 1,
    **changes: Any,
) -> RequestRecord:
    """A successful request with times in ms: admitted `queue` after its arrival, sent 1 later.

    `tokens` are when its tokens arrive after sending, `end` how long after the last it is over.
    """
    admitted = arrival + queue
    times = [round((admitted + 1 + token) * MS) for token in tokens]
    values: dict[str, Any] = {
        **{
            "request_id": f"{name}{number:06d}",
            "load": name,
            "attempt": 1,
            "status": "ok",
            "http_status": 200,
        },
        **{"scheduled_ns": round(arrival * MS), "arrival_ns": round(arrival * MS)},
        **{"admitted_ns": round(admitted * MS), "sent_ns": round((admitted + 1) * MS)},
        **{"first_token_ns": times[0] if times else None, "token_times_ns": tuple(times[1:])},
        "finish_ns": round((admitted + 1 + (tokens[-1] if tokens else 0)) * MS) + round(end * MS),
        **{"chunk_tokens": (1,) * len(times), "output_tokens": len(times), "counted_tokens": len(times)},
        **{"prompt_tokens": 8, "usage": None, "error": None, "clock": "kernel", "max_read_lag_ns": 5_000},
        **{"coalesced_reads": 0, "censored_chunks": (), "user_stamped_chunks": (), "resent": 0},
    }
    return RequestRecord(**{**values, **changes})


def session(name: str = "r", **facts: Any) -> dict[str, Any]:
    """What a client says of its run: a closed loop, unless another schedule is given."""
    return {"name": name, "schedule": "closed", "concurrency": None, "clock": {"stamps": "kernel"}, **facts}


def record(requests: Sequence[RequestRecord], *sessions: Mapping[str, Any], **parts: Any) -> Record:
    """A serving record of these requests and sessions (one closed loop named r, unless others are given).

    `parts` are fields of the record, or of its manifest.
    """
    manifest = {
        **{"kind": "serving", "experiment": "p2", "conditions": {"by": "p2", "vary": {}}},
        "environment": {"others_used_cores": {"median": 0.01, "max": 0.1}},
        "sessions": list(sessions) or [session()],
        "validity": {"valid": True, "reasons": []},
    }
    for name in ("conditions", "environment", "servers"):
        if name in parts:
            manifest[name] = parts.pop(name)
    return Record("p2", manifest, requests=requests, **parts)


def step(
    started: float = 0,
    lasts: float = 10,
    *,
    prefills: tuple[int, int] = (0, 0),
    decodes: int = 1,
    **cell: str,
) -> dict[str, str]:
    """A row of raw.csv: times in ms, (requests, tokens) of prompts, decodes; the columns of its cell."""
    values = {
        **{"started_ns": round(started * MS), "ended_ns": round((started + lasts) * MS)},
        **{"batch": prefills[0] + decodes, "prefill_requests": prefills[0], "prefill_tokens": prefills[1]},
        **{"decode_requests": decodes, "decode_tokens": decodes, "elapsed_ms": f"{lasts:g}"},
    }
    return {**cell, **{name: str(value) for name, value in values.items()}}


def truth(seen: RequestRecord, *, late: Sequence[float], received: float = 0.0) -> dict[str, Any]:
    """What the server wrote of a request whose tokens it wrote `late` ms before they were seen."""
    times = [seen.first_token_ns or 0, *seen.token_times_ns]
    return {
        "request_id": seen.request_id,
        "received_ns": (seen.sent_ns or 0) + round(received * MS),
        "token_ns": [at - round(by * MS) for at, by in zip(times, late, strict=True)],
    }


def rows_of(found: Record, **judge: Any) -> list[SummaryRow]:
    """The rows of its summary, as they are read again."""
    return summary_rows(summarise(found, judge_of(**judge)), "summary.csv")


def row(rows: Sequence[SummaryRow], metric: str, **cell: str) -> SummaryRow:
    """The row of a metric."""
    found = pick(rows, {"metric": metric, **cell}, "test")
    assert found is not None
    return found


def flags(rows: Sequence[SummaryRow]) -> set[str]:
    """Every flag of a summary."""
    return {code for each in rows for code in each["flags"].split()}

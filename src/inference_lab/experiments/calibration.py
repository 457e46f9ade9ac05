"""The load client beside a server whose truth is known: how far its times are from those of the writes.

Records both sides over the number of streams, with kernel and with user stamps; derives no error.
"""

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from inference_lab.errors import ConfigError
from inference_lab.experiments.served import serve_and_load, words
from inference_lab.records.record import Measurement

STAMPS = ("kernel", "user")


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """requests.jsonl and truth.jsonl of every round, path and number of streams.

    Request ids begin with path/streams/round/ on both sides. In each round every number of streams is
    loaded once in shuffled order, its paths one after the other in shuffled order.
    """
    (axis, counts), fixed, paths = next(iter(section["vary"].items())), section["fixed"], section["paths"]
    if axis != "streams" or not set(paths) <= set(STAMPS):
        raise ConfigError(f"calibration varies streams over paths {', '.join(STAMPS)}: {section}")
    order = random.Random(fixed["seed"])
    requests: list[str] = []
    truth: list[str] = []
    sessions: list[dict[str, Any]] = []
    total = section["rounds"] * len(counts) * len(paths)
    for round_number in range(section["rounds"]):
        for streams in order.sample(counts, len(counts)):
            for path in order.sample(paths, len(paths)):
                served = serve_and_load(*_commands(fixed, path, streams, round_number))
                requests += served.requests
                truth += [json.dumps(line, separators=(",", ":")) for line in served.lines("request")]
                facts = {"path": path, "streams": streams, "round": round_number}
                sessions += [{**facts, **session} for session in served.sessions]
                progress(len(sessions), total)
    files = {"requests.jsonl": _joined(requests), "truth.jsonl": _joined(truth)}
    rows = {"requests.jsonl": len(requests), "truth.jsonl": len(truth)}
    return Measurement("serving", files, rows, {"oracle": [], "sessions": sessions}, {})


def _commands(
    fixed: Mapping[str, Any], path: str, streams: int, round_number: int
) -> tuple[list[str], list[list[str]]]:
    """Arguments of the server, which batches all streams, and of its one client."""
    server = words(max_num_seqs=streams, max_num_batched_tokens=streams * (fixed["input_tokens"] + 1))
    server += words(ttft_ms=fixed["ttft_ms"], itl_ms=fixed["itl_ms"], seed=fixed["seed"])
    client = words(
        concurrency=streams,
        requests=streams * fixed["requests_per_stream"],
        input_tokens=fixed["input_tokens"],
        output_tokens=fixed["output_tokens"],
        prompt="ids",
        seed=fixed["seed"],
        stamps=path,
        name=f"{path}/{streams}/{round_number}/",
    )
    return server, [client]


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)

"""The load client beside a server whose truth is known: how far its times are from those of the writes.

Records both sides over the number of streams: with kernel stamps and with user stamps in a closed loop,
and, for how late the client sends, in an open loop. Derives no error.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from inference_lab.errors import ConfigError
from inference_lab.experiments.serving_run import BothSides, words
from inference_lab.records.record import Measurement
from inference_lab.timing import machine

PATHS = ("kernel", "user", "open_loop")  # open_loop: kernel stamps, Poisson arrivals


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """Both sides of every round, path and number of streams.

    Request ids begin with path/streams/round/. In each round every number of streams is loaded once in
    shuffled order, its paths one after the other in shuffled order.
    """
    (axis, counts), fixed, paths = next(iter(section["vary"].items())), section["fixed"], section["paths"]
    if axis != "streams" or not set(paths) <= set(PATHS):
        raise ConfigError(f"calibration varies streams over paths {', '.join(PATHS)}: {section}")
    order = random.Random(fixed["seed"])
    sides = BothSides()
    total = section["rounds"] * len(counts) * len(paths)
    waited_s = machine.wait_until_quiet(section["quiet_cores"], section["quiet_wait_s"])
    with machine.Watch() as watch:
        for round_number in range(section["rounds"]):
            for streams in order.sample(counts, len(counts)):
                for path in order.sample(paths, len(paths)):
                    server, client = _commands(fixed, path, streams, round_number)
                    sides.serve_and_load({"path": path, "streams": streams}, server, [client])
                    progress(len(sides.sessions), total)
    return sides.measurement({**watch.summary(), "waited_for_quiet_s": waited_s})


def _commands(
    fixed: Mapping[str, Any], path: str, streams: int, round_number: int
) -> tuple[list[str], list[str]]:
    """Arguments of the server, which batches all streams, and of its one client."""
    server = words(max_num_seqs=streams, max_num_batched_tokens=streams * (fixed["input_tokens"] + 1))
    server += words(ttft_ms=fixed["ttft_ms"], itl_ms=fixed["itl_ms"], seed=fixed["seed"])
    client = words(
        requests=streams * fixed["requests_per_stream"],
        input_tokens=fixed["input_tokens"],
        output_tokens=fixed["output_tokens"],
        prompt="ids",
        seed=fixed["seed"],
        stamps="user" if path == "user" else "kernel",
        name=f"{path}/{streams}/{round_number}/",
    )
    if path == "open_loop":
        # Each arrival makes a step as long as ttft_ms: at this rate no more than `streams` are in flight.
        longest_s = fixed["output_tokens"] * fixed["ttft_ms"] / 1e3
        return server, client + words(rate=streams / longest_s, poisson=True)
    return server, client + words(concurrency=streams)

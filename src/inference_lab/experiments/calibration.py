"""The load client beside a server whose truth is known: how far its times are from those of the writes.

Records both sides over the number of streams: with kernel stamps and with user stamps in a closed loop,
and, for how late the client sends, in an open loop. Computes no error.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any

from inference_lab.errors import ConfigError
from inference_lab.experiments.serving_run import Recording, cli_options
from inference_lab.records.record import Measurement
from inference_lab.timing import machine

PATHS = ("kernel", "user", "open_loop")  # open_loop: kernel stamps, Poisson arrivals


def measure(section: Mapping[str, Any], progress: Callable[[int, int], None]) -> Measurement:
    """Return both sides of every round, path and number of streams.

    Request ids begin with path/streams/round/. In each round every number of streams is loaded once in
    shuffled order, its paths one after the other in shuffled order.
    """
    (axis, counts), fixed, paths = next(iter(section["vary"].items())), section["fixed"], section["paths"]
    if axis != "streams" or not set(paths) <= set(PATHS):
        raise ConfigError(f"calibration varies streams over paths {', '.join(PATHS)}: {section}")
    order = random.Random(fixed["seed"])
    recording = Recording()
    total = section["rounds"] * len(counts) * len(paths)
    waited_s = machine.wait_until_quiet(section["quiet_cores"], section["quiet_wait_s"])
    with machine.Watch() as watch:
        for round_number in range(section["rounds"]):
            for streams in order.sample(counts, len(counts)):
                for path in order.sample(paths, len(paths)):
                    settings = {name: fixed[name] for name in ("ttft_ms", "itl_ms")}
                    settings |= {  # all streams share each step
                        "max_num_seqs": streams,
                        "max_num_batched_tokens": streams * (fixed["input_tokens"] + 1),
                    }
                    client = _client(fixed, path, streams, round_number)
                    recording.load_beside_truth({"path": path, "streams": streams}, settings, [client])
                    progress(len(recording.sessions), total)
    return recording.truth_measurement({**watch.summary(), "waited_for_quiet_s": waited_s})


def _client(fixed: Mapping[str, Any], path: str, streams: int, round_number: int) -> list[str]:
    options = cli_options(
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
        return options + cli_options(rate=streams / longest_s, poisson=True)
    return options + cli_options(concurrency=streams)

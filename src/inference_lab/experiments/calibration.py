"""The load client beside a server whose truth is known: how far its times are from those of the writes.

Records both sides over the number of streams: with kernel stamps and with user stamps in a closed loop, and,
for how late the client sends, in an open loop.
"""

import random
from collections.abc import Callable

from inference_lab.config.sections import Calibration, StreamLoad
from inference_lab.experiments.serving_run import Recording, cli_options
from inference_lab.records.record import Measurement
from inference_lab.timing import machine


def measure(section: Calibration, progress: Callable[[int, int], None]) -> Measurement:
    """Return both sides of every round, path and number of streams.

    Request ids begin with path/streams/round/. In each round every number of streams is loaded once in
    shuffled order, its paths one after the other in shuffled order.
    """
    counts, fixed, paths = section.values, section.fixed, section.paths
    order = random.Random(fixed.seed)
    recording = Recording()
    total = section.rounds * len(counts) * len(paths)
    with machine.Watch(section.quiet_cores, section.quiet_wait_s) as watch:
        for round_number in range(section.rounds):
            for streams in order.sample(counts, len(counts)):
                for path in order.sample(paths, len(paths)):
                    settings = {
                        "ttft_ms": fixed.ttft_ms,
                        "itl_ms": fixed.itl_ms,
                        "max_num_seqs": streams,  # all streams share each step
                        "max_num_batched_tokens": streams * (fixed.input_tokens + 1),
                    }
                    client = _client(fixed, path, streams, round_number)
                    recording.load_beside_truth({"path": path, "streams": streams}, settings, [client])
                    progress(len(recording.sessions), total)
    return recording.truth_measurement(watch.summary())


def _client(fixed: StreamLoad, path: str, streams: int, round_number: int) -> list[str]:
    # Each arrival makes a step as long as ttft_ms: at this rate no more than `streams` are in flight.
    longest_s = fixed.output_tokens * fixed.ttft_ms / 1e3
    arrivals = {"rate": streams / longest_s, "poisson": True}
    return cli_options(
        requests=streams * fixed.requests_per_stream,
        input_tokens=fixed.input_tokens,
        output_tokens=fixed.output_tokens,
        prompt="ids",
        seed=fixed.seed,
        stamps="user" if path == "user" else "kernel",
        name=f"{path}/{streams}/{round_number}/",
        **(arrivals if path == "open_loop" else {"concurrency": streams}),
    )

"""Who decides the batch: the client's concurrency or the server's scheduler? Recorded from both sides.

A client lets `concurrency` of its requests out at once; a server puts at most `max_num_seqs` into a step.
Each setup runs in the simulation, in virtual time, and then over HTTP with the server in its own process.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from inference_lab.config.sections import ClientGate, LimitedLoad
from inference_lab.experiments.serving_run import Recording, cli_options
from inference_lab.records.record import Measurement
from inference_lab.stream_load.client.outcome import Attempt, request_record
from inference_lab.stream_load.driver import Driver
from inference_lab.stream_load.reference import simulation
from inference_lab.stream_load.reference.scheduler import EngineSettings, EngineStep
from inference_lab.stream_load.schedule import Schedule
from inference_lab.stream_load.workload import Length, Workload
from inference_lab.timing import machine


class Setup(NamedTuple):
    """How many clients, how many requests each lets out at once, how many the server batches."""

    clients: int
    concurrency: int
    max_num_seqs: int


SETUPS = {
    "gate_4_batch_2": Setup(clients=1, concurrency=4, max_num_seqs=2),
    "gate_2_batch_4": Setup(clients=1, concurrency=2, max_num_seqs=4),
    "two_gates_4_batch_8": Setup(clients=2, concurrency=4, max_num_seqs=8),
}


def measure(section: ClientGate, progress: Callable[[int, int], None]) -> Measurement:
    """Both sides of every setup, in the simulation and then over HTTP.

    Request ids begin with transport/setup/client/. Times of the simulation are virtual and start at 0 in
    each setup; those of HTTP are monotonic.
    """
    names, fixed = section.values, section.fixed
    asked = {key: getattr(fixed, key) for key in ("requests", "input_tokens", "output_tokens", "seed")}
    recording = Recording()
    with machine.Watch(section.quiet_cores, section.quiet_wait_s) as watch:
        for done, name in enumerate(names):
            simulate(name, fixed, recording)
            # Every request at once, held back by the client's concurrency alone.
            limited = {"burst": True, "prompt": "ids", "concurrency": SETUPS[name].concurrency, **asked}
            clients = [cli_options(name=prefix, **limited) for prefix in _prefixes("http", name)]
            recording.load_beside_truth({"transport": "http", "setup": name}, _engine(name, fixed), clients)
            progress(done + 1, len(names))
    return recording.truth_measurement(watch.summary())


def simulate(name: str, fixed: LimitedLoad, recording: Recording) -> None:
    """Add both sides of one setup in virtual time, always the same."""
    cell, concurrency = {"transport": "simulation", "setup": name}, SETUPS[name].concurrency
    attempts: list[Attempt] = []
    lengths = [Length(count, count) for count in (fixed.input_tokens, fixed.output_tokens)]
    schedule = Schedule("burst", fixed.requests)
    workload = Workload(
        "reference", prompt="ids", input_tokens=lengths[0], output_tokens=lengths[1], seed=fixed.seed
    )
    prefixes = _prefixes("simulation", name)

    async def run() -> list[EngineStep]:
        async with simulation.InProcessServer(EngineSettings(**_engine(name, fixed))) as server:
            clients = [
                Driver(
                    schedule=schedule,
                    prepare=lambda index, _: workload.body(index),
                    send=server.send,
                    concurrency=concurrency,
                    deliver=attempts.append,
                    now_ns=simulation.now_ns,
                    sleep_until=simulation.sleep_until,
                    name=prefix,
                )
                for prefix in prefixes
            ]
            await asyncio.gather(*(client.run() for client in clients))
            return server.steps

    steps = simulation.run_in_virtual_time(run)
    recording.steps += [{**cell, **step.row(step.ends_ns)} for step in steps]
    records = (request_record(attempt, clock="user") for attempt in attempts)
    recording.requests += [record.line().decode().strip() for record in records]
    session = {"cell": cell, "concurrency": concurrency, "schedule": schedule.process}
    recording.sessions += [{**session, "name": prefix} for prefix in prefixes]


def _prefixes(transport: str, name: str) -> list[str]:
    return [f"{transport}/{name}/{client}/" for client in range(SETUPS[name].clients)]


def _engine(name: str, fixed: LimitedLoad) -> dict[str, Any]:
    return {"max_num_seqs": SETUPS[name].max_num_seqs, "ttft_ms": fixed.ttft_ms, "itl_ms": fixed.itl_ms}

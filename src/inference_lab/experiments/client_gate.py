"""Who decides the batch: the client's concurrency or the server's scheduler? Recorded from both sides.

A client lets `concurrency` of its requests out at once; a server puts at most `max_num_seqs` into a step.
Each setup runs in the simulation, in virtual time, and then over HTTP with the server in its own process.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from inference_lab.config.sections import ClientGate, GateLoad
from inference_lab.experiments.serving_run import Recording, cli_options
from inference_lab.records.record import Measurement
from inference_lab.stream_load.client.outcome import Attempt, request_record
from inference_lab.stream_load.driver import Driver
from inference_lab.stream_load.reference.scheduler import EngineSettings, EngineStep
from inference_lab.stream_load.reference.simulation import (
    InProcessServer,
    now_ns,
    run_in_virtual_time,
    sleep_until,
)
from inference_lab.stream_load.schedule import Schedule
from inference_lab.stream_load.workload import Length, Workload
from inference_lab.timing import machine


@dataclass(frozen=True, slots=True)
class Setup:
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
    recording = Recording()
    waited_s = machine.wait_until_quiet(section.quiet_cores, section.quiet_wait_s)
    with machine.Watch() as watch:
        for done, name in enumerate(names):
            simulate(name, fixed, recording)
            cell = {"transport": "http", "setup": name}
            engine = {"max_num_seqs": SETUPS[name].max_num_seqs}
            engine |= {"ttft_ms": fixed.ttft_ms, "itl_ms": fixed.itl_ms}
            recording.load_beside_truth(cell, engine, _clients(name, fixed))
            progress(done + 1, len(names))
    return recording.truth_measurement({**watch.summary(), "waited_for_quiet_s": waited_s})


def simulate(name: str, fixed: GateLoad, recording: Recording) -> None:
    """Add both sides of one setup in virtual time, always the same."""
    setup = SETUPS[name]
    cell = {"transport": "simulation", "setup": name}
    attempts: list[Attempt] = []
    schedule, workload = Schedule("burst", fixed.requests), _workload(fixed)
    prefixes = [_prefix("simulation", name, client) for client in range(setup.clients)]

    async def run() -> list[EngineStep]:
        async with InProcessServer(_engine(setup, fixed)) as server:
            clients = [
                Driver(
                    schedule=schedule,
                    prepare=lambda index, _: workload.body(index),
                    send=server.send,
                    concurrency=setup.concurrency,
                    deliver=attempts.append,
                    now_ns=now_ns,
                    sleep_until=sleep_until,
                    name=prefix,
                )
                for prefix in prefixes
            ]
            await asyncio.gather(*(client.run() for client in clients))
            return server.steps

    recording.steps += [{**cell, **step.row(step.ends_ns)} for step in run_in_virtual_time(run)]
    recording.requests += [
        request_record(attempt, clock="user").line().decode().strip() for attempt in attempts
    ]
    session = {"cell": cell, "concurrency": setup.concurrency, "schedule": schedule.process}
    recording.sessions += [{**session, "name": prefix} for prefix in prefixes]


def _prefix(transport: str, name: str, client: int) -> str:
    return f"{transport}/{name}/{client}/"


def _engine(setup: Setup, fixed: GateLoad) -> EngineSettings:
    return EngineSettings(max_num_seqs=setup.max_num_seqs, ttft_ms=fixed.ttft_ms, itl_ms=fixed.itl_ms)


def _workload(fixed: GateLoad) -> Workload:
    return Workload(
        "reference",
        prompt="ids",
        input_tokens=Length(fixed.input_tokens, fixed.input_tokens),
        output_tokens=Length(fixed.output_tokens, fixed.output_tokens),
        seed=fixed.seed,
    )


def _clients(name: str, fixed: GateLoad) -> list[list[str]]:
    """Every request at once, held back by the client's concurrency limit alone."""
    common = {key: getattr(fixed, key) for key in ("requests", "input_tokens", "output_tokens", "seed")}
    setup = SETUPS[name]
    return [
        cli_options(
            burst=True, prompt="ids", concurrency=setup.concurrency, name=_prefix("http", name, client)
        )
        + cli_options(**common)
        for client in range(setup.clients)
    ]

"""Whether this machine is fit to measure: one line per fact, with advice where it is not."""

import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from inference_lab.errors import LabError
from inference_lab.records import history, installed, stages
from inference_lab.records.digests import Sources
from inference_lab.records.installed import kernel_says
from inference_lab.records.record import aligned
from inference_lab.stream_load.clock import ANCILLARY_BYTES, ArrivalClock
from inference_lab.timing import machine

_LOOK_S = 2.0
_BUSY_CORES = 0.2  # as `quiet_cores` of the experiments
_COARSE_NS = 1_000
_FREE_BYTES = 1 << 30
_SYSTEM = "/sys/devices/system"


class Finding(NamedTuple):
    """One fact of this machine, and what to do about it: "good" for nothing, empty when nobody knows."""

    what: str
    found: str
    advice: str = "good"


def doctor() -> tuple[str, int]:
    """Return a line per fact, and 2 as exit status when one of them would spoil a measurement."""
    findings = list(_findings())
    bad = sum(each.advice not in ("good", "") for each in findings)
    end = f"{bad} of {len(findings)} would spoil a measurement" if bad else "fit to measure"
    return "\n".join([*aligned([("what", "found", "advice"), *findings]), "", end]), 2 if bad else 0


def _findings() -> Iterator[Finding]:
    yield _tried("package", lambda: installed.check_package() or str(Path(__file__).parents[1]))
    yield _tried("pins", _pins)
    yield _tried("history", _history)
    here = installed.machine(())
    cores = len(here["affinity"] or range(here["cores"]))
    few = "good" if cores > 1 else "a load needs two: the client shares this one with its server"
    yield Finding("cores", f"{cores} of {here['cores']}", few)
    yield _tried("threads", lambda: machine.check_thread_variables(1) or "1 in every measuring process")
    with machine.Watch(0, 0, _LOOK_S / 4) as watch:
        time.sleep(_LOOK_S)
    yield _others(watch.summary()["others_used_cores"])
    yield _setting("governor", f"{_SYSTEM}/cpu/cpu0/cpufreq/scaling_governor", "performance")
    yield _setting("turbo off", f"{_SYSTEM}/cpu/intel_pstate/no_turbo", "1")
    yield _setting("boost", f"{_SYSTEM}/cpu/cpufreq/boost", "0")
    step_ns = timer_step_ns()
    coarse = "good" if step_ns <= _COARSE_NS else "coarser than a microsecond: time longer calls"
    source = kernel_says(f"{_SYSTEM}/clocksource/clocksource0/current_clocksource") or "unknown"
    yield Finding("timer", f"steps of {step_ns} ns, source {source}", coarse)
    no_stamps = "the load client falls back to the time of its read: later by its own delay"
    yield Finding("stamps", *(("of the kernel", "good") if kernel_stamps() else ("none", no_stamps)))
    free = shutil.disk_usage(".").free
    yield Finding("disk", f"{free / 1e9:.1f} GB free", "good" if free > _FREE_BYTES else "make room for 1 GB")


def _tried(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, check())
    except LabError as error:
        return Finding(what, "not as it should be", str(error))


def _pins() -> str:
    pins = stages.TESTS.pins(Sources())
    installed.check_running(pins)
    return f"{len(pins)} packages as pinned, files unchanged"


def _history() -> str:
    state = history.state(["src"])
    return f"commit {state['commit'][:12]}{', src/ edited since' if state['dirty'] else ''}"


def _others(used: dict[str, float] | None) -> Finding:
    if used is None:
        return Finding("others", "unknown", "this kernel does not show what others use: cells are flagged")
    busy = (
        "good"
        if used["median"] < _BUSY_CORES
        else "stop what else runs; a measurement waits, then is flagged"
    )
    return Finding("others", f"{used['median']:.2f} cores in use over {_LOOK_S:g} s", busy)


def _setting(what: str, path: str, wanted: str) -> Finding:
    found = kernel_says(path)
    if found is None:
        return Finding(what, "not shown by this kernel", "")
    return Finding(what, found, "good" if found == wanted else f"as root: echo {wanted} > {path}")


def timer_step_ns() -> int:
    """Return the smallest step of the timer that calls are timed with."""
    times = [time.perf_counter_ns() for _ in range(10_000)]
    return min((after - before for before, after in pairwise(times) if after > before), default=0)


def kernel_stamps() -> bool:
    """Return whether the kernel stamps what a socket receives."""
    with closing(ArrivalClock()) as clock, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(1.0)
        clock.enable(server)
        server.sendto(b"?", server.getsockname())
        return bool(server.recvmsg(1, ANCILLARY_BYTES)[1])

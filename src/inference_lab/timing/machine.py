"""What a measuring process runs under, and what else the machine did while we measured.

What the machine is, and whether the pins hold, is in `records.installed`. Judges nothing: the bounds are in
the config and are applied when the record is summarised.
"""

import os
import statistics
import threading
import time
from glob import glob
from typing import Any, NamedTuple

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.forms import JSON
from inference_lab.records.installed import kernel_says as _read

THREAD_VARIABLES = (
    *(f"{library}_NUM_THREADS" for library in ("OPENBLAS", "OMP", "MKL", "BLIS", "NUMEXPR", "GOTO")),
    "VECLIB_MAXIMUM_THREADS",
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CORES = os.cpu_count() or 1
_ROUNDING = 1.1  # times all cores: as much as ticks and the moment of a look may add
_READ_AGAIN = 5
_MHZ = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"


def with_threads(threads: int) -> dict[str, str]:
    """Return the environment of a process whose BLAS has `threads` threads from the start."""
    return {**installed.of_child(), **dict.fromkeys(THREAD_VARIABLES, str(threads))}


def check_thread_variables(threads: int) -> None:
    """Raise MeasurementRefused when a thread variable of this shell contradicts the declared number."""
    for name in THREAD_VARIABLES:
        if (value := os.environ.get(name, str(threads))) != str(threads):
            raise MeasurementRefused(
                f"{name} is {value!r} but this measurement declares blas_threads: {threads};"
                f" set {name}={threads} or unset it"
            )


def check_blas_threads(threads: int) -> JSON:
    """Return name, version, core and threads of the BLAS that NumPy loaded here.

    Raises MeasurementRefused when threadpoolctl sees another number of threads than declared.
    """
    import numpy as np
    from threadpoolctl import threadpool_info  # pyright: ignore[reportUnknownVariableType]

    np.dot(np.ones((2, 2)), np.ones((2, 2)))  # NumPy loads its BLAS at the latest with the first product
    pools: list[Any] = threadpool_info()
    for pool in pools:
        if pool["num_threads"] != threads:
            raise MeasurementRefused(
                f"{pool['internal_api']} has {pool['num_threads']} threads, declared are {threads}; set"
                f" OPENBLAS_NUM_THREADS={threads} OMP_NUM_THREADS={threads} and allow as many cores"
            )
    for pool in pools:
        if pool["user_api"] == "blas":
            name, version, core = pool["internal_api"], pool["version"], pool.get("architecture")
            return {"name": name, "version": version, "core": core, "threads": threads}
    raise MeasurementRefused("threadpoolctl finds no BLAS in this NumPy, so its threads are unknown")


class Watch:
    """Wait for a quiet machine, then sample, in a thread, what others do on it while `with Watch()` lasts.

    What others used is the busy time of all cores minus that of this process and its family. A look that
    contradicts itself (a member ended and nobody waited for it) is counted in `unknown_looks` alone.
    """

    def __init__(self, quiet_cores: float, quiet_wait_s: float, interval_s: float = 1.0) -> None:
        self._quiet, self._interval_s = (quiet_cores, quiet_wait_s), interval_s
        self._looks = 0
        self._seen: dict[str, list[float]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._waited_s = wait_until_quiet(*self._quiet)
        self._load_before = list(os.getloadavg())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> JSON:
        """Return median and maximum of each quantity; None for what this kernel does not show."""
        spans = ("others_used_cores", "steal_cores", "pressure_percent", "mhz")
        return {
            "load_before": self._load_before,
            "load_after": list(os.getloadavg()),
            **{name: _median_and_max(self._seen.get(name, [])) for name in spans},
            "unknown_looks": self._looks - len(self._seen.get("others_used_cores", [])),
            "watched_s": self._looks * self._interval_s,
            "waited_for_quiet_s": self._waited_s,
        }

    def _run(self) -> None:
        before = _cpu_times()
        while not self._stop.wait(self._interval_s) and before and (now := _cpu_times()):
            self._looks += 1
            mhz = _read(_MHZ)
            look = {
                "others_used_cores": _others(before, now),
                "steal_cores": _cores(before.stolen_s, now.stolen_s, now.at_s - before.at_s),
                "pressure_percent": _pressure(),
                "mhz": None if mhz is None else int(mhz) / 1000,
            }
            for name, value in look.items():
                if value is not None:
                    self._seen.setdefault(name, []).append(value)
            before = now


def _median_and_max(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {"median": round(statistics.median(values), 4), "max": round(max(values), 4)}


def wait_until_quiet(bound_cores: float, patience_s: float) -> float:
    """Wait until others used less than `bound_cores` for a second, or patience ended; return the seconds."""
    started = time.monotonic()
    while (left := patience_s - (time.monotonic() - started)) > 0:
        before = _cpu_times()
        time.sleep(min(1.0, left))
        now = _cpu_times()
        if before is None or now is None:
            break
        if (others := _others(before, now)) is not None and others < bound_cores:
            break
    return round(time.monotonic() - started, 3)


class _CpuTimes(NamedTuple):
    at_s: float
    busy_s: float  # of all cores
    stolen_s: float
    own_s: float  # of our family


def _cpu_times() -> _CpuTimes | None:
    stat = _read("/proc/stat")
    if stat is None:
        return None
    user, nice, system, _idle, _iowait, irq, soft, steal, *_ = map(int, stat.split("\n", 1)[0].split()[1:])
    busy, stolen = (user + nice + system + irq + soft) / _TICKS_PER_S, steal / _TICKS_PER_S
    return _CpuTimes(time.monotonic(), busy, stolen, process_s(os.getpid()))


def process_s(pid: int) -> float:
    """Return CPU seconds of a living process and of its family, ended or living; 0 once it is gone."""
    spent = 0.0
    for _ in range(_READ_AGAIN):  # one that ends meanwhile would count twice or not at all
        family = _family(pid)
        spent = sum(map(_own_s, family))
        if _family(pid) == family:
            break
    return spent


def _family(pid: int) -> list[int]:
    """The process and its living descendants, whichever of their threads started them."""
    threads = sorted(glob(f"/proc/{pid}/task/*/children"))  # noqa: PTH207  (it passes over what is gone)
    children = [int(child) for thread in threads for child in (_read(thread) or "").split()]
    return [pid, *(member for child in children for member in _family(child))]


def _own_s(pid: int) -> float:
    """CPU seconds of one process and of those children that it has waited for; 0 once it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    return 0.0 if stat is None else sum(map(int, stat.rpartition(")")[2].split()[11:15])) / _TICKS_PER_S


def _others(before: _CpuTimes, now: _CpuTimes) -> float | None:
    """Return the cores that others used meanwhile; None where the counters contradict each other."""
    others = _cores(before.busy_s + now.own_s - before.own_s, now.busy_s, now.at_s - before.at_s)
    if now.own_s < before.own_s or others > _ROUNDING * _CORES:
        return None
    return min(others, _CORES)


def _cores(before_s: float, now_s: float, wall_s: float) -> float:
    """CPU time over wall time; counters are rounded to ticks, so nothing can look like less than that."""
    return max(0.0, now_s - before_s) / wall_s


def _pressure() -> float | None:
    """PSI: percent of the last 10 s in which some task waited for a core."""
    text = _read("/proc/pressure/cpu")
    return None if text is None else float(text.partition("avg10=")[2].split()[0])

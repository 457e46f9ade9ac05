"""What a measuring process runs under, and what else the machine did while we measured.

Answers: what may change a number besides what is measured? What the machine is, and whether the pins hold,
is in `records.installed`. Judges nothing: the bounds are in the config and are applied when the record is
summarised.
"""

import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.records.installed import kernel_says as _read

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "GOTO_NUM_THREADS",
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CORES = os.cpu_count() or 1
_ROUNDING = 1.1  # times all cores: as much as ticks and the moment of a look may add
_READ_AGAIN = 5


def with_threads(threads: int) -> dict[str, str]:
    """Return the environment of a process whose BLAS has `threads` threads from the start."""
    return {**installed.of_child(), **dict.fromkeys(THREAD_VARIABLES, str(threads))}


def check_thread_variables(threads: int) -> None:
    """Raise MeasurementRefused when a thread variable of this shell contradicts the declared number."""
    for name in THREAD_VARIABLES:
        value = os.environ.get(name, str(threads))
        if value != str(threads):
            raise MeasurementRefused(
                f"{name} is {value!r} but this measurement declares blas_threads: {threads};"
                f" set {name}={threads} or unset it"
            )


def check_blas_threads(threads: int) -> dict[str, Any]:
    """Return name, version, core and threads of the BLAS that NumPy loaded here.

    Raises MeasurementRefused when threadpoolctl sees another number of threads than declared.
    """
    import numpy as np
    from threadpoolctl import threadpool_info  # pyright: ignore[reportUnknownVariableType]

    np.dot(np.ones((2, 2)), np.ones((2, 2)))  # NumPy loads its BLAS at the latest with the first product
    pools: list[dict[str, Any]] = threadpool_info()
    for pool in pools:
        if pool["num_threads"] != threads:
            raise MeasurementRefused(
                f"{pool['internal_api']} has {pool['num_threads']} threads, declared are {threads}; set"
                f" OPENBLAS_NUM_THREADS={threads} OMP_NUM_THREADS={threads} and allow as many cores"
            )
    blas = next((pool for pool in pools if pool["user_api"] == "blas"), None)
    if blas is None:
        raise MeasurementRefused("threadpoolctl finds no BLAS in this NumPy, so its threads are unknown")
    return {
        "name": blas["internal_api"],
        "version": blas["version"],
        "core": blas.get("architecture"),
        "threads": blas["num_threads"],
    }


class Watch:
    """Sample, in a thread, what others do on this machine while `with Watch()` lasts.

    What others used is the busy time of all cores minus that of this process and its family. A sample where
    that contradicts itself (a member of the family ended and nobody waited for it: its time is lost) is
    counted in `unknown_looks` and enters no number.
    """

    def __init__(self, interval_s: float = 1.0) -> None:
        self._interval_s = interval_s
        self._looks = 0
        self._others: list[float] = []
        self._steal: list[float] = []
        self._pressure: list[float] = []
        self._mhz: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._load_before = list(os.getloadavg())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def summary(self) -> dict[str, Any]:
        """Return median and maximum of each quantity; None for what this kernel does not show."""
        return {
            "load_before": self._load_before,
            "load_after": list(os.getloadavg()),
            "others_used_cores": _median_and_max(self._others),
            "unknown_looks": self._looks - len(self._others),
            "steal_cores": _median_and_max(self._steal),
            "pressure_percent": _median_and_max(self._pressure),
            "mhz": _median_and_max(self._mhz),
            "watched_s": self._looks * self._interval_s,
        }

    def _run(self) -> None:
        before = _cpu_times()
        while not self._stop.wait(self._interval_s) and before is not None:
            now = _cpu_times()
            if now is None:
                return
            self._looks += 1
            if (others := _others(before, now)) is not None:
                self._others.append(others)
            self._steal.append(_cores(before.stolen_s, now.stolen_s, now.at_s - before.at_s))
            if (pressure := _pressure()) is not None:
                self._pressure.append(pressure)
            if (mhz := _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")) is not None:
                self._mhz.append(int(mhz) / 1000)
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
    """A moment, and the CPU time used by then: by all cores, stolen from them, by our family."""

    at_s: float
    busy_s: float
    stolen_s: float
    own_s: float


def _cpu_times() -> _CpuTimes | None:
    stat = _read("/proc/stat")
    if stat is None:
        return None
    user, nice, system, _idle, _iowait, irq, soft, steal, *_ = map(int, stat.split("\n", 1)[0].split()[1:])
    busy, stolen = (user + nice + system + irq + soft) / _TICKS_PER_S, steal / _TICKS_PER_S
    return _CpuTimes(time.monotonic(), busy, stolen, process_s(os.getpid()))


def process_s(pid: int) -> float:
    """Return CPU seconds of a living process and of its family, ended or living; 0 once it is gone.

    A process that ends while the family is read would count twice or not at all: then it is read again.
    """
    spent = 0.0
    for _ in range(_READ_AGAIN):
        family = _family(pid)
        spent = sum(map(_own_s, family))
        if _family(pid) == family:
            break
    return spent


def _family(pid: int) -> list[int]:
    """The process and its living descendants, whichever of their threads started them."""
    children = [
        int(child)
        for thread in _names(f"/proc/{pid}/task")
        for child in (_read(f"/proc/{pid}/task/{thread}/children") or "").split()
    ]
    return [pid, *(member for child in children for member in _family(child))]


def _own_s(pid: int) -> float:
    """CPU seconds of one process and of those children that it has waited for; 0 once it is gone."""
    stat = _read(f"/proc/{pid}/stat")
    return 0.0 if stat is None else sum(map(int, stat.rpartition(")")[2].split()[11:15])) / _TICKS_PER_S


def _names(folder: str) -> list[str]:
    try:
        return sorted(path.name for path in Path(folder).iterdir())
    except OSError:  # the process is gone, or this kernel does not show it
        return []


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
    if text is None:
        return None
    words = dict(word.split("=") for word in text.splitlines()[0].split()[1:])
    return float(words["avg10"])

"""Loads an OpenAI-compatible server on a schedule and records every request. Computes no metric.

A load is a folder: `requests.jsonl` (`.partial` while it runs) and INFO, its conditions and sessions.
"""

import asyncio
import contextlib
import hashlib
import json
import resource
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns
from typing import Any

from inference_lab.errors import InputError, RecordError
from inference_lab.stream_load.client.client import Client
from inference_lab.stream_load.client.outcome import Attempt, request_record
from inference_lab.stream_load.clock import ArrivalClock, PreciseTimer
from inference_lab.stream_load.driver import Driver
from inference_lab.stream_load.event_loop import LOOP_NAME, run_in_event_loop
from inference_lab.stream_load.options import LoadOptions
from inference_lab.stream_load.requests import RequestFile
from inference_lab.stream_load.workload import Workload

INFO = "load.json"
PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_SPARE = 8  # connections kept ready in an open loop, where the next free one cannot be foreseen
_WATCH_EVERY_S = 0.5  # showing a load takes about 1 ms, in which user stamps are late


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Path and conditions of a record, how many of its attempts ended how, and the exit code for a shell."""

    requests_path: Path
    info: Mapping[str, Any]
    counts: Mapping[str, int]
    exit_code: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a running load: requests in flight, finished, failed, and tokens so far."""

    in_flight: int
    done: int
    failed: int
    tokens: int


Watch = Callable[[Snapshot], None]


class _HttpTransport:
    """Requests of a workload through a client."""

    def __init__(self, client: Client, workload: Workload) -> None:
        self._client = client
        self._workload = workload
        self.send = client.send

    def prepare(self, index: int, request_id: str) -> bytes:
        """Return the request's bytes, and open a connection for it."""
        self._client.pool.top_up()
        path = PATHS[self._workload.endpoint]
        return self._client.request(path, self._workload.body(index), request_id)


class _Session:
    """One session of a load: from its start, or a resume, to its end."""

    def __init__(self, options: LoadOptions, file: RequestFile, info: dict[str, Any]) -> None:
        self._options = options
        self._file = file
        self._info = info
        self._tls = options.tls()
        self.counts: Counter[str] = Counter(record.status for record in file.earlier)
        self._tokens = 0
        self._failure: RecordError | None = None
        self.interrupts = 0

    async def run(self, watch: Watch | None) -> None:
        """Drive the load until every request has ended or a second interrupt stops it."""
        options, target = self._options, self._options.endpoint
        session: dict[str, Any] = {
            "name": options.name,
            "schedule": options.schedule.process,
            "concurrency": options.concurrency,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "start_ns": monotonic_ns(),
        }
        cpu_ns = time.process_time_ns()
        if target.scheme == "https":
            digest = hashlib.sha256(options.ca_file.read_bytes()).hexdigest() if options.ca_file else None
            session["tls"] = {"certificate_checked": not options.insecure, "ca_sha256": digest}
        is_kernel = options.kernel_stamps and target.is_plain_tcp
        with closing(ArrivalClock(kernel=is_kernel)) as clock, closing(PreciseTimer()) as alarm:
            client = Client(
                target,
                clock=clock,
                timeouts=options.timeouts,
                api_key=options.api_key(),
                spare=0 if options.schedule.is_closed else min(options.concurrency or _SPARE, _SPARE),
                tls=self._tls,
            )
            async with client:
                session["interrupted"] = await self._drive(client, alarm, watch)
        session |= {
            "end_ns": monotonic_ns(),
            "client_cpu_ns": time.process_time_ns() - cpu_ns,
            "client_max_rss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "event_loop": LOOP_NAME,
            "clock": {
                **clock.conditions(),
                "asked": "kernel" if options.kernel_stamps else "user",
                "stamps": client.clock_name,  # the clock of the requests: the kernel stamps no TLS
            },
            "connections": client.pool.opened,
            "resent_requests": client.resent,
            "dropped_torn_bytes": self._file.torn_bytes,
        }
        self._info["sessions"].append(session)
        self._info["counts"] = dict(sorted(self.counts.items()))
        self._write_info()

    async def _drive(self, client: Client, alarm: PreciseTimer, watch: Watch | None) -> bool:
        """Send every request and write its record; return whether an interrupt cut that short."""
        options = self._options
        workload = options.workload
        if not workload.model:
            workload = replace(workload, model=await client.discover_model())
        self._info["model"] = client.redact(workload.model)  # a server may echo the key

        def deliver(attempt: Attempt) -> None:
            self._deliver(attempt, client, driver)

        driver = Driver(
            options.schedule,
            _HttpTransport(client, workload),
            concurrency=options.concurrency,
            deliver=deliver,
            now_ns=monotonic_ns,
            sleep_until=alarm.sleep_until,
            name=options.name,
            retries=options.retries,
            retry_within_s=options.timeouts.total_s,
        )
        self._write_info()  # after everything that can refuse
        self._catch_signals(driver)
        await client.pool.prepare(min(options.concurrency or _SPARE, options.schedule.requests or _SPARE))
        watching = asyncio.create_task(self._watch(driver, client, watch)) if watch else None
        await driver.run(self._file.earlier_attempts())
        if watching is not None:
            watching.cancel()
        if self._failure is not None:
            raise self._failure
        return driver.is_interrupted

    def _catch_signals(self, driver: Driver) -> None:
        """SIGINT drains, a second one stops; SIGTERM stops."""

        def interrupt(signals: int) -> None:
            self.interrupts += signals
            if self.interrupts == 1:
                with contextlib.suppress(OSError):  # a closed terminal does not end the load
                    print(
                        "interrupted: waiting for what is in flight; again to stop at once",
                        file=sys.stderr,
                        flush=True,
                    )
                driver.drain()
            else:
                driver.stop()

        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, interrupt, 1)
            loop.add_signal_handler(signal.SIGTERM, interrupt, 2)

    def _deliver(self, attempt: Attempt, client: Client, driver: Driver) -> None:
        """Write the line of an attempt as it ends, before anything follows from its end."""
        if self._failure is not None:
            return  # after a line that was not written whole there must be no other
        record = request_record(attempt, clock=client.clock_name, redact=client.redact)
        try:
            self._file.append(record)
        except RecordError as error:
            self._failure = error
            driver.stop()
        self.counts[record.status] += 1
        self._tokens += record.output_tokens
        client.pool.read()  # many may end at once: what arrives meanwhile is stamped between two lines

    async def _watch(self, driver: Driver, client: Client, watch: Watch) -> None:
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            done = self.counts.total()
            failed = done - self.counts["ok"] - self.counts["cancelled"]
            watch(Snapshot(driver.in_flight, done, failed, self._tokens + client.live_events))

    def _write_info(self) -> None:
        path = self._file.folder / INFO
        temporary = path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(self._info, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            raise RecordError(f"{path}: cannot be written ({error.strerror}); make room") from None


def load(
    options: LoadOptions, folder: Path, *, resume: bool = False, watch: Watch | None = None
) -> LoadResult:
    """Run the load into `folder`; `watch` is called with its state while it runs.

    Raises InputError for options that contradict each other, a folder that exists (unless `resume`) or
    holds another load, MeasurementRefused when no model can be discovered, and RecordError when the
    record cannot be read or written.
    """
    for check in (options.api_key, options.tls, lambda: options.workload.body(0)):
        check()  # before a folder is made
    if resume and options.schedule.is_closed and options.schedule.requests is None:
        raise InputError("a closed loop over a duration has no request left over; start a new run")
    sessions = _earlier_sessions(options, folder) if resume else []
    info: dict[str, Any] = {"conditions": options.conditions(), "sessions": sessions}
    file = RequestFile(folder, resume=resume)
    session = _Session(options, file, info)
    try:
        run_in_event_loop(lambda: session.run(watch))
    except BaseException:
        file.close(complete=False)
        raise
    path = file.close(complete=session.interrupts < 2)
    interrupted = info["sessions"][-1]["interrupted"]
    code = exit_code(session.counts, options.max_failure_share, interrupted=interrupted)
    return LoadResult(path, info, dict(session.counts), code)


def exit_code(counts: Mapping[str, int], max_failure_share: float, *, interrupted: bool) -> int:
    """Return 130 after an interrupt, 1 when nothing succeeded or more failed than declared, else 0."""
    ok = counts.get("ok", 0)
    finished = sum(counts.values()) - counts.get("cancelled", 0)
    if interrupted:
        return 130
    return int(ok == 0 or finished - ok > max_failure_share * finished)


def _earlier_sessions(options: LoadOptions, folder: Path) -> list[dict[str, Any]]:
    """Return the sessions of a load that is to be resumed under the same conditions."""
    path = folder / INFO
    if not path.exists():
        raise InputError(f"{folder} holds no run to resume; leave --resume away to start one")
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        conditions, sessions = info["conditions"], info["sessions"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); give another --output") from None
    options.refuse_other_conditions(conditions)
    return sessions

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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic_ns

from inference_lab.errors import InputError, RecordError
from inference_lab.stream_load.client.client import Client
from inference_lab.stream_load.client.outcome import Attempt, request_record
from inference_lab.stream_load.clock import ArrivalClock, PreciseTimer
from inference_lab.stream_load.driver import Driver
from inference_lab.stream_load.event_loop import LOOP_NAME, run_in_event_loop
from inference_lab.stream_load.options import LoadOptions
from inference_lab.stream_load.requests import JSON, RequestFile

INFO = "load.json"
_SPARE = 8  # connections kept ready in an open loop, where the next free one cannot be foreseen
_WATCH_EVERY_S = 0.5  # showing a load takes about 1 ms, in which user stamps are late


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Path of a record, what INFO holds, and the exit code for a shell."""

    requests_path: Path
    info: JSON
    exit_code: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a running load: requests in flight, finished, failed, and tokens so far."""

    in_flight: int
    done: int
    failed: int
    tokens: int


Watch = Callable[[Snapshot], None]


@dataclass
class _Session:
    """One session of a load: from its start, or a resume, to its end."""

    options: LoadOptions
    file: RequestFile
    info: JSON
    counts: Counter[str] = field(default_factory=Counter[str])
    tokens: int = 0
    failure: RecordError | None = None
    interrupts: int = 0

    async def run(self, watch: Watch | None) -> None:
        """Drive the load until every request has ended or a second interrupt stops it."""
        options, target = self.options, self.options.endpoint
        self.counts.update(record.status for record in self.file.earlier)
        session: JSON = {
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
            self.client = Client(
                target,
                clock=clock,
                timeouts=options.timeouts,
                api_key=options.api_key(),
                spare=0 if options.schedule.is_closed else min(options.concurrency or _SPARE, _SPARE),
                tls=options.tls(),
            )
            async with self.client:
                session["interrupted"] = await self._drive(alarm, watch)
        session |= {
            "end_ns": monotonic_ns(),
            "client_cpu_ns": time.process_time_ns() - cpu_ns,
            "client_max_rss_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
            "event_loop": LOOP_NAME,
            "clock": {
                **clock.conditions(),
                "asked": "kernel" if options.kernel_stamps else "user",
                "stamps": self.client.clock_name,  # the clock of the requests: the kernel stamps no TLS
            },
            "connections": self.client.pool.opened,
            "resent_requests": self.client.resent,
            "dropped_torn_bytes": self.file.torn_bytes,
        }
        self.info["sessions"].append(session)
        self.info["counts"] = dict(sorted(self.counts.items()))
        self._write_info()

    async def _drive(self, alarm: PreciseTimer, watch: Watch | None) -> bool:
        """Send every request and write its record; return whether an interrupt cut that short."""
        options, client, workload = self.options, self.client, self.options.workload
        if not workload.model:
            workload = replace(workload, model=await client.discover_model())
        self.info["model"] = client.redact(workload.model)  # a server may echo the key
        path = "/chat/completions" if workload.is_chat else "/completions"

        def prepare(index: int, request_id: str) -> bytes:
            client.pool.top_up()  # a connection for it
            return client.request(path, workload.body(index), request_id)

        self.driver = Driver(
            schedule=options.schedule,
            prepare=prepare,
            send=client.send,
            concurrency=options.concurrency,
            deliver=self._deliver,
            now_ns=monotonic_ns,
            sleep_until=alarm.sleep_until,
            name=options.name,
            retries=options.retries,
            retry_within_s=options.timeouts.total_s,
        )
        self._write_info()  # after everything that can refuse
        if threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGINT, self._interrupt, 1)
            loop.add_signal_handler(signal.SIGTERM, self._interrupt, 2)
        await client.pool.prepare(min(options.concurrency or _SPARE, options.schedule.requests or _SPARE))
        watching = asyncio.create_task(self._watch(watch)) if watch else None
        await self.driver.run(self.file.earlier_attempts())
        if watching is not None:
            watching.cancel()
        if self.failure is not None:
            raise self.failure
        return self.driver.is_interrupted

    def _interrupt(self, signals: int) -> None:
        """Drain after one SIGINT, stop after a second one or SIGTERM."""
        self.interrupts += signals
        if self.interrupts > 1:
            self.driver.stop()
            return
        with contextlib.suppress(OSError):  # a closed terminal does not end the load
            words = "interrupted: waiting for what is in flight; again to stop at once"
            print(words, file=sys.stderr, flush=True)
        self.driver.drain()

    def _deliver(self, attempt: Attempt) -> None:
        """Write the line of an attempt as it ends, before anything follows from its end."""
        if self.failure is not None:
            return  # after a line that was not written whole there must be no other
        record = request_record(attempt, clock=self.client.clock_name, redact=self.client.redact)
        try:
            self.file.append(record)
        except RecordError as error:
            self.failure = error
            self.driver.stop()
        self.counts[record.status] += 1
        self.tokens += record.output_tokens
        self.client.pool.read()  # many may end at once: what arrives meanwhile is stamped between two lines

    async def _watch(self, watch: Watch) -> None:
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            done = self.counts.total()
            failed = done - self.counts["ok"] - self.counts["cancelled"]
            watch(Snapshot(self.driver.in_flight, done, failed, self.tokens + self.client.live_events))

    def _write_info(self) -> None:
        path = self.file.folder / INFO
        temporary = path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(self.info, indent=1, sort_keys=True) + "\n", encoding="utf-8")
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
    info: JSON = {"conditions": options.conditions(), "sessions": sessions}
    session = _Session(options, file := RequestFile(folder, resume=resume), info)
    try:
        run_in_event_loop(lambda: session.run(watch))
    except BaseException:
        file.close(complete=False)
        raise
    path = file.close(complete=session.interrupts < 2)
    interrupted = info["sessions"][-1]["interrupted"]
    code = exit_code(session.counts, options.max_failure_share, interrupted=interrupted)
    return LoadResult(path, info, code)


def exit_code(counts: Mapping[str, int], max_failure_share: float, *, interrupted: bool) -> int:
    """Return 130 after an interrupt, 1 when nothing succeeded or more failed than declared, else 0."""
    ok = counts.get("ok", 0)
    finished = sum(counts.values()) - counts.get("cancelled", 0)
    if interrupted:
        return 130
    return int(ok == 0 or finished - ok > max_failure_share * finished)


def _earlier_sessions(options: LoadOptions, folder: Path) -> list[JSON]:
    """Return the sessions of a load that is to be resumed under the same conditions."""
    path = folder / INFO
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
        conditions, sessions = info["conditions"], info["sessions"]
    except FileNotFoundError:
        raise InputError(f"{folder} holds no run to resume; leave --resume away to start one") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RecordError(f"{path}: cannot be read ({error}); give another --output") from None
    options.refuse_other_conditions(conditions)
    return sessions

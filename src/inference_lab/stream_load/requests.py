"""requests.jsonl: what a load client saw of every request, one JSON line per request, as they finished.

Times are integer ns of one monotonic clock. Knows no server and no metric.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeVar

from inference_lab.errors import InputError, MeasurementRefused, RecordError

NAME = "requests.jsonl"
PARTIAL = "requests.jsonl.partial"  # while the load runs
STATUSES = ("ok", "http_error", "stream_error", "truncated", "timeout", "cancelled", "connect_error")
CLOCKS = ("kernel", "user")

JSON = dict[str, Any]  # an object read from a line
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One attempt of one request. `None` means that the event did not happen or is not known.

    `load` is the name of the load that made it. A chunk is one event of the stream that carried tokens; all
    its tokens share its arrival time. `output_tokens` is the number in the server's usage, if there is one;
    `counted_tokens` is what the chunks themselves show. Where they differ, `chunk_tokens` spreads the
    server's number over the chunks. `hidden_tokens`, such as reasoning, are in no chunk and in neither.

    `clock` names how chunks were stamped, except `user_stamped_chunks`. `censored_chunks` were read together
    with later events: they arrived at their stamp or earlier. `coalesced_reads` counts the reads that held
    several token chunks; `max_read_lag_ns` is the longest that bytes lay in the kernel (kernel clock only).
    `resent` counts how often the request went over a new connection, because a kept one had ended before any
    byte of an answer; `sent_ns` is the last time. `notes` name oddities of an attempt that may be good.

    A line leaves out what has its default here, `chunk_tokens` where each chunk has one token, and what is
    equal to another field (_EQUAL). It has `itl_ns` in place of `token_times_ns`.
    """

    request_id: str
    load: str
    attempt: int = 1
    scheduled_ns: int
    arrival_ns: int
    admitted_ns: int | None
    sent_ns: int | None
    first_token_ns: int | None
    token_times_ns: tuple[int, ...]
    chunk_tokens: tuple[int, ...]
    finish_ns: int
    status: str
    http_status: int | None
    prompt_tokens: int | None
    output_tokens: int
    counted_tokens: int
    usage: JSON | None
    error: str | None = None
    clock: str
    coalesced_reads: int = 0
    censored_chunks: tuple[int, ...] = ()
    user_stamped_chunks: tuple[int, ...] = ()
    max_read_lag_ns: int | None = None
    resent: int = 0
    hidden_tokens: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for holds, rule in self._rules():
            if not holds:
                raise RecordError(f"request {self.request_id} attempt {self.attempt}: {rule}")

    def _rules(self) -> Iterator[tuple[bool, str]]:
        yield self.status in STATUSES, f"status is {self.status!r}, must be one of {', '.join(STATUSES)}"
        yield self.clock in CLOCKS, f"clock is {self.clock!r}, must be one of {', '.join(CLOCKS)}"
        count, later = self.output_tokens, self.token_times_ns
        is_shared = sum(self.chunk_tokens) == count and min(self.chunk_tokens, default=1) > 0
        yield is_shared, f"chunk_tokens must be positive and sum to output_tokens = {count}"
        yield len(later) == max(count - 1, 0), f"{len(later)} token times for {count} tokens"
        yield (self.first_token_ns is None) == (count == 0), "first_token_ns must be there if a token is"
        happened = [self.scheduled_ns, self.arrival_ns, self.admitted_ns, self.sent_ns]
        times = [time for time in happened if time is not None]
        yield times == sorted(times), f"schedule, arrival, admission, sending must follow, are {times}"
        tokens = [self.first_token_ns or 0, *later]
        yield tokens == sorted(tokens), "token times must not decrease"
        yield self.finish_ns >= max(times[-1], tokens[-1]), f"ends at {self.finish_ns}, before its last event"

    def line(self) -> bytes:
        """Return the record as one line of requests.jsonl, with its line end."""
        values = {
            name: value for name in _FIELDS if (value := getattr(self, name)) != _DEFAULTS.get(name, self)
        }
        times = (self.first_token_ns or 0, *values.pop("token_times_ns"))
        values["itl_ns"] = [later - earlier for earlier, later in pairwise(times)]
        if len(self.chunk_tokens) == self.output_tokens:
            del values["chunk_tokens"]
        for name, other in _EQUAL.items():
            if values[name] == values[other]:
                del values[name]
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"


_FIELDS = tuple(f.name for f in fields(RequestRecord))
_DEFAULTS = {f.name: f.default for f in fields(RequestRecord) if f.default is not MISSING}
_EQUAL = {"scheduled_ns": "arrival_ns", "counted_tokens": "output_tokens"}
_TUPLES = ("chunk_tokens", "censored_chunks", "user_stamped_chunks", "notes")


def read_requests(path: Path) -> list[RequestRecord]:
    """Return every record of a requests.jsonl in order. Raises RecordError naming file, line and rule."""
    seen = set[tuple[str, int]]()

    def record(line: JSON) -> RequestRecord:
        times = _times(line)
        line.setdefault("chunk_tokens", (1,) * len(times))
        line = {name: line[other] for name, other in _EQUAL.items() if other in line} | line
        line |= {name: tuple(line[name]) for name in _TUPLES if name in line}
        made = RequestRecord(**line, token_times_ns=tuple(times[1:]))
        if (attempt := (made.request_id, made.attempt)) in seen:
            raise RecordError(f"attempt {made.attempt} of request {made.request_id} is there twice")
        seen.add(attempt)
        return made

    return _read(path, record)


def read_lines(path: Path) -> list[JSON]:
    """Return the JSON object on each line of a file. Raises RecordError naming file, line and rule."""
    return _read(path, lambda line: line)


def short_truth(line: JSON) -> JSON:
    """Return what a server wrote of a request, with the ITL of its tokens in place of their times."""
    rest = {name: value for name, value in line.items() if name != "token_ns"}
    gaps = [after - before for before, after in pairwise(line["token_ns"])]
    return {**rest, "first_token_ns": next(iter(line["token_ns"]), None), "itl_ns": gaps}


def read_truth(path: Path) -> list[JSON]:
    """Return the lines of a truth.jsonl, each with `token_ns`. Raises RecordError naming file and line."""

    def truth(line: JSON) -> JSON:
        line["token_ns"] = _times(line)
        del line["first_token_ns"]
        return line

    return _read(path, truth)


def _times(line: JSON) -> list[int]:
    """Take the ITL of each token, which is shorter, out of a line; return their times."""
    first, gaps = line.get("first_token_ns"), line.pop("itl_ns", None)
    if not isinstance(gaps, list) or not all(type(time) is int for time in (first or 0, *gaps)):
        raise RecordError("itl_ns must be a list of integers")
    return [] if first is None else list(accumulate(gaps, initial=first))


def _read(path: Path, of: Callable[[JSON], Made]) -> list[Made]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); run the load again") from None
    whole = data.rfind(b"\n") + 1  # the load of a partial file may have been killed while writing
    if len(data) > whole and path.name != PARTIAL:
        raise RecordError(f"{path}: the last line is cut off; restore the file or run again")
    made: list[Made] = []
    for number, line in enumerate(data[:whole].splitlines(), start=1):
        try:
            value = json.loads(line)
            if not isinstance(value, dict):
                raise TypeError("must be an object")
            made.append(of(value))
        except (ValueError, TypeError, RecordError) as error:  # of JSON; of a field; of a rule
            raise RecordError(f"{path} line {number}: {error}; restore the file or run again") from None
    return made


class RequestFile:
    """The `requests.jsonl.partial` of a running load, until `close` gives it its final name.

    A line is in the kernel's hands when `append` returns: killing this process loses none. Raises InputError
    when the folder exists and is not to be resumed, or while another load writes it.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        self.torn_bytes = 0
        self.earlier: list[RequestRecord] = []
        path = folder / PARTIAL
        if not resume:
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                way_out = "give another --output, or --resume to continue it"
                raise InputError(f"{folder} exists already; {way_out}") from None
        elif (folder / NAME).exists() and not path.exists():
            (folder / NAME).rename(path)
        elif not path.exists():
            raise InputError(f"{folder} holds no run to resume; leave --resume away to start one")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise InputError(f"{path} is being written by another run; wait for it") from None
        except OSError as error:
            self.close(complete=False)
            why = f"its file system keeps no locks ({error.strerror})"
            raise MeasurementRefused(f"{path}: {why}; use a folder on a local disk") from None
        if resume:
            self.earlier = read_requests(path)
            data = path.read_bytes()
            self.torn_bytes = len(data) - data.rfind(b"\n") - 1
            os.ftruncate(self._fd, len(data) - self.torn_bytes)

    def append(self, record: RequestRecord) -> None:
        """Write one whole line. Raises RecordError when the disk takes no more."""
        line = record.line()
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise RecordError(f"{self.folder / PARTIAL}: {error.strerror}; the run ends here") from None
        if written < len(line):
            raise RecordError(f"{self.folder / PARTIAL}: the disk is full; make room and --resume")

    def close(self, *, complete: bool) -> Path:
        """Stop writing and return the path of the file; a complete one gets its final name."""
        path = self.folder / PARTIAL
        if complete:
            path = path.rename(self.folder / NAME)
        elif path.stat().st_size == 0:  # nothing began: the folder's name is free again
            path.unlink()
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        os.close(self._fd)
        return path

    def earlier_attempts(self) -> dict[str, tuple[int, bool]]:
        """Return (attempts made, whether it finished) of each request that the load made before a resume."""
        attempts: dict[str, tuple[int, bool]] = {}
        for record in self.earlier:
            number, finished = attempts.get(record.request_id, (0, False))
            finished = finished or record.status != "cancelled"
            attempts[record.request_id] = (max(number, record.attempt), finished)
        return attempts

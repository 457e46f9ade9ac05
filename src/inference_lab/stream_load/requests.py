"""requests.jsonl: what a load client saw of every request, one JSON line per request, as they finished.

A row says when a request arrived, started, received every token and ended, and how it ended. Times are
integer ns of one monotonic clock. Knows no server and no metric.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from inference_lab.errors import InputError, MeasurementRefused, RecordError

NAME = "requests.jsonl"
PARTIAL = "requests.jsonl.partial"  # while the load runs

STATUSES = (
    "ok",
    "http_error",
    "stream_error",
    "truncated",
    "timeout",
    "cancelled",
    "connect_error",
)
CLOCKS = ("kernel", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One attempt of one request. `None` means that the event did not happen or is not known.

    `load` is the name of the load that made the request, as its session has it.

    A chunk is one event of the stream that carried tokens; all its tokens share its arrival time.
    `output_tokens` is the number in the server's usage, if there is one; `counted_tokens` is what the chunks
    themselves show. Where they differ, `chunk_tokens` spreads the server's number over the chunks.
    `clock` names how chunks were stamped, except those listed in `user_stamped_chunks`.
    `censored_chunks` were read together with later events: they arrived at their stamp or earlier.
    `coalesced_reads` counts the reads that held several token chunks; `max_read_lag_ns` is the longest
    time that bytes lay in the kernel before they were read (kernel clock only). `resent` counts how often the
    request was sent again over a new connection, because a kept one had ended before any byte of an answer;
    `sent_ns` is the last time.
    `hidden_tokens` are those that the server counts and shows in no chunk, such as reasoning; they are not in
    `output_tokens`. `notes` name oddities of an attempt that may be good all the same.
    A line leaves out what has its default here, and `chunk_tokens` where each chunk has one token; it has
    `itl_ns` in place of `token_times_ns`. A default of None or of nothing is also how an older record reads.
    """

    request_id: str
    load: str | None = None  # None in records that are older than this field
    attempt: int
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
    usage: Mapping[str, Any] | None
    error: str | None = None
    clock: str
    coalesced_reads: int = 0
    censored_chunks: tuple[int, ...] = ()
    user_stamped_chunks: tuple[int, ...] = ()
    max_read_lag_ns: int | None
    resent: int | None = None
    hidden_tokens: int | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        broken = self._broken_rule()
        if broken:
            raise RecordError(f"request {self.request_id} attempt {self.attempt}: {broken}")

    def _broken_rule(self) -> str | None:
        if self.status not in STATUSES:
            return f"status is {self.status!r}, must be one of {', '.join(STATUSES)}"
        if self.clock not in CLOCKS:
            return f"clock is {self.clock!r}, must be one of {', '.join(CLOCKS)}"
        if sum(self.chunk_tokens) != self.output_tokens or min(self.chunk_tokens, default=1) < 1:
            return f"chunk_tokens must be positive and sum to output_tokens = {self.output_tokens}"
        if len(self.token_times_ns) != max(self.output_tokens - 1, 0):
            return f"{len(self.token_times_ns)} token times for {self.output_tokens} tokens"
        if (self.first_token_ns is None) != (self.output_tokens == 0):
            return "first_token_ns must be there exactly when a token is"
        happened = [self.scheduled_ns, self.arrival_ns, self.admitted_ns, self.sent_ns]
        times = [time for time in happened if time is not None]
        if times != sorted(times):
            return f"schedule, arrival, admission and sending must follow each other, are {times}"
        tokens = [self.first_token_ns or 0, *self.token_times_ns]
        if tokens != sorted(tokens):
            return "token times must not decrease"
        if self.finish_ns < max(times[-1], tokens[-1]):
            return f"it must end no earlier than what came of it, ends at {self.finish_ns}"
        return None

    def line(self) -> bytes:
        """Return the record as one line of requests.jsonl, with its line end."""
        values = {
            name: value for name in _FIELDS if (value := getattr(self, name)) != _DEFAULTS.get(name, self)
        }
        times = (self.first_token_ns or 0, *values.pop("token_times_ns"))
        values["itl_ns"] = [later - earlier for earlier, later in pairwise(times)]
        if len(self.chunk_tokens) == self.output_tokens:
            del values["chunk_tokens"]
        return json.dumps(values, separators=(",", ":")).encode() + b"\n"


_FIELDS = tuple(f.name for f in fields(RequestRecord))
_REQUIRED = tuple(f.name for f in fields(RequestRecord) if f.default is MISSING)
_DEFAULTS = {f.name: f.default for f in fields(RequestRecord) if f.default is not MISSING}
_LATER = tuple(name for name in _FIELDS if name not in _REQUIRED)
_TUPLES = ("token_times_ns", "chunk_tokens", "censored_chunks", "user_stamped_chunks", "notes")


def read_requests(path: Path, *, partial: bool = False) -> tuple[list[RequestRecord], int]:
    """Return every record of a requests.jsonl in order, and the bytes of a torn last line (0 when whole).

    Only a `partial` file (its load was killed while writing) may end in a torn line.
    Raises RecordError naming file, line and rule.
    """
    lines, torn = _lines(path, partial=partial)
    records = [_record(path, number, line) for number, line in enumerate(lines, start=1)]
    seen: dict[tuple[str, int], int] = {}
    for number, record in enumerate(records, start=1):
        first = seen.setdefault((record.request_id, record.attempt), number)
        if first != number:
            raise RecordError(
                f"{path} line {number}: attempt {record.attempt} of request {record.request_id} is a"
                f" duplicate of line {first}; restore the file or run again"
            )
    return records, torn


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON object on each line of a file. Raises RecordError naming file, line and rule."""
    lines, _ = _lines(path, partial=False)
    return [_object(path, number, line) for number, line in enumerate(lines, start=1)]


def _lines(path: Path, *, partial: bool) -> tuple[list[bytes], int]:
    """Return the whole lines of a file, and the bytes of a torn last one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); run the load again") from None
    whole = data.rfind(b"\n") + 1
    if len(data) > whole and not partial:
        raise RecordError(f"{path}: the last line is cut off; restore the file or run again")
    return data[:whole].splitlines(), len(data) - whole


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise RecordError(f"{path} line {number}: not JSON ({error}); restore or run again") from None
    if not isinstance(value, dict):
        raise RecordError(f"{path} line {number}: must be an object; restore the file or run again")
    return value


def short_truth(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a server wrote of a request, with the ITL of its tokens in place of their times."""
    rest = {name: value for name, value in line.items() if name != "token_ns"}
    gaps = [after - before for before, after in pairwise(line["token_ns"])]
    return {**rest, "first_token_ns": next(iter(line["token_ns"]), None), "itl_ns": gaps}


def read_truth(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a truth.jsonl, each with `token_ns`. Raises RecordError naming file and line."""
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if (gaps := line.pop("itl_ns", None)) is not None:
            first = line.pop("first_token_ns", None)
            line["token_ns"] = [] if first is None else [first, *_times(path, number, first, gaps)]
    return lines


def _times(path: Path, number: int, first_token_ns: Any, gaps: Any) -> list[int]:
    """Return the times of the tokens after the first: a line has the ITL of each, which is shorter."""
    if not isinstance(gaps, list) or not all(type(gap) is int for gap in (first_token_ns or 0, *gaps)):
        raise RecordError(f"{path} line {number}: itl_ns must be a list of integers; restore or run again")
    return list(accumulate(gaps, initial=first_token_ns or 0))[1:]


def _record(path: Path, number: int, line: bytes) -> RequestRecord:
    values = _object(path, number, line)
    if (gaps := values.pop("itl_ns", None)) is not None:
        values["token_times_ns"] = _times(path, number, first := values.get("first_token_ns"), gaps)
        values.setdefault("chunk_tokens", (1,) * (len(gaps) + (first is not None)))
    if not set(_REQUIRED) <= set(values) <= set(_FIELDS):
        raise RecordError(
            f"{path} line {number}: must be an object with exactly {', '.join(_REQUIRED)}, and perhaps"
            f" {', '.join(_LATER)}; restore the file or run again"
        )
    try:
        for name in values.keys() & _TUPLES:
            values[name] = tuple(values[name])
        return RequestRecord(**values)
    except (RecordError, TypeError) as error:
        raise RecordError(f"{path} line {number}: {error}; restore or run again") from None


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
                raise InputError(
                    f"{folder} exists already; give another --output, or --resume to continue it"
                ) from None
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
            raise MeasurementRefused(
                f"{path}: its file system keeps no locks ({error.strerror}), so two runs could write it;"
                " use a folder on a local disk"
            ) from None
        if resume:
            self.earlier, self.torn_bytes = read_requests(path, partial=True)
            os.ftruncate(self._fd, path.stat().st_size - self.torn_bytes)

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
        """Stop writing and return the path of the file; a complete one gets its final name.

        A new load that ends without a line leaves no folder, so that its name is free again.
        """
        path = self.folder / PARTIAL
        if complete:
            path = path.rename(self.folder / NAME)
        elif path.stat().st_size == 0:
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

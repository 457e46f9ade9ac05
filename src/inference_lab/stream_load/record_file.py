"""The file of one load run while it grows: one flushed line a finished request, never two writers.

A line is in the kernel's hands when `append` returns: killing this process loses none.
"""

import contextlib
import os
from pathlib import Path

from inference_lab.errors import InputError, MeasurementRefused, RecordError
from inference_lab.records.locks import taken
from inference_lab.records.requests import RequestRecord, read_requests

NAME = "requests.jsonl"
PARTIAL = "requests.jsonl.partial"
MANIFEST = "manifest.json"
INFO = "manifest.json.partial"  # conditions and sessions, until the run has its manifest


class RecordFile:
    """`requests.jsonl.partial` in a run's folder, until `complete` gives it its final name.

    Raises InputError when the folder exists and is not to be resumed, or when another run writes it.
    """

    def __init__(self, folder: Path, *, resume: bool) -> None:
        self.folder = folder
        self.torn_bytes = 0
        self.earlier: list[RequestRecord] = []
        if not resume:
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                raise InputError(
                    f"{folder} exists already; give another --output, or --resume to continue it"
                ) from None
        else:
            for whole, partial in ((MANIFEST, INFO), (NAME, PARTIAL)):  # without a manifest it is no record
                if (folder / whole).exists() and not (folder / partial).exists():
                    (folder / whole).rename(folder / partial)
        path = folder / PARTIAL
        if resume and not path.exists():
            raise InputError(f"{folder} holds no run to resume; leave --resume away to start one")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            free = taken(self._fd, str(path))
        except MeasurementRefused:
            self.close(complete=False)
            raise
        if not free:
            os.close(self._fd)
            raise InputError(f"{path} is being written by a run that lives; wait for it")
        if resume:
            self.earlier, self.torn_bytes = read_requests(path, partial=True)
            os.ftruncate(self._fd, path.stat().st_size - self.torn_bytes)

    def append(self, record: RequestRecord) -> None:
        """Write one line, whole. Raises RecordError when the disk takes no more."""
        line = record.line()
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise RecordError(f"{self.folder / PARTIAL}: {error.strerror}; the run ends here") from None
        if written < len(line):
            raise RecordError(f"{self.folder / PARTIAL}: the disk is full; make room and --resume")

    def close(self, *, complete: bool) -> Path:
        """Stop writing; a complete record gets its final name. The path it has now.

        A new run that ends without a line leaves no folder, so that its name is free again.
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

    def recorded(self) -> dict[str, tuple[int, bool]]:
        """Of each request of the earlier run: (attempts made, whether it finished)."""
        recorded: dict[str, tuple[int, bool]] = {}
        for record in self.earlier:
            attempts, finished = recorded.get(record.request_id, (0, False))
            is_finished = finished or record.status != "cancelled"
            recorded[record.request_id] = (max(attempts, record.attempt), is_finished)
        return recorded

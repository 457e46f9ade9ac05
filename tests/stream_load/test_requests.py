"""A request record checks itself, a file of them says what is wrong with it, and has one writer."""

import json
import os
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

from inference_lab.errors import InputError, RecordError
from inference_lab.stream_load.requests import (
    NAME,
    PARTIAL,
    RequestFile,
    read_requests,
    read_truth,
    short_truth,
)
from tests.loads import MS, request

GOOD = request(tokens=(6, 16, 26), chunk_tokens=(2, 1), counted_tokens=2, user_stamped_chunks=(1,))


class InFolder(unittest.TestCase):
    """A folder for each test."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = self.place / "run"


class TestRequestRecord(InFolder):
    """What a record may say, and its file."""

    def test_a_record_that_contradicts_itself_is_refused(self) -> None:
        """Every rule of the record holds when it is built."""
        wrong: tuple[dict[str, Any], ...] = (
            {"status": "failed"}, {"clock": "wall"}, {"output_tokens": 4}, {"chunk_tokens": (3, 0)},
            {"token_times_ns": (20 * MS,)}, {"first_token_ns": None}, {"token_times_ns": (20 * MS, 10 * MS)},
            {"first_token_ns": 19 * MS}, {"admitted_ns": -1}, {"sent_ns": 1}, {"finish_ns": 20 * MS},
        )  # fmt: skip
        for values in wrong:
            with self.subTest(values), self.assertRaises(RecordError):
                replace(GOOD, **values)

    def test_file(self) -> None:
        """What is written is read again; a torn end is passed over in a partial file alone."""
        other = replace(GOOD, attempt=2, status="cancelled", sent_ns=None, error="é\n", notes=("odd",))
        path, partial = self.place / NAME, self.place / PARTIAL
        path.write_bytes(GOOD.line() + other.line())
        self.assertEqual(read_requests(path), [GOOD, other])
        for cut in (1, 10, len(other.line()) - 1):
            for torn in (path, partial):
                torn.write_bytes(GOOD.line() + other.line()[:cut])
            self.assertEqual(read_requests(partial), [GOOD])
            with self.assertRaisesRegex(RecordError, "last line is cut off"):
                read_requests(path)

    def test_truth(self) -> None:
        """A line of truth is read as the server wrote it."""
        lines = [{"request_id": "r", "token_ns": times} for times in ([10, 12, 12, 19], [7], [])]
        path = self.place / "truth.jsonl"
        path.write_text("".join(f"{json.dumps(short_truth(line))}\n" for line in lines))
        self.assertEqual(read_truth(path), lines)
        path.write_text(json.dumps(short_truth(lines[0])).replace("[2", "[null") + "\n")
        with self.assertRaisesRegex(RecordError, "line 1: itl_ns"):
            read_truth(path)

    def test_bad_files(self) -> None:
        """A file that is missing, doubled, not JSON or of another shape is named with the line."""
        good = json.loads(GOOD.line())
        path = self.place / NAME
        for data, says in (
            (GOOD.line() * 2, "line 2: attempt 1 of request r000000 is there twice"),
            (b"{\n", "line 1: Expecting property name"),
            (
                GOOD.line().replace(b'"itl_ns":[', b'"itl_ns":[1.5,'),
                "line 1: itl_ns must be a list of integers",
            ),
            (GOOD.line().replace(b"itl_ns", b"token_times_ns"), "line 1: itl_ns must be a list of integers"),
            (b"[]\n", "line 1: must be an object;"),
            (json.dumps(good | {"speed": 1}).encode() + b"\n", "line 1: .*'speed'"),
            (json.dumps(good | {"chunk_tokens": None}).encode() + b"\n", "line 1: .*not iterable"),
            (GOOD.line().replace(b'"load"', b'"loads"'), "line 1: .*'load"),
            (GOOD.line().replace(b'"ok"', b'"good"'), "line 1: .*status is 'good'"),
        ):
            path.write_bytes(data)
            with self.subTest(says), self.assertRaisesRegex(RecordError, says):
                read_requests(path)
        with self.assertRaisesRegex(RecordError, "cannot be read"):
            read_requests(path.with_name("none"))


class TestRequestFile(InFolder):
    """The growing file of a run: folders, lines, resuming."""

    def test_a_folder_belongs_to_one_run(self) -> None:
        """A second run into the same folder is refused, whether the first lives or not."""
        file = RequestFile(self.folder, resume=False)
        with self.assertRaisesRegex(InputError, "exists already"):
            RequestFile(self.folder, resume=False)
        with self.assertRaisesRegex(InputError, "being written by another run"):
            RequestFile(self.folder, resume=True)
        file.append(GOOD)
        file.close(complete=True)
        with self.assertRaisesRegex(InputError, "exists already"):
            RequestFile(self.folder, resume=False)

    def test_a_line_is_on_disk_when_append_returns(self) -> None:
        """Every appended record can be read while the run goes on; the end renames the file."""
        file = RequestFile(self.folder, resume=False)
        for attempt in (1, 2, 3):
            file.append(replace(GOOD, attempt=attempt))
            self.assertEqual(len(read_requests(self.folder / PARTIAL)), attempt)
        self.assertEqual(file.close(complete=True), self.folder / NAME)
        self.assertFalse((self.folder / PARTIAL).exists())

    def test_resuming_drops_a_torn_line_and_keeps_the_rest(self) -> None:
        """What was whole stays byte for byte; what was torn is dropped and counted."""
        file = RequestFile(self.folder, resume=False)
        cancelled = replace(GOOD, request_id="r2", status="cancelled")
        for record in (GOOD, cancelled):
            file.append(record)
        file.close(complete=False)
        with (self.folder / PARTIAL).open("ab") as torn:
            torn.write(b'{"request_id"')
        again = RequestFile(self.folder, resume=True)
        self.assertEqual((again.torn_bytes, again.earlier), (13, [GOOD, cancelled]))
        self.assertEqual(again.earlier_attempts(), {"r000000": (1, True), "r2": (1, False)})
        again.append(replace(cancelled, attempt=2, status="ok"))
        path = again.close(complete=True)
        self.assertEqual(len(read_requests(path)), 3)
        self.assertTrue(path.read_bytes().startswith(GOOD.line() + cancelled.line()))
        self.assertEqual(RequestFile(self.folder, resume=True).earlier_attempts()["r2"], (2, True))

    def test_what_leaves_no_folder(self) -> None:
        """Resuming makes no run where there is none; a run that never began frees its name."""
        with self.assertRaisesRegex(InputError, "no run to resume"):
            RequestFile(self.folder, resume=True)
        self.assertFalse(self.folder.exists())
        for _ in range(2):
            RequestFile(self.folder, resume=False).close(complete=False)

    def test_a_full_disk_is_said(self) -> None:
        """A line that cannot be written raises, and is not counted as kept."""
        file = RequestFile(self.folder, resume=False)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file._fd)
        os.close(full)
        with self.assertRaisesRegex(RecordError, "No space left"):
            file.append(GOOD)

"""The growing file of a run: one writer, whole lines, its folder its own."""

import os
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

from inference_lab.errors import InputError, RecordError
from inference_lab.stream_load.requests import NAME, PARTIAL, RequestFile, read_requests
from tests.stream_load.test_requests import GOOD


class TestRequestFile(unittest.TestCase):
    """Folders, lines, resuming."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = self.place / "run"

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
            self.assertEqual(len(read_requests(self.folder / PARTIAL)[0]), attempt)
        self.assertEqual(file.close(complete=True), self.folder / NAME)
        self.assertFalse((self.folder / PARTIAL).exists())

    def test_resuming_drops_a_torn_line_and_keeps_the_rest(self) -> None:
        """What was whole stays byte for byte; what was torn is dropped and counted."""
        file = RequestFile(self.folder, resume=False)
        file.append(GOOD)
        cancelled = replace(GOOD, request_id="r2", status="cancelled")
        file.append(cancelled)
        file.close(complete=False)
        with (self.folder / PARTIAL).open("ab") as torn:
            torn.write(b'{"request_id"')
        again = RequestFile(self.folder, resume=True)
        self.assertEqual((again.torn_bytes, again.earlier), (13, [GOOD, cancelled]))
        self.assertEqual(again.earlier_attempts(), {"r1": (1, True), "r2": (1, False)})
        again.append(replace(cancelled, attempt=2, status="ok"))
        path = again.close(complete=True)
        self.assertEqual(len(read_requests(path)[0]), 3)
        self.assertTrue(path.read_bytes().startswith(GOOD.line() + cancelled.line()))
        self.assertEqual(RequestFile(self.folder, resume=True).earlier_attempts()["r2"], (2, True))

    def test_nothing_to_resume(self) -> None:
        """A folder without a run is not made into one by resuming."""
        with self.assertRaisesRegex(InputError, "no run to resume"):
            RequestFile(self.folder, resume=True)
        self.assertFalse(self.folder.exists())

    def test_a_run_without_a_line_frees_its_name(self) -> None:
        """After a run that never began, the same command can be given again."""
        RequestFile(self.folder, resume=False).close(complete=False)
        RequestFile(self.folder, resume=False).close(complete=False)

    def test_a_full_disk_is_said(self) -> None:
        """A line that cannot be written raises, and is not counted as kept."""
        file = RequestFile(self.folder, resume=False)
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, file._fd)
        os.close(full)
        with self.assertRaisesRegex(RecordError, "No space left"):
            file.append(GOOD)

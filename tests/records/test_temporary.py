"""Temporary folders are gone with their maker."""

import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from inference_lab.records.files import temporary_folder

_HOLD = """
import time
from inference_lab.records.files import temporary_folder
with temporary_folder("test") as place:
    (place / "deep").mkdir()
    (place / "deep" / "file").touch()
    print(place, flush=True)
    time.sleep(60)
"""


class TestTemporaryFolder(unittest.TestCase):
    """Every way in which the work in a folder ends."""

    def test_an_end(self) -> None:
        """After the block and after an interrupt it is gone; after an error it is kept to be read."""
        for error, is_kept in ((None, False), (KeyboardInterrupt, False), (ValueError, True)):
            try:
                with temporary_folder("test") as place:
                    (place / "file").touch()
                    if error is not None:
                        raise error
            except (ValueError, KeyboardInterrupt):
                pass
            self.assertEqual((place / "file").exists(), is_kept)
        (place / "file").unlink()
        place.rmdir()

    def test_a_kill(self) -> None:
        """A killed process leaves no folder behind."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with subprocess.Popen([sys.executable, "-c", _HOLD], stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                place = Path(child.stdout.readline().strip())
                self.assertTrue((place / "deep" / "file").exists())
                child.send_signal(number)
            give_up = time.monotonic() + 20
            while place.exists():
                self.assertLess(time.monotonic(), give_up, "the folder is still there")
                time.sleep(0.01)

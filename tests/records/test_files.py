"""Files that are whole or absent, and JSON that is the same text for the same value."""

import errno
import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import RecordError
from inference_lab.records import files
from tests import checkout, crashes

TARGET = Path("results/table.csv")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: "\\ud" not in ascii(value))  # a lone surrogate is no text

HOLD = """
import time
from inference_lab.records.files import temporary_folder
with temporary_folder("test") as place:
    (place / "deep").mkdir()
    (place / "deep" / "file").touch()
    print(place, flush=True)
    time.sleep(60)
"""


def turned(value: object) -> object:
    """The same JSON value with the keys of every object in the opposite order."""
    match value:
        case dict():
            return {key: turned(inner) for key, inner in reversed(value.items())}
        case list():
            return [turned(inner) for inner in value]
        case _:
            return value


class WriteTest(unittest.TestCase):
    """Writing one file in one step."""

    def setUp(self) -> None:
        """A checkout of its own for every test."""
        checkout.enter(self)

    def test_a_reader_sees_the_old_file_or_the_new_one(self) -> None:
        """Killed or hindered at any step, the file holds all of the old text or all of the new."""

        def prepare() -> None:
            files.write_file(TARGET, "old\n")

        def act() -> None:
            files.write_file(TARGET, "new\n" * 1000)

        for step in crashes.killed_at_every_step(prepare, act):
            with self.subTest(killed_before_step=step):
                self.assertIn(TARGET.read_text(), ("old\n", "new\n" * 1000))
        full = OSError(errno.ENOSPC, "No space left on device")
        for step, raised in crashes.refused_at_every_step(prepare, act, full):
            with self.subTest(hindered_at_step=step):
                self.assertIsInstance(raised, RecordError)
                self.assertIn(str(TARGET), str(raised))
                self.assertIn("No space left", str(raised))
                self.assertIn(TARGET.read_text(), ("old\n", "new\n" * 1000))

    def test_a_reader_in_the_middle_goes_on(self) -> None:
        """Who has the old file open reads it to its end: the new one is another file of the same name."""
        files.write_file(TARGET, "old\n")
        with TARGET.open() as reader:
            files.write_file(TARGET, "new\n")
            self.assertEqual(reader.read(), "old\n")
        self.assertEqual(TARGET.read_text(), "new\n")

    def test_a_target_that_cannot_be_written_is_named(self) -> None:
        """A folder in the file's place, or a file in the folder's, is an error that names the target."""
        Path("results/a folder").mkdir(parents=True)
        for target in ("results/a folder", "pyproject.toml/table.csv"):
            with self.subTest(target), self.assertRaisesRegex(RecordError, f"^{target}: cannot be written"):
                files.write_file(Path(target), "text")
        self.assertEqual(list(Path().rglob("*.partial")), [])

    def test_temporaries_stand_where_git_looks_away(self) -> None:
        """A temporary stands beside its target, whatever is mounted there, under a name git ignores."""
        temporary = files.staging(TARGET)
        self.assertEqual((temporary.parent, temporary.suffix), (TARGET.parent, ".partial"))
        self.assertIn("*.partial", (checkout.ROOT / ".gitignore").read_text().split())

    def test_leftovers_of_the_dead_are_cleared(self) -> None:
        """What a killed process left is removed, file or folder; what a living one makes stays."""
        dead = subprocess.Popen([sys.executable, "-c", ""])
        dead.wait()
        for at in ("results/m1", "docs/experiments"):
            Path(f"{at}/.manifest.json.{dead.pid}.partial").mkdir(parents=True)
            Path(f"{at}/.manifest.json.{dead.pid}.partial/raw.csv").write_text("half")
            Path(f"{at}/.table.csv.{dead.pid}.partial").write_text("half")
        living = Path(f"results/m1/.table.csv.{os.getpid()}.partial")
        living.write_text("half")
        files.clear_leftovers()
        self.assertEqual(list(Path().rglob("*.partial")), [living])


class JsonTest(unittest.TestCase):
    """Values as text."""

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(JSON)
    def test_equal_values_have_one_text(self, value: object) -> None:
        """The order of keys makes no difference to the canonical text, nor to the digest."""
        self.assertEqual(files.canonical(turned(value)), files.canonical(value))
        self.assertEqual(files.sha256_value(turned(value)), files.sha256_value(value))

    def test_different_values_have_different_digests(self) -> None:
        """A number, its text, a list of it and a float of it are told apart."""
        values = [1, "1", [1], 1.5, None, "", {}, [], True, {"1": 1}]
        self.assertEqual(len({files.sha256_value(value) for value in values}), len(values))

    def test_what_json_cannot_say_is_refused(self) -> None:
        """NaN and infinity never enter a receipt."""
        for value in (float("nan"), float("inf")):
            with self.subTest(value), self.assertRaises(ValueError):
                files.json_text({"value": value})

    def test_text_for_people_is_stable(self) -> None:
        """A receipt is sorted, indented, keeps its letters and ends in a line end."""
        self.assertEqual(files.json_text({"b": "µ", "a": 1}), '{\n "a": 1,\n "b": "µ"\n}\n')


class TemporaryFolderTest(unittest.TestCase):
    """Every way in which the work in a folder ends."""

    def test_an_end(self) -> None:
        """After the block and after an interrupt it is gone; after an error it is kept to be read."""
        for error, is_kept in ((None, False), (KeyboardInterrupt, False), (ValueError, True)):
            try:
                with files.temporary_folder("test") as place:
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
            with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                place = Path(child.stdout.readline().strip())
                self.assertTrue((place / "deep" / "file").exists())
                child.send_signal(number)
            give_up = time.monotonic() + 20
            while place.exists():
                self.assertLess(time.monotonic(), give_up, "the folder is still there")
                time.sleep(0.01)


if __name__ == "__main__":
    unittest.main()

"""Putting results in place: whole or not at all, the old kept, the receipt last."""

import errno
import os
import re
import shutil
import signal
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from inference_lab.errors import RecordError
from inference_lab.records import store
from inference_lab.records.digests import Sources
from inference_lab.records.files import read_json, sha256_file, write_json
from inference_lab.records.receipts import SCHEMA, State, read_receipt, seal
from inference_lab.records.samples import Sample, write_samples
from inference_lab.records.stages import Step
from inference_lab.records.stages import step as step_of
from tests import checkout, crashes
from tests.checkout import CONTROLS, JUDGE, MEASURE, SAMPLES, edit
from tests.synthetic import samples_of

STEP = step_of("measure", "m1", MEASURE)
SUMMARY = step_of("summary", "m1", JUDGE)
AT = Path("results/m1")
MANIFEST = AT / "manifest.json"
NEW = [checkout.sample(round_, batch_size, elapsed_ns=7) for round_ in (0, 1) for batch_size in (1, 2)]
FULL = OSError(errno.ENOSPC, "No space left on device")


def measure_anew() -> Path | None:
    """Replace the record by one of NEW; returns where the older one went."""
    files = {"raw.csv": write_samples(NEW), "controls.csv": write_samples(CONTROLS, controls=True)}
    rows = {"raw.csv": len(NEW), "controls.csv": len(CONTROLS)}
    return store.replace_record(
        MANIFEST, files, rows, checkout.manifest(STEP, started_at="2026-12-01T00:00:00")
    )


def present() -> dict[str, Path]:
    """`{sha256: path}` of every file of the checkout."""
    return {sha256_file(path): path for path in Path().rglob("*") if path.is_file()}


def standing(manifest: Path = MANIFEST) -> list[Sample]:
    """The samples of the record that a manifest describes."""
    return samples_of(store.load_record(manifest).samples)


def differences(step: Step) -> list[str]:
    """Why the step is out of date by its own receipt."""
    return State(step, Sources()).reasons


class ReplaceTest(unittest.TestCase):
    """A new record in the place of an old one."""

    def setUp(self) -> None:
        """The record to be replaced is in place."""
        checkout.enter(self)
        self.renew()

    def renew(self) -> None:
        """The small checkout's old record, and nothing else under results/ and build/."""
        for folder in ("results", "build"):
            shutil.rmtree(folder, ignore_errors=True)
        checkout.replace_record(STEP)
        self.old = {sha256_file(path) for path in AT.iterdir()}
        self.assertEqual(len(self.old), 3)

    def test_the_old_record_is_kept(self) -> None:
        """The record that stood there is moved to superseded/ under its time and digest, byte for byte."""
        digest = read_json(MANIFEST)["digest"]
        moved = measure_anew()
        self.assertEqual(moved, AT / "superseded" / f"2026-11-02T100000+0000-{digest[:8]}")
        assert moved is not None
        self.assertEqual({sha256_file(path) for path in moved.iterdir()}, self.old)
        self.assertEqual(standing(moved / "manifest.json"), SAMPLES)
        self.assertEqual(standing(), NEW)
        checkout.replace_record(STEP)
        again = checkout.replace_record(STEP)  # of equal content: nothing in superseded/ is overwritten
        self.assertEqual(again, moved.with_name(f"{moved.name}-2"))
        shutil.rmtree("results")
        self.assertIsNone(measure_anew())
        self.assertEqual({path.name for path in AT.iterdir()}, {"controls.csv", "manifest.json", "raw.csv"})

    def test_files_without_a_manifest_are_kept_too(self) -> None:
        """Raw files with no manifest, or under an edited one, are no record and are moved aside as such."""
        for name in ("manifest gone", "manifest edited"):
            with self.subTest(name):
                self.renew()
                edit(str(MANIFEST), "Example CPU", "Other CPU")
                if name.endswith("gone"):
                    MANIFEST.unlink()
                raw = sha256_file(AT / "raw.csv")
                moved = measure_anew()
                assert moved is not None
                self.assertRegex(moved.name, r"^no-record-\d{4}-\d\d-\d\dT\d{6}-[0-9a-f]{8}$")
                self.assertEqual(sha256_file(moved / "raw.csv"), raw)
                self.assertEqual(standing(), NEW)

    def test_a_kill_at_any_step_leaves_no_half_record(self) -> None:
        """Killed anywhere, a manifest stands for the old record or the new one whole; the old bytes stay."""
        steps = 0
        for steps in crashes.killed_at_every_step(self.renew, measure_anew):
            with self.subTest(killed_before_step=steps):
                if MANIFEST.exists():
                    self.assertIn(standing(), (SAMPLES, NEW))
                self.assertLessEqual(self.old, present().keys())
                measure_anew()
                self.assertEqual(standing(), NEW)
                self.assertLessEqual(self.old, present().keys())
        self.assertGreater(steps, 10)

    def test_a_full_disk_or_a_read_only_one_loses_nothing(self) -> None:
        """Any step that fails is one line with its cause; the old bytes stay, temporaries do not."""
        for error in (FULL, OSError(errno.EROFS, "Read-only file system")):
            for step, raised in crashes.refused_at_every_step(self.renew, measure_anew, error):
                with self.subTest(error.strerror, step=step):
                    self.assertIsInstance(raised, RecordError)
                    words = rf"^results/m1: cannot be written \({error.strerror}\); .* kept in (\S+);"
                    self.assertRegex(str(raised), words)
                    (place,) = re.findall(words, str(raised))
                    self.assertEqual(standing(Path(place, "manifest.json")), NEW)
                    self.assertLessEqual(self.old, present().keys())
                    self.assertEqual(list(Path().rglob("*.partial")), [])
                    if step < 4:  # while the new files are being written
                        self.assertEqual({sha256_file(path) for path in AT.glob("*.*")}, self.old)
                    if MANIFEST.exists():
                        self.assertIn(standing(), (SAMPLES, NEW))

    def test_samples_that_find_no_place_are_kept_elsewhere(self) -> None:
        """A file where the folder should be, gone read-only meanwhile: the record is whole in TMPDIR."""
        shutil.rmtree("results")
        Path("results").write_text("no folder")
        with mock.patch.dict("os.environ", {"TMPDIR": "tmp"}):
            words = "^results/m1: cannot be written .* is kept in tmp/"
            with self.assertRaisesRegex(RecordError, words) as raised:
                measure_anew()
            (kept,) = Path("tmp").iterdir()
            self.assertIn(f"{kept}; fix that, then move its files to results/m1", str(raised.exception))
            self.assertEqual(standing(kept / "manifest.json"), NEW)
            with self.assertRaisesRegex(RecordError, f"is kept in {kept}-2"):  # nothing kept is overwritten
                measure_anew()
        full = mock.patch("os.fsync", side_effect=FULL)
        with full, self.assertRaisesRegex(RecordError, "nothing was recorded, for no other folder took what"):
            measure_anew()

    def test_an_interrupt_waits_for_the_record(self) -> None:
        """Ctrl-C while a record is put in place ends the command after it is there, not between."""
        put, pressed = Path.replace, [False]

        def replace(source: Path, target: Path) -> Path:
            if not pressed[0]:
                pressed[0] = True
                os.kill(os.getpid(), signal.SIGINT)
            return put(source, target)

        with mock.patch.object(Path, "replace", replace), self.assertRaises(KeyboardInterrupt):
            measure_anew()
        self.assertEqual(standing(), NEW)

    def test_a_place_is_tried_before_measuring(self) -> None:
        """No room, too long a name, a file for a folder, a rename refused: one line, and nothing is left."""
        before = present()
        store.check_writable(MANIFEST)
        store.check_writable(Path("new/folder/x.manifest.json"))
        for place, words in (
            (Path("x" * 300, "manifest.json"), "^x+: cannot be written .*File name too long"),
            (Path("pyproject.toml/a/manifest.json"), r"^pyproject.toml/a: .*Not a directory\); .* another"),
            (Path("results", "x" * 240), "^results: cannot be written .*File name too long"),
        ):
            with self.subTest(place), self.assertRaisesRegex(RecordError, words):
                store.check_writable(place)
        for step in ("os.fsync", "os.replace"):
            full = mock.patch(step, side_effect=FULL)
            with full, self.assertRaisesRegex(RecordError, r"No space .* make room"):
                store.check_writable(MANIFEST)
        self.assertEqual(present(), before)


class LoadTest(unittest.TestCase):
    """A record as it is read."""

    def setUp(self) -> None:
        """A whole record is in place."""
        checkout.enter(self)
        checkout.replace_record(STEP)

    def test_what_was_recorded_is_read(self) -> None:
        """Samples, controls and manifest come back as they were given, with digests and counts of both."""
        record = store.load_record(MANIFEST)
        self.assertEqual((record.experiment, samples_of(record.samples)), ("m1", SAMPLES))
        self.assertEqual(samples_of(record.controls), CONTROLS)
        counts = {"raw.csv": 4, "controls.csv": 2}
        expected = {name: {"rows": rows, "sha256": sha256_file(AT / name)} for name, rows in counts.items()}
        self.assertEqual(record.manifest["outputs"], expected)

    def test_a_record_of_any_name_is_read(self) -> None:
        """Beside bench.manifest.json stand bench.csv and bench.controls.csv, told apart by their ends."""
        files = {"my.controls.csv": write_samples(CONTROLS, controls=True), "my.csv": write_samples(SAMPLES)}
        manifest = Path("elsewhere/my.manifest.json")
        store.replace_record(manifest, files, {"my.controls.csv": 2, "my.csv": 4}, checkout.manifest(STEP))
        record = store.load_record(manifest)
        self.assertEqual((samples_of(record.samples), samples_of(record.controls)), (SAMPLES, CONTROLS))

    def test_what_does_not_agree_is_refused(self) -> None:
        """An edited file, a wrong count, another form and a missing manifest are named with the way out."""
        files = {"raw.csv": write_samples(SAMPLES)}
        for rows, schema, words in (
            (5, SCHEMA, r"raw\.csv: 4 rows, its manifest counts 5; restore it"),
            (4, SCHEMA + 1, f"has form {SCHEMA + 1}, this version reads {SCHEMA}; measure again"),
        ):
            store.replace_record(MANIFEST, files, {"raw.csv": rows}, checkout.manifest(STEP, schema=schema))
            with self.subTest(words), self.assertRaisesRegex(RecordError, words):
                store.load_record(MANIFEST)
        checkout.replace_record(STEP)
        (AT / "controls.csv").write_text(write_samples(CONTROLS[:1], controls=True))
        with self.assertRaisesRegex(RecordError, "controls.csv: differs .* expected sha256 .* found"):
            store.load_record(MANIFEST)
        with self.assertRaisesRegex(RecordError, "no/manifest.json: no such file"):
            store.load_record(Path("no/manifest.json"))


class ManifestTest(unittest.TestCase):
    """What a manifest may say: its text is used as names of files, and a reader follows it."""

    def setUp(self) -> None:
        """A whole record is in place."""
        checkout.enter(self)
        checkout.replace_record(STEP)
        self.whole = read_json(MANIFEST)

    def test_odd_shapes_are_one_line(self) -> None:
        """However well sealed: no path for a name, no other date, no missing, unknown or other-shaped key."""
        made = self.whole["outputs"]["raw.csv"]
        environment = self.whole["environment"]
        for fields, place, value in (
            ({"outputs": {"../raw.csv": made}}, "outputs", "'../raw.csv'"),
            ({"outputs": {"/etc/x.csv": made}}, "outputs", "'/etc/x.csv'"),
            ({"outputs": {"..": made}}, "outputs", "'..'"),
            ({"outputs": {"manifest.json": made}}, "outputs", "'manifest.json'"),
            ({"outputs": [made]}, "outputs", "[{"),
            ({"outputs": {"raw.csv": {"sha256": made["sha256"]}}}, "outputs.raw.csv.rows", "is missing"),
            ({"outputs": {"raw.csv": made | {"rows": -1}}}, "outputs.raw.csv.rows", "-1"),
            ({"started_at": "../../../tmp/x"}, "started_at", "'../../../tmp/x', must be a date"),
            ({"started_at": "2026-02-31T10:00:00"}, "started_at", "'2026-02-31T10:00:00', must be a date"),
            ({"started_at": "2026-02-03/10:00:00"}, "started_at", "'2026-02-03/10:00:00', must be a date"),
            ({"started_at": 7}, "started_at", "7"),
            ({"experiment": ".."}, "experiment", "'..'"),
            ({"experiment": "../"}, "experiment", "'../'"),
            ({"experiment": "a/b"}, "experiment", "'a/b'"),
            ({"conditions": None}, "conditions", "None"),
            ({"inputs": {"a.py": 3}}, "inputs.a.py", "3"),
            ({"prediction": {"file": "../x", "sha256": "f" * 64}}, "prediction.file", "'../x'"),
            ({"stage": "figure"}, "stage", "'figure'"),
            ({"colour": "red"}, "colour", "is no key"),
            ({"environment": environment | {"colour": "red"}}, "environment.colour", "is no key"),
            ({"environment": environment | {"cores": "2"}}, "environment.cores", "'2'"),
            ({"git": {"commit": "0" * 40, "dirty": False, "colour": 1}}, "git.colour", "is no key"),
        ):
            with self.subTest(fields):
                write_json(MANIFEST, seal(self.whole | fields))
                words = rf"^{MANIFEST}: {re.escape(place)}[^\n]*{re.escape(value)}[^\n]*restore"
                with self.assertRaisesRegex(RecordError, words):
                    store.load_record(MANIFEST)
        lacking = {key: value for key, value in self.whole.items() if key != "kind"}
        write_json(MANIFEST, seal(lacking))
        with self.assertRaisesRegex(RecordError, "kind: is missing"):
            store.load_record(MANIFEST)

    def test_a_record_of_no_shape_is_kept_under_no_name_of_its_own(self) -> None:
        """A manifest whose date or outputs are paths decides nowhere where its files are moved."""
        outside = Path("outside.csv")
        outside.write_text("mine")
        outputs = {"../../outside.csv": self.whole["outputs"]["raw.csv"]}
        for fields in ({"started_at": "../../../../x"}, {"outputs": outputs}):
            checkout.replace_record(STEP)
            write_json(MANIFEST, seal(read_json(MANIFEST) | fields))
            moved = measure_anew()
            assert moved is not None
            self.assertRegex(moved.as_posix(), "^results/m1/superseded/no-record-")
        self.assertEqual(outside.read_text(), "mine")

    def test_a_receipt_of_odd_shape_is_one_line(self) -> None:
        """A derived result's receipt, too: what it read and made are names with digests."""
        store.make(SUMMARY, lambda: {SUMMARY.makes[0]: "n\n4\n"})
        receipt = read_json(Path(SUMMARY.receipt))
        for fields in ({"outputs": ["x"]}, {"inputs": None}, {"pins": {"numpy": 2}}):
            write_json(Path(SUMMARY.receipt), seal(receipt | fields))
            words = f"{next(iter(fields))}[^\n]* must be [^\n]*$"
            with self.subTest(fields), self.assertRaisesRegex(RecordError, words):
                read_receipt(Path(SUMMARY.receipt))


class MakeTest(unittest.TestCase):
    """A derived result and its receipt."""

    def setUp(self) -> None:
        """A record to derive from is in place."""
        checkout.enter(self)
        checkout.replace_record(STEP)
        self.made = 0

    def produce(self, text: str = "n\n4\n") -> Mapping[str, str]:
        """The summary's text; counts how often it was asked for."""
        self.made += 1
        return {SUMMARY.makes[0]: text}

    def test_only_what_does_not_hold_is_made_again(self) -> None:
        """Files of a receipt that holds keep their inode; an edit, a changed input, no receipt: made anew."""
        self.assertTrue(store.make(SUMMARY, self.produce))
        before = [Path(path).stat().st_ino for path in (*SUMMARY.makes, SUMMARY.receipt)]
        self.assertFalse(store.make(SUMMARY, self.produce))
        self.assertEqual([Path(path).stat().st_ino for path in (*SUMMARY.makes, SUMMARY.receipt)], before)
        self.assertEqual(self.made, 1)
        for change in (
            lambda: Path(SUMMARY.makes[0]).write_text("better\n"),
            lambda: edit("src/inference_lab/analysis/timing.py", "math", "cmath"),
            lambda: Path(SUMMARY.receipt).unlink(),
        ):
            change()
            self.assertTrue(store.make(SUMMARY, self.produce))
            self.assertEqual(differences(SUMMARY), [])
        self.assertEqual(Path(SUMMARY.makes[0]).read_text(), "n\n4\n")

    def test_an_input_that_changes_meanwhile_records_nothing(self) -> None:
        """When a source or the record changes while a step runs, nothing is written and it says why."""
        changes: list[Callable[[], object]] = [
            lambda: edit("src/inference_lab/analysis/timing.py", "math", "cmath"),
            measure_anew,
        ]
        for change in changes:

            def produce(change: Callable[[], object] = change) -> Mapping[str, str]:
                change()
                return self.produce()

            with self.assertRaisesRegex(RecordError, "m1 summary: an input changed while it ran"):
                store.make(SUMMARY, produce)
            self.assertFalse(Path(SUMMARY.makes[0]).exists())
            self.assertFalse(Path(SUMMARY.receipt).exists())

    def test_an_input_that_changes_while_writing_is_not_recorded_as_read(self) -> None:
        """A source changed after the last look leaves a receipt that does not hold."""

        def write_and_change(path: Path, text: str) -> None:
            path.write_text(text)
            edit("src/inference_lab/analysis/timing.py", "math", "cmath")

        with mock.patch.object(store, "write_file", write_and_change):
            store.make(SUMMARY, self.produce)
        self.assertEqual(differences(SUMMARY), ["src/inference_lab/analysis/timing.py changed"])

    def test_a_kill_at_any_step_is_mended_by_the_next_run(self) -> None:
        """Killed anywhere, a result never counts as current with half of it written."""

        def prepare() -> None:
            store.make(SUMMARY, self.produce)
            edit("src/inference_lab/analysis/timing.py", "math", "math as m")

        def act() -> None:
            store.make(SUMMARY, lambda: self.produce("n\n5\n"))

        steps = 0
        for steps in crashes.killed_at_every_step(prepare, act):
            with self.subTest(killed_before_step=steps):
                if differences(SUMMARY) == []:
                    self.assertEqual(Path(SUMMARY.makes[0]).read_text(), "n\n5\n")
                act()
                self.assertEqual(differences(SUMMARY), [])
                self.assertEqual(Path(SUMMARY.makes[0]).read_text(), "n\n5\n")
            edit("src/inference_lab/analysis/timing.py", "math as m", "math")
        self.assertGreater(steps, 4)

    def test_a_missing_record_is_one_line(self) -> None:
        """A summary asked for without a record names the file it lacks."""
        (AT / "raw.csv").unlink()
        words = r"^results/m1/raw\.csv: cannot be read .* m1 summary reads it"
        with self.assertRaisesRegex(RecordError, words):
            store.make(SUMMARY, self.produce)

    def test_a_receipt_lists_what_was_read_and_made(self) -> None:
        """The receipt holds the digest of every file read and made, the section and the command."""
        store.make(SUMMARY, self.produce)
        receipt = read_json(Path(SUMMARY.receipt))
        self.assertEqual(receipt["inputs"], SUMMARY.inputs(Sources()))
        self.assertLess({"section", "command", *SUMMARY.reads}, receipt["inputs"].keys())
        self.assertEqual(
            receipt["outputs"], {SUMMARY.makes[0]: {"sha256": sha256_file(Path(SUMMARY.makes[0]))}}
        )


if __name__ == "__main__":
    unittest.main()

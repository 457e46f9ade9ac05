"""Does the next plain run recover from any end of the one before, with nothing lost and nothing half-made?"""

import functools
import os
import signal

from tests.workflow.harness import (
    STALE,
    TOY_SOURCE,
    Checkout,
    Parallel,
    checkout,
    measured,
    paused,
    stop,
    wait_for,
)

HALF_MADE = """
from pathlib import Path
from inference_lab.errors import LabError
from inference_lab.records.receipts import read_receipt
from inference_lab.records.store import load_record
for read, places in ((read_receipt, ("*/receipts/*.json", "*.json")), (load_record, ("*/manifest.json",))):
    for path in (path for place in places for path in Path("results").glob(place)):
        try:
            read(path)
        except LabError as error:
            print(error)
for path in (*Path("results").glob("*/*.csv"), *Path("results").glob("*/*.svg")):
    if not path.read_text().endswith("\\n"):
        print(path, "has no end")
"""
KILL = (signal.SIGKILL, True)
ALONE = (signal.SIGKILL, False)
ENDS = {  # stage: how a run is ended in the middle of it, by a signal to its whole group or not
    "measure": [(signal.SIGINT, True), (signal.SIGTERM, True), KILL, ALONE],
    "summary": [ALONE],
    "figure": [KILL],
    "analysis": [ALONE],
}


@functools.cache
def undisturbed() -> dict[str, bytes]:
    """What a run of the stale checkout that nothing disturbs ends in."""
    with checkout() as lab:
        lab.edit(*STALE)
        run = lab.snakemake("all")
        if run.status:
            raise RuntimeError(run.text)
        return lab.published()


def half_made(lab: Checkout) -> list[str]:
    """Files under a final name that are not whole: a torn receipt, a record that its manifest denies."""
    return lab.python(HALF_MADE).splitlines()


def unknown(lab: Checkout) -> list[str]:
    """Files that git does not know."""
    return [line for line in lab.changes() if line.startswith("??")]


class Crashes(Parallel):
    """A run that was ended in every way, and the next one."""

    def recovers(self, lab: Checkout, whole: dict[str, bytes]) -> None:
        """Assert that nothing half-made lies there and that a plain run ends in the bytes of `whole`."""
        self.assertEqual((half_made(lab), unknown(lab)), ([], []))
        self.assertTrue(wait_for(lambda: not lab.processes(), 10), lab.processes())
        run = lab.snakemake("all")
        self.assertEqual(run.status, 0, run.text)
        self.assertEqual(lab.published(), whole)
        self.assertEqual((unknown(lab), list((lab.root / "build").glob("*"))), ([], []))
        self.assertIn("Nothing to be done", lab.snakemake("-n", "all").text)

    def test_killed(self) -> None:
        """Ended in the middle of a stage: nothing works on, and the old record stays."""
        for stage, (number, group) in ((stage, end) for stage, ends in ENDS.items() for end in ends):
            with self.subTest(stage, number=number, group=group), checkout() as lab:
                before = lab.contents("results/t1/*")
                lab.edit(*STALE)
                with paused(lab, stage, "all") as process:
                    stop(process, number, group=group)
                    self.assertTrue(wait_for(lambda lab=lab: not lab.processes(), 10), lab.processes())
                if stage == "measure":
                    self.assertEqual(lab.contents("results/t1/*"), before)
                self.recovers(lab, undisturbed())

    def test_asked_to_stop(self) -> None:
        """SIGINT or SIGTERM at Snakemake alone: the measurement is finished, and the next run goes on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number), checkout() as lab:
                lab.edit(*STALE)
                with paused(lab, "measure", "all") as process:
                    process.send_signal(number)
                    lab.go_on()
                    process.communicate(timeout=60)
                self.assertNotEqual(process.returncode, 0)
                self.assertEqual((lab.outside / "ran").read_text().split("\n")[0], "measure t1")
                self.recovers(lab, undisturbed())

    def test_killed_then_refused(self) -> None:
        """A kill while a record is replaced, then a run that fails: no mixture of old and new is restored."""
        with checkout() as lab:
            lab.edit(*STALE)
            with paused(lab, "measure", "all") as process:
                stop(process, signal.SIGKILL, group=True)
            self.assertTrue((lab.root / ".snakemake/backups/results/t1/manifest.json").exists())
            with (lab.root / "results/t1/raw.csv").open("a") as raw:
                raw.write("as if the new one had arrived, and the manifest not yet\n")
            lab.remove("results/t1/manifest.json")
            self.assertNotEqual(lab.snakemake("all", TOY_LIMITED="measure t1").status, 0)
            self.recovers(lab, undisturbed())

    def test_edited_while_measuring(self) -> None:
        """A source edited while it is measured: what was is kept, marked, and the next run measures."""
        with checkout() as lab:
            before = lab.contents("results/t1/*")
            lab.edit(*STALE)
            with paused(lab, "measure", "all") as process:
                lab.edit(TOY_SOURCE, "* us)", "+ us)")
                lab.go_on()
                text = process.communicate(timeout=60)[0]
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("changed while it ran; what was recorded is kept, marked", text)
            self.assertEqual(lab.contents("results/t1/*"), before)
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"test"} | measured("t1", "t2")), run.text)

    def test_killed_in_the_tests(self) -> None:
        """A run killed while the unit tests run leaves the tests' receipt as it was."""
        with checkout() as lab:
            before, whole = lab.contents("results/tests.json"), lab.published()
            lab.edit("tests/test_toy.py", 'toy_pause.here("tests")', 'toy_pause.here("unit tests")')
            with paused(lab, "unit tests", "all") as process:
                stop(process, signal.SIGKILL, group=False)
                self.assertEqual(lab.contents("results/tests.json"), before)
            self.recovers(lab, whole)

    def test_failing_tests_stop_everything(self) -> None:
        """Tests that fail end the run: the receipt of what passed stays, nothing is measured or derived."""
        with checkout() as lab:
            lab.edit("tests/test_toy.py", "self.assertIsNone(", "self.assertIsNotNone(")
            before, current = lab.contents("results/*/*", "results/tests.json"), lab.published()
            sources = [("src/inference_lab/figures/toy.py", " ms", " msec"), STALE]
            for edits in ([], sources):
                for edit in edits:
                    lab.edit(*edit)
                run = lab.snakemake("all")
                self.assertNotEqual(run.status, 0)
                self.assertEqual(run.ran, ["test"])  # each time: what passed is not of these sources
                self.assertEqual(lab.contents("results/*/*", "results/tests.json"), before)
            self.assertIn("results/tests.json", lab.snakemake("-n", "all").text)
            lab.git("checkout", "--", "tests", "src", "config.yaml")
            self.assertEqual((lab.snakemake("all").decided, lab.published()), (set(), current))
            self.assertEqual(lab.changes(), [])

    def test_disk_full(self) -> None:
        """No byte can be written: one line says so, the old record stays, nothing half-made is left."""
        with checkout() as lab:
            before = lab.contents("results/t1/*")
            lab.edit(*STALE)
            for words in ("measure t1", "summary t1"):
                run = lab.snakemake("all", TOY_LIMITED=words)
                self.assertNotEqual(run.status, 0)
                self.assertIn("cannot be written (File too large)", run.text)
                self.assertNotIn("Traceback", run.text)
                if words == "measure t1":
                    self.assertEqual(lab.contents("results/t1/*"), before)
            self.recovers(lab, undisturbed())

    def test_read_only_results(self) -> None:
        """Results that cannot be written: one line says so, and once they can, a plain run goes on."""
        with checkout() as lab:
            lab.edit(*STALE)
            folder = lab.root / "results/t1"
            folder.chmod(0o555)
            if os.access(folder, os.W_OK):
                self.skipTest("this user writes everywhere; setpriv --bounding-set -dac_override tries it")
            try:
                run = lab.snakemake("all")
            finally:
                folder.chmod(0o755)
            self.assertNotEqual(run.status, 0)
            self.assertIn("cannot be written", run.text)
            self.recovers(lab, undisturbed())

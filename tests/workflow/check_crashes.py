"""Does the next plain run recover from any end of the one before, with nothing lost and nothing half-made?"""

import functools
import os
import signal
import sys

from tests.workflow.harness import Checkout, Parallel, checkout, measured, paused, stop, wait_for

STALE = ("config.yaml", "seed: 1}", "seed: 5}")


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
    code = """
from pathlib import Path
from inference_lab.errors import LabError
from inference_lab.records.receipts import read_receipt
from inference_lab.records.store import load_record
for path in (*Path("results").glob("*/receipts/*.json"), *Path("results").glob("*.json")):
    try:
        read_receipt(path)
    except LabError as error:
        print(error)
for path in Path("results").glob("*/manifest.json"):
    try:
        load_record(path)
    except LabError as error:
        print(error)
for path in (*Path("results").glob("*/*.csv"), *Path("results").glob("*/*.svg")):
    if not path.read_text().endswith(("\\n")):
        print(path, "has no end")
"""
    done = lab.command(sys.executable, "-c", code)
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


class Crashes(Parallel):
    """A run that was ended in every way, and the next one."""

    def recovers(self, lab: Checkout, whole: dict[str, bytes]) -> None:
        """Assert that nothing half-made lies there and that a plain run ends in the bytes of `whole`."""
        self.assertEqual(half_made(lab), [])
        self.assertEqual([line for line in lab.changes() if line.startswith("??")], [])
        self.assertTrue(wait_for(lambda: not lab.processes(), 10), lab.processes())
        run = lab.snakemake("all")
        self.assertEqual(run.status, 0, run.text)
        self.assertEqual(lab.published(), whole)
        self.assertEqual([line for line in lab.changes() if line.startswith("??")], [])
        self.assertEqual(list((lab.root / "build").glob("*")), [])
        self.assertIn("Nothing to be done", lab.snakemake("-n", "all").text)

    def test_killed_while_measuring(self) -> None:
        """Ended by a signal in mid-measurement: nothing measures on, and the old record stays."""
        ends = [
            (signal.SIGINT, True),
            (signal.SIGTERM, True),
            (signal.SIGKILL, True),
            (signal.SIGKILL, False),
        ]
        for number, group in ends:
            with self.subTest(number=number, group=group), checkout() as lab:
                before = lab.contents("results/t1/*")
                lab.edit(*STALE)
                with paused(lab, "measure", "all") as process:
                    stop(process, number, group=group)
                    self.assertTrue(wait_for(lambda: not lab.processes(), 10), lab.processes())
                self.assertEqual(lab.contents("results/t1/*"), before)
                self.recovers(lab, undisturbed())

    def test_asked_to_stop(self) -> None:
        """SIGINT or SIGTERM at Snakemake alone: the measurement is finished, and the next run goes on."""
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number=number), checkout() as lab:
                lab.edit(*STALE)
                with paused(lab, "measure", "all") as process:
                    process.send_signal(number)
                    (lab.outside / "go").touch()
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
                lab.edit("src/inference_lab/experiments/toy.py", "* us)", "+ us)")
                (lab.outside / "go").touch()
                text = process.communicate(timeout=60)[0]
            self.assertNotEqual(process.returncode, 0)
            self.assertIn("changed while it ran; what was recorded is kept, marked", text)
            self.assertEqual(lab.contents("results/t1/*"), before)
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"test"} | measured("t1", "t2")), run.text)

    def test_killed_in_other_stages(self) -> None:
        """The same in each stage that derives."""
        for stage in ("summary", "figure", "analysis"):
            group = stage == "figure"
            with self.subTest(stage), checkout() as lab:
                lab.edit(*STALE)
                with paused(lab, stage, "all") as process:
                    stop(process, signal.SIGKILL, group=group)
                self.recovers(lab, undisturbed())

    def test_killed_in_the_tests(self) -> None:
        """A run killed while the unit tests run leaves the tests' receipt as it was."""
        with checkout() as lab:
            before = lab.contents("results/tests.json")
            whole = lab.published()
            lab.edit("tests/test_toy.py", 'toy_pause.here("tests")', 'toy_pause.here("unit tests")')
            with paused(lab, "unit tests", "all") as process:
                stop(process, signal.SIGKILL, group=False)
                self.assertEqual(lab.contents("results/tests.json"), before)
            self.recovers(lab, whole)

    def test_failing_tests_stop_everything(self) -> None:
        """Tests that fail leave the receipt of what passed; nothing is measured, summarised or drawn."""
        with checkout() as lab:
            lab.edit("tests/test_toy.py", "self.assertIsNone(", "self.assertIsNotNone(")
            lab.edit("src/inference_lab/figures/toy.py", " ms", " msec")
            lab.edit(*STALE)
            before, passed = lab.contents("results/*/*"), lab.contents("results/tests.json")
            run = lab.snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertEqual(run.ran, ["test"])
            self.assertEqual(lab.contents("results/*/*"), before)
            self.assertEqual(lab.contents("results/tests.json"), passed)
            self.assertEqual(lab.snakemake("all").ran, ["test"])  # what passed is not of these sources

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

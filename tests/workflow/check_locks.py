"""Is there one run at a time in a checkout, and one measurement at a time on a machine?

A machine is the name of a lock: two checkouts that share it share a machine.
"""

import itertools
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.workflow.harness import (
    WITHOUT_PROFILE,
    Checkout,
    Parallel,
    checkout,
    derived,
    measured,
    paused,
    stop,
    wait_for,
)

STALE_T1 = ("config.yaml", "seed: 1}", "seed: 5}")
STALE_T2 = ("config.yaml", "seed: 2}", "seed: 6}")


def go(lab: Checkout) -> None:
    """Let the paused stage go on."""
    (lab.outside / "go").touch()


def overlaps(spans: Path) -> list[tuple[float, float]]:
    """Measurements that began before the one before them ended."""
    found = sorted(tuple(map(float, line.split())) for line in spans.read_text().splitlines())
    return [later for earlier, later in itertools.pairwise(found) if later[0] < earlier[1]]


class Locks(Parallel):
    """Waiting, with the holder named."""

    def start_logged(self, lab: Checkout, log: Path, *words: str, **variables: str):
        """A running Snakemake whose words go to a file, so that they can be read while it runs."""
        process = lab.start(*words, log=log, **variables)
        self.addCleanup(kill, process)
        return process

    def test_two_runs_in_one_checkout(self) -> None:
        """The second run waits for the first, names it, and then finds nothing left to do."""
        with checkout() as lab:
            lab.edit(*STALE_T1)
            log = lab.outside / "second.log"
            with paused(lab, "measure", "all") as first:
                second = self.start_logged(lab, log, "all")
                self.assertTrue(wait_for(lambda: "waiting: " in log.read_text()), log.read_text())
                self.assertIn(f"waiting: process {first.pid} (", log.read_text())
                self.assertIn("snakemake", log.read_text().split("waiting: ")[1].split("\n")[0])
                self.assertIn("runs in this checkout", log.read_text())
                self.assertIsNone(second.poll())
                go(lab)
                text = first.communicate(timeout=60)[0]
                self.assertEqual(first.returncode, 0, text)
                self.assertEqual(second.wait(timeout=60), 0, log.read_text())
            ran = (lab.outside / "ran").read_text().splitlines()
            self.assertEqual(ran.count("measure t1"), 1)
            self.assertEqual(lab.processes(), [])

    def test_waiting_for_a_run_that_is_killed(self) -> None:
        """When the run waited for is killed, the one that waits goes on and does the work."""
        with checkout() as lab:
            lab.edit(*STALE_T1)
            log = lab.outside / "second.log"
            with paused(lab, "measure", "all") as first:
                second = self.start_logged(lab, log, "all")
                self.assertTrue(wait_for(lambda: "waiting: " in log.read_text()), log.read_text())
                stop(first, signal.SIGKILL, group=False)
                self.assertEqual(second.wait(timeout=60), 0, log.read_text())
            self.assertIn("Nothing to be done", lab.snakemake("-n", "all").text)
            self.assertEqual(lab.processes(), [])

    def test_a_plan_does_not_wait(self) -> None:
        """-n, --summary and --list-rules answer while a run goes on, and leave it alone."""
        with checkout() as lab:
            lab.edit(*STALE_T1)
            with paused(lab, "measure", "all") as first:
                for look in ("-n", "--summary", "--list-rules"):
                    done = lab.command(str(Path(sys.executable).parent / "snakemake"), look)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertNotIn("waiting", done.stderr)
                go(lab)
                text = first.communicate(timeout=60)[0]
                self.assertEqual(first.returncode, 0, text)

    def test_two_checkouts_on_one_machine(self) -> None:
        """A measurement waits for another checkout's, names it, and they never overlap."""
        with checkout("one") as one, checkout("two") as two:
            shared: Mapping[str, str] = {
                "INFERENCE_LAB_LOCK": "check",
                "TOY_SPANS": str(one.outside / "spans"),
            }
            one.variables = two.variables = dict(shared)
            one.edit(*STALE_T1)
            two.edit(*STALE_T1)
            log = two.outside / "second.log"
            with paused(one, "measure", "all") as first:
                holder = (one.outside / "here").read_text()
                second = self.start_logged(two, log, "all")
                self.assertTrue(wait_for(lambda: "waiting: " in log.read_text()), log.read_text())
                said = f"waiting: process {holder} (python inference-lab stage measure t1"
                self.assertIn(said, log.read_text())
                self.assertIn("measures on this machine", log.read_text())
                go(one)
                text = first.communicate(timeout=60)[0]
                self.assertEqual(first.returncode, 0, text)
                self.assertEqual(second.wait(timeout=60), 0, log.read_text())
            self.assertEqual(len((one.outside / "spans").read_text().splitlines()), 2)
            self.assertEqual(overlaps(one.outside / "spans"), [])

    def test_many_cores(self) -> None:
        """With more cores, with and without the profile, measurements of one run never overlap."""
        for options in (("--cores", "4"), (*WITHOUT_PROFILE[:2], "--cores", "4")):
            with self.subTest(options), checkout() as lab:
                lab.edit(*STALE_T1)
                lab.edit(*STALE_T2)
                spans = lab.outside / "spans"
                run = lab.snakemake(*options, "all", TOY_SPANS=str(spans), TOY_SLEEP_S="0.02")
                self.assertEqual((run.status, run.decided), (0, measured("t1", "t2")), run.text)
                self.assertEqual(len(spans.read_text().splitlines()), 2)
                self.assertEqual(overlaps(spans), [])

    def test_many_cores_derive_at_once(self) -> None:
        """What is derived may run side by side, and ends in the same bytes."""
        with checkout() as lab:
            whole = lab.published()
            for name in ("t1", "t2"):
                lab.remove(*(f"results/{name}/{file}" for file in ("summary.csv", "plot.svg", "analysis.md")))
            run = lab.snakemake("--cores", "4", "all")
            made = derived("t1", "t2") - {"figure t1 rows.svg"}
            self.assertEqual((run.status, run.decided), (0, made), run.text)
            self.assertEqual(lab.published(), whole)


def kill(process) -> None:
    """End a run for good."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

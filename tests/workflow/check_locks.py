"""Is there one run at a time in a checkout, and one measurement at a time on a machine?

A machine is the name of a lock: two checkouts that share it share a machine.
"""

import itertools
import os
import signal
import subprocess
from pathlib import Path

from tests.workflow.harness import (
    STALE,
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


def overlaps(spans: Path) -> list[tuple[float, ...]]:
    """Measurements, of two, that began before the one before them ended. Raises ValueError if not two."""
    one, other = sorted(tuple(map(float, line.split())) for line in spans.read_text().splitlines())
    return [other] if other[0] < one[1] else []


def kill(process: subprocess.Popen[str]) -> None:
    """End a run for good."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Locks(Parallel):
    """Waiting, with the holder named."""

    def waits(self, lab: Checkout) -> tuple[subprocess.Popen[str], str]:
        """A run here that has to wait, and what it says of that."""
        log = lab.outside / "second.log"
        second = lab.start("all", log=log)
        self.addCleanup(kill, second)
        self.assertTrue(wait_for(lambda: "waiting: " in log.read_text()), log.read_text())
        self.assertIsNone(second.poll())
        return second, log.read_text()

    def ends_well(self, *processes: subprocess.Popen[str]) -> None:
        """Assert that these runs end with 0."""
        for process in processes:
            said = process.communicate(timeout=60)[0]
            self.assertEqual(process.returncode, 0, said)

    def test_two_runs_in_one_checkout(self) -> None:
        """The second run waits for the first, names it, and then finds nothing left to do."""
        with checkout() as lab:
            lab.edit(*STALE)
            with paused(lab, "measure", "all") as first:
                second, said = self.waits(lab)
                self.assertRegex(said, rf"waiting: process {first.pid} \(.*snakemake.* runs in this checkout")
                lab.go_on()
                self.ends_well(first, second)
            self.assertEqual((lab.outside / "ran").read_text().splitlines().count("measure t1"), 1)
            self.assertEqual(lab.processes(), [])

    def test_waiting_for_a_run_that_is_killed(self) -> None:
        """When the run waited for is killed, the one that waits goes on and does the work."""
        with checkout() as lab:
            lab.edit(*STALE)
            with paused(lab, "measure", "all") as first:
                second, _ = self.waits(lab)
                stop(first, signal.SIGKILL, group=False)
                self.ends_well(second)
            self.assertIn("Nothing to be done", lab.snakemake("-n", "all").text)
            self.assertEqual(lab.processes(), [])

    def test_a_plan_does_not_wait(self) -> None:
        """-n, --summary and --list-rules answer while a run goes on, and leave it alone."""
        with checkout() as lab:
            lab.edit(*STALE)
            with paused(lab, "measure", "all") as first:
                for look in ("-n", "--summary", "--list-rules"):
                    done = lab.command("snakemake", look)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    self.assertNotIn("waiting", done.stderr)
                lab.go_on()
                self.ends_well(first)

    def test_two_checkouts_on_one_machine(self) -> None:
        """A measurement waits for another checkout's, names it, and they never overlap."""
        with checkout("one") as one, checkout("two") as two:
            spans = one.outside / "spans"
            one.variables = two.variables = {"INFERENCE_LAB_LOCK": "check", "TOY_SPANS": str(spans)}
            one.edit(*STALE)
            two.edit(*STALE)
            with paused(one, "measure", "all") as first:
                holder = (one.outside / "here").read_text()
                second, said = self.waits(two)
                self.assertIn(f"waiting: process {holder} (python inference-lab stage measure t1", said)
                self.assertIn("measures on this machine", said)
                one.go_on()
                self.ends_well(first, second)
            self.assertEqual(overlaps(spans), [])

    def test_many_cores(self) -> None:
        """With more cores, with and without the profile, measurements of one run never overlap."""
        for options in (("--cores", "4"), (*WITHOUT_PROFILE[:2], "--cores", "4")):
            with self.subTest(options), checkout() as lab:
                lab.edit(*STALE)
                lab.edit("config.yaml", "seed: 2}", "seed: 6}")
                spans = lab.outside / "spans"
                run = lab.snakemake(*options, "all", TOY_SPANS=str(spans), TOY_SLEEP_S="0.02")
                self.assertEqual((run.status, run.decided), (0, measured("t1", "t2")), run.text)
                self.assertEqual(overlaps(spans), [])

    def test_many_cores_derive_at_once(self) -> None:
        """What is derived may run side by side, and ends in the same bytes."""
        with checkout() as lab:
            whole = lab.published()
            for path in itertools.product(("t1", "t2"), ("summary.csv", "plot.svg", "analysis.md")):
                lab.remove("/".join(("results", *path)))
            run = lab.snakemake("--cores", "4", "all")
            made = derived("t1", "t2") - {"figure t1 rows.svg"}
            self.assertEqual((run.status, run.decided), (0, made), run.text)
            self.assertEqual(lab.published(), whole)

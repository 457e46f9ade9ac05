"""Verification: what follows from raw data passes, what does not is named with its digests."""

import os
import subprocess
import unittest
from pathlib import Path

from inference_lab import verification
from inference_lab.errors import RecordError
from inference_lab.records.chain import Chain
from inference_lab.records.layout import VERIFIED_RECEIPT
from tests import recorded


def states() -> dict[str, str]:
    """What verification says of each file of m1."""
    found = verification.verify(Chain(recorded.CONFIG), ["m1"], {})
    return {finding.file: finding.state for finding in found}


def mismatches() -> list[str]:
    """The files of m1 that do not follow from its raw data."""
    found = verification.verify(Chain(recorded.CONFIG), ["m1"], {})
    return [finding.file for finding in found if finding.mismatch]


class VerifyTest(unittest.TestCase):
    """A record and everything derived from it, rebuilt in memory."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded and derived."""
        recorded.enter(self)

    def test_everything_derived_is_rebuilt_the_same(self) -> None:
        """Each derived file is named with `same bytes`, the record with `holds`."""
        found = states()
        self.assertEqual(found.pop("results/m1/manifest.json"), "holds")
        self.assertIn("not checked", found.pop("predictions/m1.yaml"))
        self.assertEqual(
            found,
            dict.fromkeys(
                (
                    "results/m1/summary.csv",
                    "results/m1/ratios.svg",
                    "results/m1/knee-analysis.md",
                    "results/m1/verdicts.csv",
                    "results/m1/analysis.md",
                ),
                "same bytes",
            ),
        )

    def test_one_digit_of_raw_is_found(self) -> None:
        """An edited raw file is a mismatch that names it with expected and found digest."""
        raw = Path("results/m1/raw.csv")
        text = raw.read_text()
        raw.write_text(text.replace("1", "2", 1) if "1" in text.splitlines()[1] else text + "x")
        (first, *_) = [finding for finding in states().values() if "expected sha256" in finding]
        self.assertRegex(first, r"raw\.csv: differs .* expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}")

    def test_an_edited_or_missing_derived_file_is_found(self) -> None:
        """A summary edited by hand and a missing figure are mismatches, each with the way out."""
        with Path("results/m1/analysis.md").open("a") as file:
            file.write("and I was right\n")
        Path("results/m1/ratios.svg").unlink()
        found = states()
        self.assertRegex(found["results/m1/analysis.md"], "^edited: .* snakemake results/m1/analysis.md")
        self.assertRegex(found["results/m1/ratios.svg"], "^missing; rebuild it with snakemake")
        self.assertEqual(mismatches(), ["results/m1/ratios.svg", "results/m1/analysis.md"])

    def test_a_file_and_receipt_forged_together_are_found(self) -> None:
        """A derived file that its receipt was made to match still differs from what raw gives."""
        from inference_lab.records import chain, store

        step = Chain(recorded.CONFIG).step("figure", "m1", "knee-analysis.md")
        Path(step.receipt).unlink()
        store.make(step, lambda: {step.makes[0]: "The knee is at 1000.\n"})
        self.assertEqual(chain.read_receipt(Path(step.receipt))["stage"], "figure")
        self.assertEqual(mismatches(), ["results/m1/knee-analysis.md"])

    def test_a_prediction_must_be_older_than_its_run(self) -> None:
        """With a git history, a prediction committed after measuring is a mismatch, before it is good."""
        for when, state in (("2026-11-01", "older than the run"), ("2026-11-03", "younger than the run")):
            with self.subTest(when):
                subprocess.run(["rm", "-rf", ".git"], check=True)
                git = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org"]
                date = {"GIT_COMMITTER_DATE": f"{when}T00:00:00Z", "GIT_AUTHOR_DATE": f"{when}T00:00:00Z"}
                subprocess.run(["git", "init", "-q"], check=True)
                subprocess.run(["git", "add", "predictions"], check=True)
                subprocess.run([*git, "commit", "-qm", "predict"], check=True, env={**os.environ, **date})
                self.assertTrue(states()["predictions/m1.yaml"].startswith(state))

    def test_the_stage_skips_what_it_verified_and_refuses_a_mismatch(self) -> None:
        """The receipt lets the next run skip m1; a changed file is looked at again and refused."""
        receipt = Path(VERIFIED_RECEIPT)
        self.assertIn("same bytes", verification.verify_stage(recorded.CONFIG, receipt))
        self.assertIn("verified before", verification.verify_stage(recorded.CONFIG, receipt))
        Path("results/m1/summary.csv").write_text("path,n\n")
        with self.assertRaisesRegex(RecordError, "summary.csv"):
            verification.verify_stage(recorded.CONFIG, receipt)


if __name__ == "__main__":
    unittest.main()

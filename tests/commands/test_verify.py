"""Verification: what follows from raw data passes, what does not is named with its digests."""

import contextlib
import copy
import json
import shutil
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.commands import run_stage, verify
from inference_lab.errors import RecordError
from inference_lab.records import receipts, store
from inference_lab.records.files import read_json, sha256_file, write_json
from inference_lab.records.plan import Plan
from inference_lab.records.stages import VERIFIED_RECEIPT, Step
from tests import checkout, recorded
from tests.commands.test_run_stage import git, write_tests_receipt

MANIFEST = Path("results/m1/manifest.json")
ANALYSIS = "results/m1/analysis.md"
MANUAL: dict[str, Any] = copy.deepcopy(checkout.CONFIG)
MANUAL["experiments"]["m1"]["refresh"] = "manual"


def states(config: Mapping[str, Any] = checkout.CONFIG) -> dict[str, str]:
    """What verification says of each file of m1."""
    return {found.file: found.state for found in verify.verify(Plan(config), ["m1"], {})}


def faults(config: Mapping[str, Any] = checkout.CONFIG) -> dict[str, str]:
    """What is wrong with m1, by file."""
    return {found.file: found.state for found in verify.verify(Plan(config), ["m1"], {}) if found.fault}


def reseal(path: str | Path, **entries: Any) -> None:
    """Give a receipt other entries and a seal that holds, as a forger or a careless merge would."""
    write_json(Path(path), receipts.seal({**read_json(Path(path)), **entries}))


class VerifyTest(unittest.TestCase):
    """A record and everything derived from it, rebuilt in memory by the real sources."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded and derived."""
        recorded.enter(self)

    def test_everything_derived_is_rebuilt_the_same(self) -> None:
        """Each derived file is named with `same bytes`; one that its receipt was forged to match is not."""
        found = states(recorded.CONFIG)
        self.assertEqual(found.pop(MANIFEST.as_posix()), "holds")
        for name in ("predictions/m1.yaml", "results/tests.json of m1"):
            self.assertIn("not checked", found.pop(name))
        names = ("summary.csv", "ratios.svg", "knee-analysis.md", "verdicts.csv", "analysis.md")
        self.assertEqual(found, {f"results/m1/{name}": "same bytes" for name in names})
        step = Plan(recorded.CONFIG).step("figure", "m1", "knee-analysis.md")
        Path(step.receipt).unlink()
        store.make(step, lambda: {step.makes[0]: "The knee is at 1000.\n"})
        self.assertEqual(receipts.read_receipt(Path(step.receipt))["stage"], "figure")
        self.assertEqual(list(faults(recorded.CONFIG)), ["results/m1/knee-analysis.md"])

    def test_other_raw_is_found(self) -> None:
        """An edited raw file is named with both digests; under a new record nothing follows any more."""
        raw = Path("results/m1/raw.csv")
        text = raw.read_text()
        raw.write_text(text.replace("1", "2", 1))
        words = r"raw\.csv: differs .* expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}"
        self.assertRegex(faults(recorded.CONFIG)[MANIFEST.as_posix()], words)
        raw.write_text(text)
        recorded.record_m1(seed=1)
        words = "^does not follow from its raw data: found sha256 .*, rebuilt"
        self.assertRegex(faults(recorded.CONFIG)["results/m1/summary.csv"], words)

    def test_the_order_of_keys_decides_nothing(self) -> None:
        """A config handed on with sorted keys finds the same, reports of several experiments included."""
        told = copy.deepcopy(recorded.CONFIG["experiments"]["m1"])
        told["judge"]["report"] = "both"
        config = {"experiments": {"z": told, "m1": told, "a": told}}
        (step,) = Plan(config).reports_of(config["experiments"])
        turned = json.loads(json.dumps(config, sort_keys=True))
        self.assertEqual(Plan(turned).reports_of(turned["experiments"]), [step])
        self.assertEqual([each["experiment"] for each in step.section["experiments"]], ["a", "m1", "z"])
        self.assertEqual(list(step.section["experiments"][0]["figures"]), ["knee-analysis.md", "ratios.svg"])


class SmallCase(unittest.TestCase):
    """A small checkout in which m1 is recorded; what follows from it are lines that name their files."""

    def setUp(self) -> None:
        """A record, and everything that follows from it."""
        checkout.enter(self)
        checkout.record(checkout.CONFIG)

        def texts(step: Step, *_: object) -> dict[str, str]:
            return {path: f"{path}\n" for path in step.makes}

        self.enterContext(mock.patch.object(run_stage, "texts", texts))


class StageTest(SmallCase):
    """What counts as out of date, as kept and as verified before."""

    def stage(self) -> str:
        """What the stage that verifies says."""
        return verify.verify_stage(Plan(checkout.CONFIG), Path(VERIFIED_RECEIPT))

    def why(self) -> list[str]:
        """Why the stage that verifies has to run."""
        plan = Plan(checkout.CONFIG)
        return plan.why(plan.verify_step())

    def test_an_edited_or_missing_derived_file_is_found(self) -> None:
        """A page edited by hand and a missing figure are mismatches, each with the way out."""
        with Path(ANALYSIS).open("a") as file:
            file.write("and I was right\n")
        Path("results/m1/latency.svg").unlink()
        found = faults()
        self.assertEqual(list(found), ["results/m1/latency.svg", ANALYSIS])
        self.assertRegex(found[ANALYSIS], f"^edited: .* snakemake {ANALYSIS} makes it again$")
        missing = r"^missing; .*snakemake results/m1/latency\.svg makes"
        self.assertRegex(found["results/m1/latency.svg"], missing)

    def test_a_forgery_is_found_whatever_else_is_stale(self) -> None:
        """A forged page whose re-sealed receipt is stale besides is refused, never called out of date."""
        Path(ANALYSIS).write_text("All was as I said.\n")
        receipt = read_json(Path("results/m1/receipts/analysis.json"))
        outputs = {**receipt["outputs"], ANALYSIS: {"sha256": sha256_file(Path(ANALYSIS))}}
        inputs = {**receipt["inputs"], "results/m1/summary.csv": "0" * 64}
        reseal("results/m1/receipts/analysis.json", outputs=outputs, inputs=inputs)
        self.assertRegex(faults()[ANALYSIS], "^does not follow from its raw data: found sha256 .*, rebuilt")
        prediction = Path("predictions/m1.yaml")  # where raw data are as they were, it is only older
        prediction.write_bytes(b"\xef\xbb\xbf" + prediction.read_bytes())
        reseal("results/m1/receipts/analysis.json", outputs=outputs, inputs=receipt["inputs"])
        words = r"^older than what makes it now \(predictions/m1.yaml changed \(.* U\+FEFF"
        self.assertRegex(faults()[ANALYSIS], words)

    def test_a_receipt_out_of_date_is_a_fault_of_its_own(self) -> None:
        """Where the same bytes come out but the receipt names other inputs, the receipt is named."""
        receipt = Path("results/m1/receipts/summary.json")
        reseal(receipt, inputs={**read_json(receipt)["inputs"], "section": "0" * 64})
        self.assertEqual(states()["results/m1/summary.csv"], "same bytes")
        words = "^out of date: its judge: part changed; .* makes it again$"
        self.assertRegex(faults()[receipt.as_posix()], words)

    def test_an_automatic_record_of_another_source_is_a_fault_and_a_manual_one_is_kept(self) -> None:
        """What measures by itself must be of this source; what does not is kept, in words that are true."""
        inputs = read_json(MANIFEST)["inputs"]
        other = dict.fromkeys([path for path in inputs if path.startswith("src/")][:3], "0" * 64)
        reseal(MANIFEST, inputs={**inputs, **other})
        self.assertRegex(faults()[MANIFEST.as_posix()], "^out of date: src/.* changed")
        kept = "kept: measured by an earlier source (3 files differ)"
        self.assertEqual(states(MANUAL)[MANIFEST.as_posix()], kept)
        self.assertNotIn(MANIFEST.as_posix(), faults(MANUAL))

    def test_the_stage_skips_what_it_verified(self) -> None:
        """Its receipt lets the next run skip m1, but not where a source, pin or checkout is another."""
        self.assertIn("same bytes", self.stage())
        self.assertEqual(self.why(), [])
        self.assertIn("verified before", self.stage())
        for name in ("src/inference_lab/commands/run_stage.py", "command", "checkout"):
            with self.subTest(name):
                inputs = read_json(Path(VERIFIED_RECEIPT))["inputs"]
                reseal(VERIFIED_RECEIPT, inputs={**inputs, name: "0" * 64})
                self.assertNotEqual(self.why(), [])
                self.assertIn("same bytes", self.stage())
        reseal(VERIFIED_RECEIPT, pins={})
        self.assertIn("same bytes", self.stage())
        shutil.copytree(".", "copy", symlinks=True)
        with contextlib.chdir("copy"):
            self.assertEqual(self.why(), ["the checkout or its Python changed"])
            self.assertIn("same bytes", self.stage())
        Path("results/m1/summary.csv").write_text("path,n\n")
        with self.assertRaisesRegex(RecordError, "summary.csv"):
            self.stage()


class CheckoutTest(SmallCase):
    """Everything below results/, and what should be there and is not."""

    def setUp(self) -> None:
        """A checkout in which tests passed and m1 is recorded and derived."""
        super().setUp()
        write_tests_receipt()
        self.assertEqual(self.faults(), {})

    def faults(self, config: Mapping[str, Any] = checkout.CONFIG) -> dict[str, str]:
        """What is wrong with this checkout, by file."""
        return {found.file: found.state for found in verify.verify_checkout(Plan(config)) if found.fault}

    def test_a_record_is_of_files_in_this_checkout(self) -> None:
        """A raw file, a manifest or a whole folder that is a link out of it is refused, also by the plan."""
        outside = Path(tempfile.mkdtemp(dir=Path.cwd().parent))
        self.addCleanup(shutil.rmtree, outside)
        for name in ("raw.csv", "manifest.json", ""):
            here, there = Path("results/m1", name), outside / (name or "m1")
            shutil.move(here, there)
            here.symlink_to(there)
            named = here / "manifest.json" if not name else here
            with self.subTest(name):
                self.assertRegex(self.faults()[MANIFEST.as_posix()], f"^{named}: .* outside of this checkout")
                plan = Plan(checkout.CONFIG)
                with self.assertRaisesRegex(RecordError, "outside of this checkout"):
                    plan.why(plan.step("summary", "m1"))
            here.unlink()
            shutil.move(there, here)
        shutil.move(ANALYSIS, outside / "page")
        Path(ANALYSIS).symlink_to(outside / "page")
        self.assertRegex(self.faults()[ANALYSIS], "^is a link out of this checkout")

    def test_a_receipt_is_of_its_own_step(self) -> None:
        """A command, stage or experiment that is another step's is refused, however well it is sealed."""
        summary = "results/m1/receipts/summary.json"
        for path, key, value in (
            (MANIFEST.as_posix(), "command", ["measure", "m2"]),
            (MANIFEST.as_posix(), "experiment", "m2"),
            (summary, "command", ["rm", "-r"]),
            (summary, "stage", "figure"),
        ):
            with self.subTest(path, key=key):
                whole = Path(path).read_text()
                reseal(path, **{key: value})
                self.assertIn(f"its {key} is {value!r}", self.faults()[path])
                Path(path).write_text(whole)

    def test_one_experiment_alone_says_where_it_looked(self) -> None:
        """Strays in its own folder are named, and that no other folder was looked at."""
        for name in ("results/m1/notes.md", "results/loose.csv"):
            Path(name).write_text("x\n")
        findings = verify.verify_experiment(Plan(checkout.CONFIG), "m1")
        self.assertEqual([each.file for each in findings if each.fault], ["results/m1/notes.md"])
        self.assertIn("no other folder was looked at", findings[-1].state)

    def test_the_tests_of_a_run_are_looked_for_in_history(self) -> None:
        """Found in a commit, found in none, or never there: each in its words, none is a fault."""

        def said() -> str:
            self.assertNotIn("results/tests.json of m1", faults())
            return states()["results/tests.json of m1"]

        self.assertEqual(said(), "not checked: the record names no receipt of theirs")
        reseal(MANIFEST, tests=sha256_file(Path("results/tests.json")))
        self.assertEqual(said(), "not checked: this folder is no git repository")
        git("init", "-q")
        git("commit", "-qm", "empty", "--allow-empty")
        self.assertEqual(said(), "not checked: no commit here has results/tests.json")
        git("add", "results/tests.json")
        git("commit", "-qm", "tested")
        self.assertRegex(said(), "^holds: a commit has the receipt")
        reseal(MANIFEST, tests="0" * 64)
        self.assertRegex(said(), "^not checked: no commit here has the receipt .*000000000000")

    def test_strays_are_named(self) -> None:
        """A file that no step makes is named, a folder of no experiment once; superseded records are not."""
        made = ("results/m1/notes.md", "results/loose.csv", "results/gone/raw.csv", "results/gone/x.csv")
        pages = [f"docs/experiments/{name}" for name in ("gone.md", "gone.md.j2", "old/m1.md", "plot.svg")]
        cursor = "results/m1/\x1b[2Jtwo\nlines"
        for name in (*made, *pages, cursor, "results/m1/superseded/1/raw.csv"):
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text("x\n")
        Path("results/linked").symlink_to("m1")
        found = self.faults()
        escaped = "results/m1/\\x1b[2Jtwo\\nlines"
        names = ["results/gone/", "results/linked", "results/loose.csv", escaped, "results/m1/notes.md"]
        self.assertEqual(list(found), [*names, *pages])
        for name, state in found.items():
            ways = "copy what the link leads to or" if name.endswith("linked") else "move it elsewhere or"
            self.assertRegex(state, f"^stray: .* {ways} remove it$")
        self.assertIn("results/m1/", self.faults({"experiments": {}}))  # taken from the config

    def test_a_deleted_record_is_named(self) -> None:
        """An automatic record that is missing is a fault; a manual one when files or git tell of it."""
        git("init", "-q")
        git("add", "results")
        git("commit", "-qm", "recorded")
        commit = git("rev-parse", "--short", "HEAD")
        MANIFEST.unlink()
        for config in (checkout.CONFIG, MANUAL):
            words = self.faults(config)[MANIFEST.as_posix()]
            self.assertRegex(words, "^missing, and results/m1/raw.csv is here, which follows from nothing")
        shutil.rmtree("results/m1")
        words = f"deleted: commit {commit} has it; restore it (git checkout {commit} -- "
        for config in (checkout.CONFIG, MANUAL):
            self.assertIn(words, self.faults(config)[MANIFEST.as_posix()])
        git("commit", "-qam", "deleted")
        self.assertIn(f"commit {commit} has it", self.faults(MANUAL)[MANIFEST.as_posix()])
        shutil.rmtree(".git")
        self.assertEqual(self.faults(MANUAL), {})  # as if it had never been measured
        self.assertIn("not measured; snakemake all", self.faults()[MANIFEST.as_posix()])

    def test_evidence_of_other_sources_is_named(self) -> None:
        """A tests' receipt that does not hold is a fault, also one that a merge tore."""
        tests = Path("results/tests.json")
        reseal(tests, inputs={})
        self.assertRegex(self.faults()[tests.as_posix()], "^out of date: src/.* is new; and [0-9]+ more;")
        tests.write_text(f"<<<<<<< ours\n{tests.read_text()}=======\n>>>>>>> theirs\n")
        self.assertIn("tests.json holds git's conflict markers", self.faults()[tests.as_posix()])


class PredictionTest(SmallCase):
    """Whether the prediction stood in git before the run: by the commit the run names, not by dates."""

    def setUp(self) -> None:
        """A repository with the prediction in its one commit, and a record of m1 that names it."""
        super().setUp()
        file = "predictions/m1.yaml"
        reseal(MANIFEST, prediction={"file": file, "sha256": sha256_file(Path(file))})
        git("init", "-q")
        git("add", "src", "predictions")
        git("commit", "-qm", "predict")
        self.names(git("rev-parse", "HEAD"))

    def names(self, commit: str) -> str:
        """Let the record say that it was measured at this commit; the short name of it."""
        reseal(MANIFEST, git={"commit": commit, "dirty": True})
        return commit[:12]

    def says(self, start: str) -> None:
        """What verification says of the prediction begins so, and it is no fault."""
        self.assertTrue((found := states()["predictions/m1.yaml"]).startswith(start), found)
        self.assertNotIn("predictions/m1.yaml", faults())

    def test_the_blob_in_the_commit_decides(self) -> None:
        """What was committed since is nothing; a commit that lacks it or holds another one proves nothing."""
        self.says("holds: the commit that the run names has this prediction")
        git("rm", "-q", "--cached", "predictions/m1.yaml")
        git("commit", "-qm", "later", "--date", "1999-01-01T00:00:00")
        self.says("holds: the commit that the run names has this prediction")
        at = self.names(git("rev-parse", "HEAD"))
        self.says(f"not checked: commit {at}, which the run names, does not hold it")
        Path("predictions/m1.yaml").write_text("question: another\n")
        git("add", "predictions")
        git("commit", "-qm", "more")
        at = self.names(git("rev-parse", "HEAD"))
        self.says(f"not checked: commit {at}, which the run names, has it in other words")

    def test_history_that_is_not_here_is_said_to_be(self) -> None:
        """Squashed, imported, shallow, nested, without git, another's: each in words of its own."""
        self.names("c" * 40)
        named = "commit cccccccccccc, which the run names"
        self.says(f"not checked: {named}, is not in this repository (squashed")
        Path(".git/shallow").write_text(f"{git('rev-parse', 'HEAD')}\n")
        self.says("not checked: the history of this clone does not reach back to commit cccccccccccc")
        self.names("--output=stolen")
        self.says("not checked: the run names '--output=stolen', which is no commit")
        with mock.patch.dict("os.environ", {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}):
            self.names("c" * 40)
            self.says("not checked: git refuses this folder, which another user owns")
        with mock.patch.dict("os.environ", {"PATH": "/nowhere"}):
            self.says("not checked: git is not installed")
        shutil.rmtree(".git")
        self.says("not checked: this folder is no git repository")
        shutil.copytree(".", "inner", symlinks=True)
        git("init", "-q")
        with contextlib.chdir("inner"):
            self.says("not checked: this folder is no git repository")

    def test_a_run_without_commit_says_why(self) -> None:
        """A record made outside git names the reason that its manifest gives; an old one gave none."""
        reseal(MANIFEST, git=None, git_reason="git is not installed")
        self.says("not checked: the run names no commit (git is not installed)")
        old = read_json(MANIFEST)
        del old["git_reason"]
        write_json(MANIFEST, receipts.seal(old))
        self.says("not checked: the run names no commit (no reason recorded)")


if __name__ == "__main__":
    unittest.main()

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


def states() -> dict[str, str]:
    """What verification says of each file of m1."""
    found = verify.verify(Plan(recorded.CONFIG), ["m1"], {})
    return {finding.file: finding.state for finding in found}


def faults(config: Mapping[str, Any] = recorded.CONFIG) -> dict[str, str]:
    """What is wrong with m1, by file."""
    found = verify.verify(Plan(config), ["m1"], {})
    return {finding.file: finding.state for finding in found if finding.fault}


def reseal(path: str | Path, **entries: Any) -> None:
    """Give a receipt other entries and a seal that holds, as a forger or a careless merge would."""
    write_json(Path(path), receipts.seal({**read_json(Path(path)), **entries}))


class VerifyTest(unittest.TestCase):
    """A record and everything derived from it, rebuilt in memory."""

    def setUp(self) -> None:
        """A checkout in which m1 is recorded and derived."""
        recorded.enter(self)

    def test_everything_derived_is_rebuilt_the_same(self) -> None:
        """Each derived file is named with `same bytes`, the record with `holds`."""
        found = states()
        self.assertEqual(found.pop("results/m1/manifest.json"), "holds")
        for name in ("predictions/m1.yaml", "results/tests.json of m1"):
            self.assertIn("not checked", found.pop(name))
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
        self.assertRegex(found["results/m1/ratios.svg"], "^missing; .*snakemake results/m1/ratios.svg makes")
        self.assertEqual(list(faults()), ["results/m1/ratios.svg", "results/m1/analysis.md"])

    def test_a_file_and_receipt_forged_together_are_found(self) -> None:
        """A derived file that its receipt was made to match still differs from what raw gives."""
        step = Plan(recorded.CONFIG).step("figure", "m1", "knee-analysis.md")
        Path(step.receipt).unlink()
        store.make(step, lambda: {step.makes[0]: "The knee is at 1000.\n"})
        self.assertEqual(receipts.read_receipt(Path(step.receipt))["stage"], "figure")
        self.assertEqual(list(faults()), ["results/m1/knee-analysis.md"])

    def test_a_forgery_is_found_whatever_else_is_stale(self) -> None:
        """A forged page whose re-sealed receipt is stale besides is refused, never called out of date."""
        Path(ANALYSIS).write_text("All was as I said.\n")
        receipt = read_json(Path("results/m1/receipts/analysis.json"))
        outputs = {**receipt["outputs"], ANALYSIS: {"sha256": sha256_file(Path(ANALYSIS))}}
        inputs = {**receipt["inputs"], "results/m1/summary.csv": "0" * 64}
        reseal("results/m1/receipts/analysis.json", outputs=outputs, inputs=inputs)
        self.assertRegex(faults()[ANALYSIS], "^does not follow from its raw data: found sha256 .*, rebuilt")

    def test_what_is_only_older_is_called_older(self) -> None:
        """Where raw data are as they were and the prediction is not, that is named; so is a mark unseen."""
        with Path("predictions/m1.yaml").open("rb+") as file:
            text = file.read()
            file.seek(0)
            file.write(b"\xef\xbb\xbf" + text)
        words = faults()[ANALYSIS]
        self.assertRegex(words, r"^older than what makes it now \(predictions/m1.yaml changed \(.* U\+FEFF")
        self.assertNotIn("does not follow", words)

    def test_new_raw_under_old_figures_is_found(self) -> None:
        """A record replaced without what follows from it is refused by each file that no longer follows."""
        recorded.record_m1(seed=1)
        found = faults()
        self.assertRegex(found["results/m1/summary.csv"], "^does not follow from its raw data")

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

    def test_the_stage_skips_what_it_verified_and_refuses_a_mismatch(self) -> None:
        """The receipt lets the next run skip m1; a changed file is looked at again and refused."""
        self.assertIn("same bytes", stage(recorded.CONFIG))
        self.assertIn("verified before", stage(recorded.CONFIG))
        Path("results/m1/summary.csv").write_text("path,n\n")
        with self.assertRaisesRegex(RecordError, "summary.csv"):
            stage(recorded.CONFIG)


def stage(config: Mapping[str, Any] = checkout.CONFIG) -> str:
    """What the stage that verifies says."""
    return verify.verify_stage(Plan(config), Path(VERIFIED_RECEIPT))


def why(config: Mapping[str, Any] = checkout.CONFIG) -> list[str]:
    """Why the stage that verifies has to run."""
    walk = Plan(config)
    return walk.why(walk.verify_step())


def enter_small(test: unittest.TestCase) -> None:
    """A small checkout in which m1 is recorded; what follows from it are lines that name their files."""
    checkout.enter(test)
    checkout.record(checkout.CONFIG)

    def texts(step: Step, *_: object) -> dict[str, str]:
        return {path: f"{path}\n" for path in step.makes}

    test.enterContext(mock.patch.object(run_stage, "texts", texts))


class StageTest(unittest.TestCase):
    """What counts as out of date, as kept and as verified before, in a small checkout."""

    def setUp(self) -> None:
        """A small checkout in which m1 is recorded and derived."""
        enter_small(self)

    def test_a_receipt_out_of_date_is_a_fault_of_its_own(self) -> None:
        """Where the same bytes come out but the receipt names other inputs, the receipt is named."""
        receipt = Path("results/m1/receipts/summary.json")
        inputs = read_json(receipt)["inputs"]
        reseal(receipt, inputs={**inputs, "section": "0" * 64})
        self.assertEqual(states()["results/m1/summary.csv"], "same bytes")
        self.assertRegex(
            faults()[receipt.as_posix()], "^out of date: its judge: part changed; .* makes it again$"
        )

    def test_an_automatic_record_of_another_source_is_a_fault_and_a_manual_one_is_kept(self) -> None:
        """What measures by itself must be of this source; what does not is kept, in words that are true."""
        inputs = read_json(MANIFEST)["inputs"]
        other = dict.fromkeys([path for path in inputs if path.startswith("src/")][:3], "0" * 64)
        reseal(MANIFEST, inputs={**inputs, **other})
        self.assertRegex(faults()[MANIFEST.as_posix()], "^out of date: src/.* changed")
        manual = copy.deepcopy(checkout.CONFIG)
        manual["experiments"]["m1"]["refresh"] = "manual"
        said = {finding.file: finding for finding in verify.verify(Plan(manual), ["m1"], {})}
        record = said[MANIFEST.as_posix()]
        self.assertEqual(record.state, "kept: measured by an earlier source (3 files differ)")
        self.assertFalse(record.fault)

    def test_any_source_edit_rebuilds(self) -> None:
        """A source that is in no closure, other pins, another checkout: nothing counts as verified before."""
        stage()
        for name in ("src/inference_lab/commands/run_stage.py", "command", "checkout"):
            with self.subTest(name):
                inputs = read_json(Path(VERIFIED_RECEIPT))["inputs"]
                reseal(VERIFIED_RECEIPT, inputs={**inputs, name: "0" * 64})
                self.assertNotEqual(why(), [])
                self.assertIn("same bytes", stage())
        reseal(VERIFIED_RECEIPT, pins={})
        self.assertIn("same bytes", stage())

    def test_a_receipt_of_another_checkout_decides_nothing(self) -> None:
        """A verification's receipt that came with a commit or a copy is of another folder: all is rebuilt."""
        stage()
        self.assertEqual(why(), [])
        shutil.copytree(".", "copy", symlinks=True)
        with contextlib.chdir("copy"):
            self.assertEqual(why(), ["the checkout or its Python changed"])
            self.assertIn("same bytes", stage())


class CheckoutTest(unittest.TestCase):
    """Everything below results/, and what should be there and is not."""

    def setUp(self) -> None:
        """A checkout in which tests passed and m1 is recorded and derived."""
        enter_small(self)
        write_tests_receipt()
        self.assertEqual(self.faults(), {})

    def faults(self, config: Mapping[str, Any] = checkout.CONFIG) -> dict[str, str]:
        """What is wrong with this checkout, by file."""
        found = verify.verify_checkout(Plan(config))
        return {finding.file: finding.state for finding in found if finding.fault}

    def test_a_record_is_of_files_in_this_checkout(self) -> None:
        """A raw file, a manifest or a whole folder that is a link out of it is refused, also by the plan."""
        outside = Path(tempfile.mkdtemp(dir=Path.cwd().parent))
        self.addCleanup(shutil.rmtree, outside)
        for name in ("raw.csv", "manifest.json", ""):
            here = Path("results/m1", name)
            there = outside / (name or "m1")
            shutil.move(here, there)
            here.symlink_to(there)
            named = here / "manifest.json" if not name else here
            with self.subTest(name):
                self.assertRegex(self.faults()[MANIFEST.as_posix()], f"^{named}: .* outside of this checkout")
                receipts = Plan(checkout.CONFIG)
                with self.assertRaisesRegex(RecordError, "outside of this checkout"):
                    receipts.why(receipts.step("summary", "m1"))
            here.unlink()
            shutil.move(there, here)
        page = Path(ANALYSIS)
        shutil.move(page, outside / "page")
        page.symlink_to(outside / "page")
        self.assertRegex(self.faults()[ANALYSIS], "^is a link out of this checkout")

    def test_a_receipt_is_of_its_own_step(self) -> None:
        """A command, stage or experiment that is another step's is refused, however well it is sealed."""
        summary = "results/m1/receipts/summary.json"
        for path, entries in (
            (MANIFEST.as_posix(), {"command": ["measure", "m2"]}),
            (MANIFEST.as_posix(), {"experiment": "m2"}),
            (summary, {"command": ["rm", "-r"]}),
            (summary, {"stage": "figure"}),
        ):
            with self.subTest(path, **entries):
                whole = Path(path).read_text()
                reseal(path, **entries)
                ((key, value),) = entries.items()
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
            findings = verify.verify(Plan(checkout.CONFIG), ["m1"], {})
            (found,) = [each for each in findings if each.file == "results/tests.json of m1"]
            self.assertFalse(found.fault)
            return found.state

        self.assertEqual(said(), "not checked: the record names no receipt of theirs")
        tests = Path("results/tests.json")
        reseal(MANIFEST, tests=sha256_file(tests))
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
        for name in (
            "m1/notes.md",
            "loose.csv",
            "gone/raw.csv",
            "gone/summary.csv",
            "m1/superseded/1/raw.csv",
        ):
            Path("results", name).parent.mkdir(parents=True, exist_ok=True)
            Path("results", name).write_text("x\n")
        pages = Path("docs/experiments")
        (pages / "old").mkdir(parents=True)
        for name in ("gone.md", "gone.md.j2", "plot.svg", "old/m1.md"):
            Path(pages, name).write_text("# gone\n")
        Path("results/m1/\x1b[2Jtwo\nlines").write_text("x\n")
        Path("results/linked").symlink_to("m1")
        found = self.faults()
        names = [
            "results/gone/",
            "results/linked",
            "results/loose.csv",
            "results/m1/\\x1b[2Jtwo\\nlines",
            "results/m1/notes.md",
            *(f"docs/experiments/{name}" for name in ("gone.md", "gone.md.j2", "old/m1.md", "plot.svg")),
        ]
        self.assertEqual(list(found), names)
        for name, state in found.items():
            ways = "copy what it leads to, or" if name.endswith("linked") else "move it elsewhere or"
            self.assertRegex(state, f"^stray: .* {ways} remove it$")

    def test_an_experiment_taken_from_the_config_is_named(self) -> None:
        """Its record stays behind and belongs to nobody."""
        self.assertEqual(list(self.faults({"experiments": {}})), ["results/m1/"])

    def test_a_deleted_record_is_named(self) -> None:
        """An automatic record that is missing is a fault; a manual one when files or git tell of it."""
        manual = copy.deepcopy(checkout.CONFIG)
        manual["experiments"]["m1"]["refresh"] = "manual"
        git("init", "-q")
        git("add", "results")
        git("commit", "-qm", "recorded")
        commit = git("rev-parse", "--short", "HEAD")
        MANIFEST.unlink()
        for config in (checkout.CONFIG, manual):
            words = self.faults(config)[MANIFEST.as_posix()]
            self.assertRegex(words, "^missing, and results/m1/raw.csv is here, which follows from nothing")
        shutil.rmtree("results/m1")
        for config in (checkout.CONFIG, manual):
            words = self.faults(config)[MANIFEST.as_posix()]
            self.assertIn(f"deleted: commit {commit} has it; restore it (git checkout {commit} -- ", words)
        git("commit", "-qam", "deleted")
        self.assertIn(f"commit {commit} has it", self.faults(manual)[MANIFEST.as_posix()])
        shutil.rmtree(".git")
        self.assertEqual(self.faults(manual), {})  # as if it had never been measured
        self.assertIn("not measured; snakemake all", self.faults()[MANIFEST.as_posix()])

    def test_evidence_of_other_sources_is_named(self) -> None:
        """A tests' receipt that does not hold is a fault, also one that a merge tore."""
        tests = Path("results/tests.json")
        reseal(tests, inputs={})
        self.assertRegex(self.faults()[tests.as_posix()], "^out of date: src/.* is new; and [0-9]+ more;")
        tests.write_text(f"<<<<<<< ours\n{tests.read_text()}=======\n>>>>>>> theirs\n")
        self.assertIn("tests.json holds git's conflict markers", self.faults()[tests.as_posix()])


class PredictionTest(unittest.TestCase):
    """Whether the prediction stood in git before the run: by the commit the run names, not by dates."""

    def setUp(self) -> None:
        """A repository with the prediction in its one commit, and a record of m1 that names it."""
        enter_small(self)
        file = "predictions/m1.yaml"
        reseal(MANIFEST, prediction={"file": file, "sha256": sha256_file(Path(file))})
        for words in (("init", "-q"), ("add", "src", "predictions"), ("commit", "-qm", "predict")):
            git(*words)
        self.names(commit=git("rev-parse", "HEAD"))

    def names(self, commit: str) -> None:
        """The record says that it was measured at this commit."""
        reseal(MANIFEST, git={"commit": commit, "dirty": True})

    def said(self, start: str) -> None:
        """What verification says of the prediction begins so, and it is no fault."""
        (found,) = [
            each
            for each in verify.verify(Plan(checkout.CONFIG), ["m1"], {})
            if each.file == "predictions/m1.yaml"
        ]
        self.assertTrue(found.state.startswith(start), found.state)
        self.assertFalse(found.fault)

    def test_it_holds_by_the_commit_that_the_run_names(self) -> None:
        """The blob in that commit decides, whatever dates say and whatever was committed since."""
        self.said("holds: the commit that the run names has this prediction")
        git("rm", "-q", "--cached", "predictions/m1.yaml")
        git("commit", "-qm", "later", "--date", "1999-01-01T00:00:00")
        self.said("holds: the commit that the run names has this prediction")

    def test_a_commit_without_it_is_no_evidence(self) -> None:
        """A commit that lacks the prediction, or holds another one, is said to, and proves nothing."""
        with Path("predictions/m1.yaml").open("a") as file:
            file.write("# and more\n")
        git("commit", "-qam", "more")
        self.names(commit=(at := git("rev-parse", "HEAD")))
        self.said(f"not checked: commit {at[:12]}, which the run names, has it in other words")
        git("rm", "-q", "--cached", "predictions/m1.yaml")
        git("commit", "-qm", "less")
        self.names(commit=(at := git("rev-parse", "HEAD")))
        self.said(f"not checked: commit {at[:12]}, which the run names, does not hold it")

    def test_history_that_is_not_here_is_said_to_be(self) -> None:
        """Squashed, imported, shallow, nested, without git, another's: each in words of its own."""
        self.names(commit="c" * 40)
        self.said(
            "not checked: commit cccccccccccc, which the run names, is not in this repository (squashed"
        )
        Path(".git/shallow").write_text(f"{git('rev-parse', 'HEAD')}\n")
        self.said("not checked: the history of this clone does not reach back to commit cccccccccccc")
        self.names(commit="--output=stolen")
        self.said("not checked: the run names '--output=stolen', which is no commit")
        with mock.patch.dict("os.environ", {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}):
            self.names(commit="c" * 40)
            self.said("not checked: git refuses this folder, which another user owns")
        with mock.patch.dict("os.environ", {"PATH": "/nowhere"}):
            self.said("not checked: git is not installed")
        shutil.rmtree(".git")
        self.said("not checked: this folder is no git repository")
        shutil.copytree(".", "inner", symlinks=True)
        git("init", "-q")
        with contextlib.chdir("inner"):
            self.said("not checked: this folder lies inside another git repository")

    def test_a_run_without_commit_says_why(self) -> None:
        """A record made outside git names the reason that its manifest gives; an old one gave none."""
        reseal(MANIFEST, git=None, git_reason="git is not installed")
        self.said("not checked: the run names no commit (git is not installed)")
        old = read_json(MANIFEST)
        del old["git_reason"]
        write_json(MANIFEST, receipts.seal(old))
        self.said("not checked: the run names no commit (no reason recorded)")


if __name__ == "__main__":
    unittest.main()

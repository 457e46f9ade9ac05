"""One function a stage: what it refuses before it starts, and what stands in place when it ends."""

import contextlib
import os
import shutil
import socket
import subprocess
import unittest
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from inference_lab.analysis.summary_table import View
from inference_lab.commands import run_stage
from inference_lab.commands.run_tests import TestsFailed
from inference_lab.config.judge import Judge
from inference_lab.errors import ConfigError, LabError, MeasurementRefused, RecordError
from inference_lab.records import installed, receipts, stages, store
from inference_lab.records.digests import Sources
from inference_lab.records.files import read_json, sha256_file, write_json
from inference_lab.records.installed import platform_and_packages
from inference_lab.records.plan import Plan
from inference_lab.records.record import Measurement, Record
from inference_lab.records.samples import write_samples
from inference_lab.records.stages import step as step_of
from tests import checkout
from tests.checkout import CONTROLS, JUDGE, MEASURE, SAMPLES, edit
from tests.synthetic import samples_of

STEP = step_of("measure", "m1", MEASURE)
MANIFEST = Path(STEP.receipt)
LOCK = f"test of stages {os.getpid()}"
TESTS = Path(stages.TESTS_RECEIPT)
DIGESTS = {"numpy": "d" * 64}


def found() -> Measurement:
    """What a measurement of the small checkout finds."""
    files = {"raw.csv": write_samples(SAMPLES), "controls.csv": write_samples(CONTROLS, controls=True)}
    rows = {"raw.csv": len(SAMPLES), "controls.csv": len(CONTROLS)}
    return Measurement("timing", files, rows, {"oracle": [], "data_sha256": "f" * 64}, {"load_before": [0.5]})


def write_tests_receipt(**environment_changes: Any) -> None:
    """Evidence that the tests passed here and now."""
    step = stages.TESTS
    here = platform_and_packages(step.pins(Sources())) | environment_changes
    receipt = receipts.receipt_of(step, step.inputs(Sources()), step.pins(Sources()))
    write_json(TESTS, receipts.seal({**receipt, "tests": {}, "environment": here}))


def git(*words: str) -> str:
    """What git says here, as somebody who may commit."""
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *words], check=True, capture_output=True, text=True).stdout.strip()


class MeasureTest(unittest.TestCase):
    """The measure stage in a small checkout, with a measurement that takes no time."""

    def setUp(self) -> None:
        """Tests that hold, a prediction that is valid, versions as pinned."""
        checkout.enter(self)
        write_tests_receipt()
        self.module = SimpleNamespace(measure=mock.Mock(side_effect=lambda *_: found()))
        self.enterContext(mock.patch.object(run_stage, "stage_module", return_value=self.module))
        self.running = self.enterContext(mock.patch.object(installed, "check_running", return_value=DIGESTS))
        self.load = self.enterContext(mock.patch("inference_lab.config.prediction.load_prediction"))

    def measure(self, *, in_pipeline: bool = True) -> str:
        """The measure stage, on a lock of its own."""
        quiet = contextlib.nullcontext(lambda _done, _total: None)
        return run_stage.measure(STEP, MANIFEST, quiet, in_pipeline=in_pipeline, lock=LOCK)

    def refused(self, error: type[LabError], words: str, *, measured: bool = False) -> None:
        """The stage refuses in these words and records nothing; unless said otherwise it measured nothing."""
        before = {path: path.read_bytes() for path in Path("results").rglob("*.*")}
        with self.assertRaisesRegex(error, words):
            self.measure()
        self.assertEqual(self.module.measure.called, measured)
        self.assertEqual({path: path.read_bytes() for path in Path("results").rglob("*.*")}, before)

    def test_a_record_says_under_what_it_was_made(self) -> None:
        """The manifest holds the measured section, digests, pins, tests, machine, times and validity."""
        said = self.measure()
        self.assertEqual(said, "m1: 4 rows in raw.csv, 2 rows in controls.csv and results/m1/manifest.json")
        section, report = self.module.measure.call_args.args
        self.assertEqual(section.given(), MEASURE)
        report(1, 2)
        record = store.load_record(MANIFEST)
        self.assertEqual((samples_of(record.samples), samples_of(record.controls)), (SAMPLES, CONTROLS))
        prediction, manifest = Path("predictions/m1.yaml"), record.manifest
        expected = {
            "conditions": MEASURE,
            "inputs": STEP.inputs(Sources()),
            "pins": {"numpy": "2.4.6"},
            "tests": sha256_file(TESTS),
            "prediction": {"file": str(prediction), "sha256": sha256_file(prediction)},
            "oracle": [],
            "data_sha256": "f" * 64,
            "clock": "perf_counter_ns",
            "validity": {"valid": True, "reasons": []},
        }
        self.assertEqual({name: manifest[name] for name in expected}, expected)
        machine = manifest["environment"]
        self.assertEqual((machine["load_before"], machine["package_digests"]), ([0.5], DIGESTS))
        self.assertIn("cpu_model", machine)
        started, finished = (datetime.fromisoformat(manifest[key]) for key in ("started_at", "finished_at"))
        self.assertLessEqual(started, finished)
        self.assertIsNotNone(started.tzinfo)
        self.assertEqual(Plan(checkout.CONFIG).why(STEP), [])

    def test_evidence_that_does_not_hold_refuses(self) -> None:
        """No tests' receipt, one of other sources, an edited one, one from elsewhere: nothing is measured."""
        changes: list[tuple[Callable[[], object], str]] = [
            (lambda: edit("tests/test_attention.py", "42", "41"), r"tests/test_attention\.py changed"),
            (lambda: edit("src/inference_lab/unused.py", "ruff", "numpy"), r"unused\.py changed"),
            (lambda: write_tests_receipt(python="3.99"), "from another platform or other versions"),
            (
                lambda: edit(str(TESTS), '"stage": "tests"', '"stage": "test"'),
                "results/tests.json was edited",
            ),
            (TESTS.unlink, r"does not hold \(not made yet\); run snakemake results/tests\.json first"),
        ]
        for change, words in changes:
            change()
            with self.subTest(words):
                self.refused(MeasurementRefused, words)

    def test_pins_that_do_not_hold_refuse(self) -> None:
        """What runs is not what is written: nothing is measured; found so at the end, it is kept, invalid."""
        refusal = MeasurementRefused("numpy 1 installed")
        self.running.side_effect = refusal
        self.refused(MeasurementRefused, "numpy 1 installed")
        self.running.assert_called_once_with({"numpy": "2.4.6"})
        self.running.side_effect = [DIGESTS, refusal]
        with self.assertRaisesRegex(MeasurementRefused, "invalid, because numpy 1 installed .*-invalid"):
            self.measure()
        self.assertFalse(MANIFEST.exists())

    def test_no_prediction_or_no_place_refuses(self) -> None:
        """A prediction that is missing or malformed, a place for no record: nothing is measured."""
        self.load.side_effect = ConfigError("predictions/m1.yaml: no such file; write it")
        self.refused(ConfigError, r"predictions/m1\.yaml: no such file")
        Path("predictions/m1.yaml").unlink()
        self.refused(ConfigError, r"predictions/m1\.yaml: no such file")
        self.load.side_effect = None
        Path("results/m1").write_text("a file")
        self.refused(RecordError, "results/m1: cannot be written")

    def test_outside_the_pipeline_both_are_noted(self) -> None:
        """A standalone command measures without tests and prediction, and its manifest says so."""
        TESTS.unlink()
        Path("predictions/m1.yaml").unlink()
        self.measure(in_pipeline=False)
        manifest = read_json(MANIFEST)
        self.assertEqual((manifest["tests"], manifest["prediction"]), ("not current", None))

    def test_an_invalid_measurement_takes_no_place(self) -> None:
        """It is kept whole and marked beside the record that stands; one that is refused leaves nothing."""
        self.measure()
        stood = MANIFEST.read_bytes()
        facts = {"oracle": [], "validity": {"valid": False, "reasons": ["the server died"]}}
        self.module.measure.side_effect = lambda *_: replace(found(), facts=facts)
        with self.assertRaisesRegex(MeasurementRefused, r"m1: invalid, because the server died; .*-invalid"):
            self.measure()
        self.assertEqual(MANIFEST.read_bytes(), stood)
        (kept,) = Path("results/m1/superseded").glob("*-invalid/manifest.json")
        record = store.load_record(kept)
        kept_as = (samples_of(record.samples), record.manifest["validity"])
        self.assertEqual(kept_as, (SAMPLES, facts["validity"]))
        self.module.measure.side_effect = MeasurementRefused("path dynamic differs from its oracle")
        self.refused(MeasurementRefused, "differs from its oracle", measured=True)

    def test_a_source_that_changes_meanwhile_makes_it_invalid(self) -> None:
        """Edited, half edited or gone during the run: the samples are kept and marked."""
        self.measure()
        stood, source = MANIFEST.read_bytes(), Path("src/inference_lab/mechanisms/attention.py")
        text = source.read_text()
        changes: list[tuple[Callable[[], object], str]] = [
            (lambda: source.write_text(text.replace("* y", "/ y")), f"{source} changed while it ran"),
            (lambda: source.write_text("def ("), f"{source}.* while it ran"),
            (source.unlink, "attention.py is gone while it ran"),
        ]
        for change, words in changes:

            def edits(*_: object, change: Callable[[], object] = change) -> Measurement:
                change()
                return found()

            self.module.measure.side_effect = edits
            source.write_text(text)
            write_tests_receipt()
            refusal = f"m1: invalid, because .*{words}; .*-invalid"
            with self.subTest(words), self.assertRaisesRegex(MeasurementRefused, refusal):
                self.measure()
            self.assertEqual(MANIFEST.read_bytes(), stood)
        kept = [store.load_record(path) for path in Path("results/m1/superseded").glob("*-invalid*/*.json")]
        self.assertEqual([samples_of(record.samples) for record in kept], [SAMPLES] * 3)
        self.assertEqual({record.manifest["validity"]["valid"] for record in kept}, {False})

    def test_the_machine_is_held_until_the_record_stands(self) -> None:
        """The lock is taken before measuring and freed after the files are in place, also by a failure."""

        def held() -> bool:
            with socket.socket(socket.AF_UNIX) as other:
                try:
                    other.bind(f"\0{LOCK}")
                except OSError:
                    return True
            return False

        seen: list[bool] = []
        put = store.replace_record

        def puts(*args: Any) -> Path | None:
            moved = put(*args)
            seen.append(held())
            return moved

        self.module.measure.side_effect = lambda *_: (seen.append(held()), found())[1]
        with mock.patch.object(store, "replace_record", puts):
            self.measure()
        self.assertEqual((seen, held()), ([True, True], False))
        self.module.measure.side_effect = ZeroDivisionError
        with self.assertRaises(ZeroDivisionError):
            self.measure()
        self.assertFalse(held())

    def noted(self, *, in_pipeline: bool = True) -> tuple[object, str]:
        """What the manifest of a new measurement says of git: commit and whether it is dirty, or why none."""
        self.measure(in_pipeline=in_pipeline)
        manifest = read_json(MANIFEST)
        return manifest["git"], manifest.get("git_reason", "")

    def test_the_commit_is_noted(self) -> None:
        """In a repository the manifest names the commit and whether what matters was changed since."""
        self.assertEqual(self.noted(), (None, "this folder is no git repository"))
        git("init", "-q")
        self.assertEqual(self.noted(), (None, "git does not track the sources here"))
        git("add", "src", "predictions", "pyproject.toml")
        self.assertEqual(self.noted(), (None, "there is no commit here yet"))
        git("commit", "-qm", "sources")
        commit = git("rev-parse", "HEAD")
        self.assertEqual(self.noted(), ({"commit": commit, "dirty": False}, ""))
        edit("src/inference_lab/unused.py", "ruff", "mypy")
        self.assertEqual(self.noted(in_pipeline=False), ({"commit": commit, "dirty": True}, ""))

    def test_a_commit_of_another_repository_is_not_noted(self) -> None:
        """Inside another repository, also as a hook of it, none is named and why is said."""
        git("init", "-q", "outer")
        git("-C", "outer", "commit", "-qm", "outer", "--allow-empty")
        shutil.copytree(".", "outer/inner", ignore=shutil.ignore_patterns("outer"))
        with contextlib.chdir("outer/inner"):
            self.assertIn("no git repository", self.noted()[1])
            with mock.patch.dict(os.environ, {"GIT_DIR": str(Path("../.git").resolve())}):
                self.assertIsNone(self.noted()[0])


class TestsStageTest(unittest.TestCase):
    """The tests stage."""

    def setUp(self) -> None:
        """A small checkout."""
        checkout.enter(self)

    def run_tests(self, outcome: Any) -> str:
        """The tests stage when the unit tests return or raise this."""
        with mock.patch("inference_lab.commands.run_tests.run_unit_tests", side_effect=outcome):
            return run_stage.run_tests()

    def test_passed_tests_leave_a_receipt(self) -> None:
        """The receipt holds outcomes, versions and thread variables, no durations, and is current."""
        said = self.run_tests(lambda: {"a.B.test_c": "passed"})
        self.assertEqual(said, "1 unit tests passed: results/tests.json")
        receipt = receipts.read_receipt(TESTS)
        self.assertEqual(receipt["tests"], {"a.B.test_c": "passed"})
        self.assertEqual(receipt["environment"]["package_digests"], {})
        self.assertEqual(receipt["environment"]["thread_variables"]["OMP_NUM_THREADS"], "1")
        self.assertEqual(Plan(checkout.CONFIG).why(stages.TESTS), [])
        self.assertEqual(run_stage.check_tests(), sha256_file(TESTS))

    def test_other_code_is_not_tested(self) -> None:
        """Where what runs is not what is written, no test runs, and the receipt that stood there stands."""
        write_tests_receipt()
        other = mock.patch.object(installed, "check_running", side_effect=MeasurementRefused("runs from /x"))
        with other, self.assertRaisesRegex(MeasurementRefused, "runs from /x"):
            self.run_tests(ZeroDivisionError)
        self.assertTrue(TESTS.exists())

    def test_no_evidence_leaves_what_was_there(self) -> None:
        """Failing tests, and a source or test that changes while they run, write no receipt, delete none."""

        def edits() -> Mapping[str, str]:
            edit("tests/test_attention.py", "42", "41")
            return {"a.B.test_c": "passed"}

        for outcome, error in ((TestsFailed("1 of 2 failed"), TestsFailed), (edits, RecordError)):
            with self.subTest(error):
                with self.assertRaises(error):
                    self.run_tests(outcome)
                self.assertFalse(TESTS.exists())
                Path("tests/test_attention.py").write_text(checkout.FILES["tests/test_attention.py"])
                write_tests_receipt()
                before = TESTS.read_bytes()
                with self.assertRaises(error):
                    self.run_tests(outcome)
                self.assertEqual(TESTS.read_bytes(), before)
                TESTS.unlink()


class DeriveTest(unittest.TestCase):
    """Stages that read a record and make text of it."""

    def setUp(self) -> None:
        """A record; summaries and figures say what they were given."""
        checkout.enter(self)
        checkout.replace_record(STEP)
        self.seen: list[Any] = []

        def summarise(record: Record, judge: Judge) -> str:
            self.seen.append((record, judge))
            return "path,n\ndynamic,4\n"

        def draw(view: View) -> str:
            self.seen.append(view)
            return "<svg/>\n"

        module = SimpleNamespace(summarise=summarise, draw=draw)
        self.enterContext(mock.patch.object(run_stage, "stage_module", return_value=module))

    def test_a_summary_is_of_the_record(self) -> None:
        """The summary module gets the checked record and the judge part; made once, it holds."""
        step = step_of("summary", "m1", JUDGE)
        self.assertEqual(run_stage.derive(step), "results/m1/summary.csv: made")
        self.assertEqual(run_stage.derive(step), "results/m1/summary.csv: holds already")
        ((record, judge),) = self.seen
        self.assertEqual((samples_of(record.samples), judge.given()), (SAMPLES, JUDGE))
        self.assertEqual(Path("results/m1/summary.csv").read_text(), "path,n\ndynamic,4\n")

    def test_nothing_is_derived_from_an_invalid_record(self) -> None:
        """A record that says it is invalid is refused by name."""
        manifest = Path(STEP.receipt)
        invalid = {"validity": {"valid": False, "reasons": ["the lid closed"]}}
        write_json(manifest, receipts.seal({**read_json(manifest), **invalid}))
        with self.assertRaisesRegex(RecordError, "the lid closed"):
            run_stage.derive(step_of("summary", "m1", JUDGE))
        self.assertFalse(self.seen)

    def test_other_code_derives_nothing(self) -> None:
        """Where what runs is not what is written, nothing is made, found so before or after."""
        for check in ("check_running", "check_loaded"):
            refusal = mock.patch.object(installed, check, side_effect=MeasurementRefused("runs from /x"))
            with self.subTest(check), refusal, self.assertRaisesRegex(MeasurementRefused, "runs from /x"):
                run_stage.derive(step_of("summary", "m1", JUDGE))
            self.assertFalse(Path("results/m1/summary.csv").exists())

    def test_a_figure_names_what_it_is_drawn_from(self) -> None:
        """A view holds summary rows as text, the digest of each file it holds, and the rebuilding command."""
        run_stage.derive(step_of("summary", "m1", JUDGE))
        run_stage.derive(step_of("figure", "m1", JUDGE, "latency.svg"))
        view = self.seen[-1]
        self.assertEqual(list(view.summary), [{"path": "dynamic", "n": "4"}])
        names = ("raw.csv", "controls.csv", "summary.csv")
        files = {name: sha256_file(Path("results/m1", name)) for name in names}
        command = "snakemake results/m1/latency.svg"
        self.assertEqual(view.source, {"experiment": "m1", "files": files, "command": command})
        Path("results/m1/summary.csv").write_bytes(b"path,n\n\xff,4\n")  # in another encoding
        with self.assertRaisesRegex(RecordError, r"summary\.csv: cannot be read .*rebuild it from raw$"):
            run_stage.texts(step_of("figure", "m1", JUDGE, "latency.svg"))

    def test_texts_are_made_without_writing(self) -> None:
        """What a step would write can be had without a file being touched: so it is verified."""
        before = sorted(Path("results").rglob("*"))
        texts = run_stage.texts(step_of("summary", "m1", JUDGE))
        self.assertEqual(texts, {"results/m1/summary.csv": "path,n\ndynamic,4\n"})
        self.assertEqual(sorted(Path("results").rglob("*")), before)

    def test_an_edited_record_makes_nothing(self) -> None:
        """Nothing is derived from a raw file that differs from its manifest."""
        edit("results/m1/raw.csv", ",2000000,1000000001,", ",1000000,1000000001,")
        with self.assertRaisesRegex(RecordError, "raw.csv: differs"):
            run_stage.derive(step_of("summary", "m1", JUDGE))
        self.assertFalse(Path("results/m1/summary.csv").exists())


class ModuleTest(unittest.TestCase):
    """The one place where a stage's module is imported by name."""

    def test_a_module_is_imported_by_its_name(self) -> None:
        """A named module is imported; one without a file, or a package, is refused by its path."""
        self.assertEqual(run_stage.stage_module("errors").__name__, "inference_lab.errors")
        for name in ("experiments.none", "experiments", "figures.latency.draw", ""):
            with self.subTest(name), self.assertRaisesRegex(ConfigError, "no module src/inference_lab/"):
                run_stage.stage_module(name)


if __name__ == "__main__":
    unittest.main()

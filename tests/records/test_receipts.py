"""The chain of receipts: what is current, and why not, decided by digests alone."""

import copy
import os
import shutil
import unittest
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.errors import ConfigError, RecordError
from inference_lab.records import receipts, stages, store
from inference_lab.records.files import read_json, sha256_file, write_json
from inference_lab.records.plan import Asked, Plan
from tests import checkout
from tests.checkout import CONFIG, edit

SOURCE = "src/inference_lab/"
AT = "results/m1"
MEASURED = ["m1 measure", "m1 summary", "m1 figure latency.svg", "m1 figure throughput.svg", "m1 analysis"]


def stale(config: dict[str, Any] = CONFIG, asked: Asked | None = None) -> dict[str, list[str]]:
    """`{step: reasons}` of every step that would run."""
    walk = Plan(config, asked)
    steps = [step for experiment in walk.experiments for step in walk.steps(experiment)]
    return {named(step): why for step in steps if (why := walk.why(step))}


def named(step: stages.Step) -> str:
    """A step by stage and figure: "m1 summary"."""
    return " ".join((step.experiment, step.stage, *step.command[2:]))


def changed(part: str, **values: Any) -> dict[str, Any]:
    """The config with other values in one part of its section."""
    config = copy.deepcopy(CONFIG)
    config["experiments"]["m1"][part] |= values
    return config


class StalenessTest(unittest.TestCase):
    """A checkout in which everything is recorded, and one thing changes."""

    def setUp(self) -> None:
        """Everything of the small checkout is recorded."""
        checkout.enter(self)
        checkout.record(CONFIG)

    def test_nothing_changed_nothing_runs(self) -> None:
        """A whole record is current, in whatever order its files were touched and wherever it moved."""
        for old, new in (("* y", "/ y"), ("/ y", "* y")):  # a change taken back is none
            edit(f"{SOURCE}mechanisms/attention.py", old, new)
        self.assertEqual(stale(), {})
        for number, path in enumerate(sorted(Path().rglob("*"), reverse=True)):
            os.utime(path, (number, number))
        self.assertEqual(stale(), {})
        shutil.copytree(".", "moved µ and spaced", ignore=shutil.ignore_patterns("moved*"))
        with chdir("moved µ and spaced"):
            self.assertEqual(stale(), {})

    def test_what_runs_after_a_change(self) -> None:
        """Each change runs the stages that depend on it and no other, and says which file changed."""

        attention, figure = f"{SOURCE}mechanisms/attention.py", f"{AT}/receipts/latency.svg.json"
        gone = Path.unlink
        cases: dict[str, tuple[Callable[..., object], tuple[Any, ...], list[str], str]] = {
            "an operator": (edit, (attention, "* y", "/ y"), MEASURED, f"{attention} changed"),
            "an import more": (
                edit,
                (f"{SOURCE}timing/protocol.py", "clock", "import inference_lab.unused\nclock"),
                MEASURED,
                f"{SOURCE}unused.py is new",
            ),
            "a comment": (edit, (attention, "# a comment", "# another"), [], ""),
            "an annotation": (edit, (attention, "(x, y=2):", "(x: float, y: float = 2) -> float:"), [], ""),
            "summary code": (
                edit,
                (f"{SOURCE}analysis/timing.py", "math", "cmath"),
                MEASURED[1:],
                "timing.py changed",
            ),
            "figure code": (
                edit,
                (f"{SOURCE}figures/throughput.py", "blue", "red"),
                MEASURED[3:4],
                "put.py changed",
            ),
            "a prediction": (
                edit,
                ("predictions/m1.yaml", "does it", "why"),
                MEASURED[4:],
                "m1.yaml changed",
            ),
            "a measured pin": (edit, ("pyproject.toml", "2.4.6", "2.4.7"), MEASURED, "numpy 2.4.6 -> 2.4.7"),
            "a figures' pin": (
                edit,
                ("pyproject.toml", "13.0.0", "13.0.1"),
                MEASURED[2:3],
                "pillow 13.0.0 -> 13.0.1",
            ),
            "a tools' pin": (edit, ("pyproject.toml", "0.17.6", "0.18.0"), [], ""),
            "a test": (edit, ("tests/test_attention.py", "42", "41"), [], ""),
            "a manifest gone": (gone, (Path(AT, "manifest.json"),), MEASURED, "no record yet"),
            "a summary gone": (gone, (Path(AT, "summary.csv"),), MEASURED[1:], "summary.csv is missing"),
            "a summary edited": (
                Path.write_text,
                (Path(AT, "summary.csv"), "better numbers\n"),
                MEASURED[1:],
                "summary.csv was edited by hand",
            ),
            "a figure gone": (gone, (Path(AT, "latency.svg"),), MEASURED[2:3], "latency.svg is missing"),
            "a receipt gone": (gone, (Path(figure),), MEASURED[2:3], "not made yet"),
            "a receipt edited": (
                edit,
                (figure, '"stage": "figure"', '"stage": "picture"'),
                MEASURED[2:3],
                f"{figure} was edited",
            ),
            "a receipt torn": (
                Path.write_text,
                (Path(figure), '{"inputs"'),
                MEASURED[2:3],
                f"{figure} was edited",
            ),
        }
        for what, (change, words, runs, reason) in cases.items():
            with self.subTest(what):
                shutil.copytree(".", what, ignore=shutil.ignore_patterns("a *", "an *", "* code"))
                with chdir(what):
                    change(*words)
                    found = stale()
                    self.assertEqual(list(found), runs)
                    for said in found.values():
                        self.assertIn(reason, "; ".join(said))
                shutil.rmtree(what)

    def test_each_stage_depends_on_its_own_part_of_the_config(self) -> None:
        """Conditions measure again, bounds and looks summarise again; the order of keys does nothing."""
        for part, value, runs in (
            ("measure", {"rounds": 3}, MEASURED),
            ("measure", {"quiet_wait_s": 99, "quiet_cores": 0.3}, []),  # waiting decides no number
            ("judge", {"knee_factor": 1.5}, MEASURED[1:]),
        ):
            found = stale(changed(part, **value))
            self.assertEqual(list(found), runs)
            self.assertEqual(list(found.values())[:1], [[f"its {part}: part changed"]] if runs else [])
        experiments = CONFIG["experiments"]["m1"]
        reversed_keys = {
            key: dict(reversed(value.items())) if isinstance(value, dict) else value
            for key, value in reversed(experiments.items())
        }
        self.assertEqual(stale({"experiments": {"m1": reversed_keys}}), {})

    def test_another_experiment_voids_nothing(self) -> None:
        """An experiment added to the config runs alone."""
        config = {"experiments": {**CONFIG["experiments"], "m2": CONFIG["experiments"]["m1"]}}
        Path("predictions/m2.yaml").write_text("question: and this?\n")
        self.assertEqual({name.split()[0] for name in stale(config)}, {"m2"})

    def test_a_record_of_another_form_is_measured_again(self) -> None:
        """When the schema number rises, every record and receipt is out of date and says so."""
        with mock.patch.object(receipts, "SCHEMA", receipts.SCHEMA + 1):
            found = stale()
        self.assertEqual(list(found), MEASURED)
        self.assertEqual(
            found["m1 measure"], [f"records have form {receipts.SCHEMA + 1} now, this one {receipts.SCHEMA}"]
        )

    def test_a_record_that_is_not_whole_is_refused(self) -> None:
        """Raw edited or missing, manifest edited: an error with file, expected and found digest, ways out."""
        raw = Path(AT, "raw.csv")
        was, digest = raw.read_text(), sha256_file(raw)
        raw.write_text(was.replace("2000000", "1000000"))
        edit(f"{SOURCE}mechanisms/attention.py", "* y", "/ y")  # even when the record is stale as well
        manifest = Path(AT, "manifest.json")
        cases: list[tuple[Callable[[], object], list[str]]] = [
            (lambda: None, ["results/m1/raw.csv: differs", digest, sha256_file(raw)]),
            (raw.unlink, ["results/m1/raw.csv: missing"]),
            (lambda: edit(str(manifest), "Example CPU", "Better CPU"), [str(manifest)]),
            (lambda: edit(str(manifest), '"Better CPU"', "NaN"), [str(manifest)]),
            (lambda: manifest.write_text("{"), [str(manifest), "not readable"]),
            (lambda: manifest.write_text("[]"), [str(manifest), "no JSON object"]),
        ]
        for damage, said in cases:
            damage()
            with self.subTest(said=said), self.assertRaises(RecordError) as raised:
                stale()
            for words in (*said, "restore it"):
                self.assertIn(words, str(raised.exception))
            self.assertNotIn("\n", str(raised.exception))

    def test_a_missing_prediction_is_named(self) -> None:
        """A file that no stage makes and one reads is an error that names both."""
        Path("predictions/m1.yaml").unlink()
        with self.assertRaisesRegex(
            ConfigError, r"predictions/m1\.yaml: no such file, and m1 analysis reads it"
        ):
            stale()
        Path(f"{AT}/manifest.json").unlink()  # nothing is measured for it, either
        with self.assertRaisesRegex(ConfigError, r"predictions/m1\.yaml: no such file"):
            Plan(CONFIG).why(Plan(CONFIG).step("analysis", "m1"))

    def test_what_is_asked_for_runs(self) -> None:
        """-R by rule, by file and --forceall run what they name and what follows from it."""
        for names, runs in {
            ("measure",): MEASURED,
            (f"{AT}/manifest.json",): MEASURED,
            (f"{AT}/raw.csv",): MEASURED,
            ("summary",): MEASURED[1:],
            (f"{AT}/latency.svg",): MEASURED[2:3],
            ("figure",): MEASURED[2:4],
            ("results/m2/manifest.json", "measure_manual"): [],
        }.items():
            with self.subTest(names):
                self.assertEqual(list(stale(asked=Asked(frozenset(names)))), runs)
        self.assertEqual(list(stale(asked=Asked(everything=True))), MEASURED)

    def test_a_manual_record_is_measured_only_by_name(self) -> None:
        """No change, no --forceall and no -R measure touches a manual record; its own name does."""
        manual = copy.deepcopy(CONFIG)
        manual["experiments"]["m1"]["refresh"] = "manual"
        edit(f"{SOURCE}mechanisms/attention.py", "* y", "/ y")
        self.assertEqual(stale(manual), {})
        self.assertNotIn("m1 measure", stale(manual, Asked(frozenset({"measure"}), everything=True)))
        for name in ("measure_manual", f"{AT}/manifest.json"):
            self.assertEqual(list(stale(manual, Asked(frozenset({name})))), MEASURED)
        Path(AT, "manifest.json").unlink()
        with self.assertRaisesRegex(ConfigError, "m1 is measured by hand .* -R results/m1/manifest.json"):
            stale(manual)


class ReportTest(unittest.TestCase):
    """One report of several experiments."""

    def setUp(self) -> None:
        """Two experiments name a report; one of them is recorded, the other waits to be asked."""
        checkout.enter(self)
        checkout.record(CONFIG)
        Path(f"{SOURCE}pages/report.py").write_text("import math\n")
        told = changed("judge", report="both")["experiments"]["m1"]
        self.config = {"experiments": {"m1": told, "m2": {**told, "refresh": "manual"}}}
        for step in Plan(self.config).steps("m1")[1:]:  # the judge: part names the report now
            store.make(step, lambda step=step: {path: f"{path}\n" for path in step.makes})

    def test_it_is_of_what_is_measured(self) -> None:
        """It reads the record, summary and verdicts of every member that has one and names the others."""
        (step,) = Plan(self.config).reports_of(["m1", "m2"])
        self.assertEqual((step.name, step.makes), ("both report", ("results/both/report.md",)))
        files = [f"{AT}/{file}" for file in ("summary.csv", "verdicts.csv", "manifest.json")]
        self.assertEqual(step.reads, (*files, "predictions/m1.yaml"))
        figures = ["latency.svg", "throughput.svg"]
        about = [{"experiment": "m1", "figures": figures}]
        self.assertEqual(step.section, {"experiments": about, "unmeasured": ["m2"]})
        self.assertEqual(Plan(self.config).reports_of(["m2"]), [])

    def test_it_follows_its_members(self) -> None:
        """Made once it holds; another verdict of a member makes it again, and verifying depends on it."""
        walk = Plan(self.config)
        (step,) = walk.reports_of(["m1"])
        self.assertEqual(walk.why(step), ["not made yet"])
        store.make(step, lambda: {step.makes[0]: "report\n"})
        self.assertEqual(Plan(self.config).why(step), [])
        self.assertIn(step.receipt, Plan(self.config).verify_step().reads)
        edit("predictions/m1.yaml", "does it", "why does it")
        self.assertIn("m1 analysis: predictions/m1.yaml changed", Plan(self.config).why(step))

    def test_pins_of_what_serves_are_part_of_a_record(self) -> None:
        """A section that names a file of pins is measured under them; another version is told."""
        Path("pins.txt").write_text("vllm==1\n")
        config = changed("measure", environment="pins.txt")
        step = Plan(config).step("measure", "m1")
        checkout.replace_record(step)
        self.assertEqual(Plan(config).state(step).reasons, [])
        Path("pins.txt").write_text("# what serves\nvLLM==1  # the release\n")
        self.assertEqual(Plan(config).state(step).reasons, [])
        Path("pins.txt").write_text("vllm==2\n")
        self.assertEqual(Plan(config).state(step).reasons, ["pins.txt changed"])


class ReceiptTest(unittest.TestCase):
    """Receipts and the files they stand for."""

    def setUp(self) -> None:
        """Everything of the small checkout is recorded."""
        checkout.enter(self)
        checkout.record(CONFIG)

    def test_a_seal_shows_every_edit(self) -> None:
        """A receipt with any value changed, added or taken away is refused; another key order is not."""
        path = Path(AT, "receipts/summary.json")
        receipt = read_json(path)
        self.assertEqual(receipts.read_receipt(path), receipt)
        write_json(path, dict(reversed(receipt.items())))
        self.assertEqual(receipts.read_receipt(path), receipt)
        for edited in (
            {**receipt, "schema": 0},
            {**receipt, "more": None},
            {key: value for key, value in receipt.items() if key != "pins"},
            {key: value for key, value in receipt.items() if key != "digest"},
        ):
            write_json(path, edited)
            with self.subTest(edited.keys()), self.assertRaisesRegex(RecordError, "content was edited"):
                receipts.read_receipt(path)

    def test_conflict_markers_are_named_with_the_way_out(self) -> None:
        """A manifest that a merge left in two versions is refused; a derived receipt is made again."""
        markers = ("<<<<<<< HEAD\n", "=======\n", ">>>>>>> theirs\n")
        for path in (Path(AT, "receipts/latency.svg.json"), Path(AT, "manifest.json")):
            text = path.read_text()
            path.write_text("".join((markers[0], text, markers[1], text, markers[2])))
            words = rf"^{path}: holds git's conflict markers; .*--theirs -- {AT}\) .* -R {path} -- all\)$"
            with self.subTest(path), self.assertRaisesRegex(RecordError, words):
                receipts.read_receipt(path)
            if path.parent.name == "receipts":
                reason = [f"{path} holds git's conflict markers"]
                self.assertEqual(stale(), {"m1 figure latency.svg": reason})
                path.write_text(text)
        with self.assertRaisesRegex(RecordError, "conflict markers"):
            stale()
        Path(stages.TESTS_RECEIPT).write_text("".join(markers))
        self.assertFalse(receipts.tests_ran_elsewhere())
        self.assertEqual(Plan(CONFIG).why(stages.TESTS), ["results/tests.json holds git's conflict markers"])

    def test_tests_answer_for_sources_and_tests(self) -> None:
        """Evidence rests on every source, test and pin they import, not on the slow checks."""
        walk = Plan(CONFIG)
        tests = walk.step("tests")
        found = tests.inputs(walk.sources)
        for path in ("src/inference_lab/unused.py", "src/inference_lab/errors.py", "tests/test_attention.py"):
            self.assertIn(path, found)
        self.assertNotIn("tests/workflow/check_chain.py", found)
        self.assertEqual(walk.why(tests), ["not made yet"])

    def test_names_that_do_not_exist_are_refused(self) -> None:
        """An experiment or a figure that the config does not name is an error that lists those it does."""
        walk = Plan(CONFIG)
        for stage, experiment, figure, words in (
            ("measure", "m9", "", "no experiment 'm9' in the config; it has m1"),
            ("figure", "m1", "x.svg", "m1 has no figure 'x.svg'; .* latency.svg, throughput.svg"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ConfigError, words):
                walk.step(stage, experiment, figure)

    def test_every_committed_file_is_listed(self) -> None:
        """The files of an experiment are all that lie in its folder: none is made unseen, none unnamed."""
        walk = Plan(CONFIG)
        listed = stages.files_of(walk.steps("m1"))
        present = [path.as_posix() for path in Path(AT).rglob("*") if path.is_file()]
        self.assertEqual(sorted(listed), sorted(present))


if __name__ == "__main__":
    unittest.main()

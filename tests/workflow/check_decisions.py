"""Does every state of the decision table in the design run exactly what it should? Toy records, real rules.

Each row is tried in place with the default profile, and in a fresh clone with permuted times without it.
In the clones a second plan must be empty after every run.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

from tests.workflow.harness import (
    PROGRAMS,
    WITHOUT_PROFILE,
    Checkout,
    Parallel,
    Run,
    checkout,
    derived,
    fresh_clone,
    measured,
)

TOY = "src/inference_lab/experiments/toy.py"
SUMMARY = "src/inference_lab/analysis/toy.py"
AUTO = ("t1", "t2")
EVERYTHING = {"test"} | measured(*AUTO)
NOTHING: set[str] = set()
RESEAL = """
import json, sys
from pathlib import Path
from inference_lab.records.receipts import seal
from inference_lab.records.files import json_text
path = Path(sys.argv[1])
receipt = json.loads(path.read_text(encoding="utf-8"))
exec(sys.argv[2])
path.write_text(json_text(seal(receipt)), encoding="utf-8")
"""


def reseal(lab: Checkout, path: str, statement: str) -> None:
    """Change a receipt (named `receipt` in `statement`) and seal it again, as a run elsewhere would."""
    done = lab.command(sys.executable, "-c", RESEAL, path, statement)
    if done.returncode:
        raise RuntimeError(done.stderr)


def install(lab: Checkout, package: str, version: str) -> None:
    """Make another version of a toy package the installed one."""
    (old,) = (lab.root / "installed").glob(f"{package}-*.dist-info")
    new = old.with_name(f"{package}-{version}.dist-info")
    old.rename(new)
    (new / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")


def touch_everything(lab: Checkout) -> None:
    """Give every file the time of now."""
    for path in lab.root.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            os.utime(path)


class Decisions:
    """The rows; a subclass says where and with which options they are tried."""

    options: tuple[str, ...] = ()
    place: Callable[[], AbstractContextManager[Checkout]]

    def run_(self, lab: Checkout, *words: str) -> Run:
        """What `snakemake WORDS`, `all` by default, did here."""
        return lab.snakemake(*self.options, *(words or ("all",)))

    def decides(self, lab: Checkout, expected: set[str], *words: str, says: Iterable[str] = ()) -> Run:
        """Assert what a run makes and says, and in a clone that nothing is left to do after it."""
        run = self.run_(lab, *words)
        self.assertEqual(run.status, 0, run.text)
        self.assertEqual(run.decided, expected, run.text)
        for sentence in says:
            self.assertIn(sentence, run.text)
        if self.options:
            self.assertIn("Nothing to be done", self.run_(lab, "-n", "all").text)
        return run

    def refuses(self, lab: Checkout, *words: str, says: Iterable[str]) -> None:
        """Assert that a run says these things in one line, starts nothing and changes nothing."""
        before = lab.contents("results/**/*", "docs/**/*")
        run = self.run_(lab, *words)
        self.assertNotEqual(run.status, 0)
        self.assertNotIn("Traceback", run.text)
        lines = [line for line in run.text.splitlines() if line.startswith("snakemake: ")]
        self.assertEqual(len(lines), 1, run.text)
        for sentence in says:
            self.assertIn(sentence, lines[0])
        self.assertEqual(run.ran, [])
        self.assertEqual(lab.contents("results/**/*", "docs/**/*"), before)

    # What is no reason

    def test_nothing_changed(self) -> None:
        """A current checkout makes nothing."""
        with self.place() as lab:
            self.decides(lab, NOTHING)

    def test_touched(self) -> None:
        """Times are no reason: everything touched makes nothing."""
        with self.place() as lab:
            touch_everything(lab)
            self.decides(lab, NOTHING)

    def test_moved(self) -> None:
        """A checkout that was moved makes nothing."""
        with self.place() as lab:
            lab.root = lab.root.rename(lab.root.with_name("moved"))
            self.decides(lab, NOTHING)

    def test_comment_docstring_formatting(self) -> None:
        """A comment, a docstring or another layout of a source voids nothing."""
        with self.place() as lab:
            self.decides(lab, NOTHING)  # verified here, so that nothing but the edits could be a reason
            lab.edit(TOY, "import json\n", "import json  # a comment\n")
            lab.edit(TOY, '"""A whole toy', '"""The whole toy')
            lab.edit(SUMMARY, "cells.setdefault((sample.path, sample.batch_size), [])",
                     "cells.setdefault(\n        (sample.path, sample.batch_size), []\n    )")  # fmt: skip
            run = self.decides(lab, NOTHING)
            self.assertNotIn("changed", run.text)

    def test_config_comment_and_key_order(self) -> None:
        """A comment or another order of keys in config.yaml voids nothing."""
        with self.place() as lab:
            lab.edit("config.yaml", "  t2:\n", "  t2:   # µ\n")
            lab.edit("config.yaml", "rounds: 3\n      warmups: 1\n", "warmups: 1\n      rounds: 3\n")
            lab.edit("config.yaml", "{sequence_length: 4, d_model: 2, dtype: float64, seed: 1}",
                     "{seed: 1, dtype: float64, d_model: 2, sequence_length: 4}")  # fmt: skip
            self.decides(lab, NOTHING)

    def test_tool_pin(self) -> None:
        """Another version of a tool that no stage imports voids nothing."""
        with self.place() as lab:
            text = (lab.root / "pyproject.toml").read_text()
            pin = next(line for line in text.splitlines() if line.strip().startswith('"ruff=='))
            lab.edit("pyproject.toml", pin, '    "ruff==0.0.1",')
            self.decides(lab, NOTHING)

    # Sources

    def test_operator(self) -> None:
        """One operator in a measured source: tests, then all of the experiments that hold it."""
        with self.place() as lab:
            lab.edit(TOY, "* us)", "+ us)")
            self.decides(lab, EVERYTHING, says=[f"t1 measure: {TOY} changed", f"test: {TOY} changed"])

    def test_operator_old_mtime(self) -> None:
        """The same when the edited file keeps its old time."""
        with self.place() as lab:
            lab.edit(TOY, "* us)", "+ us)", keep_mtime=True)
            self.decides(lab, EVERYTHING)

    def test_operator_behind_bytecode(self) -> None:
        """An edit of the same length under its old time is what runs, not the bytecode of before."""
        with self.place() as lab:
            lab.variables = {"PYTHONDONTWRITEBYTECODE": ""}
            self.run_(lab, "-R", "tests", "measure", "--", "all")
            self.assertTrue(list(lab.root.glob("src/inference_lab/experiments/__pycache__/toy.*.pyc")))
            before = (lab.root / "results/t1/raw.csv").read_bytes()
            lab.edit(TOY, "* us)", "+ us)", keep_mtime=True)
            self.decides(lab, EVERYTHING)
            self.assertNotEqual((lab.root / "results/t1/raw.csv").read_bytes(), before)

    def test_operator_committed(self) -> None:
        """The same when the edit was committed without running, and cloned."""
        with self.place() as lab:
            lab.edit(TOY, "* us)", "+ us)")
            lab.commit()
            shutil.rmtree(lab.root / ".snakemake", ignore_errors=True)
            lab.permute_mtimes(5)
            self.decides(lab, EVERYTHING)

    def test_reverted_before_a_run(self) -> None:
        """An edit that was taken back before anything ran makes nothing."""
        with self.place() as lab:
            lab.edit(TOY, "* us)", "+ us)")
            lab.edit(TOY, "+ us)", "* us)")
            self.decides(lab, NOTHING)

    def test_reverted_after_a_run(self) -> None:
        """An edit that was taken back after a run measures again: what is recorded came from the edit."""
        with self.place() as lab:
            lab.edit(TOY, "* us)", "+ us)")
            self.decides(lab, EVERYTHING)
            lab.edit(TOY, "+ us)", "* us)")
            self.decides(lab, EVERYTHING)

    def test_test_file(self) -> None:
        """A changed test runs the tests and nothing else."""
        with self.place() as lab:
            lab.edit("tests/test_toy.py", '"nowhere"', '"elsewhere"')
            self.decides(lab, {"test"}, says=["test: tests/test_toy.py changed"])

    def test_summary_code(self) -> None:
        """Changed summary code: tests, then every summary and what follows, from recorded raw."""
        with self.place() as lab:
            lab.edit(SUMMARY, "/ 1e6", "/ 1e3")
            self.decides(lab, {"test"} | derived("t1", "t2", "v1"),
                         says=[f"t1 summary: {SUMMARY} changed"])  # fmt: skip

    def test_summary_code_with_equal_bytes(self) -> None:
        """Summary code that still writes the same bytes redraws nothing."""
        with self.place() as lab:
            lab.edit(SUMMARY, "/ 1e6", "/ 1000000.0")
            lab.edit(SUMMARY, "sorted(cells.items())", "sorted(list(cells.items()))")
            self.decides(lab, {"test"} | {f"summary {name}" for name in ("t1", "t2", "v1")})

    def test_figure_code(self) -> None:
        """Changed figure code: tests and that figure."""
        with self.place() as lab:
            lab.edit("src/inference_lab/figures/toy_rows.py", "n={row", "n = {row")
            self.decides(lab, {"test", "figure t1 rows.svg"})

    # Config, prediction, pins

    def test_measure_part(self) -> None:
        """One section's conditions: that experiment from measure on."""
        with self.place() as lab:
            lab.edit("config.yaml", "seed: 1}", "seed: 5}")
            plan = self.run_(lab, "-n", "all")
            self.assertEqual(plan.ran, [])
            for rule in ("measure", "analysis_and_article"):
                self.assertIn(f"rule {rule}:", plan.text)
            self.assertIn("t1 measure: its measure: part changed", plan.text)
            self.assertNotIn("experiment=t2", plan.text)
            self.decides(lab, measured("t1"), says=["t1 measure: its measure: part changed"])

    def test_judge_part(self) -> None:
        """One section's bounds: that experiment from summary on."""
        with self.place() as lab:
            lab.edit("config.yaml", "knee_factor: 1.1", "knee_factor: 1.5")
            self.decides(lab, derived("t1"), says=["t1 summary: its judge: part changed"])

    def test_config_of_the_command_line(self) -> None:
        """A --configfile laid over the config is followed, and a second call with it makes nothing."""
        with self.place() as lab:
            laid_over = lab.outside / "other.yaml"
            laid_over.write_text("experiments: {t2: {judge: {knee_factor: 9.5}}}\n")
            given = ("--configfile", str(laid_over), "--")
            first = self.run_(lab, *given, "all")
            self.assertEqual(first.decided, derived("t2"), first.text)
            self.assertIn("9.5", (lab.root / "results/t2/summary.csv").read_text())
            self.assertEqual(self.run_(lab, *given, "all").made, NOTHING)

    def test_prediction(self) -> None:
        """A changed prediction: its verdicts, analysis and article alone."""
        with self.place() as lab:
            lab.edit("predictions/t1.yaml", "by some µs", "by many µs")
            self.decides(lab, {"analysis t1"}, says=["t1 analysis: predictions/t1.yaml changed"])

    def test_pin_of_a_measured_package(self) -> None:
        """Another version of what is measured: tests, then every stage that imports it."""
        with self.place() as lab:
            lab.edit("pyproject.toml", '"toydep==1"', '"toydep==2"')
            install(lab, "toydep", "2")
            self.decides(lab, EVERYTHING, says=["t1 measure: toydep 1 -> 2"])

    def test_pin_of_a_drawing_package(self) -> None:
        """Another version of what draws: tests, then the figures."""
        with self.place() as lab:
            lab.edit("pyproject.toml", '"toyplot==1"', '"toyplot==2"')
            install(lab, "toyplot", "2")
            figures = {"figure t1 plot.svg", "figure t1 rows.svg", "figure t2 plot.svg", "figure v1 plot.svg"}
            self.decides(lab, {"test"} | figures, says=["t1 figure plot.svg: toyplot 1 -> 2"])

    def test_pin_that_is_not_installed(self) -> None:
        """Pins that differ from what is installed: no measurement, and no record lost."""
        with self.place() as lab:
            lab.edit("pyproject.toml", '"toydep==1"', '"toydep==2"')
            records = lab.contents("results/*/*")
            run = self.run_(lab)
            self.assertNotEqual(run.status, 0)
            self.assertIn("toydep 1 installed, pyproject.toml pins 2; run uv sync", run.text)
            self.assertEqual(run.decided - {"test"}, NOTHING)
            self.assertEqual(lab.contents("results/*/*"), records)

    def test_one_file_asked_for(self) -> None:
        """Asking for one figure of a stale experiment makes what leads to it, and nothing beside it."""
        with self.place() as lab:
            lab.edit("config.yaml", "seed: 1}", "seed: 5}")
            run = self.run_(lab, "results/t1/plot.svg")
            made = {"measure t1", "summary t1", "figure t1 plot.svg"}
            self.assertEqual((run.status, run.decided), (0, made), run.text)
            self.decides(lab, {"figure t1 rows.svg", "analysis t1"})

    # Files missing or edited

    def test_tests_receipt_missing(self) -> None:
        """No tests' receipt: the tests run, and nothing else."""
        with self.place() as lab:
            lab.remove("results/tests.json")
            self.decides(lab, {"test"}, says=["test: not made yet"])

    def test_record_missing(self) -> None:
        """Raw and manifest missing: that experiment measures."""
        with self.place() as lab:
            lab.remove(*(f"results/t2/{name}" for name in ("raw.csv", "controls.csv", "manifest.json")))
            self.decides(lab, measured("t2"), says=["t2 measure: no record yet"])

    def test_manifest_missing(self) -> None:
        """No manifest is no record: the raw file that lies there is kept aside, the experiment measures."""
        with self.place() as lab:
            raw = (lab.root / "results/t2/raw.csv").read_bytes()
            lab.remove("results/t2/manifest.json")
            self.decides(lab, measured("t2"))
            (kept,) = lab.root.glob("results/t2/superseded/*/raw.csv")
            self.assertEqual(kept.read_bytes(), raw)

    def test_summary_missing(self) -> None:
        """A missing summary is made from recorded raw."""
        with self.place() as lab:
            lab.remove("results/t1/summary.csv")
            self.decides(lab, {"summary t1"}, says=["t1 summary: results/t1/summary.csv is missing"])
            self.assertEqual(lab.changes(), [])

    def test_figure_missing(self) -> None:
        """A missing figure is drawn, and no other."""
        with self.place() as lab:
            lab.remove("results/t1/plot.svg")
            self.decides(lab, {"figure t1 plot.svg"})
            self.assertEqual(lab.changes(), [])

    def test_receipts_missing(self) -> None:
        """Results without receipts are made again, never measured."""
        with self.place() as lab:
            shutil.rmtree(lab.root / "results/t1/receipts")
            self.decides(lab, derived("t1"))
            self.assertEqual(lab.changes(), [])

    def test_derived_files_edited(self) -> None:
        """A result edited by hand is made again, and the run says so."""
        with self.place() as lab:
            lab.edit("results/t1/plot.svg", "slow 1", "quick 1")
            lab.edit("results/t2/summary.csv", "slow,1,3", "slow,1,4")
            verified = lab.command(str(PROGRAMS / "inference-lab"), "verify")
            self.assertNotEqual(verified.returncode, 0)
            self.assertIn("results/t1/plot.svg", verified.stderr)
            self.decides(lab, {"figure t1 plot.svg", "summary t2"},
                         says=["t1 figure plot.svg: results/t1/plot.svg was edited by hand",
                               "t2 summary: results/t2/summary.csv was edited by hand"])  # fmt: skip
            self.assertEqual(lab.changes(), [])

    def test_receipt_edited(self) -> None:
        """An edited receipt holds nothing: its step is made again."""
        with self.place() as lab:
            lab.edit("results/t1/receipts/plot.svg.json", '"stage": "figure"', '"stage": "fugure"')
            self.decides(lab, {"figure t1 plot.svg"}, says=["receipts/plot.svg.json was edited"])
            self.assertEqual(lab.changes(), [])

    def test_raw_edited(self) -> None:
        """One digit of a raw file: refused with both digests and the ways out, nothing overwritten."""
        for name in ("raw.csv", "controls.csv"):
            with self.subTest(name), self.place() as lab:
                raw = lab.root / "results/t1" / name
                manifest = json.loads((lab.root / "results/t1/manifest.json").read_text())
                text = raw.read_text()
                raw.write_text(text[:-30] + text[-30:].replace("1", "2", 1))
                found = lab.identity(f"results/t1/{name}")[1]
                says = [f"results/t1/{name}", manifest["outputs"][name]["sha256"], found,
                        "git stash push", "snakemake -R results/t1/manifest.json -- all"]  # fmt: skip
                self.refuses(lab, says=says)
                verified = lab.command(str(PROGRAMS / "inference-lab"), "verify")
                self.assertNotEqual(verified.returncode, 0)
                self.assertIn(f"results/t1/{name}", verified.stderr)

    def test_raw_missing(self) -> None:
        """A manifest whose raw file is missing is refused, even when the record is stale besides."""
        with self.place() as lab:
            lab.remove("results/t1/raw.csv")
            self.refuses(lab, says=["results/t1/raw.csv: missing", "git stash push"])
            lab.edit(TOY, "* us)", "+ us)")
            self.refuses(lab, says=["results/t1/raw.csv: missing", "git stash push"])

    def test_manifest_edited(self) -> None:
        """An edited manifest is refused with both digests, and both ways out work."""
        with self.place() as lab:
            lab.edit("results/t1/manifest.json", '"affinity"', '"affinitY"')
            self.refuses(lab, says=["results/t1/manifest.json: its content was edited", "sha256", "found"])
            lab.git("checkout", "--", "results/t1")
            self.decides(lab, NOTHING)
            lab.edit("results/t1/manifest.json", '"affinity"', '"affinitY"')
            self.decides(lab, measured("t1"), "-R", "results/t1/manifest.json", "--", "all")

    # Asked for

    def test_asked_for_all(self) -> None:
        """-R measure -- all and --forceall measure every automatic experiment, never a manual one."""
        for words in (("-R", "measure", "--", "all"), ("--forceall", "all")):
            with self.subTest(words[0]), self.place() as lab:
                kept = lab.identity("results/v1/manifest.json")
                run = self.decides(lab, EVERYTHING - ({"test"} if words[0] == "-R" else set()), *words)
                self.assertNotIn("measure v1", run.ran)
                self.assertEqual(lab.identity("results/v1/manifest.json"), kept)

    def test_asked_for_one(self) -> None:
        """-R with a record's file measures that experiment alone."""
        for name in ("manifest.json", "raw.csv"):
            with self.subTest(name), self.place() as lab:
                self.decides(lab, measured("t1"), "-R", f"results/t1/{name}", "--", "all")

    def test_manual_asked_for(self) -> None:
        """-R measure_manual measures the manual experiments of its target alone, and `all` is content."""
        with self.place() as lab:
            self.decides(lab, measured("v1", "v2"), "-R", "measure_manual", "--", "by_hand", "all")
        with self.place() as lab:
            self.decides(lab, measured("v1"), "-R", "results/v1/manifest.json", "--", "by_hand", "all")

    def test_manual_stale(self) -> None:
        """A stale manual record is kept and reported; its results still follow from it."""
        with self.place() as lab:
            lab.edit("config.yaml", "seed: 3}", "seed: 6}")
            lab.remove("results/v1/summary.csv")
            run = self.run_(lab, "results/v1/analysis.md", "all")
            self.assertEqual((run.status, run.decided), (0, {"summary v1"}), run.text)
            self.assertIn("kept: its measure: part changed", run.text)
            forced = self.run_(lab, "--forceall", "results/v1/analysis.md", "all")
            self.assertEqual((forced.status, forced.decided), (0, EVERYTHING), forced.text)
            self.assertNotIn("measure v1", forced.ran)

    def test_manual_never_measured(self) -> None:
        """A manual experiment that nobody measured is not measured unasked: the refusal says how to ask."""
        with self.place() as lab:
            self.refuses(lab, "results/v2/summary.csv", says=["v2 is measured by hand", "-R results/v2"])
            asked = ("-R", "results/v2/manifest.json", "--", "results/v2/manifest.json")
            run = self.run_(lab, *asked)
            self.assertEqual((run.status, run.decided), (0, {"measure v2"}), run.text)

    def test_manual_first_measured_beside_all(self) -> None:
        """A first record by hand beside `all` is all that is made, then and by `all` after it."""
        with self.place() as lab:
            asked = ("-R", "results/v2/manifest.json", "--", "all", "results/v2/manifest.json")
            run = self.run_(lab, *asked)
            self.assertEqual((run.status, run.decided), (0, {"measure v2"}), run.text)
            self.decides(lab, NOTHING)

    def test_manual_target(self) -> None:
        """A target of manual experiments goes on with those measured and names those it leaves out."""
        with self.place() as lab:
            lab.remove("results/v1/plot.svg")
            run = self.run_(lab, "by_hand", "all")
            self.assertEqual((run.status, run.decided), (0, {"figure v1 plot.svg"}), run.text)
            self.assertIn("v2 is measured by hand and has no record yet", run.text)
            self.assertEqual(run.text.count("experiment  recorded"), 1, run.text)

    def test_manual_target_asked_for(self) -> None:
        """-R measure_manual -- TARGET measures every experiment of that target, and nothing else."""
        with self.place() as lab:
            run = self.run_(lab, "-R", "measure_manual", "--", "by_hand")
            self.assertEqual((run.status, run.decided), (0, measured("v1", "v2")), run.text)

    def test_tests_ran_elsewhere(self) -> None:
        """Before measuring where platform or versions differ from the tests' receipt, the tests run."""
        for change in ("receipt['environment']['python'] = '3.0.0'",
                       "receipt['environment']['packages']['toydep'] = '0'"):  # fmt: skip
            with self.subTest(change), self.place() as lab:
                reseal(lab, "results/tests.json", change)
                self.decides(lab, NOTHING)
                lab.edit("config.yaml", "seed: 1}", "seed: 5}")
                self.decides(lab, {"test"} | measured("t1"))

    # Calls that only look

    def test_looking_changes_nothing(self) -> None:
        """-n, --list-rules, --summary, --lint and --dag change no file that git knows, stale or current."""
        looks = ("-n", "--list-rules", "--summary", "--lint", "--dag", "--rulegraph")
        with self.place() as lab:
            for stale in (False, True):
                if stale:
                    lab.edit(TOY, "* us)", "+ us)")
                before = lab.changes()
                known = lab.contents("**/*")
                for look in looks:
                    run = lab.snakemake(*self.options, look)
                    self.assertEqual((run.ran, lab.changes()), ([], before), look)
                now = lab.contents("**/*") | {".git/index": known[".git/index"]}  # git's own notes on times
                self.assertEqual([path for path in known if known[path] != now.get(path)], [])


class InPlace(Decisions, Parallel):
    """Every row in a checkout that has its `.snakemake`, with the default profile."""

    place = staticmethod(checkout)

    def test_snakemake_folder(self) -> None:
        """What Snakemake remembers is no reason: its folder deleted or torn makes nothing."""
        with checkout() as lab:
            for path in (lab.root / ".snakemake").rglob("*"):
                if path.is_file():
                    path.write_bytes(b"")
            self.decides(lab, NOTHING)
            shutil.rmtree(lab.root / ".snakemake")
            self.decides(lab, NOTHING)

    def test_package_of_the_checkout(self) -> None:
        """These checks try the package of the throwaway checkout, not the installed one."""
        with checkout() as lab:
            code = "import inference_lab.cli as m; print(m.__file__)"
            found = lab.command(sys.executable, "-c", code).stdout.strip()
            self.assertEqual(Path(found), lab.root / "src/inference_lab/cli.py")


class InClone(Decisions, Parallel):
    """Every row in a fresh clone with permuted times, without the profile."""

    place = staticmethod(fresh_clone)
    options = WITHOUT_PROFILE

    def test_fresh_clone(self) -> None:
        """In any order of times: verified, nothing measured, no committed file changed; then nothing."""
        for seed in range(4):
            options = () if seed % 2 else WITHOUT_PROFILE
            with self.subTest(seed=seed, options=options), fresh_clone(seed=seed) as lab:
                first = lab.snakemake(*options, "all")
                self.assertEqual((first.status, first.ran), (0, ["verify"]), first.text)
                self.assertEqual(lab.changes(), [])
                self.assertTrue((lab.root / "results/.verified.json").exists())
                self.assertIn("same bytes", first.text)
                lab.permute_mtimes(seed + 10)
                self.assertIn("Nothing to be done", lab.snakemake(*options, "-n", "all").text)

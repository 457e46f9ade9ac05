"""Does every state of the decision table in the design run exactly what it should? Toy records, real rules.

Each row is tried in place with the default profile, and in a fresh clone with permuted times without it.
In the clones a second plan must be empty after every run.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from tests.workflow.harness import (
    STALE,
    TOY_SOURCE,
    TOY_SUMMARY,
    WITHOUT_PROFILE,
    Checkout,
    Parallel,
    Run,
    checkout,
    derived,
    fresh_clone,
    measured,
)

EVERYTHING = {"test"} | measured("t1", "t2")
NOTHING: set[str] = set()
OPERATOR, REVERTED = (TOY_SOURCE, "* us)", "+ us)"), (TOY_SOURCE, "+ us)", "* us)")
PYPROJECT = "pyproject.toml"
RECORDS = [f"results/{name}/manifest.json" for name in ("t1", "t2", "v1", "v2")]


class Step(NamedTuple):
    """Changes (an edit, a path to remove, a call), then a run: what it makes, says, and leaves to git."""

    made: set[str]
    does: Iterable[tuple[str, str, str] | str | Callable[[Checkout], object]] = ()
    says: Iterable[str] = ()
    words: tuple[str, ...] = ("all",)
    clean: bool = False


def install(package: str, version: str) -> Callable[[Checkout], object]:
    """Make another version of a toy package the installed one."""

    def change(lab: Checkout) -> None:
        (old,) = (lab.root / "installed").glob(f"{package}-*.dist-info")
        new = old.rename(old.with_name(f"{package}-{version}.dist-info"))
        (new / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")

    return change


def reseal_tests(change: str) -> Callable[[Checkout], object]:
    """Change the tests' receipt."""
    return lambda lab: lab.reseal("results/tests.json", f"receipt{change}")


def other_ruff(lab: Checkout) -> None:
    """Pin another version of a tool that no stage imports."""
    lines = (lab.root / PYPROJECT).read_text().splitlines()
    lab.edit(PYPROJECT, next(line for line in lines if line.strip().startswith('"ruff==')), '"ruff==0.0.1",')


def move(lab: Checkout) -> None:
    """Give the checkout another place."""
    lab.root = lab.root.rename(lab.root.with_name("moved"))


def copy(lab: Checkout) -> None:
    """Copy the checkout without its times, and be in the copy."""
    lab.root = shutil.copytree(lab.root, lab.root.with_name("copy"), copy_function=shutil.copyfile)


def commit_elsewhere(lab: Checkout) -> None:
    """Commit what there is, without Snakemake's memory and times, as a clone has it."""
    lab.commit()
    shutil.rmtree(lab.root / ".snakemake", ignore_errors=True)
    lab.permute_mtimes(5)


# fmt: off
ROWS: dict[str, list[Step]] = {
    # What is no reason.
    "nothing changed": [Step(NOTHING)],
    "everything touched": [Step(NOTHING, [lambda lab: lab.permute_mtimes(0, days=0)])],
    "the checkout moved": [Step(NOTHING, [move])],
    "copied without its times (MERlin#44, bgcflow#36)": [Step(NOTHING, [copy])],
    "another version of a tool": [Step(NOTHING, [other_ruff])],
    "comments and order of keys in config.yaml": [Step(NOTHING, [
        ("config.yaml", "  t2:\n", "  t2:   # µ\n"),
        ("config.yaml", "rounds: 3\n      warmups: 1\n", "warmups: 1\n      rounds: 3\n"),
        ("config.yaml", "{sequence_length: 4, d_model: 2, dtype: float64, seed: 1}",
         "{seed: 1, dtype: float64, d_model: 2, sequence_length: 4}")])],
    # Sources.
    "an operator of a measured source": [
        Step(EVERYTHING, [OPERATOR], [f"t1 measure: {TOY_SOURCE} changed", f"test: {TOY_SOURCE} changed"])],
    "an operator under its old time": [Step(EVERYTHING, [lambda lab: lab.edit(*OPERATOR, keep_mtime=True)])],
    "an operator committed without a run": [Step(EVERYTHING, [OPERATOR, commit_elsewhere])],
    "reverted before a run": [Step(NOTHING, [OPERATOR, REVERTED])],
    "reverted after a run": [Step(EVERYTHING, [OPERATOR]), Step(EVERYTHING, [REVERTED])],
    "a test": [Step({"test"}, [("tests/test_toy.py", '"nowhere"', '"elsewhere"')],
                    ["test: tests/test_toy.py changed"])],
    "summary code": [Step({"test"} | derived("t1", "t2", "v1"), [(TOY_SUMMARY, "/ 1e6", "/ 1e3")],
                          [f"t1 summary: {TOY_SUMMARY} changed"])],
    "summary code that writes the same bytes": [Step(
        {"test", "summary t1", "summary t2", "summary v1"},
        [(TOY_SUMMARY, "/ 1e6", "/ 1000000.0"),
         (TOY_SUMMARY, "sorted(cells.items())", "sorted(list(cells.items()))")])],
    "figure code": [Step({"test", "figure t1 rows.svg"},
                         [("src/inference_lab/figures/toy_rows.py", "n={row", "n = {row")])],
    # Config, predictions, pins.
    "the bounds of a section": [Step(derived("t1"), [("config.yaml", "knee_factor: 1.1", "knee_factor: 1.5")],
                                     ["t1 summary: its judge: part changed"])],
    "a prediction": [Step({"analysis t1"}, [("predictions/t1.yaml", "by some µs", "by many µs")],
                          ["t1 analysis: predictions/t1.yaml changed"])],
    "a byte of a prediction under its old time (snakemake#4134, #4172)": [Step({"analysis t2"}, [
        lambda lab: lab.edit("predictions/t2.yaml", "some µs", "Some µs", keep_mtime=True)])],
    "the pin of a measured package": [Step(EVERYTHING, [
        (PYPROJECT, '"toydep==1"', '"toydep==2"'), install("toydep", "2")], ["t1 measure: toydep 1 -> 2"])],
    "the pin of a drawing package": [Step(
        {"test", *(f"figure {name}.svg" for name in ("t1 plot", "t1 rows", "t2 plot", "v1 plot"))},
        [(PYPROJECT, '"toyplot==1"', '"toyplot==2"'), install("toyplot", "2")],
        ["t1 figure plot.svg: toyplot 1 -> 2"])],
    "one file asked for": [
        Step({"measure t1", "summary t1", "figure t1 plot.svg"}, [STALE], words=("results/t1/plot.svg",)),
        Step({"figure t1 rows.svg", "analysis t1"})],
    # Files missing or edited.
    "no receipt of the tests": [Step({"test"}, ["results/tests.json"], ["test: not made yet"])],
    "no record": [Step(measured("t2"), ["results/t2/raw.csv", "results/t2/controls.csv", RECORDS[1]],
                       ["t2 measure: no record yet"])],
    "no summary": [Step({"summary t1"}, ["results/t1/summary.csv"],
                        ["t1 summary: results/t1/summary.csv is missing"], clean=True)],
    "no figure": [Step({"figure t1 plot.svg"}, ["results/t1/plot.svg"], clean=True)],
    "no receipts": [Step(derived("t1"), ["results/t1/receipts"], clean=True)],
    "a receipt edited": [Step(
        {"figure t1 plot.svg"}, [("results/t1/receipts/plot.svg.json", '"figure"\n', '"fugure"\n')],
        ["receipts/plot.svg.json was edited"], clean=True)],
    # Asked for.
    "one record asked for by its manifest": [Step(measured("t1"), words=("-R", RECORDS[0], "--", "all"))],
    "one record asked for by its raw file": [
        Step(measured("t1"), words=("-R", "results/t1/raw.csv", "--", "all"))],
    "manual experiments asked for beside all": [
        Step(measured("v1", "v2"), words=("-R", "measure_manual", "--", "by_hand", "all"))],
    "one manual experiment asked for": [
        Step(measured("v1"), words=("-R", RECORDS[2], "--", "by_hand", "all"))],
    "a target of manual experiments asked for": [
        Step(measured("v1", "v2"), words=("-R", "measure_manual", "--", "by_hand"))],
    "a first record by hand beside all": [
        Step({"measure v2"}, words=("-R", RECORDS[3], "--", "all", RECORDS[3])),
        Step(NOTHING)],
    "tests that ran under another Python": [
        Step(NOTHING, [reseal_tests("['environment']['python'] = '3.0.0'")]),
        Step({"test"} | measured("t1"), [STALE])],
    "tests that ran with another package": [
        Step(NOTHING, [reseal_tests("['environment']['packages']['toydep'] = '0'")]),
        Step({"test"} | measured("t1"), [STALE])],
}
# fmt: on


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
        self.assertEqual((run.status, run.decided), (0, expected), run.text)
        for sentence in says:
            self.assertIn(sentence, run.text)
        if self.options and (not words or words[-1] == "all"):
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
        self.assertEqual((run.ran, lab.contents("results/**/*", "docs/**/*")), ([], before))

    def follow(self, steps: list[Step]) -> None:
        """Assert what each step of a row makes."""
        with self.place() as lab:
            for step in steps:
                for change in step.does:
                    if callable(change):
                        change(lab)
                    else:
                        lab.remove(change) if isinstance(change, str) else lab.edit(*change)
                self.decides(lab, step.made, *step.words, says=step.says)
                if step.clean:
                    self.assertEqual(lab.changes(), [])

    def test_comment_docstring_formatting(self) -> None:
        """A comment, a docstring or another layout of a source voids nothing, and no word says it did."""
        with self.place() as lab:
            self.decides(lab, NOTHING)  # verified here, so that nothing but the edits could be a reason
            lab.edit(TOY_SOURCE, "import json\n", "import json  # a comment\n")
            lab.edit(TOY_SOURCE, '"""A whole toy', '"""The whole toy')
            call = "cells.setdefault((sample.path, sample.batch_size), [])"
            lab.edit(TOY_SUMMARY, call, call.replace("t((", "t(\n        (").replace(", [])", ", []\n    )"))
            self.assertNotIn("changed", self.decides(lab, NOTHING).text)

    def test_operator_behind_bytecode(self) -> None:
        """An edit of the same length under its old time is what runs, not the bytecode of before."""
        with self.place() as lab:
            lab.variables = {"PYTHONDONTWRITEBYTECODE": ""}
            self.run_(lab, "-R", "tests", "measure", "--", "all")
            self.assertTrue(list(lab.root.glob("src/inference_lab/experiments/__pycache__/toy.*.pyc")))
            before = (lab.root / "results/t1/raw.csv").read_bytes()
            lab.edit(*OPERATOR, keep_mtime=True)
            self.decides(lab, EVERYTHING)
            self.assertNotEqual((lab.root / "results/t1/raw.csv").read_bytes(), before)

    def test_measure_part(self) -> None:
        """One section's conditions: that experiment from measure on, and a plan says so."""
        with self.place() as lab:
            lab.edit(*STALE)
            plan = self.run_(lab, "-n", "all")
            self.assertEqual(plan.ran, [])
            reason = "t1 measure: its measure: part changed"
            for words in ("rule measure:", "rule analysis_and_article:", reason):
                self.assertIn(words, plan.text)
            self.assertNotIn("experiment=t2", plan.text)
            self.decides(lab, measured("t1"), says=[reason])

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

    def test_pin_that_is_not_installed(self) -> None:
        """Pins that differ from what is installed: no measurement, and no record lost."""
        with self.place() as lab:
            lab.edit(PYPROJECT, '"toydep==1"', '"toydep==2"')
            records = lab.contents("results/*/*")
            run = self.run_(lab)
            self.assertNotEqual(run.status, 0)
            self.assertIn("toydep 1 installed, pyproject.toml pins 2; run uv sync", run.text)
            self.assertEqual((run.decided - {"test"}, lab.contents("results/*/*")), (NOTHING, records))

    def test_manifest_missing(self) -> None:
        """No manifest is no record: the raw file that lies there is kept aside, the experiment measures."""
        with self.place() as lab:
            raw = (lab.root / "results/t2/raw.csv").read_bytes()
            lab.remove("results/t2/manifest.json")
            self.decides(lab, measured("t2"))
            (kept,) = lab.root.glob("results/t2/superseded/*/raw.csv")
            self.assertEqual(kept.read_bytes(), raw)

    def test_derived_files_edited(self) -> None:
        """A result edited by hand is made again, and the run says so; verification names it."""
        with self.place() as lab:
            lab.edit("results/t1/plot.svg", "slow 1", "quick 1")
            lab.edit("results/t2/summary.csv", "slow,1,3", "slow,1,4")
            verified = lab.verify()
            self.assertNotEqual(verified.returncode, 0)
            self.assertIn("results/t1/plot.svg", verified.stderr)
            edited = ("t1 figure plot.svg: results/t1/plot.svg", "t2 summary: results/t2/summary.csv")
            says = [f"{words} was edited by hand" for words in edited]
            self.decides(lab, {"figure t1 plot.svg", "summary t2"}, says=says)
            self.assertEqual(lab.changes(), [])

    def test_raw_edited(self) -> None:
        """One digit of a raw file: refused with both digests and the ways out, nothing overwritten."""
        for name in ("raw.csv", "controls.csv"):
            with self.subTest(name), self.place() as lab:
                raw = lab.root / "results/t1" / name
                manifest = json.loads((lab.root / "results/t1/manifest.json").read_text())
                text = raw.read_text()
                raw.write_text(text[:-30] + text[-30:].replace("1", "2", 1))
                digests = (manifest["outputs"][name]["sha256"], lab.identity(f"results/t1/{name}")[1])
                ways = ("git stash push", "snakemake -R results/t1/manifest.json -- all")
                self.refuses(lab, says=(f"results/t1/{name}", *digests, *ways))
                verified = lab.verify()
                self.assertNotEqual(verified.returncode, 0)
                self.assertIn(f"results/t1/{name}", verified.stderr)

    def test_raw_missing(self) -> None:
        """A manifest whose raw file is missing is refused, even when the record is stale besides."""
        with self.place() as lab:
            lab.remove("results/t1/raw.csv")
            self.refuses(lab, says=["results/t1/raw.csv: missing", "git stash push"])
            lab.edit(*OPERATOR)
            self.refuses(lab, says=["results/t1/raw.csv: missing", "git stash push"])

    def test_manifest_edited(self) -> None:
        """An edited manifest is refused with both digests, and both ways out work."""
        edit = ("results/t1/manifest.json", '"affinity"', '"affinitY"')
        with self.place() as lab:
            lab.edit(*edit)
            self.refuses(lab, says=["results/t1/manifest.json: its content was edited", "sha256", "found"])
            lab.git("checkout", "--", "results/t1")
            self.decides(lab, NOTHING)
            lab.edit(*edit)
            self.decides(lab, measured("t1"), "-R", "results/t1/manifest.json", "--", "all")

    def test_asked_for_all(self) -> None:
        """-R measure -- all and --forceall measure every automatic experiment, never a manual one."""
        for words in (("-R", "measure", "--", "all"), ("--forceall", "all")):
            with self.subTest(words[0]), self.place() as lab:
                kept = lab.identity("results/v1/manifest.json")
                run = self.decides(lab, EVERYTHING - ({"test"} if words[0] == "-R" else set()), *words)
                self.assertNotIn("measure v1", run.ran)
                self.assertEqual(lab.identity("results/v1/manifest.json"), kept)

    def test_manual_stale(self) -> None:
        """A stale manual record is kept and reported; its results still follow from it."""
        with self.place() as lab:
            lab.edit("config.yaml", "seed: 3}", "seed: 6}")
            lab.remove("results/v1/summary.csv")
            words = ("results/v1/analysis.md", "all")
            self.decides(lab, {"summary v1"}, *words, says=["kept: its measure: part changed"])
            self.assertNotIn("measure v1", self.decides(lab, EVERYTHING, "--forceall", *words).ran)

    def test_manual_never_measured(self) -> None:
        """A manual experiment that nobody measured is not measured unasked: the refusal says how to ask."""
        with self.place() as lab:
            self.refuses(lab, "results/v2/summary.csv", says=["v2 is measured by hand", "-R results/v2"])
            self.decides(lab, {"measure v2"}, "-R", RECORDS[3], "--", RECORDS[3])

    def test_manual_target(self) -> None:
        """A target of manual experiments goes on with those measured and names those it leaves out."""
        with self.place() as lab:
            lab.remove("results/v1/plot.svg")
            says = ["v2 is measured by hand and has no record yet"]
            run = self.decides(lab, {"figure v1 plot.svg"}, "by_hand", "all", says=says)
            self.assertEqual(run.text.count("experiment  recorded"), 1, run.text)

    def test_looking_changes_nothing(self) -> None:
        """-n, --list-rules, --summary, --lint and --dag change no file that git knows, stale or current."""
        with self.place() as lab:
            for edits in ((), (OPERATOR,)):
                for edit in edits:
                    lab.edit(*edit)
                before, known = lab.changes(), lab.contents("**/*")
                for look in ("-n", "--list-rules", "--summary", "--lint", "--dag", "--rulegraph"):
                    run = lab.snakemake(*self.options, look)
                    self.assertEqual((run.ran, lab.changes()), ([], before), look)
                now = lab.contents("**/*") | {".git/index": known[".git/index"]}  # git's own notes on times
                self.assertEqual([path for path in known if known[path] != now.get(path)], [])


for _name, _steps in ROWS.items():
    setattr(Decisions, f"test_{_name.replace(' ', '_')}", lambda self, steps=_steps: self.follow(steps))


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
            lab.remove(".snakemake")
            self.decides(lab, NOTHING)

    def test_package_of_the_checkout(self) -> None:
        """These checks try the package of the throwaway checkout, not the installed one."""
        with checkout() as lab:
            found = lab.python("import inference_lab.cli as m; print(m.__file__)").strip()
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
                self.assertEqual((first.status, first.ran, lab.changes()), (0, ["verify"], []), first.text)
                self.assertTrue((lab.root / "results/.verified.json").exists())
                self.assertIn("same bytes", first.text)
                lab.permute_mtimes(seed + 10)
                self.assertIn("Nothing to be done", lab.snakemake(*options, "-n", "all").text)

"""Is everything true accepted wherever a checkout comes from, and everything false refused by its name?

Clones, archives, merges and forgeries of the toy laboratory, with the real rules and the real verification.
"""

import shutil
from pathlib import Path

from tests.workflow.check_decisions import SUMMARY, TOY, reseal
from tests.workflow.harness import PROGRAMS, Checkout, Parallel, checkout, fresh_clone, measured

PAGE = "results/t1/analysis.md"
DOUBT = ("does not follow", "out of date", "younger", "Traceback")


class Origins(Parallel):
    """Checkouts that came here in other ways than by a clone."""

    def accepts(self, lab: Checkout, *says: str, **variables: str) -> None:
        """Assert that the main job and the command end with 0, say this, and no word of doubt."""
        run = lab.snakemake("all", **variables)
        command = lab.command(str(PROGRAMS / "inference-lab"), "verify", **variables)
        self.assertEqual((run.status, run.ran), (0, ["verify"]), run.text)
        self.assertEqual(command.returncode, 0, command.stderr)
        for text in (run.text, command.stdout):
            for words in ("same bytes", *says):
                self.assertIn(words, text)
            for words in DOUBT:
                self.assertNotIn(words, text)

    def archived(self, lab: Checkout, at: Path) -> Checkout:
        """An archive of the last commit, unpacked at a place of its own."""
        at.mkdir(parents=True)
        lab.git("archive", "--output", str(lab.outside / "lab.tar"), "HEAD")
        shutil.unpack_archive(lab.outside / "lab.tar", at, filter="data")
        return Checkout(at, lab.outside)

    def test_fresh_clone(self) -> None:
        """In a whole clone every prediction stands in the commit that its run names."""
        with fresh_clone() as lab:
            self.accepts(lab, "holds: the commit that the run names has this prediction")

    def test_shallow_clone(self) -> None:
        """A history that does not reach back is not checked, and said to be so."""
        with fresh_clone() as lab:
            shallow = Checkout(lab.outside / "shallow", lab.outside)
            lab.git("clone", "--quiet", "--depth", "1", lab.root.as_uri(), str(shallow.root))
            self.accepts(shallow, "not checked: the history of this clone does not reach back to commit")

    def test_clone_with_line_ends_converted(self) -> None:
        """A clone that would write CRLF writes the committed bytes."""
        with fresh_clone() as lab:
            crlf = Checkout(lab.outside / "crlf", lab.outside)
            lab.git("clone", "--quiet", "--config", "core.autocrlf=true", str(lab.root), str(crlf.root))
            self.accepts(crlf, "holds: the commit that the run names has this prediction")

    def test_squashed(self) -> None:
        """Where one commit took the place of the history, the commit that a run names is not here."""
        with fresh_clone() as lab:
            lab.git("checkout", "--quiet", "--orphan", "squashed")
            lab.commit()
            squashed = Checkout(lab.outside / "squashed", lab.outside)
            url = lab.root.as_uri()
            lab.git("clone", "--quiet", "--single-branch", "-b", "squashed", url, str(squashed.root))
            self.accepts(squashed, "is not in this repository (squashed, rebased or imported)")

    def test_archive(self) -> None:
        """An archive: without git, inside another repository, and as a new one of its own."""
        with fresh_clone() as lab:
            self.accepts(
                self.archived(lab, lab.outside / "a"), "not checked: this folder is no git repository"
            )
            lab.git("init", "--quiet", str(lab.outside / "outer"))
            inner = self.archived(lab, lab.outside / "outer/inner")
            self.accepts(inner, "not checked: this folder lies inside another git repository")
            new = self.archived(lab, lab.outside / "new")
            new.git("init", "--quiet")
            new.commit()
            self.accepts(new, "is not in this repository (squashed, rebased or imported)")

    def test_owner(self) -> None:
        """A checkout of another user, which git refuses, is told apart from one without git."""
        with fresh_clone() as lab:
            self.accepts(lab, "not checked: git refuses this folder", GIT_TEST_ASSUME_DIFFERENT_OWNER="1")

    def test_environment_without_the_package(self) -> None:
        """A folder moved with its environment, whose package is gone, is told in one line what to do."""
        with fresh_clone() as lab:
            gone = lab.outside / "gone/inference_lab"
            gone.mkdir(parents=True)
            (gone / "__init__.py").touch()
            done = lab.command(str(PROGRAMS / "snakemake"), "-n", "all", PYTHONPATH=str(gone.parent))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("Make it anew: rm -r .venv && uv sync", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class Forgeries(Parallel):
    """Files that do not follow from their raw data, with receipts that were sealed anew."""

    def refused(self, lab: Checkout, *files: str) -> None:
        """Assert that the command names these files and ends with another status than 0."""
        done = lab.command(str(PROGRAMS / "inference-lab"), "verify")
        self.assertEqual(done.returncode, 2, done.stdout)
        for file in files:
            self.assertIn(file, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def forge(self, lab: Checkout) -> None:
        """Write another analysis, and a receipt that fits."""
        (lab.root / PAGE).write_text("Just as predicted.\n")
        digest = lab.identity(PAGE)[1]
        reseal(
            lab, "results/t1/receipts/analysis.json", f"receipt['outputs'][{PAGE!r}]['sha256'] = {digest!r}"
        )

    def test_page(self) -> None:
        """A forged page under a receipt that fits fails the main job and the command."""
        with fresh_clone() as lab:
            self.forge(lab)
            run = lab.snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertIn(f"{PAGE}  does not follow from its raw data", run.text)
            self.refused(lab, PAGE)

    def test_page_under_a_stale_receipt(self) -> None:
        """The same with one digest of an input changed: refused, and made again by the main job."""
        with fresh_clone() as lab:
            self.forge(lab)
            stale = "receipt['inputs']['results/t1/summary.csv'] = '0' * 64"
            reseal(lab, "results/t1/receipts/analysis.json", stale)
            self.refused(lab, PAGE)
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"analysis t1"}), run.text)
            self.assertEqual(lab.changes(), [])

    def test_verification_that_came_along(self) -> None:
        """A receipt of verification that a commit ships decides nothing, in whatever folder it arrives."""
        with checkout() as lab:
            self.forge(lab)
            inputs = f"receipt['inputs']['results/t1/receipts/analysis.json'] = {self.sealed(lab)!r}"
            reseal(lab, "results/.verified.json", inputs)
            lab.git("add", "--force", "results/.verified.json")
            lab.commit()
            clone = Checkout(lab.outside / "clone", lab.outside)
            lab.git("clone", "--quiet", str(lab.root), str(clone.root))
            run = clone.snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertIn(PAGE, run.text)

    def sealed(self, lab: Checkout) -> str:
        """sha256 of the forged page's receipt."""
        return lab.identity("results/t1/receipts/analysis.json")[1]

    def test_new_raw_under_old_figures(self) -> None:
        """A new record whose old summary and figures were put back is refused by each of them."""
        with checkout() as lab:
            lab.edit("config.yaml", "seed: 1}", "seed: 5}")
            self.assertEqual(lab.snakemake("all").status, 0)
            old = ("results/t1/summary.csv", "results/t1/receipts", PAGE, "results/t1/plot.svg")
            lab.git("checkout", "--", *old)
            self.refused(lab, "results/t1/summary.csv")

    def test_summary_code_edited_under_old_receipts(self) -> None:
        """A source whose committed results are those of before is refused, and named."""
        with fresh_clone() as lab:
            lab.edit(SUMMARY, "/ 1e6", "/ 1e3")
            self.refused(lab, "results/tests.json", "results/t1/summary.csv")


class Histories(Parallel):
    """Merges, and tests that fail."""

    def test_merge_of_two_measurements(self) -> None:
        """No file becomes a mixture, the tests' receipt never conflicts, and the told way out works."""
        with checkout() as lab:
            lab.git("branch", "base")
            edits = {
                "one": [(TOY, "* us)", "+ us)")],
                "two": [
                    ("config.yaml", "seed: 1}", "seed: 5}"),
                    ("tests/test_toy.py", '"nowhere"', '"elsewhere"'),
                ],
            }
            for branch in edits:
                lab.git("checkout", "--quiet", "-b", branch, "base")
                for edit in edits[branch]:
                    lab.edit(*edit)
                run = lab.snakemake("all")
                self.assertEqual(run.status, 0, run.text)
                lab.commit()
            merged = lab.command("git", "-c", "user.name=A", "-c", "user.email=a@b", "merge", "one")
            self.assertEqual(merged.returncode, 1, merged.stdout)
            conflicts = lab.git("diff", "--name-only", "--diff-filter=U").split()
            self.assertIn("results/t1/raw.csv", conflicts)
            for path in conflicts:
                self.assertNotIn("<<<<<<<", (lab.root / path).read_text())
            self.assertEqual(
                [path for path in conflicts if path.endswith("tests.json") or "receipts" in path], []
            )
            lab.git("checkout", "--theirs", "--", "results/t1")
            lab.commit()
            run = lab.snakemake("all")
            self.assertEqual(run.status, 0, run.text)
            self.assertLessEqual({"test"} | measured("t1"), run.made)
            self.assertEqual(lab.snakemake("all").made, set())

    def test_conflict_markers(self) -> None:
        """Markers in the tests' receipt heal by themselves, in a manifest they are refused in one line."""
        with checkout() as lab:
            for name in ("results/tests.json", "results/t1/receipts/summary.json"):
                text = (lab.root / name).read_text()
                (lab.root / name).write_text(f"<<<<<<< a\n{text}=======\n{text}>>>>>>> b\n")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"test", "summary t1"}), run.text)
            manifest = lab.root / "results/t1/manifest.json"
            text = manifest.read_text()
            manifest.write_text(f"<<<<<<< a\n{text}=======\n{text}>>>>>>> b\n")
            run = lab.snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertIn("manifest.json: holds git's conflict markers; take one side of it whole", run.text)
            self.assertNotIn("Traceback", run.text)
            run = lab.snakemake("-R", "results/t1/manifest.json", "--", "all")
            self.assertEqual((run.status, run.decided), (0, measured("t1")), run.text)

    def test_failing_tests_keep_the_receipt(self) -> None:
        """Tests that fail end the run and leave the receipt; once the source is restored, nothing runs."""
        with checkout() as lab:
            before = (lab.root / "results/tests.json").read_bytes()
            lab.edit("tests/test_toy.py", "assertIsNone", "assertIsNotNone")
            run = lab.snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertEqual((lab.root / "results/tests.json").read_bytes(), before)
            self.assertIn("results/tests.json", lab.snakemake("-n", "all").text)
            lab.git("checkout", "--", "tests/test_toy.py")
            self.assertEqual(lab.snakemake("all").decided, set())
            self.assertEqual(lab.changes(), [])

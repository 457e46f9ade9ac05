"""Is everything true accepted wherever a checkout comes from, and everything false refused by its name?

Clones, archives, merges and forgeries of the toy laboratory, with the real rules and the real verification.
"""

import shutil

from tests.workflow.harness import (
    STALE,
    TOY_SOURCE,
    TOY_SUMMARY,
    Checkout,
    Parallel,
    checkout,
    fresh_clone,
    measured,
)

PAGE, RECEIPT = "results/t1/analysis.md", "results/t1/receipts/analysis.json"
WRONG = ("does not follow", "out of date", "younger", "Traceback")
HOLDS = "holds: the commit that the run names has this prediction"
NOT_HERE = "is not in this repository (squashed, rebased or imported)"


class Origins(Parallel):
    """Checkouts that came here in other ways than by a clone."""

    def accepts(self, lab: Checkout, says: str, **variables: str) -> None:
        """Assert that the main job and the command end with 0, say this, and nothing that is wrong."""
        run, command = lab.snakemake("all", **variables), lab.verify(**variables)
        self.assertEqual((run.status, run.ran), (0, ["verify"]), run.text)
        self.assertEqual(command.returncode, 0, command.stderr)
        for text in (run.text, command.stdout):
            self.assertIn("same bytes", text)
            self.assertIn(says, text)
            self.assertEqual([words for words in WRONG if words in text], [])

    def archived(self, lab: Checkout, name: str) -> Checkout:
        """An archive of the last commit, unpacked at a place of its own."""
        archive = Checkout(lab.outside / name, lab.outside)
        archive.root.mkdir(parents=True)
        lab.git("archive", "--output", str(lab.outside / "lab.tar"), "HEAD")
        shutil.unpack_archive(lab.outside / "lab.tar", archive.root, filter="data")
        return archive

    def test_clones(self) -> None:
        """Whole, shallow, one that would write CRLF, and with one commit in place of the history."""
        with fresh_clone() as lab:
            self.accepts(lab, HOLDS)
            shallow = "not checked: the history of this clone does not reach back to commit"
            self.accepts(lab.clone("shallow", "--depth", "1"), shallow)
            self.accepts(lab.clone("crlf", "--config", "core.autocrlf=true"), HOLDS)
            lab.git("checkout", "--quiet", "--orphan", "squashed")
            lab.commit()
            self.accepts(lab.clone("squashed", "--single-branch", "-b", "squashed"), NOT_HERE)

    def test_archive(self) -> None:
        """An archive: without git, inside another repository, and as a new one of its own."""
        with fresh_clone() as lab:
            self.accepts(self.archived(lab, "a"), "not checked: this folder is no git repository")
            lab.git("init", "--quiet", str(lab.outside / "outer"))
            inside = "not checked: this folder is no git repository"
            self.accepts(self.archived(lab, "outer/inner"), inside)
            new = self.archived(lab, "new")
            new.git("init", "--quiet")
            new.commit()
            self.accepts(new, NOT_HERE)

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
            done = lab.command("snakemake", "-n", "all", PYTHONPATH=str(gone.parent))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("Make it anew: rm -r .venv && uv sync", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class Forgeries(Parallel):
    """Files that do not follow from their raw data, with receipts that were sealed anew."""

    def refused(self, lab: Checkout, *files: str) -> None:
        """Assert that the command names these files and ends with another status than 0."""
        done = lab.verify()
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertEqual([file for file in files if file not in done.stderr], [])
        self.assertNotIn("Traceback", done.stderr)

    def forge(self, lab: Checkout) -> None:
        """Write another analysis, and a receipt that fits."""
        (lab.root / PAGE).write_text("Just as predicted.\n")
        lab.reseal(RECEIPT, f"receipt['outputs'][{PAGE!r}]['sha256'] = sha256_file(Path({PAGE!r}))")

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
            lab.reseal(RECEIPT, "receipt['inputs']['results/t1/summary.csv'] = '0' * 64")
            self.refused(lab, PAGE)
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"analysis t1"}), run.text)
            self.assertEqual(lab.changes(), [])

    def test_verification_that_came_along(self) -> None:
        """A receipt of verification that a commit ships decides nothing, in whatever folder it arrives."""
        with checkout() as lab:
            self.forge(lab)
            forged = f"receipt['inputs'][{RECEIPT!r}] = sha256_file(Path({RECEIPT!r}))"
            lab.reseal("results/.verified.json", forged)
            lab.git("add", "--force", "results/.verified.json")
            lab.commit()
            run = lab.clone("clone").snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertIn(PAGE, run.text)

    def test_new_raw_under_old_figures(self) -> None:
        """A new record whose old summary and figures were put back is refused by each of them."""
        with checkout() as lab:
            lab.edit(*STALE)
            self.assertEqual(lab.snakemake("all").status, 0)
            old = ("results/t1/summary.csv", "results/t1/receipts", PAGE, "results/t1/plot.svg")
            lab.git("checkout", "--", *old)
            self.refused(lab, "results/t1/summary.csv")

    def test_summary_code_edited_under_old_receipts(self) -> None:
        """A source whose committed results are those of before is refused, and named."""
        with fresh_clone() as lab:
            lab.edit(TOY_SUMMARY, "/ 1e6", "/ 1e3")
            self.refused(lab, "results/tests.json", "results/t1/summary.csv")


class Merges(Parallel):
    """Two histories in one checkout."""

    def test_merge_of_two_measurements(self) -> None:
        """No file becomes a mixture, the tests' receipt never conflicts, and the way out given works."""
        with checkout() as lab:
            lab.git("branch", "base")
            test = ("tests/test_toy.py", '"nowhere"', '"elsewhere"')
            for branch, edits in {"one": [(TOY_SOURCE, "* us)", "+ us)")], "two": [STALE, test]}.items():
                lab.git("checkout", "--quiet", "-b", branch, "base")
                for edit in edits:
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
                self.assertNotRegex(path, r"tests\.json$|receipts")
            lab.git("checkout", "--theirs", "--", "results/t1")
            lab.commit()
            run = lab.snakemake("all")
            self.assertEqual(run.status, 0, run.text)
            self.assertLessEqual({"test"} | measured("t1"), run.made)
            self.assertEqual(lab.snakemake("all").made, set())

    def test_conflict_markers(self) -> None:
        """Markers in the tests' receipt heal by themselves, in a manifest they are refused in one line."""

        def mark(lab: Checkout, name: str) -> None:
            text = (lab.root / name).read_text()
            (lab.root / name).write_text(f"<<<<<<< a\n{text}=======\n{text}>>>>>>> b\n")

        with checkout() as lab:
            mark(lab, "results/tests.json")
            mark(lab, "results/t1/receipts/summary.json")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"test", "summary t1"}), run.text)
            mark(lab, "results/t1/manifest.json")
            run = lab.snakemake("all")
            self.assertNotEqual(run.status, 0)
            self.assertIn("manifest.json: holds git's conflict markers; take one side of it whole", run.text)
            self.assertNotIn("Traceback", run.text)
            run = lab.snakemake("-R", "results/t1/manifest.json", "--", "all")
            self.assertEqual((run.status, run.decided), (0, measured("t1")), run.text)

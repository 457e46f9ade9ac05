"""Do failures that people reported of other pipelines stay away? Each case names where it was reported.

The recipes are in our own words; those that are rows of the decision table are in check_decisions.
"""

import json
import os

from tests.workflow.harness import STALE, TOY_SOURCE, Checkout, Parallel, checkout, fresh_clone, measured

PLAIN_C = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TWO_MEGABYTES = """
raw = path.with_name("raw.csv")
head, *rows = raw.read_text().splitlines()
fields = [row.split(",") for row in rows] * (2_100_000 // sum(map(len, rows)) + 1)
many = [",".join([one[0], str(round_), *one[2:]]) for round_, one in enumerate(fields)]
raw.write_text("\\n".join([head, *many]) + "\\n")
receipt["outputs"]["raw.csv"] = {"rows": len(many), "sha256": sha256_file(raw)}
"""


class PublicCases(Parallel):
    """Reported by others, tried here."""

    def nothing_to_do(self, lab: Checkout, *words: str) -> None:
        """Assert that a plan is empty."""
        self.assertIn("Nothing to be done", lab.snakemake(*words, "-n", "all").text)

    def verified(self, lab: Checkout) -> None:
        """Run what a folder that was just made has to do: its verification, which is of one place alone."""
        self.assertEqual(lab.snakemake("all").ran, ["verify"])

    def test_two_megabytes_touched(self) -> None:
        """snakemake#2949: a raw file beyond Snakemake's limit for checksums is touched and runs nothing."""
        with checkout() as lab:
            lab.reseal("results/t1/manifest.json", TWO_MEGABYTES)
            self.assertGreater((lab.root / "results/t1/raw.csv").stat().st_size, 2_000_000)
            first = lab.snakemake("results/t1/summary.csv")
            self.assertEqual((first.status, first.ran), (0, ["summary t1"]), first.text)
            os.utime(lab.root / "results/t1/raw.csv")
            self.assertIn("Nothing to be done", lab.snakemake("-n", "results/t1/summary.csv").text)

    def test_half_written_output(self) -> None:
        """snakemake#3808: a job that writes half its output and fails is done again, kept or not."""
        for stage, file, words in (
            ("summary", "summary.csv", ()),
            ("figure", "plot.svg", ("--keep-incomplete",)),
            ("analysis", "verdicts.csv", ()),
        ):
            with self.subTest(stage), checkout() as lab:
                whole = lab.published()
                lab.remove(f"results/t1/{file}")
                broken = lab.snakemake(*words, "all", TOY_BREAK=stage)
                self.assertNotEqual(broken.status, 0)
                self.assertIn(f"{stage} broke half-way", broken.text)
                again = lab.snakemake("all")
                self.assertEqual(again.status, 0, again.text)
                self.assertEqual((lab.published(), lab.changes()), (whole, []))

    def test_touch_hides_nothing(self) -> None:
        """snakemake#1680: stale, then --touch, then a run: it still measures."""
        with checkout() as lab:
            lab.edit(*STALE)
            lab.snakemake("--touch", "all")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, measured("t1")), run.text)

    def test_names_that_shells_read(self) -> None:
        """snakemake#2981: a checkout under a path with a space, quotes, $, %, brackets and other scripts."""
        with fresh_clone('it\'s "100%" $HOME {t1} µ试验 & co;') as lab:
            self.verified(lab)
            lab.edit(TOY_SOURCE, "* us)", "+ us)")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, {"test"} | measured("t1", "t2")), run.text)
            self.nothing_to_do(lab)

    def test_plain_c_locale(self) -> None:
        """snakemake#1145: µ in config and prediction under LC_ALL=C without UTF-8 mode: same decisions."""
        with checkout() as lab:
            lab.variables = PLAIN_C
            self.verified(lab)
            self.nothing_to_do(lab)
            lab.edit(*STALE[:2], "seed: 5}  # µ试")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, measured("t1")), run.text)
            verified = lab.verify()
            self.assertEqual(verified.returncode, 0, verified.stderr)
            lab.variables = {}
            self.nothing_to_do(lab)

    def test_same_bytes_under_another_locale_and_hash_seed(self) -> None:
        """matplotlib#23693 in small: another locale and hash seed make the same bytes."""
        with checkout() as lab:
            whole = lab.published()
            lab.remove("results/t1/receipts")
            run = lab.snakemake("all", **PLAIN_C, PYTHONHASHSEED="1")
            self.assertIn("summary t1", run.made)
            self.assertEqual(lab.published(), whole)

    def test_thread_variables(self) -> None:
        """omnibenchmark#379: the thread variables seen inside the measurement are those in the manifest."""
        with checkout() as lab:
            seen = lab.outside / "threads.json"
            run = lab.snakemake("-R", "results/t1/manifest.json", "--", "all", TOY_THREADS=str(seen))
            self.assertEqual(run.status, 0, run.text)
            manifest = json.loads((lab.root / "results/t1/manifest.json").read_text(encoding="utf-8"))
            recorded, inside = manifest["environment"]["thread_variables"], json.loads(seen.read_text())
            self.assertEqual({name: recorded.get(name) for name in inside}, inside)
            self.assertEqual(set(inside.values()), {"1"})

    def test_called_from_elsewhere(self) -> None:
        """A call from another folder with -s and -d decides the same."""
        with checkout() as lab:
            self.verified(lab)
            here, lab.root = lab.root, lab.outside
            lab.variables = {"PYTHONPATH": f"{here / 'src'}:{here / 'installed'}"}
            self.nothing_to_do(lab, "-s", str(here / "Snakefile"), "-d", str(here))

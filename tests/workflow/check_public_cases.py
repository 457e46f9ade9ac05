"""Do failures that people reported of other pipelines stay away? Each case names where it was reported.

The recipes are in our own words; those that are rows of the decision table stand in check_decisions.
"""

import json
import os
import shutil
import sys

from tests.workflow.harness import PROGRAMS, Checkout, Parallel, checkout, fresh_clone, measured

TOY = "src/inference_lab/experiments/toy.py"
PLAIN_C = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TWO_MEGABYTES = """
import json
from pathlib import Path
from inference_lab.records.receipts import seal
from inference_lab.records.files import json_text, sha256_file
folder = Path("results/t1")
raw, manifest = folder / "raw.csv", folder / "manifest.json"
head, *rows = raw.read_text().splitlines()
fields = [row.split(",") for row in rows] * (2_100_000 // sum(map(len, rows)) + 1)
many = [",".join([one[0], str(round_), *one[2:]]) for round_, one in enumerate(fields)]
raw.write_text("\\n".join([head, *many]) + "\\n")
receipt = json.loads(manifest.read_text(encoding="utf-8"))
receipt["outputs"]["raw.csv"] = {"rows": len(many), "sha256": sha256_file(raw)}
manifest.write_text(json_text(seal(receipt)), encoding="utf-8")
"""


class PublicCases(Parallel):
    """Reported by others, tried here."""

    def nothing_to_do(self, lab: Checkout) -> None:
        """Assert that a plan is empty."""
        plan = lab.snakemake("-n", "all")
        self.assertIn("Nothing to be done", plan.text)

    def test_copied_tree(self) -> None:
        """MERlin#44, bgcflow#36: a tree copied without its times runs nothing."""
        with checkout() as lab:
            copy = lab.root.with_name("copy")
            shutil.copytree(lab.root, copy, copy_function=shutil.copyfile)
            lab.root = copy
            self.nothing_to_do(lab)

    def test_one_byte_with_its_old_time(self) -> None:
        """snakemake#4134, #4172: a touched input runs nothing; one byte under its old time does run."""
        with checkout() as lab:
            os.utime(lab.root / "installed/toydep.py")
            os.utime(lab.root / TOY)
            os.utime(lab.root / "results/t1/raw.csv")
            self.nothing_to_do(lab)
            lab.edit("predictions/t2.yaml", "some µs", "Some µs", keep_mtime=True)
            self.assertEqual(lab.snakemake("all").decided, {"analysis t2"})

    def test_two_megabytes_touched(self) -> None:
        """snakemake#2949: a raw file beyond Snakemake's limit for checksums is touched and runs nothing."""
        with checkout() as lab:
            made = lab.command(sys.executable, "-c", TWO_MEGABYTES)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertGreater((lab.root / "results/t1/raw.csv").stat().st_size, 2_000_000)
            first = lab.snakemake("results/t1/summary.csv")
            self.assertEqual((first.status, first.ran), (0, ["summary t1"]), first.text)
            os.utime(lab.root / "results/t1/raw.csv")
            self.assertIn("Nothing to be done", lab.snakemake("-n", "results/t1/summary.csv").text)

    def test_half_written_output(self) -> None:
        """snakemake#3808: a job that writes half its output and fails is done again, kept or not."""
        for stage, file, words in (
            ("summary", "results/t1/summary.csv", ()),
            ("figure", "results/t1/plot.svg", ("--keep-incomplete",)),
            ("analysis", "results/t1/verdicts.csv", ()),
        ):
            with self.subTest(stage), checkout() as lab:
                whole = lab.published()
                lab.remove(file)
                broken = lab.snakemake(*words, "all", TOY_BREAK=stage)
                self.assertNotEqual(broken.status, 0)
                self.assertIn(f"{stage} broke half-way", broken.text)
                mended = lab.snakemake("all")
                self.assertEqual(mended.status, 0, mended.text)
                self.assertEqual(lab.published(), whole)
                self.assertEqual(lab.changes(), [])

    def test_touch_hides_nothing(self) -> None:
        """snakemake#1680: stale, then --touch, then a run: it still measures."""
        with checkout() as lab:
            lab.edit("config.yaml", "seed: 1}", "seed: 5}")
            lab.snakemake("--touch", "all")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, measured("t1")), run.text)

    def test_names_that_shells_read(self) -> None:
        """snakemake#2981: a checkout under a path with a space, quotes, $, %, brackets and other scripts."""
        with fresh_clone('it\'s "100%" $HOME {t1} µ试验 & co;') as lab:
            self.assertEqual(lab.snakemake("all").ran, ["verify"])
            lab.edit(TOY, "* us)", "+ us)")
            run = lab.snakemake("all")
            self.assertEqual(run.status, 0, run.text)
            self.assertEqual(run.decided, {"test"} | measured("t1", "t2"))
            self.nothing_to_do(lab)

    def test_plain_c_locale(self) -> None:
        """snakemake#1145: µ in config and prediction under LC_ALL=C without UTF-8 mode: same decisions."""
        with checkout() as lab:
            lab.variables = PLAIN_C
            self.nothing_to_do(lab)
            lab.edit("config.yaml", "seed: 1}", "seed: 5}  # µ试")
            run = lab.snakemake("all")
            self.assertEqual((run.status, run.decided), (0, measured("t1")), run.text)
            verified = lab.command(str(PROGRAMS / "inference-lab"), "verify")
            self.assertEqual(verified.returncode, 0, verified.stderr)
            lab.variables = {}
            self.nothing_to_do(lab)

    def test_same_bytes_under_another_locale_and_hash_seed(self) -> None:
        """matplotlib#23693 in small: another locale and hash seed make the same bytes."""
        with checkout() as lab:
            whole = lab.published()
            shutil.rmtree(lab.root / "results/t1/receipts")
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
            words = ("-s", str(lab.root / "Snakefile"), "-d", str(lab.root), "-n", "all")
            here, lab.root = lab.root, lab.outside
            lab.variables = {"PYTHONPATH": f"{here / 'src'}:{here / 'installed'}"}
            plan = lab.snakemake(*words)
            self.assertIn("Nothing to be done", plan.text)

    def test_crlf_checkout(self) -> None:
        """.gitattributes keeps line ends: a clone made with core.autocrlf=true is current."""
        with checkout() as lab:
            clone = lab.outside / "windows"
            lab.git("clone", "--quiet", "-c", "core.autocrlf=true", ".", str(clone))
            lab.root = clone
            self.assertEqual(lab.snakemake("all").ran, ["verify"])

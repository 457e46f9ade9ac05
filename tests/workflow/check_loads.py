"""A load of one's own from the command line: recorded, summarised, drawn, verified and explained."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from inference_lab import cli
from inference_lab.commands import own_load
from inference_lab.records import installed
from tests.stream_load.support import reference_server

LAB = [sys.executable, "-c", "import sys; from inference_lab.cli import main; sys.exit(main())"]


class TestLoads(unittest.TestCase):
    """One recorded load, copied for each test."""

    base_url: str
    made: Path
    said: str

    @classmethod
    def setUpClass(cls) -> None:
        """Have what all tests of the class share, gone at their end."""
        cls.enterClassContext(mock.patch.object(own_load, "CALIBRATION", "none"))
        cls.enterClassContext(mock.patch.object(installed, "check_loaded"))  # tests, too, are loaded here
        cls.base_url = cls.enterClassContext(reference_server(ttft_ms=2, itl_ms=1))
        cls.made = Path(cls.enterClassContext(tempfile.TemporaryDirectory()), "run1")
        status, cls.said, error = cls.command("load", *cls.words(cls.made))
        assert status == 0, error

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()), "run1")
        shutil.copytree(self.made, self.folder)

    @classmethod
    def words(cls, folder: Path, *more: str) -> list[str]:
        """The arguments of a load into a folder."""
        load = ["--base-url", cls.base_url, "--concurrency", "2", "--requests", "12"]
        return [*load, "--output", str(folder), "--output-tokens", "4", "--slo", "ttft_ms=500", *more]

    @staticmethod
    def command(*words: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of `inference-lab`."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = cli.main(list(words))
        return status, out.getvalue(), err.getvalue()

    def test_the_table_is_printed_and_the_record_sealed(self) -> None:
        """Counts, metrics and where the record is; no partial file is left, every digest stands."""
        for words in (
            "12 ok; recorded in",
            "ttft",
            "output_tokens_per_s",
            "goodput_per_s",
            "summary.csv: made",
        ):
            self.assertIn(words, self.said)
        names = {path.name for path in self.folder.iterdir()}
        self.assertEqual(names, {"manifest.json", "requests.jsonl", "summary.csv", "receipts"})
        manifest = json.loads((self.folder / "manifest.json").read_text())
        self.assertEqual((manifest["kind"], manifest["experiment"]), ("serving", "run1/"))
        self.assertEqual(manifest["command"][0], "load")
        self.assertEqual(manifest["model"], "reference")
        self.assertIn("src/inference_lab/stream_load/client/client.py", manifest["inputs"])

    def test_summarise_again(self) -> None:
        """A summary that holds is left alone; one that is gone is the same again."""
        status, said, _ = self.command("summarize", str(self.made))
        self.assertEqual((status, said.splitlines()[-1].split(": ")[-1]), (0, "holds already"))
        before = (self.folder / "summary.csv").read_bytes()
        (self.folder / "summary.csv").unlink()
        self.assertEqual(self.command("summarize", str(self.folder))[0], 0)
        self.assertEqual((self.folder / "summary.csv").read_bytes(), before)

    def refused(self, *words: str) -> str:
        """The one line of a command that is refused."""
        status, out, err = self.command(*words)
        self.assertEqual((status, out, err.count("\n")), (2, "", 1), words)
        return err

    def test_figures_verify_explain(self) -> None:
        """Each works on the folder; the figure names the command that draws it, verify finds an edit."""
        status, said, err = self.command("verify", str(self.folder))
        self.assertEqual((status, said.count("not drawn")), (0, 1), said + err)
        self.command("figures", str(self.folder))
        figure = self.folder / "timeline.svg"
        self.assertIn("inference-lab figures run1", figure.read_text())
        status, said, _ = self.command("verify", str(self.folder))
        self.assertEqual((status, said.count("same bytes")), (0, 2), said)
        for file in (figure, self.folder / "requests.jsonl", self.folder):
            status, said, _ = self.command("explain", str(file))
            self.assertEqual(status, 0)
            for words in (
                "by inference-lab load --base-url",
                "12 rows, sha256",
                "uv run inference-lab figures",
            ):
                self.assertIn(words, said)
        with (self.folder / "requests.jsonl").open("a") as file:
            file.write(" \n")
        status, _, said = self.command("verify", str(self.folder))
        self.assertEqual(status, 2)
        self.assertIn("requests.jsonl: differs from", said)

    def test_resuming_a_whole_run_adds_nothing(self) -> None:
        """The same load again with --resume asks nothing, and the record is whole and sealed again."""
        before = (self.folder / "requests.jsonl").read_bytes()
        status, _, _ = self.command("load", *self.words(self.folder, "--resume"))
        self.assertEqual(status, 0)
        self.assertEqual((self.folder / "requests.jsonl").read_bytes(), before)
        manifest = json.loads((self.folder / "manifest.json").read_text())
        self.assertEqual(len(manifest["sessions"]), 2)
        self.assertFalse(list(self.folder.glob("*.partial")))

    def test_any_folder_will_do(self) -> None:
        """Outside a checkout a load is recorded, drawn, verified and explained where its user named it."""
        at, environ = self.folder.parent, {**os.environ, "LAB_KEY": "sk-nobody-reads-this"}
        loading = ["load", *self.words(Path("elsewhere"), "--api-key-env", "LAB_KEY")]
        looks = (
            "figures elsewhere",
            "verify elsewhere",
            "explain elsewhere/timeline.svg",
            "summarize elsewhere",
        )
        for words in (loading, *map(str.split, looks)):
            done = subprocess.run([*LAB, *words], cwd=at, capture_output=True, text=True, env=environ)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual({path.name for path in at.iterdir()}, {"run1", "elsewhere"})
        self.assertTrue((at / "elsewhere" / "timeline.svg").exists())

    def test_the_record_is_sealed_before_a_word_is_printed(self) -> None:
        """A reader that is gone or a full disk behind stdout costs the words, never the record."""
        read, write = os.pipe()
        os.close(read)
        full = os.open("/dev/full", os.O_WRONLY)
        for name, out, error, code in (("a", write, subprocess.PIPE, 141), ("b", full, subprocess.PIPE, 2)):
            words = ["load", *self.words(self.folder.with_name(name))]
            done = subprocess.run([*LAB, *words], stdout=out, stderr=error, text=True)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertNotIn("Exception", done.stderr)
            self.assertEqual(self.command("verify", str(self.folder.with_name(name)))[::2], (0, ""))
            self.assertFalse(list(self.folder.with_name(name).glob("*.partial")))
        words = ["load", *self.words(self.folder.with_name("c"))]
        done = subprocess.run([*LAB, *words], stdout=full, stderr=write)  # nobody hears anything
        self.assertEqual(self.command("verify", str(self.folder.with_name("c")))[0], 0)
        os.close(write)
        os.close(full)

    def test_failures_are_recorded_and_told(self) -> None:
        """A load whose requests fail ends with 1, and its record is as whole as any."""
        folder = self.folder.with_name("failed")
        extra = ("--extra-body", '{"model": "other"}')
        status, said, _ = self.command("load", *self.words(folder, *extra))
        self.assertEqual(status, 1)
        self.assertIn("12 http_error; recorded in", said)
        self.assertTrue((folder / "manifest.json").exists())

    def test_what_is_wrong_is_one_line(self) -> None:
        """A folder that exists, a bound of no name, a folder without a load: 2 and one line, nothing run."""
        with tempfile.TemporaryDirectory() as empty:
            for words, said in (
                (["load", *self.words(self.folder)], "exists already"),
                (["load", *self.words(Path(empty, "x"), "--slo", "speed=1")], "slo 'speed' is no bound"),
                (["figures", empty], "holds no manifest.json of a load"),
                (["verify", "m7"], "no experiment 'm7' in the config"),
            ):
                self.assertIn(said, self.refused(*words))
            self.assertFalse(list(Path(empty).iterdir()))

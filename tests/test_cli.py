"""Commands: each hands its words to one function; what a user can get wrong is one line and exit status 2."""

import argparse
import io
import json
import os
import re
import sys
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab import cli
from inference_lab.commands import run_stage, standalone, terminal
from inference_lab.errors import ConfigError, InputError, LabError, MeasurementRefused, RecordError
from inference_lab.records import locks
from inference_lab.records.plan import Plan
from tests import checkout
from tests.checkout import CONFIG, JUDGE, MEASURE


def run(*words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of `inference-lab`."""
    return checkout.run(cli.main, *words)


class CommandsTest(unittest.TestCase):
    """What each command is given, and how it refuses."""

    def test_each_step_is_one_command(self) -> None:
        """The words of a step, with its part of the section, are that very step again."""
        for step in Plan(CONFIG).steps("m1"):
            words = ["stage", *step.command, "--section", json.dumps(step.section)]
            name = "measure" if step.stage == "measure" else "derive"
            with self.subTest(words), mock.patch.object(run_stage, name, lambda step, *_, **__: f"{step}"):
                self.assertEqual(run(*words), (0, f"{step}\n", ""))

    def test_measuring_dies_with_its_run(self) -> None:
        """A command that a run started binds its life to the run's before anything else, its children not."""
        order = mock.Mock()
        order.measure.return_value = "done"
        with (
            mock.patch.dict("os.environ", {locks.RUN_VARIABLE: "7"}),
            mock.patch("inference_lab.records.locks.die_with_parent", order.bind),
            mock.patch.object(run_stage, "measure", order.measure),
        ):
            run("stage", "measure", "m1", "--section", json.dumps(MEASURE), "--lock", "own.lock")
            self.assertNotIn(locks.RUN_VARIABLE, os.environ)
        bound, measured = order.mock_calls
        self.assertEqual(bound, mock.call.bind(7))
        self.assertEqual(measured.args[1], Path("results/m1/manifest.json"))
        self.assertEqual((measured.kwargs["in_pipeline"], measured.kwargs["lock"]), (True, "own.lock"))

    def test_refusals_are_one_line_and_2(self) -> None:
        """Wrong words, a section of no shape, and a stage asked for before the one it reads."""
        checkout.enter(self)
        judge, measure = json.dumps(JUDGE), json.dumps(MEASURE | {"by": "none"})
        for words, said in (
            ([], "the following arguments are required: COMMAND"),
            (["guess"], "invalid choice: 'guess'"),
            (["stage", "analysis"], "the following arguments are required: experiment, --section"),
            (["stage", "draw", "m1", "--section", "{}"], "invalid choice: 'draw'"),
            (["summarize", "m1"], "m1: holds no manifest.json of a load; name its folder"),
            (["stage", "summary", "m1", "--section", "{"], "--section: not JSON"),
            (["stage", "summary", "m1", "--section", "[1]"], "--section: must be a JSON object"),
            (["stage", "summary", "m1", "--section", '{"a": NaN}'], "--section: not JSON"),
            (["stage", "summary", "m1", "--section", judge], "results/m1/raw.csv: cannot be read"),
            (["stage", "summary", "m1", "--section", "{}"], "the section has no key 'by'"),
            (["stage", "measure", "m1", "--section", '{"by": 3}'], "the section has no key 'by'"),
            (["stage", "measure", "m1", "--section", measure], "no module inference_lab"),
            (["stage", "figure", "m1", "--section", judge], "m1 has no figure ''"),
            (["stage", "figure", "m1", "x.svg", "--section", judge], "m1 has no figure 'x.svg'"),
            (["stage", "figure", "m1", "latency.svg", "--section", judge], "summary.csv: cannot be read"),
        ):
            with self.subTest(words):
                status, out, err = run(*words)
                self.assertEqual((status, out), (2, ""))
                self.assertRegex(err, rf"\Ainference-lab[^:\n]*: [^\n]*{re.escape(said)}[^\n]*\n\Z")

    def test_no_path_shows_a_traceback(self) -> None:
        """Too long, below a file, a folder for a file, empty, with control characters: 2, and one line."""
        checkout.enter_copy(self)
        self.enterContext(mock.patch.object(run_stage, "check_code"))  # the same package each time
        Path("file").write_text("no record")
        Path("folder").mkdir()
        load = ["load", "--base-url", "http://127.0.0.1:1/v1", "--concurrency", "1", "--requests", "1"]
        flags = ["--sequence-length", "128", "--dtype", "float64", "--blas-threads", "1"]
        for path in ("x" * 300, "y/" * 3000, "file/x", "file", "folder", "", "no\x1b\udc80"):
            calls: list[tuple[Callable[[list[str]], int], list[str]]] = [
                *((cli.main, [word, path]) for word in ("explain", "figures", "summarize", "verify")),
                (cli.main, ["compare", path, "folder"]),
                (cli.main, ["compare", f"HEAD:{path}", "folder"]),
                (cli.main, [*load, "--output", path and f"{path}/x" * (path != "folder")]),
                (cli.main, [*load, "--output", "new", "--prompts", path]),
                (standalone.measure, ["--csv", f"file/{path}.csv"]),
                (standalone.summary, ["--input", f"{path}.csv", "--output-dir", "out", *flags]),
            ]
            for command, words in calls:
                with self.subTest([word[:20] for word in words]):
                    status, _, err = checkout.run(command, *words)
                    self.assertEqual(status, 2, err)
                    self.assertRegex(err.splitlines()[-1], r"^(p2-|inference-lab).*: .")
                    self.assertNotIn("Traceback", err)
                    self.assertNotIn("\x1b", err)
        self.assertFalse(Path("new").exists())

    def test_a_log_holds_the_final_message(self) -> None:
        """Refusal or result; a log that cannot be written is refused before anything runs."""
        checkout.enter(self)
        words = ["stage", "summary", "m1", "--section", json.dumps(JUDGE), "--log", "m1.log"]
        status, _, err = run(*words)
        self.assertEqual((status, Path("m1.log").read_text()), (2, err))
        with mock.patch.object(run_stage, "derive", return_value="m1: 480 rows"):
            self.assertEqual(run(*words)[0], 0)
        self.assertEqual(Path("m1.log").read_text(), "m1: 480 rows\n")
        status, _, err = run(*words[:-1], "missing/m1.log")
        self.assertEqual((status, err.count("\n")), (2, 1))
        self.assertIn("missing/m1.log: cannot be written", err)


class RunTest(unittest.TestCase):
    """How any command ends."""

    def ends(self, result: Any) -> tuple[int, str, str]:
        """Status, stdout and stderr of a command whose function returns or raises this."""
        parser = argparse.ArgumentParser(prog="lab")
        parser.set_defaults(run=mock.Mock(side_effect=[result]))
        return checkout.run(lambda words: terminal.run(parser, words))

    def test_a_result_or_one_line_and_2(self) -> None:
        """Results go to stdout, each refusal to stderr in its own words; no control character is obeyed."""
        no_text = UnicodeEncodeError("utf-8", "model\udcff", 5, 6, "surrogates not allowed")
        for result, expected in (
            ("m1: 480 rows", (0, "m1: 480 rows\n", "")),
            (("1 of 9 failed", 1), (1, "1 of 9 failed\n", "")),
            ("a\x1b[2Jb\tc\nd\u202e\udc80", (0, "a\\x1b[2Jb\tc\nd\\u202e\\udc80\n", "")),
            (RecordError("a\x07"), (2, "", "lab: a\\x07\n")),
            (no_text, (2, "", "lab: ...'model\\udcff' is no UTF-8 text; write it as such\n")),
            (BrokenPipeError(), (141, "", "")),
        ):
            self.assertEqual(self.ends(result), expected)
        for error in (LabError, InputError, ConfigError, RecordError, MeasurementRefused):
            self.assertEqual(self.ends(error("raw.csv: is empty")), (2, "", "lab: raw.csv: is empty\n"))
        status, _, err = self.ends(KeyboardInterrupt())
        self.assertEqual((status, err.count("\n")), (130, 1))

    def test_a_fault_of_ours_is_not_hidden(self) -> None:
        """An error that is no refusal shows where it happened; a broken contract stays a ValueError."""
        with self.assertRaises(ZeroDivisionError):
            self.ends(ZeroDivisionError())
        self.assertTrue(issubclass(InputError, ValueError) and issubclass(ConfigError, ValueError))


class ProgressTest(unittest.TestCase):
    """What a long step shows."""

    def shown(self, steps: range, *, on_terminal: bool = False) -> str:
        """What is written to stderr while so many rounds are reported."""
        stream = io.StringIO()
        with (
            mock.patch.object(sys, "stderr", stream),
            mock.patch.object(stream, "isatty", return_value=on_terminal),
            terminal.progress("m1 measure") as report,
        ):
            for done in steps:
                report(done, steps[-1])
        return stream.getvalue()

    def test_a_line_every_tenth_or_a_bar(self) -> None:
        """Without a terminal, 200 rounds are ten plain lines and the last says they are all done."""
        lines = self.shown(range(1, 201)).splitlines()
        self.assertEqual((len(lines), lines[-1]), (11, "m1 measure: 200 of 200 rounds"))
        few = "m1 measure: 1 of 2 rounds\nm1 measure: 2 of 2 rounds\n"
        self.assertEqual(self.shown(range(1, 3)), few)
        self.assertIn("m1 measure", self.shown(range(1, 3), on_terminal=True))

    def test_a_reader_that_went_away_ends_no_measurement(self) -> None:
        """When nobody reads what is shown, the rounds go on: their samples are not lost."""
        gone = mock.patch("sys.stderr.write", side_effect=BrokenPipeError)
        with gone, terminal.progress("m1 measure") as report:
            report(1, 2)


if __name__ == "__main__":
    unittest.main()

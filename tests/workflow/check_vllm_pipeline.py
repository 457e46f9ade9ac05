"""The code of the vLLM experiments against the reference server, which is quick and needs no vLLM.

Measured, summarised, judged and drawn; a server that is killed meanwhile; a server that runs already.
"""

import contextlib
import copy
import io
import os
import signal
import tempfile
import threading
import unittest
import unittest.mock
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.analysis.verdicts import COLUMNS, evaluate
from inference_lab.commands import run_stage
from inference_lab.config.experiments import load_config
from inference_lab.config.judge import read_judge
from inference_lab.config.prediction import load_prediction
from inference_lab.config.sections import read_measure
from inference_lab.config.yaml_file import read_yaml
from inference_lab.experiments import sweep
from inference_lab.pages.report import report
from inference_lab.records import receipts, store
from inference_lab.records.record import Measurement, csv_text
from tests.checkout import ROOT
from tests.stream_load.support import reference_server
from tests.workflow.harness import laid_over

SVG = "{http://www.w3.org/2000/svg}"
SOURCE = {"experiment": "x", "files": {"raw.csv": "a" * 64, "summary.csv": "b" * 64}, "command": "rebuild it"}
JUDGED = {"Supported", "Refuted", "Inconclusive", "Not reached"}


def sections() -> dict[str, Any]:
    """The vLLM experiments as CI measures them."""
    with contextlib.chdir(ROOT):
        config = laid_over(load_config().given(), read_yaml(Path("tests/ci.yaml")))
    return {name: its for name, its in config["experiments"].items() if its["measure"]["by"] == "sweep"}


def put(name: str, section: Mapping[str, Any], found: Measurement) -> None:
    """A measurement as a record of results/<name>/ in the working directory."""
    manifest = {
        "schema": receipts.SCHEMA,
        "stage": "measure",
        "command": ["measure", name],
        "pins": {},
        "experiment": name,
        "kind": found.kind,
        "conditions": section["measure"],
        "inputs": {section["measure"]["environment"]: "c" * 64},
        "prediction": None,
        "started_at": "2026-12-01T10:00:00+00:00",
        "finished_at": "2026-12-01T10:01:00+00:00",
        **found.facts,
        "environment": {**found.environment, "others_used_cores": {"median": 0.0, "max": 0.0}},
    }
    store.replace_record(Path("results", name, "manifest.json"), found.files, found.rows, manifest)


def view(name: str, section: Mapping[str, Any]) -> View:
    """What its figures are drawn from, its summary put beside the record."""
    record = store.load_record(Path("results", name, "manifest.json"))
    judge = {key: value for key, value in section["judge"].items() if key != "calibration"}
    judge = read_judge(judge, name)
    summary = summarise(record, judge)
    Path("results", name, "summary.csv").write_text(summary)
    return View(record, summary_rows(summary, "summary.csv"), judge, SOURCE)


def said(*_: object) -> None:
    """Progress that nobody watches."""


class TestPipeline(unittest.TestCase):
    """Every vLLM experiment of config.yaml, made small and served by the reference server."""

    sections: Mapping[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        """Measure every experiment once."""
        cls.sections = sections()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.enterClassContext(contextlib.chdir(folder))
        for shared in ("predictions", "workflow"):
            Path(shared).symlink_to(ROOT / shared)
        for name, section in cls.sections.items():
            put(name, section, sweep.measure(read_measure(section["measure"], name), said))

    def views(self) -> Iterator[tuple[str, Any, View]]:
        """Each experiment with its section and what its figures are drawn from."""
        for name, section in self.sections.items():
            yield name, section, view(name, section)

    def test_every_request_succeeds_and_every_load_was_watched(self) -> None:
        """Requests are all ok; a page before and after each load, steps in each."""
        for name, _, seen in self.views():
            with self.subTest(name):
                record = seen.record
                self.assertEqual({request.status for request in record.requests}, {"ok"})
                loads = [session["name"] for session in record.manifest["sessions"]]
                for phase in ("before", "after"):
                    self.assertEqual([x["load"] for x in record.server if x["phase"] == phase], loads)
                self.assertEqual({row["load"] for row in record.rows}, set(loads))

    def test_both_sides_count_the_same(self) -> None:
        """Tokens that the server's counter grew by are those that the client asked for."""
        for name, section, seen in self.views():
            with self.subTest(name):
                asked = section["measure"]["fixed"]
                counts = [r["median"] for r in seen.summary if r["metric"] == "server_generation_tokens"]
                for tokens in counts:
                    self.assertEqual(float(tokens or 0), asked["requests"] * asked["output_tokens"])

    def test_the_scheduler_is_seen(self) -> None:
        """In flight is the number of clients, in a step what max_num_seqs allows, in a chunk the budget."""
        names = ("vllm_concurrency", "vllm_max_seqs", "vllm_token_budget")
        axes = {name: next(iter(self.sections[name]["measure"]["vary"])) for name in names}
        clients, most, budget = (
            {
                (row["metric"], row[axes[name]]): row["value"]
                for row in view(name, self.sections[name]).summary
            }
            for name in names
        )
        for value in ("4", "8", "16", "32"):  # "" where loads of a value differ: a busy machine
            self.assertIn(clients["peak_in_flight", value], (value, ""))
            self.assertIn(clients["peak_step_batch", value], map(str, range(1, 1 + min(int(value), 8))))
        self.assertEqual([most["peak_step_batch", n] for n in "124"], ["1", "2", "4"])
        self.assertEqual([budget["step_prefill_tokens_peak", n] for n in ("32", "128")], ["32", "128"])

    def test_judged_drawn_and_reported(self) -> None:
        """Claims get verdicts; each declared figure is an SVG with a point in it, and in the report."""
        about: list[dict[str, Any]] = []
        for name, section, seen in self.views():
            with self.subTest(name):
                for module in section["judge"]["figures"].values():
                    drawn = run_stage.stage_module(module).draw(seen)
                    self.assertTrue(list(ElementTree.fromstring(drawn).iter(f"{SVG}path")))
                    self.assertEqual(run_stage.stage_module(module).draw(seen), drawn)
                prediction = load_prediction(Path(f"predictions/{name}.yaml"))
                judged = evaluate(prediction, seen, prediction_changed=False)
                self.assertTrue(judged)
                self.assertLessEqual({verdict["verdict"] for verdict in judged}, JUDGED)
                Path("results", name, "verdicts.csv").write_text(csv_text(COLUMNS, judged))
                about.append({"experiment": name, "figures": list(section["judge"]["figures"])})
        asked = {"experiments": about, "unmeasured": ["vllm_later"]}
        text = report("vllm", asked)
        for words in ("vllm_concurrency/one-load.svg", "vllm_later was not measured", "kind reference"):
            self.assertIn(words, text)
        self.assertEqual(text, report("vllm", asked))


class TestServers(unittest.TestCase):
    """Servers that die and servers of somebody else."""

    def section(self, **changes: Any) -> dict[str, Any]:
        """A sweep that would take long enough to be killed in."""
        section = copy.deepcopy(sections()["vllm_concurrency"]["measure"])
        section["fixed"] |= {"output_tokens": 40}
        return {**section, "vary": {"concurrency": [1, 2]}, "warmup_requests": 0, **changes}

    def test_a_server_killed_in_mid_run(self) -> None:
        """Everything until then is recorded, failed requests too, and marked with the reason."""
        started = sweep.serving
        killers: list[threading.Timer] = []

        def kill(server: Any, folder: Path) -> None:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if str(folder).encode() in path.read_bytes():
                        os.kill(int(path.parent.name), signal.SIGKILL)

        @contextlib.contextmanager
        def doomed(settings: Mapping[str, Any], place: Path) -> Any:
            with started(settings, place) as server:
                killers.append(threading.Timer(2.0, kill, (server, place)))
                killers[-1].start()
                yield server

        section = self.section(rounds=50)
        with (
            unittest.mock.patch.object(sweep, "serving", doomed),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            found = sweep.measure(read_measure(section, "section"), said)
        validity = found.facts["validity"]
        self.assertFalse(validity["valid"])
        self.assertRegex(validity["reasons"][0], "server was killed by signal 9")
        self.assertGreater(found.rows["requests.jsonl"], 0)
        self.assertGreater(found.rows["raw.csv"], 0)
        self.assertIn('"status":"ok"', found.files["requests.jsonl"])

    def test_a_server_that_runs_already(self) -> None:
        """Its steps are not seen from here, so raw.csv has none; requests and pages are recorded."""
        with reference_server(ttft_ms=4, itl_ms=2) as base_url:
            server = {**self.section()["server"], "kind": "external", "base_url": base_url}
            for name in ("ttft_ms", "itl_ms"):
                server.pop(name)
            found = sweep.measure(read_measure(self.section(server=server, rounds=1), "section"), said)
        self.assertEqual((found.rows["raw.csv"], found.rows["requests.jsonl"]), (0, 64))
        self.assertIn("prompt_tokens_total", found.files["server.jsonl"])
        self.assertTrue(found.facts["validity"]["valid"])

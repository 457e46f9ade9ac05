"""The sweep experiment: what it plans, and what is left of a measurement whose server dies."""

import contextlib
import csv
import io
import json
import unittest
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from inference_lab.config.sections import Sweep
from inference_lab.errors import MeasurementRefused
from inference_lab.experiments import sweep
from inference_lab.stream_load.requests import NAME
from inference_lab.stream_load.servers.process import Server
from tests.checkout import section_of
from tests.loads import request

ENGINE = {"max_num_batched_tokens": 64, "kv_cache_gib": 1}
FIXED = {"requests": 2, "input_tokens": 8, "output_tokens": 3, "seed": 1, **ENGINE}
SECTION: dict[str, Any] = {"servers": 2, "rounds": 3, "warmup_requests": 5, "sample_s": 60}
SECTION["server"] = {"kind": "reference"}


def section(axis: str, values: list[int], **fixed: int) -> Sweep:
    """A sweep over this axis, with two servers and three rounds."""
    return section_of("sweep", **SECTION, vary={axis: values}, fixed={**FIXED, **fixed})


CONCURRENCY = section("concurrency", [1, 2, 4], max_num_seqs=4)


class Servers:
    """Servers that took a step in each load, and one load that kills, without a process."""

    def __init__(self, dies_in: int | None = None, gets_ready: bool = True, kind: str = "external") -> None:
        self.kind = kind
        self.loads: list[sweep.LoadSpec] = []
        self.settings: list[Mapping[str, Any]] = []
        self.dies_in, self.gets_ready = dies_in, gets_ready
        self.at: list[int] = []

    @contextlib.contextmanager
    def start(self, settings: Mapping[str, Any], _: Path) -> Generator[Server]:
        """A server that does nothing."""
        if not self.gets_ready:
            raise MeasurementRefused("not ready")
        self.settings.append(settings)
        first = len(self.at)
        yield Server("http://127.0.0.1:1/v1", {"kind": self.kind}, lambda: self.steps(first), self.check)

    def steps(self, first: int) -> list[dict[str, Any]]:
        """A step in each load of a server."""
        return [{"step": n, "started_ns": at, "batch": 1} for n, at in enumerate(self.at[first:])]

    def check(self) -> None:
        """Refuses once it has died."""
        if self.dies_in is not None and len(self.loads) > self.dies_in:
            raise MeasurementRefused("the server ended by signal 9; its log says\n  | killed")

    def load(self, _: str, folders: list[Path], clients: list[list[sweep.LoadSpec]]) -> list[int]:
        """A client whose two requests succeed."""
        (folder,), ((load,),) = folders, clients
        self.loads.append(load)
        self.at.append(sweep.monotonic_ns())
        folder.mkdir()
        lines = [request(n, name=load.name).line() for n in (0, 1)]
        (folder / NAME).write_bytes(b"".join(lines))
        return [0]


def measured(servers: Servers, section: Sweep) -> sweep.Measurement:
    """What the sweep records against these servers."""
    with (
        mock.patch.object(sweep, "serving", servers.start),
        mock.patch.object(sweep.LoadSpec, "options", lambda load: [load]),
        mock.patch.object(sweep, "run_clients", servers.load),
        mock.patch("inference_lab.stream_load.servers.metrics_page.get", return_value=None),
        mock.patch.object(sweep.machine, "wait_until_quiet", return_value=0.0),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        return sweep.measure(section, lambda *_: None)


class TestPlan(unittest.TestCase):
    """Which servers are started, and what each is asked."""

    def test_an_axis_of_the_load_keeps_its_server(self) -> None:
        """Each server gets its warm-up and then, in each round, every value once, shuffled."""
        servers = Servers()
        measured(servers, CONCURRENCY)
        self.assertEqual(servers.settings, [{"kind": "reference", "max_num_seqs": 4, **ENGINE}] * 2)
        own = servers.loads[:10]
        self.assertEqual((own[0].cell, own[0].asks["requests"], own[0].asks["concurrency"]), ({}, 5, 4))
        rounds = [[load.cell["concurrency"] for load in own[1:] if load.round == n] for n in range(3)]
        self.assertEqual([sorted(values) for values in rounds], [[1, 2, 4]] * 3)
        self.assertGreater(len(set(map(tuple, rounds))), 1)
        again = Servers()
        measured(again, CONCURRENCY)
        self.assertEqual(again.loads, servers.loads)

    def test_an_axis_of_the_server_starts_one_for_each_value(self) -> None:
        """Every value is served by as many fresh servers as asked for, and each serves all its rounds."""
        servers = Servers()
        measured(servers, section("max_num_seqs", [1, 2], concurrency=2))
        self.assertEqual(sorted(one["max_num_seqs"] for one in servers.settings), [1, 1, 2, 2])
        self.assertEqual(len(servers.loads), 4 * (1 + 3))
        self.assertEqual({load.asks["concurrency"] for load in servers.loads}, {2})
        self.assertEqual(len({load.name for load in servers.loads}), 16)


class TestRecord(unittest.TestCase):
    """What is recorded."""

    def test_steps_and_pages_name_their_load(self) -> None:
        """Every step is of the load it was made in; every load has a page before and after it."""
        servers = Servers()
        found = measured(servers, CONCURRENCY)
        steps = list(csv.DictReader(io.StringIO(found.files["raw.csv"])))
        self.assertEqual([row["load"] for row in steps], [load.name for load in servers.loads])
        cells = [str(load.cell.get("concurrency", "")) for load in servers.loads]
        self.assertEqual([row["concurrency"] for row in steps], cells)
        lines = [json.loads(line) for line in found.files["server.jsonl"].splitlines()]
        self.assertEqual([line["phase"] for line in lines], ["before", "after"] * 20)
        before = [session["requests_before"] for session in found.facts["sessions"]]
        self.assertEqual(before, [*range(0, 20, 2)] * 2)
        self.assertEqual(found.facts["validity"], {"valid": True, "reasons": []})

    def test_a_dead_server_leaves_what_there_was(self) -> None:
        """The record ends with the load it died in, is whole, and says in one line why it is invalid.

        So is one of our server none of whose pages could be read. With nothing recorded, nothing is marked.
        """
        found = measured(Servers(dies_in=3), CONCURRENCY)
        self.assertEqual((found.rows["requests.jsonl"], found.rows["raw.csv"]), (8, 4))
        self.assertEqual(len(found.facts["servers"]), 1)
        silent = measured(Servers(kind="reference"), CONCURRENCY)
        for record, why in (
            (found, "the server ended by signal 9"),
            (silent, "no page of /metrics could be read"),
        ):
            self.assertEqual(record.facts["validity"], {"valid": False, "reasons": [why]})
        with self.assertRaisesRegex(MeasurementRefused, "not ready"):
            measured(Servers(gets_ready=False), CONCURRENCY)

"""Figures of loads and of simulated machines: what a reader sees, and that a rebuild gives the same bytes."""

import copy
import hashlib
import math
import os
import subprocess
import sys
import unittest
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from inference_lab.analysis.serving import summarise
from inference_lab.analysis.summary_table import View, summary_rows
from inference_lab.errors import ConfigError, RecordError
from inference_lab.figures import client_error, latency, ratios, selfcheck, throughput, timeline
from inference_lab.figures.style import MARKS, font_manager, matplotlib
from inference_lab.records.record import Record
from tests.analysis.selfchecks import PROCESSES, selfcheck_record, selfcheck_view
from tests.analysis.test_simulations import claimed, heavy_tail, null, table, two_states
from tests.checkout import ROOT, judge_of
from tests.figures.views import SOURCE, changed, estimates, samples, view_of, words
from tests.loads import MS, record, request, session, truth
from tests.synthetic import Call, steady, timing_record, together

if TYPE_CHECKING:  # what draws imports matplotlib first, without this shell's MPLBACKEND
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HOSTILE = """
figure.dpi: 200
font.family: serif
font.size: 30
svg.fonttype: none
text.usetex: True
axes.grid: False
lines.linewidth: 9
savefig.bbox: tight
path.simplify: False
axes.formatter.use_locale: True
"""


def of_load(found: Record, **judge: Any) -> View:
    """What the figures of a load are drawn from."""
    judged = judge_of(**judge)
    return View(found, summary_rows(summarise(found, judged), "summary.csv"), judged, SOURCE)


def points(panel: "Axes", marker: str) -> list[tuple[float, float]]:
    """The places of every line of this marker."""
    lines = [line for line in panel.get_lines() if line.get_marker() == marker]
    return [(x, y) for line in lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]


class BytesTest(unittest.TestCase):
    """What `git diff` and receipts rely on: the same record gives the same bytes."""

    def test_every_rebuild_gives_the_same_bytes(self) -> None:
        """Whatever hash seed, second, zone, matplotlibrc, font cache, and with the system's fonts hidden."""
        here = digests()
        with TemporaryDirectory() as folder:
            empty, hidden, away = (Path(folder, name) for name in ("empty", "hidden", "away"))
            for made in (empty, hidden, away):
                made.mkdir()
            (away / "matplotlibrc").write_text(HOSTILE)
            fonts = copy.copy(font_manager.fontManager)
            serif = str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSerif.ttf"))
            fonts.ttflist = [font_manager.FontEntry(fname=serif, name="DejaVu Sans")]
            font_manager.json_dump(fonts, hidden / f"fontlist-v{fonts._version}.json")
            tokyo = {"PYTHONHASHSEED": "1", "TZ": "Asia/Tokyo", "MPLBACKEND": "none"}
            path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
            for cwd, variables in (
                (away, {"MPLCONFIGDIR": str(empty), **tokyo}),
                (Path(folder), {"MPLCONFIGDIR": str(hidden), "PYTHONHASHSEED": "2", "LC_ALL": "C.UTF-8"}),
            ):
                child = subprocess.run(
                    [sys.executable, "-c", f"from {__name__} import digests; print(digests())"],
                    cwd=cwd, env={**os.environ, **path, **variables}, capture_output=True, text=True,
                    timeout=120, check=False,
                )  # fmt: skip
                self.assertEqual((child.returncode, child.stdout.strip()), (0, here), child.stderr)

    def test_twice(self) -> None:
        """The figures of other records, drawn twice, are byte for byte the same."""
        for module, view in ((selfcheck, selfcheck_view(selfcheck_record())), (client_error, calibrated())):
            with self.subTest(module.__name__):
                self.assertEqual(module.draw(view), module.draw(view))


def digests() -> str:
    """The sha256 of each figure of one small synthetic record."""
    made = timing_record(processes=1, rounds=9, vary={"batch_size": (1, 8)}, machine=steady(0.05))
    view = changed(view_of(made, knee_factor=1.25), {("dynamic", "8"): {"flags": "aa drift"}})
    return " ".join(hashlib.sha256(f.draw(view).encode()).hexdigest() for f in (latency, throughput, ratios))


class NullsTest(unittest.TestCase):
    """Machines that fake a difference where there is none: more of them than a unit test has time for."""

    def test_three_hundred_null_comparisons(self) -> None:
        """At most 2% of 312 comparisons of equal paths are claimed, with noise, states and tails."""
        paths = [f"path{number}" for number in range(14)]
        claims = comparisons = 0
        for seed in range(6):
            tail = heavy_tail(0.03, 4, seed=seed)
            machine = together(steady(0.03, seed=seed), two_states(0.6, 25, seed=seed), tail)
            rows = table(null(machine, paths=paths, seed=seed))
            claims += claimed(rows)
            comparisons += len(rows) - 4
        self.assertEqual(comparisons, 312)
        self.assertLessEqual(claims, 6)


class SelfcheckTest(unittest.TestCase):
    """The figure of a selfcheck: every comparison, every share, what was left out."""

    def by_run(self, figure: "Figure") -> list[tuple[float, float]]:
        """The points of coverage by run."""
        return points(figure.axes[2], MARKS[3].marker)

    def test_every_comparison_is_a_point(self) -> None:
        """Claimed and unclaimed comparisons are at their ratios: nulls at 0, effects around 10%."""
        figure = selfcheck.draw.figure(selfcheck_view(selfcheck_record()))
        ratios, shares, coverage = figure.axes
        found, unclaimed = (samples(ratios, mark) for mark in MARKS[:2])
        self.assertEqual((len(found), len(unclaimed)), (8, 8))
        self.assertTrue(all(x < 0.5 for x, _ in unclaimed))
        self.assertTrue(all(x > 0.5 for x, _ in found))
        self.assertLess(max(y for _, y in unclaimed), min(y for _, y in found))
        self.assertEqual([len(estimates(panel, MARKS[0])) for panel in (shares, coverage)], [2, 1])
        self.assertEqual((len(estimates(shares, MARKS[2])), len(self.by_run(figure))), (2, 4))
        self.assertIn("16 comparisons of 4 runs", words(figure))

    def test_a_false_claim_is_seen(self) -> None:
        """A null that was claimed is a point of the color of claims."""

        def slow(call: Call) -> float:
            return 1.3 if call.path == "null_1" and call.process < PROCESSES else 1.0

        figure = selfcheck.draw.figure(selfcheck_view(selfcheck_record(together(slow, steady(0.01)))))
        self.assertEqual(len([x for x, _ in samples(figure.axes[0], MARKS[0]) if x < 0.5]), 2)

    def test_runs_left_out_are_named(self) -> None:
        """A busy run has no point, and the head says so; with none left the figure is still drawn."""
        figure = selfcheck.draw.figure(selfcheck_view(selfcheck_record(busy=(1,))))
        self.assertEqual(len(self.by_run(figure)), 3)
        self.assertIn("Left out as invalid: run 1.", words(figure))
        figure = selfcheck.draw.figure(selfcheck_view(selfcheck_record(busy=(0, 1, 2, 3))))
        self.assertIn("0 comparisons of 0 runs", words(figure))

    def test_a_summary_without_a_row_is_refused(self) -> None:
        """A share that has no row is not left out without a word."""
        view = selfcheck_view(selfcheck_record())
        with self.assertRaisesRegex(RecordError, "no row all 10; rebuild it from raw.csv"):
            selfcheck.draw(replace(view, summary=[r for r in view.summary if r["effect_percent"] == "0"]))


def calibrated(**judge: Any) -> View:
    """Two paths at 1 and 4 streams; the user's stamps are later by a changing 1 ms."""
    requests, written, sessions = [], [], []
    for path, late in (("kernel", (0.01, 0.02, 0.03)), ("user", (1.0, 0.5, 1.5))):
        for streams in (1, 4):
            name = f"{path}/{streams}/"
            requests.append(request(0, name=name))
            written.append(truth(requests[-1], late=late, received=0.02))
            sessions.append(session(name, cell={"path": path, "streams": streams}, client_cpu_ns=60_000))
    return of_load(record(requests, *sessions, truth=written), **judge)


class ClientErrorTest(unittest.TestCase):
    """The figure of the calibration: errors, lateness and cost over the number of streams."""

    def test_a_mark_for_every_cell(self) -> None:
        """Each metric that was measured has a panel with a mark per path and number of streams."""
        figure = client_error.draw.figure(calibrated())
        panels = {panel.get_ylabel().split("\n")[0]: panel for panel in figure.axes}
        self.assertEqual(list(panels), ["ITL error", "TTFT error", "read late", "coalesced", "CPU"])
        for name, panel in panels.items():
            self.assertEqual([len(estimates(panel, mark)) for mark in MARKS[:2]], [2, 2], name)
        kernel, user = ([y for _, y in estimates(panels["ITL error"], mark)] for mark in MARKS[:2])
        self.assertGreater(min(user), max(kernel))

    def test_words(self) -> None:
        """Units, what the paths are, and flags where there are any."""
        said = words(client_error.draw.figure(calibrated()))
        for text in ("ITL error", "ms, log scale", "µs per token", "stamps of the read", "streams at once"):
            self.assertIn(text, said)
        self.assertNotIn("flagged", said)
        flagged = words(client_error.draw.figure(calibrated(max_client_lag_ms=0.001)))
        self.assertIn("flagged, no claim is made: client-limited", flagged)

    def test_only_a_calibration_can_be_drawn(self) -> None:
        """A summary over anything else is refused."""
        with self.assertRaisesRegex(RecordError, "no columns path and streams"):
            client_error.draw(of_load(record([request(0)])))


def drawn(found: Record, **judge: Any) -> "Figure":
    """The timeline of a record."""
    return timeline.draw.figure(of_load(found, **judge))


def pieces(panel: "Axes") -> list[int]:
    """How many separate lines there are of waiting at the limit, sent, streams, and tokens where drawn."""
    lines: Iterable[Any] = (line for line in panel.get_lines() if line.get_marker() == "None")
    return [sum(math.isnan(y) for y in line.get_ydata()) for line in lines]


def ends(panel: "Axes") -> tuple[int, ...]:
    """How many requests ended with and without success."""
    return tuple(len(points(panel, mark.marker)) for mark in (timeline.END, timeline.FAILED))


class TimelineTest(unittest.TestCase):
    """The timeline: every request of a record, where it waited, and both sides' counts below."""

    def both(self) -> Record:
        """Two setups by simulation and HTTP, each with two requests and a step of two."""
        cells = [{"setup": s, "transport": t} for s in ("one", "two") for t in ("simulation", "http")]
        names = [f"{cell['setup']}-{cell['transport']}/" for cell in cells]
        steps = [{**cell, "batch": "2", "started_ns": "0", "ended_ns": str(20 * MS)} for cell in cells]
        sessions = (session(name, cell=cell) for name, cell in zip(names, cells, strict=True))
        return record([request(n, n, name=name) for name in names for n in (0, 1)], *sessions, rows=steps)

    def test_every_request_and_token_is_drawn(self) -> None:
        """In each cell: a line for each wait of each request, a tick per token, an end each; both counts."""
        panels = drawn(self.both(), window="all").axes
        for panel in (panels[0], panels[4], panels[2], panels[6]):
            self.assertEqual((pieces(panel), ends(panel)), ([2, 2, 2, 6], (2, 0)))
        in_flight, batch = (list(map(float, line.get_ydata())) for line in panels[1].get_lines())
        self.assertEqual((max(in_flight), batch), (2, [2, 2]))

    def test_a_request_is_drawn_as_far_as_it_came(self) -> None:
        """Refused at the limit: one line and a cross; failed before a token: two lines and a cross."""
        refused = request(0, tokens=(), admitted_ns=None, sent_ns=None, status="cancelled", http_status=None)
        failed = request(1, tokens=(), status="timeout")
        panel = drawn(record([refused, failed])).axes[0]
        self.assertEqual((pieces(panel)[:2], ends(panel)), ([2, 1], (0, 2)))

    def test_the_steady_window_is_shaded(self) -> None:
        """Where there is one; a run too short for one says so instead."""
        requests: Sequence[Any] = [request(n, 10 * n) for n in range(6)]
        for concurrency, judge, shaded in ((2, {}, 1), (6, {}, 0), (2, {"window": "all"}, 0)):
            figure = drawn(record(requests, session(concurrency=concurrency)), **judge)
            self.assertEqual(len(figure.axes[0].patches), shaded)
            self.assertEqual("too short for a steady window" in words(figure), concurrency == 6)

    def test_flags_are_named(self) -> None:
        """A flagged record says that its times make no claim."""
        figure = drawn(record([request(0, max_read_lag_ns=30 * MS)]), max_client_lag_ms=10)
        self.assertIn("no claim about times is made: client-limited", words(figure))

    def test_a_long_load_shows_streams_without_tokens(self) -> None:
        """Too many tokens to tell apart are left out; the streams stay."""
        panel = drawn(record([request(0, tokens=range(1, timeline.MOST_TICKS + 2))])).axes[0]
        self.assertEqual(pieces(panel), [1, 1, 1])

    def test_one_load_alone(self) -> None:
        """`judge.shown` leaves the first load of that value; a value that was not loaded is refused."""
        names = {1: "a/", 2: "b/", 3: "b2/"}
        cells = [session(name, cell={"concurrency": min(n, 2)}) for n, name in names.items()]
        made = record([request(n, name=name) for name in names.values() for n in range(3)], *cells)
        figure = drawn(made, shown={"concurrency": 2}, window="all")
        self.assertEqual((len(figure.axes), pieces(figure.axes[0])[0]), (2, 3))
        with self.assertRaisesRegex(ConfigError, "judge.shown is .*'3'"):
            drawn(made, shown={"concurrency": 3})


if __name__ == "__main__":
    unittest.main()

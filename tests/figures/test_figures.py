"""What a reader sees in a timing figure: every sample, honest bounds, flags, and the right heights."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import TestCase

import numpy as np
from matplotlib.figure import Figure

from inference_lab.analysis.summary_table import SummaryRow
from inference_lab.errors import RecordError
from inference_lab.figures import latency, ratios, throughput
from inference_lab.figures.style import MARKS, matplotlib
from inference_lab.records.forms import read_metadata
from tests.checkout import ROOT
from tests.figures.views import arrows, changed, estimates, lines, samples, small_view, view_of, words
from tests.synthetic import timing_record

FIGURES = {"latency": latency.draw, "throughput": throughput.draw, "ratios": ratios.draw}
FOUR = ("no_cache", "no_cache_last_query", "dynamic", "preallocated")
DYNAMIC, PREALLOCATED = MARKS[:2]
B1, B12 = {"batch_size": (1,)}, {"batch_size": (1, 2)}


@lru_cache
def plain(figure: str) -> Figure:
    """The figure of a small view with nothing special about it."""
    return FIGURES[figure].figure(changed(small_view(), {}))


class SampleTests(TestCase):
    """Every sample is in the figure, at the height of its value."""

    def test_every_sample_is_drawn_inside_its_panel(self) -> None:
        """However many samples, paths and whichever axis: all heights in the order measured, none cut off."""
        few: dict[str, Any] = {"rounds": 5, "replica": False, "vary": {"batch_size": (1, 8)}}
        outlier: dict[str, Any] = {"machine": lambda c: 3 if c.number == 30 else 1 + c.round / 1e3}
        for changes, figures in (
            (few, "throughput"),
            (outlier, "latency"),
            ({"paths": FOUR, "vary": {"sequence_length": (32, 512)}}, "latency ratios"),
            ({"paths": ("gqa",), "vary": {"num_kv_heads": (1, 4)}}, "ratios"),
            ({"vary": {"d_model": (64,)}}, "latency"),
        ):
            view = small_view(**changes)
            paths = view.record.manifest["conditions"]["paths"]
            for figure in figures.split():
                with self.subTest(changes=changes, figure=figure):
                    panels = FIGURES[figure].figure(view).axes
                    panel = panels[1] if figure == "ratios" and len(paths) > 1 else panels[0]
                    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
                    for path, mark in zip(paths, MARKS, strict=False):
                        points = samples(panel, mark)
                        timed = view.record.samples.query(f"path == '{path}'")
                        base = figure == "ratios" and path == paths[0]
                        self.assertEqual(len(points), 0 if base else len(timed))
                        self.assertTrue(all(left < x < right and bottom < y < top for x, y in points))
                        self.assertEqual([x for x, _ in points], sorted({x for x, _ in points}))
                        if figure == "latency":
                            axis = next(iter(view.record.manifest["conditions"]["vary"]))
                            timed = timed.sort_values(axis, kind="stable")
                            self.assertEqual([y for _, y in points], list(timed["elapsed_ns"] / 1e6))

    def test_light_points_and_estimate_are_one_formula(self) -> None:
        """Also where a call makes some steps behind T tokens: P50 is the middle of the samples."""
        view = view_of(timing_record(processes=1, rounds=9, fixed={"decode_steps": 16}))
        panel = throughput.draw.figure(view).axes[0]
        for mark in (DYNAMIC, PREALLOCATED):
            ys = [y for _, y in samples(panel, mark)]
            for n, (_, rate) in enumerate(estimates(panel, mark)):
                self.assertAlmostEqual(sorted(ys[9 * n : 9 * n + 9])[4] / rate, 1, delta=1e-6)

    def test_a_round_is_compared_with_the_baseline_of_the_same_round(self) -> None:
        """A ratio never mixes two rounds."""
        view = small_view(processes=2, rounds=5, vary=B1)
        rows = view.record.samples.sort_values(["process", "round"])
        base, other = (rows.query("path == @path")["elapsed_ns"].to_numpy() for path in FOUR[2:])
        drawn = samples(ratios.draw.figure(view).axes[1], PREALLOCATED)
        self.assertEqual([y for _, y in drawn], list(other / base))

    def test_the_scale_is_logarithmic_over_more_than_a_decade(self) -> None:
        """Values that span a decade are drawn on a log scale, others from zero."""
        for factor, label in ((1, "wall time (ms)"), (100, "wall time (ms), log scale")):
            view = small_view(
                paths=("dynamic",), cost=lambda _, cell, f=factor: 1e6 * (f if cell["batch_size"] == 8 else 1)
            )
            self.assertEqual(latency.draw.figure(view).axes[0].get_ylabel(), label)


class BoundTests(TestCase):
    """A bound that n cannot support is an open arrow, never a bar."""

    def test_open_arrows(self) -> None:
        """30 samples leave P95 open above; 120 bound everything; without any bound both sides are open."""
        for rounds, hollow in ((30, [True]), (120, None)):
            panel = latency.draw.figure(small_view(rounds=rounds, vary=B1)).axes[0]
            for mark in (DYNAMIC, PREALLOCATED):
                for place, is_p50 in estimates(panel, mark).items():
                    self.assertEqual(arrows(panel).get(place), None if is_p50 else hollow)
        view = small_view()
        bare = [{k: "" if "_lo" in k or "_hi" in k else v for k, v in row.items()} for row in view.summary]
        for name, draw in FIGURES.items():
            with self.subTest(figure=name):
                panel = draw.figure(replace(view, summary=list(map(SummaryRow, bare)))).axes[0]
                self.assertEqual(set(map(tuple, arrows(panel).values())), {(False, True)})
                self.assertLessEqual(set(estimates(panel, PREALLOCATED)), set(arrows(panel)))


class MarkTests(TestCase):
    """What must not be believed is marked, and a path looks the same everywhere."""

    def test_a_flagged_cell_carries_a_mark_and_its_reasons(self) -> None:
        """A flag above the cell in every panel, its codes in words below; none without flags."""
        view = changed(small_view(vary=B12), {("preallocated", "2"): {"flags": "aa drift", "advice": "why"}})
        for name, draw in FIGURES.items():
            with self.subTest(figure=name):
                figure = draw.figure(view)
                self.assertIn("preallocated 2: aa, drift", words(figure))
                self.assertEqual(words(figure).count("⚑"), len(figure.axes) + 1)
                self.assertNotIn("flagged", words(plain(name)))

    def test_a_flag_of_the_baseline_marks_the_ratios_over_it(self) -> None:
        """A ratio is in doubt when its denominator is; only a difference that is claimed is filled."""
        rows = {("preallocated", b): {"ratio_claimed": yes} for b, yes in (("1", "yes"), ("2", "no"))}
        view = changed(small_view(vary=B12), {("dynamic", "2"): {"flags": "warmup-residual"}, **rows})
        figure = ratios.draw.figure(view)
        self.assertIn("preallocated 2: warmup-residual", words(figure))
        self.assertEqual(list(estimates(figure.axes[0], PREALLOCATED).values()), [True, False])

    def test_a_path_keeps_its_look_in_every_figure(self) -> None:
        """The ratio figure leaves the baseline out and does not pass its colour on."""
        for name in FIGURES:
            panel = plain(name).axes[-1]
            self.assertTrue(samples(panel, PREALLOCATED) or estimates(panel, PREALLOCATED), name)
        self.assertEqual(samples(plain("ratios").axes[1], DYNAMIC), [])

    def test_units_n_conditions_and_machine_are_in_the_figure(self) -> None:
        """A figure alone says what, under what, how often, where and when; also when it does not know."""
        for name, unit in (
            ("latency", "wall time (ms)"),
            ("throughput", "positions per second"),
            ("ratios", "time / time of dynamic"),
        ):
            expected = [unit, "of one full decode", "n = 9 samples per cell", "dtype float64"]
            expected += ["Example CPU @ 2.00GHz", "NumPy 2.4.6", "BLAS threads 1"]
            for text in [*expected, "recorded 2026-11-02T10:00", "raw.csv aaaaaaaaaaaa"]:
                self.assertIn(text, words(plain(name)))

    def test_costs_per_sequence_are_shown_over_batch_sizes_only(self) -> None:
        """The second panel belongs to B; a bare raw file's figure says that it knows no machine."""
        view = small_view(vary={"sequence_length": (32, 64)})
        unknown = replace(view.record, manifest={"conditions": view.record.manifest["conditions"]})
        other = latency.draw.figure(replace(view, record=unknown))
        self.assertEqual((len(plain("latency").axes), len(other.axes)), (2, 1))
        self.assertIn("Machine unknown", words(other))


class ReferenceTests(TestCase):
    """Lines to compare with are where their formula puts them."""

    def test_ideal_scaling_and_what_growth_must_reach(self) -> None:
        """Ideal is proportional to B from B=1; the bar is the rate before times the factor per doubling."""
        view = small_view(vary={"batch_size": (1, 2, 8)}, paths=("dynamic",), knee=1.25)
        panel = throughput.draw.figure(view).axes[0]
        rates = [rate for _, rate in estimates(panel, DYNAMIC)]
        (ideal,) = lines(panel, width=0.7)
        self.assertEqual([y for _, y in ideal], [rates[0], 2 * rates[0], 8 * rates[0]])
        bars = [bar[0][1] for bar in lines(panel, width=1.6) if bar[0][1] == bar[1][1]]
        self.assertEqual(bars, [1.25 * rates[0], 1.25**2 * rates[1]])

    def test_no_declared_factor_no_threshold(self) -> None:
        """Without knee_factor nothing is drawn for it; over T ideal is an unchanged rate."""
        figure = throughput.draw.figure(small_view(vary={"sequence_length": (32, 64)}, paths=("dynamic",)))
        self.assertNotIn("knee_factor", words(figure))
        ((_, first), (_, last)) = lines(figure.axes[0], width=0.7)[0]
        self.assertEqual(first, last)

    def test_claim_threshold_and_aa_band(self) -> None:
        """Dashed at 1 + t and 1 / (1 + t), t twice the widest A/A half-width; grey from aa_lo to aa_hi."""
        view = small_view(rounds=30, vary={"batch_size": (1, 8)})
        rows = [row for row in view.summary if row["path"] == "preallocated"]
        bounds = [(float(row["aa_lo"]), float(row["aa_hi"])) for row in rows]
        t = max(hi - lo for lo, hi in bounds)
        self.assertGreater(t, 0.02)
        panel = ratios.draw.figure(view).axes[0]
        levels = sorted(line[0][1] for line in lines(panel, width=0.8))
        for level, expected in zip(levels, (1 / (1 + t), 1, 1 + t), strict=True):
            self.assertAlmostEqual(level, expected, 6)
        bands = [patch.get_path().get_extents() for patch in panel.patches]
        self.assertEqual([(band.y0, band.y1) for band in bands], bounds)

    def test_without_aa_the_figure_says_so(self) -> None:
        """No replica, no band; the smallest claimed effect is then 2%."""
        figure = ratios.draw.figure(small_view(replica=False, vary=B1))
        self.assertEqual(len(figure.axes[0].patches), 0)
        self.assertIn("A/A was not measured", words(figure))
        self.assertIn("2.0% either way", words(figure))


class RefusalTests(TestCase):
    """A figure of a malformed summary is not drawn."""

    def test_malformed_rows_are_record_errors(self) -> None:
        """One line with the place and the column, whatever is wrong; six paths at most."""
        view = small_view(vary=B12)
        for draw, column, value in (
            (latency.draw, "p50_ms", "fast"),
            (latency.draw, "p95_ms", ""),
            (latency.draw, "p50_ms", "nan"),
            (throughput.draw, "positions_per_s", "inf"),
            (ratios.draw, "ratio", ""),
        ):
            wrong = changed(view, {("preallocated", "2"): {column: value}})
            with self.assertRaisesRegex(RecordError, rf"^.*summary.csv.*: {column} .*$"):
                draw(wrong)
        with self.assertRaisesRegex(RecordError, "no row for preallocated at batch_size 2"):
            latency.draw(replace(view, summary=view.summary[:3]))
        view = small_view(paths=[f"path{i}" for i in range(7)], vary=B1, rounds=2)
        with self.assertRaisesRegex(RecordError, "7 paths, a figure has marks for 6; split the experiment"):
            latency.draw(view)


class OriginTests(TestCase):
    """A figure names what it was made from and leaves the caller's matplotlib alone."""

    def test_samples_and_origin_are_read_back_from_the_svg(self) -> None:
        """A path goes through the samples of each series to 0.01 pt; the origin survives XML and JSON."""
        source = {
            "experiment": "m1", "files": {"raw.csv": "0" * 64, "summary.csv": "f" * 64},
            "command": 'uv run snakemake -- "results/µ & <ö>/a--b.svg" $HOME \\',
        }  # fmt: skip
        before = dict(matplotlib.rcParams)
        view = replace(small_view(vary=B12), source=source)
        svg, figure = latency.draw(view), latency.draw.figure(view)
        self.assertEqual(read_metadata(svg), source)
        self.assertEqual(dict(matplotlib.rcParams), before)
        panel, height = figure.axes[0], 72 * figure.get_figheight()
        rows = re.findall(r' d="M([^"]*)" style="fill:none;marker:', svg)
        found = [np.array([place.split() for place in row.split("L")], float) for row in rows]
        for mark in (DYNAMIC, PREALLOCATED):
            expected = panel.transData.transform(samples(panel, mark)) * (1, -1) + (0, height)
            near = [row for row in found if len(row) == len(expected) and abs(row - expected).max() < 0.0051]
            self.assertEqual((len(expected), len(near)), (18, 1))

    def test_nothing_of_the_shell_reaches_matplotlib(self) -> None:
        """A notebook's MPLBACKEND and a torn matplotlibrc, here or named, change no import."""
        for path in (ROOT / "src").rglob("*.py"):
            if path.name != "style.py":
                self.assertNotRegex(path.read_text(), r"(?m)^\s*(import|from) matplotlib", path)
        with TemporaryDirectory() as folder:
            Path(folder, "matplotlibrc").write_bytes(b"backend: none\n\xff\n")
            variables = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "MATPLOTLIBRC": folder}
            command = [sys.executable, "-c", "from inference_lab.figures import timeline"]
            done = subprocess.run(
                command, cwd=folder, env={**os.environ, **variables}, stderr=subprocess.PIPE
            )
        self.assertEqual((done.returncode, done.stderr), (0, b""))

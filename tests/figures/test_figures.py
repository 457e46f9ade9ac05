"""What a reader sees in a timing figure: every sample, honest bounds, flags, and the right heights."""

import csv
import io
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import TestCase
from xml.etree import ElementTree

from inference_lab.analysis.summary_table import View
from inference_lab.analysis.timing import summarise
from inference_lab.errors import RecordError
from inference_lab.figures import latency, ratios, throughput
from inference_lab.figures.sheet import timed_call
from inference_lab.figures.style import matplotlib
from inference_lab.records.svg import read_metadata
from tests.analysis.views import view_of as analysis_view_of
from tests.checkout import ROOT, judge_of
from tests.figures.views import SOURCE, view_of
from tests.synthetic import samples_of, steady, timing_record

FIGURES = {"latency": latency.draw, "throughput": throughput.draw, "ratios": ratios.draw}
SVG = "{http://www.w3.org/2000/svg}"
FOUR = ("no_cache", "no_cache_last_query", "dynamic", "preallocated")
POINT = re.compile(r"[ML] ([-\d.]+) ([-\d.]+)")


def small_view(
    *, flags: Mapping[tuple[str, int], str] | None = None, knee: float | None = None, **changes: Any
) -> View:
    """A view of few samples; `changes` go to `timing_record`."""
    record = timing_record(**{"processes": 1, "rounds": 9, "warmups": 1, "machine": steady(0.05), **changes})
    return view_of(record, flags=flags, **({"knee_factor": knee} if knee else {}))


@lru_cache
def plain(figure: str) -> str:
    """The figure of a small view with nothing special about it, drawn once for all tests."""
    return FIGURES[figure](small_view())


class Drawn:
    """A figure read back: named groups with their points (x, y), and the words in it."""

    def __init__(self, svg: str) -> None:
        self.groups = {group.get("id", ""): group for group in ElementTree.fromstring(svg).iter(f"{SVG}g")}
        self.words = " ".join(re.findall("<!-- (.*?) -->", svg))

    def marks(self, name: str) -> list[tuple[float, float]]:
        """Where the markers of this group stand."""
        uses = self.groups[name].iter(f"{SVG}use")
        return [(float(use.get("x", "nan")), float(use.get("y", "nan"))) for use in uses]

    def height(self, name: str) -> float:
        """The y of a group with one marker, or of a flat line."""
        return (self.marks(name) or self.path(name))[0][1]

    def path(self, name: str) -> list[tuple[float, float]]:
        """The vertices of the group's lines."""
        paths = self.groups[name].iter(f"{SVG}path")
        return [(float(x), float(y)) for path in paths for x, y in POINT.findall(path.get("d", ""))]

    def fill(self, name: str) -> str:
        """The fill of the group's first marker, which the marker or the group around it has."""
        parts = self.groups[name].iter()
        styles = [part.get("style", "") for part in parts if part.tag in (f"{SVG}g", f"{SVG}use")]
        return re.findall(r"fill: (#\w+)", " ".join(styles))[0]

    def names(self, start: str) -> list[str]:
        """The groups whose name begins so."""
        return [name for name in self.groups if name.startswith(start)]


def scale_through(
    known: Mapping[float, float], measure: Callable[[float], float]
) -> Callable[[float], float]:
    """value -> y on an axis that is even in `measure`, through the lowest and highest known {value: y}."""
    low, high = min(known), max(known)
    slope = (known[high] - known[low]) / (measure(high) - measure(low))
    return lambda value: known[low] + slope * (measure(value) - measure(low))


class SampleTests(TestCase):
    """Every sample is in the figure, at the height of its value."""

    def test_light_points_and_estimate_are_one_formula(self) -> None:
        """Also where a call makes some steps behind T tokens: the P50 stands at the middle of its samples."""
        rows = analysis_view_of(
            timing_record(processes=1, rounds=9, fixed={"decode_steps": 16}), knee_factor=1.2
        )
        drawn = Drawn(throughput.draw(rows))
        for path in ("dynamic", "preallocated"):
            heights = sorted(y for _, y in drawn.marks(f"samples-{path}-4"))
            self.assertAlmostEqual(heights[4], drawn.height(f"rate-{path}-4"), delta=0.01)

    def test_every_sample_is_drawn_inside_its_panel(self) -> None:
        """However many samples, paths and whichever axis: as many points as samples, none cut off."""
        scans: dict[str, tuple[dict[str, Any], str]] = {
            "5 samples": ({"rounds": 5, "replica": False, "vary": {"batch_size": (1, 8)}}, "throughput"),
            "an outlier": (
                {"rounds": 80, "machine": lambda c: 3 if c.number == 300 else 1 + c.round / 1e3},
                "latency",
            ),
            "four paths": (
                {"paths": FOUR, "vary": {"sequence_length": (32, 512)}},
                "latency ratios",
            ),
            "one path": ({"paths": ("gqa",), "vary": {"num_kv_heads": (1, 4)}}, "ratios"),
            "one value": ({"vary": {"d_model": (64,)}}, "latency"),
        }
        for name, (changes, figures) in scans.items():
            view = small_view(**changes)
            for figure in figures.split():
                with self.subTest(scan=name, figure=figure):
                    drawn = Drawn(FIGURES[figure](view))
                    of_ratios = figure == "ratios"
                    shown = [r for r in view.summary if not of_ratios or r["path"] != r["baseline"]]
                    self.assertEqual(len(drawn.names("samples-")), len(shown))
                    axis = next(iter(view.record.manifest["conditions"]["vary"]))
                    for row in shown:
                        (left, bottom), (right, _), (_, top) = drawn.path(f"panel-{of_ratios:d}")[:3]
                        points = drawn.marks(f"samples-{row['path']}-{row[axis]}")
                        self.assertEqual(len(points), int(row["n"]))
                        self.assertTrue(all(left < x < right and top < y < bottom for x, y in points))
                        self.assertEqual([x for x, _ in points], sorted({x for x, _ in points}))

    def test_a_point_stands_at_the_height_of_its_value(self) -> None:
        """Linear and logarithmic: heights follow the recorded ns, in the order they were measured."""
        for measure, spread in ((float, 1), (math.log, 100)):
            view = small_view(
                paths=("dynamic",), cost=lambda _, cell, s=spread: 1e6 * (s if cell["batch_size"] == 8 else 1)
            )
            drawn = Drawn(latency.draw(view))
            elapsed = {
                b: [s.elapsed_ns for s in samples_of(view.record.samples) if s.batch_size == b]
                for b in (1, 8)
            }
            heights = {b: [y for _, y in drawn.marks(f"samples-dynamic-{b}")] for b in (1, 8)}
            flat = dict(zip(elapsed[1] + elapsed[8], heights[1] + heights[8], strict=True))
            expected = scale_through(flat, measure)
            for value, y in flat.items():
                self.assertAlmostEqual(y, expected(value), delta=0.01)
            self.assertEqual("wall time (ms), log scale" in drawn.words, measure is math.log)

    def test_the_summary_as_analysis_writes_it_can_be_drawn(self) -> None:
        """The columns that figures read are the columns that `summarise` writes, with A/A and without."""
        for replica, figures in ((True, FIGURES), (False, {"ratios": ratios.draw})):
            record = timing_record(processes=2, rounds=4, replica=replica, vary={"batch_size": (1, 2)})
            rows = list(csv.DictReader(io.StringIO(summarise(record, judge_of()))))
            for name, draw in figures.items():
                with self.subTest(replica=replica, figure=name):
                    drawn = Drawn(draw(View(record, rows, judge_of(), SOURCE)))
                    self.assertEqual(len(drawn.names("samples-")), 2 if name == "ratios" else 4)


class BoundTests(TestCase):
    """A bound that n cannot support is an open arrow, never a bar."""

    def test_an_empty_bound_is_an_open_arrow(self) -> None:
        """30 samples bound P50 on both sides and P95 only from below."""
        drawn = Drawn(latency.draw(small_view(rounds=30)))
        self.assertEqual(len(drawn.names("open-hi-p95-")), 8)
        self.assertEqual(drawn.names("open-lo-"), [])
        self.assertEqual(drawn.names("open-hi-p50"), [])

    def test_no_bound_at_all_leaves_both_sides_open(self) -> None:
        """A row without any interval still shows its estimates, open above and below."""
        view = small_view()
        bare = [{k: "" if "_lo" in k or "_hi" in k else v for k, v in row.items()} for row in view.summary]
        for name, draw in FIGURES.items():
            with self.subTest(figure=name):
                drawn = Drawn(draw(replace(view, summary=bare)))
                self.assertEqual(len(drawn.names("open-lo-")), len(drawn.names("open-hi-")))
                self.assertGreaterEqual(len(drawn.names("open-hi-")), 4)

    def test_enough_samples_leave_no_arrow(self) -> None:
        """With 120 samples every interval is closed."""
        view = small_view(rounds=120, vary={"batch_size": (1, 8)})
        self.assertEqual(Drawn(latency.draw(view)).names("open-"), [])


class MarkTests(TestCase):
    """What must not be believed is marked, and a path looks the same everywhere."""

    def test_a_flagged_cell_carries_a_mark_and_its_reasons(self) -> None:
        """Hatched band on the flagged cell alone, its codes in words below; none without flags."""
        view = small_view(flags={("preallocated", 8): "aa drift"})
        for name, draw in FIGURES.items():
            with self.subTest(figure=name):
                drawn = Drawn(draw(view))
                self.assertEqual(drawn.names("panel-0-flagged"), ["panel-0-flagged-preallocated-8"])
                self.assertIn("preallocated 8: aa, drift", drawn.words)
                self.assertEqual(
                    drawn.words.count("⚑"), 3 if name != "throughput" else 2
                )  # panels, words below
                self.assertNotIn("flagged", Drawn(plain(name)).words)

    def test_a_flag_of_the_baseline_marks_the_ratios_over_it(self) -> None:
        """A ratio is in doubt when its denominator is."""
        drawn = Drawn(ratios.draw(small_view(flags={("dynamic", 4): "warmup-residual"})))
        self.assertEqual(drawn.names("panel-0-flagged"), ["panel-0-flagged-preallocated-4"])
        self.assertIn("warmup-residual", drawn.words)

    def test_an_invalid_record_says_so_and_why(self) -> None:
        """Banner with the reasons and a hatched ground in every panel."""
        view = small_view()
        invalid = {
            **view.record.manifest,
            "validity": {"valid": False, "reasons": ["threads asked 2, got 1"]},
        }
        view = replace(view, record=replace(view.record, manifest=invalid))
        for name, draw in FIGURES.items():
            with self.subTest(figure=name):
                drawn = Drawn(draw(view))
                self.assertIn("INVALID RECORD: threads asked 2, got 1.", drawn.words)
                self.assertEqual(len(drawn.names("invalid-")), 1 if name == "throughput" else 2)

    def test_a_path_keeps_its_look_in_every_figure(self) -> None:
        """The ratio figure leaves the baseline out and does not pass its colour on."""
        fills = {name: Drawn(plain(name)).fill("samples-preallocated-1") for name in FIGURES}
        self.assertEqual(len(set(fills.values())), 1)
        self.assertNotIn(Drawn(plain("latency")).fill("samples-dynamic-1"), fills.values())

    def test_more_paths_than_looks_are_refused(self) -> None:
        """Seven paths would look alike: an error says to split."""
        view = small_view(paths=[f"path{i}" for i in range(7)], vary={"batch_size": (1,)}, rounds=2)
        with self.assertRaisesRegex(RecordError, "6 paths apart.*split the experiment"):
            latency.draw(view)

    def test_units_n_conditions_and_machine_stand_in_the_figure(self) -> None:
        """A figure alone says what, under what, how often, where and when; also when it does not know."""
        for name, unit in (
            ("latency", "wall time (ms)"),
            ("throughput", "positions per second"),
            ("ratios", "time / time of dynamic"),
        ):
            words = Drawn(plain(name)).words
            expected = [unit, "n = 9 samples a cell", "dtype float64", "Example CPU @ 2.00GHz", "NumPy 2.4.6"]
            expected += ["BLAS threads 1", "recorded 2026-11-02T10:00", "raw.csv cccccccccccc"]
            for text in expected:
                self.assertIn(text, words)
        view = small_view(rounds=2)
        unknown = replace(view.record, manifest={"conditions": view.record.manifest["conditions"]})
        self.assertIn("Machine unknown", Drawn(latency.draw(replace(view, record=unknown))).words)

    def test_costs_per_sequence_are_shown_over_batch_sizes_only(self) -> None:
        """The second panel belongs to B; over any other axis it would repeat the first."""
        self.assertIn("panel-1", Drawn(plain("latency")).groups)
        other = small_view(vary={"sequence_length": (32, 64)})
        self.assertNotIn("panel-1", Drawn(latency.draw(other)).groups)


class ReferenceTests(TestCase):
    """Lines to compare with stand where their formula puts them."""

    def test_ideal_scaling_and_what_growth_must_reach(self) -> None:
        """Ideal is proportional to B from B=1; the bar is the rate before times the factor a doubling."""
        view = small_view(vary={"batch_size": (1, 2, 8)}, paths=("dynamic",), knee=1.25)
        drawn = Drawn(throughput.draw(view))
        rates = {int(row["batch_size"]): float(row["positions_per_s"]) for row in view.summary}
        measure = math.log if "log scale" in drawn.words.replace("(sequences), log scale", "") else float
        y = scale_through({rate: drawn.height(f"rate-dynamic-{b}") for b, rate in rates.items()}, measure)
        self.assertAlmostEqual(drawn.path("ideal-dynamic")[-1][1], y(8 * rates[1]), delta=0.01)
        self.assertAlmostEqual(drawn.height("knee-dynamic-2"), y(1.25 * rates[1]), delta=0.01)
        self.assertAlmostEqual(drawn.height("knee-dynamic-8"), y(1.25**2 * rates[2]), delta=0.01)
        median = round(drawn.height("rate-dynamic-8"), 3)  # of 9 samples: one of them
        self.assertIn(median, [round(height, 3) for _, height in drawn.marks("samples-dynamic-8")])

    def test_no_declared_factor_no_threshold(self) -> None:
        """Without knee_factor nothing is drawn for it; over T ideal is an unchanged rate."""
        drawn = Drawn(throughput.draw(small_view(vary={"sequence_length": (32, 64)}, paths=("dynamic",))))
        self.assertEqual(drawn.names("knee-"), [])
        (_, first), (_, last) = drawn.path("ideal-dynamic")
        self.assertEqual(first, last)

    def test_claim_threshold_and_aa_band(self) -> None:
        """Dashed at 1 + t and 1 / (1 + t), t twice the widest A/A half-width; grey from aa_lo to aa_hi."""
        view = small_view(rounds=30, vary={"batch_size": (1, 8)})
        drawn = Drawn(ratios.draw(view))
        row = {r["batch_size"]: r for r in view.summary if r["path"] == "preallocated"}
        known = {float(row[b]["ratio"]): drawn.height(f"ratio-preallocated-{b}") for b in ("1", "8")}
        known |= {float(row["1"]["aa_ratio"]): drawn.height("aa-1")}
        y = scale_through(known, math.log)
        t = max(float(r["aa_hi"]) - float(r["aa_lo"]) for r in row.values())
        self.assertGreater(t, 0.02)
        self.assertAlmostEqual(drawn.height("claim-above"), y(1 + t), delta=0.05)
        self.assertAlmostEqual(drawn.height("claim-below"), y(1 / (1 + t)), delta=0.05)
        band = [point[1] for point in drawn.path("aa-band-8")]
        self.assertAlmostEqual(max(band), y(float(row["8"]["aa_lo"])), delta=0.05)
        self.assertAlmostEqual(min(band), y(float(row["8"]["aa_hi"])), delta=0.05)

    def test_a_round_is_compared_with_the_baseline_of_the_same_round(self) -> None:
        """The light points of the ratio figure are elapsed / baseline's elapsed, pair by pair."""
        view = small_view(processes=2, rounds=5, vary={"batch_size": (1,)})
        elapsed = {(s.path, s.process, s.round): s.elapsed_ns for s in samples_of(view.record.samples)}
        pairs = [
            elapsed["preallocated", *place] / elapsed["dynamic", *place]
            for path, *place in elapsed
            if path == "preallocated"
        ]
        heights = [y for _, y in Drawn(ratios.draw(view)).marks("samples-preallocated-1")]
        y = scale_through(dict(zip(pairs, heights, strict=True)), math.log)
        for pair, height in zip(pairs, heights, strict=True):
            self.assertAlmostEqual(height, y(pair), delta=0.01)

    def test_without_aa_the_figure_says_so(self) -> None:
        """No replica, no band; the smallest claimed effect is then 2%."""
        drawn = Drawn(ratios.draw(small_view(replica=False)))
        self.assertEqual(drawn.names("aa-"), [])
        self.assertIn("A/A was not measured", drawn.words)
        self.assertIn("2.0% either way", drawn.words)

    def test_only_a_claimed_ratio_is_filled(self) -> None:
        """A difference that is not claimed has a hollow mark."""
        view = small_view(vary={"batch_size": (1, 2)})
        claimed = [
            {**row, "ratio_claimed": yes} for row, yes in zip(view.summary[2:], ("yes", "no"), strict=True)
        ]
        drawn = Drawn(ratios.draw(replace(view, summary=[*view.summary[:2], *claimed])))
        self.assertNotEqual(drawn.fill("ratio-preallocated-1"), "#ffffff")
        self.assertEqual(drawn.fill("ratio-preallocated-2"), "#ffffff")


class RefusalTests(TestCase):
    """A figure of a malformed summary is not drawn."""

    def test_malformed_rows_are_record_errors(self) -> None:
        """One line that names the place and column, whatever is wrong, in every figure that reads it."""
        view = small_view(vary={"batch_size": (1, 2)})
        changes: dict[str, dict[str, str | None]] = {
            "n is missing": {"n": None},
            "n is 8, must be 9": {"n": "8"},
            "flags is missing": {"flags": None},
            "p50_ms is missing": {"p50_ms": None},
            "p50_ms is 'fast'": {"p50_ms": "fast"},
            "p95_ms is empty": {"p95_ms": ""},
            "p50_ms is 'nan'": {"p50_ms": "nan"},
            "p95_hi_ms is '-1'": {"p95_hi_ms": "-1"},
            "p50_ms is": {"p50_lo_ms": "1e6"},
            "p95_ms is": {"p95_hi_ms": "1e-6"},
            "per_sequence_ms is empty": {"per_sequence_ms": ""},
            "positions_per_s is 'inf'": {"positions_per_s": "inf"},
            "positions_per_s is '0'": {"positions_per_s": "0"},
            "ratio is empty": {"ratio": ""},
            "ratio (hi) is missing": {"ratio_hi": None},
            "ratio_claimed is missing": {"ratio_claimed": None},
            "aa_ratio is": {"aa_lo": "2"},
            "batch_size is missing": {"batch_size": None},
            "n is 9, must be 0": {"batch_size": "16"},
        }
        readers = {
            "p50": "latency",
            "p95": "latency",
            "per": "latency",
            "pos": "throughput",
            "rat": "ratios",
            "aa_": "ratios",
        }
        for message, change in changes.items():
            row = {k: v for k, v in {**view.summary[3], **change}.items() if v is not None}
            spoilt = replace(view, summary=[*view.summary[:3], row])
            reader = readers.get(message[:3])
            for name in [reader] if reader else FIGURES:
                with self.subTest(message=message, figure=name):
                    with self.assertRaises(RecordError) as caught:
                        FIGURES[name](spoilt)
                    self.assertIn(f"summary.csv of m1, line 5: {message}", str(caught.exception))
                    self.assertNotIn("\n", str(caught.exception))

    def test_rows_that_do_not_cover_the_samples_are_record_errors(self) -> None:
        """A row twice, a row too few, no row, an unnamed or unnumbered axis."""
        view = small_view(vary={"batch_size": (1, 2)})
        by_dtype = {**view.record.manifest, "conditions": {"vary": {"dtype": ["float32"]}}}
        unnamed = {**view.record.manifest, "conditions": {}}
        for message, spoilt in {
            "must be 0": replace(view, summary=[*view.summary, view.summary[0]]),
            "no row for the samples of preallocated 2": replace(view, summary=view.summary[:3]),
            "no row": replace(view, summary=[]),
            "dtype is 'float64'": replace(view, record=replace(view.record, manifest=by_dtype)),
            "conditions.vary names None": replace(view, record=replace(view.record, manifest=unnamed)),
        }.items():
            with self.subTest(message), self.assertRaisesRegex(RecordError, message):
                latency.draw(spoilt)


class OriginTests(TestCase):
    """A figure names what it was made from and leaves the caller's matplotlib alone."""

    def test_the_origin_is_read_back_whole(self) -> None:
        """Also when experiment or command hold characters that XML or JSON must escape."""
        source = {
            "experiment": "m1", "files": {"raw.csv": "0" * 64, "summary.csv": "f" * 64},
            "command": 'uv run snakemake -- "results/µ & <ö>/a--b.svg" $HOME \\',
        }  # fmt: skip
        self.assertEqual(read_metadata(latency.draw(replace(small_view(rounds=2), source=source))), source)
        for name in FIGURES:
            self.assertEqual(read_metadata(plain(name)), small_view().source)

    def test_nothing_of_the_shell_reaches_matplotlib(self) -> None:
        """A notebook's MPLBACKEND and a torn matplotlibrc, here or named, change no import."""
        for path in (ROOT / "src").rglob("*.py"):
            if path.name != "style.py":
                self.assertNotRegex(path.read_text(), r"(?m)^\s*(import|from) matplotlib", path)
        with TemporaryDirectory() as folder:
            Path(folder, "matplotlibrc").write_bytes(b"backend: none\n\xff\n")
            variables = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "MATPLOTLIBRC": folder}
            words = [sys.executable, "-c", "from inference_lab.figures import timeline"]
            done = subprocess.run(words, cwd=folder, env={**os.environ, **variables}, stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_the_style_ends_with_the_figure(self) -> None:
        """rcParams are what they were before."""
        before = dict(matplotlib.rcParams)
        latency.draw(small_view(rounds=2))
        self.assertEqual(dict(matplotlib.rcParams), before)


class TitleTests(TestCase):
    """A title says what one sample timed."""

    def test_what_was_timed_is_named(self) -> None:
        """A full decode, some steps behind a filled cache, or filling one: the conditions decide."""
        self.assertIn("time of one full decode", Drawn(plain("latency")).words)
        for words, changes in (
            ("8 decode steps behind T cached tokens", {"fixed": {"decode_steps": 8}}),
            ("filling a cache with T tokens", {"paths": ("prefill", "stepwise")}),
            ("filling a cache with T tokens", {"fixed": {"num_heads": 8}}),
        ):
            with self.subTest(words):
                self.assertEqual(timed_call(small_view(**changes)), words)

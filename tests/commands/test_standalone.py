"""The two standalone commands: exactly the rows promised, and flags that contradict the rows refused."""

import contextlib
import io
import itertools
import unittest
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np

from inference_lab.analysis.summary_table import View
from inference_lab.commands import run_stage, standalone
from inference_lab.config.experiments import load_config
from inference_lab.config.sections import DecodePaths
from inference_lab.errors import RecordError
from inference_lab.experiments import decode_paths
from inference_lab.records import store
from inference_lab.records.files import sha256_file
from inference_lab.records.record import Measurement
from inference_lab.records.samples import read_samples, write_samples
from inference_lab.records.stages import step as step_of
from inference_lab.timing.protocol import Bench, Timed, time_calls
from inference_lab.timing.worker import check_rows
from tests import checkout
from tests.synthetic import samples_of, table_of

RAW = "results/m1-batch-size-scan/raw.csv"
FLAGS = ["--sequence-length", "128", "--dtype", "float64", "--blas-threads", "1"]
FILES = ("summary.csv", "latency-p50-p95.svg", "throughput-positions-per-second.svg", "knee-analysis.md")


def instant(section: DecodePaths, progress: Callable[[int, int], None]) -> Measurement:
    """The measurement of a section as the real one makes it, of calls that do nothing under a fake clock."""
    fixed = {"sequence_length": section.fixed.sequence_length, "d_model": section.fixed.d_model}
    groups = [
        [Timed(path, lambda: np.zeros(1), **{section.axis: size}, **fixed) for path in section.paths]
        for size in section.values
    ]
    samples = time_calls(
        Bench(groups, check=list, data_sha256=""),
        process=0,
        rounds=section.rounds,
        warmups=section.warmups,
        seed=section.fixed.seed,
        blas_threads=section.blas_threads,
        clock=itertools.count(1, 1_000_000).__next__,
        progress=lambda round_: progress(round_, section.rounds),
    )
    check_rows(samples, section)
    formal = [sample for sample in samples if sample.kind == "sample"]
    others = [sample for sample in samples if sample.kind != "sample"]
    files = {"raw.csv": write_samples(formal), "controls.csv": write_samples(others, controls=True)}
    return Measurement(
        "timing", files, {"raw.csv": len(formal), "controls.csv": len(others)}, {"oracle": []}, {}
    )


class StandaloneTest(unittest.TestCase):
    """A checkout of the real sources, in which measuring takes no time."""

    def setUp(self) -> None:
        """Nothing is recorded; a measurement is one of calls that do nothing, on a lock of its own."""
        self.root = checkout.enter_copy(self)
        self.measured = self.enterContext(mock.patch.object(decode_paths, "measure", side_effect=instant))
        self.enterContext(mock.patch("inference_lab.records.locks.one_measurement", contextlib.nullcontext))
        self.enterContext(mock.patch("inference_lab.timing.protocol.PROBE_LOOPS", 1))
        self.enterContext(mock.patch("gc.collect"))

    def run_command(self, command: Callable[[list[str]], int], *words: str) -> tuple[int, str, str]:
        """Exit status, stdout and the last line of stderr of a command."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = command(list(words))
            except SystemExit as stopped:  # argparse
                status = int(str(stopped.code))
        return status, out.getvalue(), (err.getvalue().splitlines() or [""])[-1]

    def present(self) -> set[str]:
        """Every file that the commands have made."""
        links = {"src", "workflow"}
        found = (path.relative_to(self.root) for path in self.root.rglob("*") if path.is_file())
        return {path.as_posix() for path in found if path.parts[0] not in links} - {"pyproject.toml"}

    def refused(self, command: Callable[[list[str]], int], *words: str, said: str) -> None:
        """The command ends with 2, says this in one line, and makes and changes no file."""
        before = {path: Path(path).read_bytes() for path in self.present()}
        status, out, err = self.run_command(command, *words)
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex(err, said)
        self.assertEqual({path: Path(path).read_bytes() for path in self.present()}, before)


class MeasureTest(StandaloneTest):
    """p2-inference-systems."""

    def test_the_batch_scan_has_240_rows(self) -> None:
        """Two paths, four batch sizes, thirty repeats: 240 rows, 30 a cell, in one process, no A/A."""
        status, said, err = self.run_command(standalone.measure, "--experiment", "batch-size", "--csv", RAW)
        self.assertEqual(status, 0, err)
        self.assertIn("240 rows in raw.csv", said)
        record = store.load_record(Path(RAW).with_name("manifest.json"))
        self.assertEqual(len(samples_of(record.samples)), 240)
        cells = Counter((sample.path, sample.batch_size) for sample in samples_of(record.samples))
        self.assertEqual(
            cells, dict.fromkeys(itertools.product(("dynamic", "preallocated"), (1, 2, 4, 8)), 30)
        )
        self.assertEqual({sample.process for sample in samples_of(record.samples)}, {0})
        self.assertEqual(
            Counter(sample.kind for sample in samples_of(record.controls)), {"warmup": 24, "probe": 30}
        )
        for sample in samples_of(record.samples):
            self.assertEqual((sample.sequence_length, sample.d_model, sample.dtype), (128, 64, "float64"))
        self.assertEqual(
            self.present(), {RAW, *(f"{Path(RAW).parent}/{n}" for n in ("controls.csv", "manifest.json"))}
        )

    def test_the_default_compares_caches(self) -> None:
        """Without --experiment: no cache, dynamic and preallocated, beside a manifest of the file's name."""
        status, said, _ = self.run_command(standalone.measure, "--csv", "results/benchmark.csv")
        self.assertEqual(status, 0)
        names = ("benchmark.csv", "benchmark.controls.csv", "benchmark.manifest.json")
        self.assertEqual(self.present(), {f"results/{name}" for name in names})
        self.assertIn("90 rows in benchmark.csv", said)
        record = store.load_record(Path("results/benchmark.manifest.json"))
        paths = Counter(sample.path for sample in samples_of(record.samples))
        self.assertEqual(paths, {"no_cache": 30, "dynamic": 30, "preallocated": 30})

    def test_its_section_is_the_configs(self) -> None:
        """The pipeline takes their record for its own: both declare one section and one judgement."""
        with contextlib.chdir(checkout.ROOT):
            config = load_config().given()["experiments"]["m1-batch-size-scan"]
        self.assertEqual(standalone.SECTIONS["batch-size"], ("m1-batch-size-scan", config["measure"]))
        self.assertEqual(config["judge"], standalone.JUDGE)

    def test_a_record_that_stood_there_is_kept_and_said_so(self) -> None:
        """A second measurement into the same file moves the first to superseded/ and names the folder."""
        words = ("--experiment", "batch-size", "--csv", RAW)
        self.run_command(standalone.measure, *words)
        first = Path(RAW).read_bytes()
        _, said, _ = self.run_command(standalone.measure, *words)
        (kept,) = Path(RAW).with_name("superseded").iterdir()
        self.assertIn(f"the record before it is kept in {kept}", said)
        self.assertEqual((kept / "raw.csv").read_bytes(), first)

    def test_what_cannot_be_measured_is_refused_first(self) -> None:
        """Unknown experiment, a file that is no .csv, a place that cannot be written: 2, nothing measured."""
        Path("results").mkdir()
        Path("results/file").write_text("")
        for words, said in (
            (["--experiment", "guess", "--csv", RAW], "invalid choice: 'guess'"),
            (["--experiment", "batch-size"], "the following arguments are required: --csv"),
            (["--csv", "results/samples.txt"], r"results/samples\.txt: raw samples stand in a \.csv file"),
            (["--csv", "results/my.controls.csv"], r"not in \.\.\.controls\.csv; give such a name"),
            (["--csv", "results/file/raw.csv"], "results/file: cannot be written .* name another place"),
        ):
            with self.subTest(words):
                self.refused(standalone.measure, *words, said=said)
        full = OSError(28, "No space left on device")
        with mock.patch("inference_lab.records.store.write_through", side_effect=full):
            self.refused(
                standalone.measure, "--csv", RAW, said=r"m1-batch-size-scan: cannot be written \(.* make room"
            )
        self.measured.assert_not_called()

    def test_a_disk_that_fills_up_is_told(self) -> None:
        """When the samples cannot be put in place after measuring, the command says so and ends with 2."""
        write = store.write_through

        def fill_up(path: Path, data: bytes) -> None:
            if path.is_relative_to("results") and "raw.csv" in path.name:
                raise OSError(28, "No space left on device")
            write(path, data)

        full = mock.patch.object(store, "write_through", side_effect=fill_up)
        with full, mock.patch.dict("os.environ", {"TMPDIR": "tmp"}):
            status, _, err = self.run_command(standalone.measure, "--csv", RAW)
        self.assertEqual(status, 2)
        self.assertRegex(
            err, r"cannot be written \(No space left on device\); what was measured is kept in tmp/"
        )
        self.assertEqual(
            {path.split("/")[-1] for path in self.present()}, {"raw.csv", "controls.csv", "manifest.json"}
        )
        (kept,) = Path("tmp").iterdir()
        self.assertEqual(len(samples_of(store.load_record(kept / "manifest.json").samples)), 90)


class SummaryTest(StandaloneTest):
    """p2-inference-systems-summary."""

    recorded: ClassVar[dict[str, bytes]] = {}  # what the first test measured, for all of them

    def setUp(self) -> None:
        """A measured batch-size scan; figures are the names of what they are drawn from."""
        super().setUp()
        if not self.recorded:
            self.run_command(standalone.measure, "--experiment", "batch-size", "--csv", RAW)
            self.recorded |= {path: Path(path).read_bytes() for path in self.present()}
        Path(RAW).parent.mkdir(parents=True, exist_ok=True)
        for path, content in self.recorded.items():
            Path(path).write_bytes(content)
        self.source: dict[str, str] = {}
        real = run_stage.stage_module

        def module(name: str) -> Any:
            def draw(view: View) -> str:
                self.source = dict(view.source)
                return f"{name} of {len(view.summary)} cells\n"

            return SimpleNamespace(draw=draw) if name.startswith("figures.") else real(name)

        self.enterContext(mock.patch.object(run_stage, "stage_module", module))

    def summarise(self, raw: str = RAW, flags: list[str] = FLAGS) -> tuple[int, str, str]:
        """Status, stdout and last line of stderr of summarising a raw file into out/."""
        return self.run_command(standalone.summary, "--input", raw, "--output-dir", "out", *flags)

    def refused_input(self, said: str, raw: str = RAW, flags: list[str] = FLAGS) -> None:
        """Summarising ends with 2, says this, and writes nothing."""
        self.refused(standalone.summary, "--input", raw, "--output-dir", "out", *flags, said=said)

    def test_a_scan_is_summarised(self) -> None:
        """Table, two figures and the knee stand in the folder asked for; the table has one row a cell."""
        status, said, err = self.summarise()
        self.assertEqual((status, said), (0, f"{', '.join(FILES)} in out\n"), err)
        self.assertEqual({path.name for path in Path("out").iterdir()}, set(FILES))
        rows = Path("out/summary.csv").read_text().splitlines()
        self.assertEqual(len(rows), 1 + 8)
        self.assertIn("p95_ms", rows[0].split(","))

    def test_flags_that_contradict_the_rows_are_refused(self) -> None:
        """Another T, dtype or number of threads than a row's is refused, with the row and the right value."""
        for option, wrong, name, right in (
            ("--sequence-length", "64", "sequence_length", "128"),
            ("--dtype", "float32", "dtype", "float64"),
            ("--blas-threads", "2", "blas_threads", "1"),
        ):
            flags = FLAGS.copy()
            flags[flags.index(option) + 1] = wrong
            with self.subTest(option):
                said = f"raw.csv line 2: {name} is {right}, {option} says {wrong}; give {right}$"
                self.refused_input(said, flags=flags)
        self.refused_input("invalid choice: 'float16'", flags=[*FLAGS[:2], "--dtype", "float16", *FLAGS[4:]])
        self.refused_input("invalid int value: 'long'", flags=["--sequence-length", "long", *FLAGS[2:]])
        self.refused_input("required: --blas-threads", flags=FLAGS[:4])

    def test_flags_that_contradict_the_manifest_are_refused(self) -> None:
        """Rows that agree with the flags but not with what was declared are refused."""
        step = step_of("measure", "m1-batch-size-scan", standalone.SECTIONS["batch-size"][1])
        rows = [replace(sample, blas_threads=2) for sample in samples_of(read_samples(Path(RAW)))]
        manifest = store.load_record(Path(RAW).with_name("manifest.json")).manifest
        store.replace_record(
            Path(step.receipt), {"raw.csv": write_samples(rows)}, {"raw.csv": len(rows)}, manifest
        )
        flags = [*FLAGS[:4], "--blas-threads", "2"]
        self.refused_input(r"manifest\.json: declares blas_threads 1, the rows say 2", flags=flags)

    def test_rows_alone_are_summarised(self) -> None:
        """A raw file of any origin without a manifest has a summary; the machine is unknown, not invented."""
        Path("elsewhere").mkdir()
        Path("elsewhere/theirs.csv").write_bytes(Path(RAW).read_bytes())
        status, _, err = self.summarise("elsewhere/theirs.csv")
        self.assertEqual(status, 0, err)
        record = standalone.bare_record(Path("elsewhere/theirs.csv"), read_samples(Path(RAW)))
        self.assertEqual(record.manifest["environment"], {})
        self.assertEqual(
            record.manifest["validity"]["reasons"], ["no manifest: conditions as given, machine unknown"]
        )
        conditions = record.manifest["conditions"]
        self.assertEqual(conditions["vary"], {"batch_size": [1, 2, 4, 8]})
        self.assertEqual((conditions["rounds"], conditions["processes"]), (30, 1))
        self.assertEqual(conditions["fixed"], {"sequence_length": 128, "d_model": 64, "dtype": "float64"})

    def test_rows_of_mixed_conditions_are_refused(self) -> None:
        """Without a manifest, rows that differ in more than one axis and the path are no scan."""
        samples = samples_of(read_samples(Path(RAW)))
        raw = Path("mixed.csv")
        for name, value in (("d_model", 32), ("num_heads", 2), ("dtype", "float32"), ("blas_threads", 2)):
            rows = [*samples[:-1], replace(samples[-1], **{name: value})]
            raw.write_text(write_samples(rows))
            with self.subTest(name):
                self.refused_input(rf"mixed\.csv line 241: {name} is {value}, line 2 has", str(raw))
        with self.assertRaisesRegex(
            RecordError, "line 241: sequence_length is 64, .* batch_size may vary alone"
        ):
            standalone.bare_record(raw, table_of([*samples[:-1], replace(samples[-1], sequence_length=64)]))

    def test_a_file_that_is_no_record_is_refused(self) -> None:
        """A missing, torn or edited raw file is refused by name; nothing is summarised from what is left."""
        self.refused_input(r"no/raw\.csv: no such file", "no/raw.csv")
        Path("torn.csv").write_bytes(Path(RAW).read_bytes()[:-20])
        self.refused_input(r"torn\.csv: the last row is cut off", "torn.csv")
        text = Path(RAW).read_text()
        Path(RAW).write_text(text.replace(",float64,", ",float32,", 1))
        self.refused_input(r"raw\.csv: differs from .*manifest\.json: expected sha256")

    def test_a_folder_that_cannot_be_written_is_refused(self) -> None:
        """An output folder that is a file ends the command with 2 and its name."""
        Path("out").write_text("a file")
        self.refused_input(r"out/summary\.csv: cannot be written")

    def test_a_figure_names_its_raw_data(self) -> None:
        """Whatever the raw file is called, its digest is what the figures are told."""
        Path("my.controls").mkdir()
        raw = Path("my.controls/controls-of-mine.csv")
        raw.write_bytes(Path(RAW).read_bytes())
        status, _, err = self.summarise(str(raw))
        self.assertEqual(status, 0, err)
        self.assertEqual(self.source["files"][raw.name], sha256_file(raw))


if __name__ == "__main__":
    unittest.main()

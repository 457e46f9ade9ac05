"""The two standalone commands: exactly the rows promised, and flags that contradict the rows refused."""

import contextlib
import csv
import itertools
import unittest
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import yaml

from inference_lab.analysis.summary_table import View
from inference_lab.commands import run_stage, standalone
from inference_lab.config.sections import DecodePaths
from inference_lab.config.yaml_file import read_yaml
from inference_lab.experiments import decode_paths
from inference_lab.records import store
from inference_lab.records.files import sha256_file
from inference_lab.records.record import Measurement
from inference_lab.records.samples import read_samples, write_samples
from inference_lab.timing.worker import check_rows
from tests import checkout, recorded
from tests.synthetic import samples_of, timing_record

RAW = "results/m1-batch-size-scan/raw.csv"
SCAN = ("--experiment", "batch-size", "--csv", RAW)
FLAGS = {"--sequence-length": "128", "--dtype": "float64", "--blas-threads": "1"}
FILES = ["knee-analysis.md", "latency-p50-p95.svg", "summary.csv", "throughput-positions-per-second.svg"]


def instant(section: DecodePaths, progress: Callable[[int, int], None]) -> Measurement:
    """The measurement of a section as the real one makes it, of calls that take no time."""
    record = timing_record(
        paths=section.paths,
        vary={section.axis: section.values},
        processes=section.processes,
        rounds=section.rounds,
        warmups=section.warmups,
        replica=section.replica,
    )
    check_rows([*samples_of(record.samples), *samples_of(record.controls)], section)
    progress(section.rounds, section.rounds)
    return Measurement("timing", *recorded.files_of(record), {"oracle": []}, {})


class StandaloneTest(unittest.TestCase):
    """A checkout of the real sources, in which measuring takes no time."""

    def setUp(self) -> None:
        """Nothing is recorded; a measurement is one of calls that do nothing, on a lock of its own."""
        checkout.enter_copy(self)
        config = read_yaml(checkout.ROOT / "config.yaml")
        config["experiments"]["m1-batch-size-scan"]["measure"]["rounds"] = (
            30  # a smaller config may be laid over
        )
        Path("config.yaml").write_text(yaml.safe_dump(config))
        self.measured = self.enterContext(mock.patch.object(decode_paths, "measure", side_effect=instant))
        self.enterContext(mock.patch("inference_lab.records.locks.one_measurement", contextlib.nullcontext))
        self.enterContext(mock.patch.object(run_stage, "check_code"))  # of a package that is not this one's

    def done(self, command: Callable[[list[str]], int], *words: str) -> str:
        """What the command says on stdout, ending with 0."""
        status, out, err = checkout.run(command, *words)
        self.assertEqual(status, 0, err)
        return out

    def present(self) -> dict[str, bytes]:
        """Every file that the commands have made, and what is in it."""
        given = ("pyproject.toml", "config.yaml")
        made = (path for path in Path().rglob("*") if path.is_file() and path.name not in given)
        return {path.as_posix(): path.read_bytes() for path in made}

    def refused(self, command: Callable[[list[str]], int], *words: str, said: str) -> None:
        """The command ends with 2, says this in one line, and makes and changes no file."""
        before = self.present()
        status, out, err = checkout.run(command, *words)
        self.assertEqual((status, out), (2, ""), err)
        self.assertRegex((err.splitlines() or [""])[-1], said)
        self.assertEqual(self.present(), before)


class MeasureTest(StandaloneTest):
    """p2-inference-systems."""

    def test_the_batch_scan_has_240_rows(self) -> None:
        """Two paths, four batch sizes, thirty repeats: 240 rows, 30 a cell, in one process, no A/A."""
        self.assertIn("240 rows in raw.csv", self.done(standalone.measure, *SCAN))
        record = store.load_record(Path(RAW).with_name("manifest.json"))
        samples, controls = samples_of(record.samples), samples_of(record.controls)
        cells = Counter((sample.path, sample.batch_size) for sample in samples)
        sizes = itertools.product(("dynamic", "preallocated"), (1, 2, 4, 8))
        self.assertEqual(cells, dict.fromkeys(sizes, 30))
        self.assertEqual(Counter(sample.kind for sample in controls), {"warmup": 24, "probe": 30})
        facts = {(each.process, each.sequence_length, each.d_model, each.dtype) for each in samples}
        self.assertEqual(facts, {(0, 128, 64, "float64")})
        names = {f"{Path(RAW).parent}/{name}" for name in ("raw.csv", "controls.csv", "manifest.json")}
        self.assertEqual(self.present().keys(), names)

    def test_the_default_compares_caches(self) -> None:
        """Without --experiment: no cache, dynamic and preallocated, beside a manifest of the file's name."""
        said = self.done(standalone.measure, "--csv", "results/benchmark.csv")
        self.assertIn("90 rows in benchmark.csv", said)
        names = ("benchmark.csv", "benchmark.controls.csv", "benchmark.manifest.json")
        self.assertEqual(self.present().keys(), {f"results/{name}" for name in names})
        record = store.load_record(Path("results/benchmark.manifest.json"))
        paths = Counter((sample.path, sample.batch_size) for sample in samples_of(record.samples))
        self.assertEqual(paths, {("no_cache", 1): 30, ("dynamic", 1): 30, ("preallocated", 1): 30})

    def test_a_record_that_stood_there_is_kept_and_said_so(self) -> None:
        """A second measurement into the same file moves the first to superseded/ and names the folder."""
        self.done(standalone.measure, *SCAN)
        first = Path(RAW).read_bytes()
        said = self.done(standalone.measure, *SCAN)
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
        said = r"m1-batch-size-scan: cannot be written \(.* make room"
        with mock.patch("inference_lab.records.store.write_through", side_effect=full):
            self.refused(standalone.measure, "--csv", RAW, said=said)
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
            status, _, err = checkout.run(standalone.measure, "--csv", RAW)
        kept_in = r"cannot be written \(No space left on device\); what was measured is kept in tmp/"
        self.assertRegex(err.splitlines()[-1], kept_in)
        (kept,) = Path("tmp").iterdir()
        names = {f"{kept}/{name}" for name in ("raw.csv", "controls.csv", "manifest.json")}
        self.assertEqual((status, self.present().keys()), (2, names))
        self.assertEqual(len(samples_of(store.load_record(kept / "manifest.json").samples)), 90)


class SummaryTest(StandaloneTest):
    """p2-inference-systems-summary."""

    recorded: ClassVar[dict[str, bytes]] = {}  # what the first test measured, for all of them

    def setUp(self) -> None:
        """A measured batch-size scan; figures are the names of what they are drawn from."""
        super().setUp()
        if not self.recorded:
            self.done(standalone.measure, *SCAN)
            self.recorded |= self.present()
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

    def words(self, raw: str = RAW, **flags: str) -> list[str]:
        """The words that summarise a raw file into out/."""
        given = FLAGS | {f"--{name.replace('_', '-')}": value for name, value in flags.items()}
        return ["--input", raw, "--output-dir", "out", *itertools.chain(*given.items())]

    def refused_input(self, said: str, raw: str = RAW, **flags: str) -> None:
        """Summarising ends with 2, says this, and writes nothing."""
        self.refused(standalone.summary, *self.words(raw, **flags), said=said)

    def test_a_scan_is_summarised(self) -> None:
        """Table, two figures and the knee stand in the folder asked for; the table has one row a cell."""
        said = self.done(standalone.summary, *self.words())
        self.assertEqual(sorted(said.removesuffix(" in out\n").split(", ")), FILES)
        self.assertEqual(sorted(path.name for path in Path("out").iterdir()), FILES)
        head, *rows = Path("out/summary.csv").read_text().splitlines()
        self.assertEqual(len(rows), 8)
        self.assertIn("p95_ms", head.split(","))

    def test_flags_that_contradict_the_rows_are_refused(self) -> None:
        """Another T, dtype or number of threads than a row's is refused, with the row and the right value."""
        for name, wrong, right in (
            ("sequence_length", "64", "128"),
            ("dtype", "float32", "float64"),
            ("blas_threads", "2", "1"),
        ):
            option = f"--{name.replace('_', '-')}"
            said = f"raw.csv line 2: {name} is {right}, {option} says {wrong}; give {right}$"
            with self.subTest(option):
                self.refused_input(said, **{name: wrong})
        self.refused_input("invalid choice: 'float16'", dtype="float16")
        self.refused_input("invalid int value: 'long'", sequence_length="long")
        self.refused(standalone.summary, *self.words()[:-2], said="required: --blas-threads")

    def test_rows_that_contradict_the_manifest_are_refused(self) -> None:
        """Rows that agree with the flags but not with what was declared are refused."""
        place = Path(RAW).with_name("manifest.json")
        record = store.load_record(place)
        rows = [replace(sample, blas_threads=2) for sample in samples_of(record.samples)]
        files = {"raw.csv": write_samples(rows)}
        store.replace_record(place, files, {"raw.csv": len(rows)}, record.manifest)
        said = r"raw\.csv line 2: blas_threads is 2, the manifest declares 1"
        self.refused_input(said, blas_threads="2")

    def test_rows_alone_are_summarised(self) -> None:
        """A raw file of any name without a manifest has the same summary; its digest is what figures name."""

        def numbers() -> list[list[str]]:
            with Path("out/summary.csv").open() as file:
                return [
                    [row[name] for name in ("path", "n", "p50_ms", "ratio")] for row in csv.DictReader(file)
                ]

        self.done(standalone.summary, *self.words())
        expected = numbers()
        Path("my.controls").mkdir()
        raw = Path("my.controls/controls-of-mine.csv")
        raw.write_bytes(Path(RAW).read_bytes())
        self.done(standalone.summary, *self.words(str(raw)))
        self.assertEqual(numbers(), expected)
        self.assertEqual(self.source["files"][raw.name], sha256_file(raw))

    def test_rows_of_mixed_conditions_are_refused(self) -> None:
        """Without a manifest, rows that differ in more than batch and path are no scan."""
        *samples, last = samples_of(read_samples(Path(RAW)))
        raw = Path("mixed.csv")
        for name, value in (
            ("d_model", 32),
            ("num_heads", 2),
            ("dtype", "float32"),
            ("blas_threads", 2),
            ("sequence_length", 64),
        ):
            raw.write_text(write_samples([*samples, replace(last, **{name: value})]))
            with self.subTest(name):
                self.refused_input(rf"mixed\.csv line 241: {name} is {value}, ", str(raw))

    def test_a_file_that_is_no_record_is_refused(self) -> None:
        """A missing, torn or edited raw file is refused by name, and an output folder that is a file."""
        self.refused_input(r"no/raw\.csv: no such file", "no/raw.csv")
        with mock.patch.object(store, "load_record", return_value=SimpleNamespace(samples=None)):
            self.refused_input(r"raw\.csv: its manifest is of no timed samples")
        Path("torn.csv").write_bytes(Path(RAW).read_bytes()[:-20])
        self.refused_input(r"torn\.csv: the last row is cut off", "torn.csv")
        Path("out").write_text("a file")
        self.refused_input(r"out/summary\.csv: cannot be written")
        Path(RAW).write_text(Path(RAW).read_text().replace(",float64,", ",float32,", 1))
        self.refused_input(r"raw\.csv: differs from .*manifest\.json: expected sha256")


if __name__ == "__main__":
    unittest.main()

"""config.yaml is closed: what may not stand there is refused in one line before anything is planned."""

import contextlib
import copy
import functools
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from inference_lab.errors import ConfigError
from inference_lab.records.config import SCHEMA_FILE, check_config, load_config, read_schema, read_yaml
from tests.checkout import ROOT

SECTION: dict[str, Any] = {
    "refresh": "auto",
    "measure": {
        "by": "decode_paths",
        "vary": {"batch_size": [1, 2]},
        "fixed": {"sequence_length": 8, "d_model": 4, "dtype": "float64", "seed": 42},
        "paths": ["dynamic", "preallocated"],
        "baseline": "dynamic",
        "replica": True,
        "blas_threads": 1,
        "processes": 2,
        "rounds": 3,
        "warmups": 0,
        "quiet_cores": 0.2,
        "quiet_wait_s": 0,
    },
    "judge": {"by": "timing", "knee_factor": 1.25, "figures": {"latency.svg": "figures.latency"}},
}
MISSING = object()

# (where, what stands there instead): what the one line must say
REFUSED: list[tuple[str, Any, tuple[str, ...]]] = [
    ("colour", "red", ("m1: unknown key 'colour'; allowed are refresh, target, measure, judge",)),
    ("measure.round", 3, ("m1.measure: unknown key 'round' (did you mean 'rounds'?)",)),
    ("measure.fixed.heads", 2, ("measure.fixed: unknown key 'heads'",)),
    ("judge.knee", 2, ("m1.judge: unknown key 'knee'",)),
    ("measure.rounds", MISSING, ("m1.measure: key 'rounds' is missing",)),
    ("measure.fixed.dtype", MISSING, ("measure.fixed: key 'dtype' is missing",)),
    (
        "measure.fixed.sequence_length",
        MISSING,
        ("'sequence_length' is missing; it is neither varied nor fixed",),
    ),
    ("measure.by", "guess", ("measure.by: is 'guess', must be one of decode_paths",)),
    ("refresh", "daily", ("m1.refresh: is 'daily', must be one of auto, manual",)),
    ("target", "-R", ("m1.target: '-R' is not of the form",)),
    ("measure.vary.sequence_length", [8], ("varies batch_size, sequence_length: one unknown at a time",)),
    ("measure.vary", {}, ("measure.vary: is empty",)),
    ("measure.vary", {"speed": [1]}, ("measure.vary: unknown key 'speed'; allowed are batch_size",)),
    ("measure.vary.batch_size", [], ("vary.batch_size: is empty",)),
    ("measure.vary.batch_size", [0, 1], ("vary.batch_size.0: is 0, must be at least 1",)),
    ("measure.vary.batch_size", [1, 1], ("is [1, 1], each value may stand there once",)),
    (
        "measure.quiet_wait_s",
        "1e3",
        ("is '1e3', must be of type number (it was taken for text: write 1000.0",),
    ),
    ("measure.vary.batch_size", 4, ("vary.batch_size: is 4, must be of type array",)),
    ("measure.fixed.batch_size", 2, ("m1.measure: batch_size is both varied and fixed",)),
    ("measure.fixed.sequence_length", 0, ("fixed.sequence_length: is 0, must be at least 1",)),
    ("measure.fixed.d_model", 4.0, ("fixed.d_model: is 4.0, must be of type integer",)),
    ("measure.fixed.d_model", True, ("fixed.d_model: is True, must be of type integer",)),
    ("measure.fixed.dtype", "float16", ("fixed.dtype: is 'float16', must be one of float32, float64",)),
    ("measure.fixed.seed", -1, ("fixed.seed: is -1, must be at least 0",)),
    ("measure.rounds", -3, ("measure.rounds: is -3, must be at least 1",)),
    ("measure.rounds", "many", ("measure.rounds: is 'many', must be of type integer",)),
    ("measure.processes", None, ("measure.processes: is None, must be of type integer",)),
    ("measure.replica", "yes", ("measure.replica: is 'yes', must be of type boolean",)),
    ("measure.paths", [], ("measure.paths: is empty",)),
    ("measure.paths", ["dynamic", "paged"], ("measure.paths.1: is 'paged', must be one of", "preallocated")),
    ("measure.paths", ["dynamic", "dynamic"], ("each value may stand there once",)),
    (
        "measure.baseline",
        "no_cache",
        ("baseline: is 'no_cache', must be one of paths: dynamic, preallocated",),
    ),
    ("measure.quiet_wait_s", float("inf"), ("quiet_wait_s: is inf, must be of type number",)),
    ("measure.quiet_cores", 0, ("quiet_cores: is 0, must be more than 0",)),
    ("judge.knee_factor", 1, ("knee_factor: is 1, must be more than 1",)),
    ("judge.knee_factor", float("nan"), ("knee_factor: is nan, must be of type number",)),
    ("judge.figures", {"latency.png": "figures.latency"}, ("'latency.png' is not of the form",)),
    ("judge.figures", {"analysis.md": "figures.latency"}, ("'analysis.md' is not of the form",)),
    ("judge.figures", {1: "figures.latency"}, ("is 1, must be of type string",)),
    ("judge.figures", {"latency.svg": "os.system"}, ("'os.system' is not of the form",)),
    ("measure", [], ("m1.measure: is [], must be of type object",)),
    ("judge", MISSING, ("m1: key 'judge' is missing",)),
]


def config_with(where: str, value: Any) -> dict[str, Any]:
    """A config that is right but for one place."""
    section = copy.deepcopy(SECTION)
    *path, key = where.split(".")
    at = section
    for name in path:
        at = at[name]
    if value is MISSING:
        del at[key]
    else:
        at[key] = value
    return {"experiments": {"m1": section}}


class ConfigTest(unittest.TestCase):
    """What config.yaml may say."""

    def setUp(self) -> None:
        """The schema is found from the root of the checkout; it is parsed once, which takes longest."""
        self.enterContext(contextlib.chdir(ROOT))
        self.enterContext(mock.patch("yaml.safe_load", functools.cache(yaml.safe_load)))

    def refusal(self, config: Any) -> str:
        """The one line with which a config is refused."""
        with self.assertRaises(ConfigError) as raised:
            check_config(config)
        self.assertNotIn("\n", str(raised.exception))
        return str(raised.exception)

    def test_what_may_not_stand_there_is_refused(self) -> None:
        """Each wrong key, type and value is one line: file, place, what it says, what is allowed."""
        check_config({"experiments": {"m1": SECTION}})
        for where, value, said in REFUSED:
            with self.subTest(where, value=value):
                words = self.refusal(config_with(where, value))
                for expected in ("config.yaml: experiments.m1", *said):
                    self.assertIn(expected, words)

    def test_a_config_of_another_shape_is_refused(self) -> None:
        """An empty file, a list, no experiment and a name that is no folder are refused too."""
        for config, said in (
            (None, "the top level: is None, must be of type object"),
            ([], "the top level: is [], must be of type object"),
            ({}, "key 'experiments' is missing"),
            ({"experiments": {}}, "experiments: is empty"),
            ({"experiments": {"M 1/..": SECTION}}, "'M 1/..' is not of the form"),
            ({"experiments": {"m1": SECTION}, "seed": 1}, "the top level: unknown key 'seed'"),
        ):
            with self.subTest(said):
                self.assertIn(said, self.refusal(config))

    def test_the_first_of_several_faults_is_told(self) -> None:
        """Two faults are one line, and the same one in every order of keys."""
        faulty = config_with("measure.rounds", 0)["experiments"]["m1"]
        faulty["judge"]["knee_factor"] = 0
        words = self.refusal({"experiments": {"m1": faulty}})
        self.assertIn("judge.knee_factor", words)
        self.assertEqual(words, self.refusal({"experiments": {"m1": dict(reversed(faulty.items()))}}))

    def test_a_module_without_a_schema_is_named(self) -> None:
        """A `by:` that is allowed but whose conditions nobody declared says where they are to be."""
        with contextlib.chdir(ROOT):
            schema = copy.deepcopy(dict(read_schema(SCHEMA_FILE)))
            schema["$defs"]["experiment"]["properties"]["measure"]["properties"]["by"] = {}
            config = {"experiments": {"m1": SECTION | {"measure": SECTION["measure"] | {"by": "new"}}}}
            patched = mock.patch("inference_lab.records.config.read_schema", return_value=schema)
            with patched, self.assertRaisesRegex(ConfigError, "has no 'measure_new', .* write it$"):
                check_config(config)

    def test_a_calibration_leads_to_its_end(self) -> None:
        """What a record leans on is an experiment, and neither itself nor one that leans on it."""

        def config(**leans_on: str) -> dict[str, Any]:
            names = sorted({"m1", *leans_on})
            found: dict[str, Any] = {name: copy.deepcopy(SECTION) for name in names}
            for name, other in leans_on.items():
                found[name]["judge"]["calibration"] = other
            return {"experiments": found}

        with contextlib.chdir(ROOT):
            check_config(config(m2="m1"))
            for leans_on, said in (
                ({"m1": "m1"}, "experiments.m1.judge.calibration: leads back to 'm1'"),
                ({"m1": "m2", "m2": "m1"}, "experiments.m1.judge.calibration: leads back to 'm1'"),
                ({"m1": "m9"}, "experiments.m1.judge.calibration: names 'm9', which is no experiment"),
            ):
                with self.subTest(said), self.assertRaisesRegex(ConfigError, said):
                    check_config(config(**leans_on))

    def test_the_committed_config_is_allowed(self) -> None:
        """config.yaml of this checkout passes its own schema."""
        self.assertIn("m1", load_config()["experiments"])


class YamlTest(unittest.TestCase):
    """The file before its meaning."""

    def test_a_key_that_stands_twice_is_refused(self) -> None:
        """Of two `vary:` YAML would keep the last without a word; here both lines are the user's to mend."""
        text = "experiments:\n  m1:\n    vary: {batch_size: [1]}\n    vary: {sequence_length: [1]}\n"
        with self.assertRaisesRegex(ConfigError, r"config\.yaml: .*key 'vary' stands twice.* line 4"):
            self.read(text)

    def test_a_file_that_is_no_yaml_is_refused(self) -> None:
        """A torn file, another encoding, a folder and no file are one line with the file's name."""
        for text, said in (
            ("a: [1", "not YAML .*mend it"),
            ("a: \tb: c", "not YAML .*mend it"),
            (b"a: \xff", r"cannot be read \(it is not UTF-8 text\); restore it"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ConfigError, rf"^\S*config\.yaml: {said}$"):
                self.read(text)
        with self.assertRaisesRegex(ConfigError, "no/config.yaml: no such file"):
            load_config(Path("no/config.yaml"))

    def test_a_value_that_is_none_of_its_type_is_refused(self) -> None:
        """What PyYAML itself stumbles over is one line too: a month 13, tagged words, a thousand brackets."""
        for text in (
            "a: 2026-13-45",
            '!!int "x"',
            '!!int ""',
            "!!bool x",
            "!!float ''",
            "!!timestamp x",
            "[" * 3000 + "]" * 3000,
        ):
            with self.subTest(text[:20]), self.assertRaisesRegex(ConfigError, r"^[^\n]*: not YAML [^\n]*$"):
                self.read(text)

    def test_anchors_and_merges_may_be_used(self) -> None:
        """A key that a merge brings in as well is no key that stands twice."""
        self.assertEqual(self.read("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n")["b"], {"x": 3, "y": 2})

    def test_a_spreadsheets_mark_is_no_text(self) -> None:
        """The byte order mark that some editors write in front of a file belongs to no key."""
        self.assertEqual(self.read(b"\xef\xbb\xbfa: 1\n"), {"a": 1})

    def test_aliases_that_grow_beyond_measure_are_refused_at_once(self) -> None:
        """Nine lines that stand for a thousand million values, by merges too, and one that holds itself."""
        lists = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10))]
        maps = ["a0: &a0 {x: 1}"]
        maps += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 10)]
        for text in ("\n".join(lists), "\n".join(maps), "a: &a [*a]"):
            with self.subTest(text[-20:]), self.assertRaisesRegex(ConfigError, "aliases stand for more than"):
                self.read(text)
        grown: Any = []
        for _ in range(12):
            grown = [grown] * 9
        with self.assertRaisesRegex(ConfigError, r"^config\.yaml: its aliases"):  # as --configfile reads one
            check_config({"experiments": grown})

    def read(self, text: str | bytes) -> Any:
        """What a config.yaml of this text says."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "config.yaml")
            file.write_bytes(text.encode() if isinstance(text, str) else text)
            return read_yaml(file)


if __name__ == "__main__":
    unittest.main()

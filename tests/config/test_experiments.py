"""config.yaml is closed: what may not be there is refused in one line before anything is planned."""

import copy
import tempfile
import unittest
from pathlib import Path
from typing import Any

from inference_lab.config.experiments import check_config, load_config
from inference_lab.config.yaml_file import read_yaml
from inference_lab.errors import ConfigError
from tests.checkout import CONFIG, MEASURE, ROOT

SECTION: dict[str, Any] = {
    **CONFIG["experiments"]["m1"],
    "measure": {**MEASURE, "paths": ["dynamic", "preallocated"]},
}
LEFT_OUT = object()
INF, NAN = float("inf"), float("nan")

# where, what is there instead, and the parts of the one line that refuses it
REFUSED: list[tuple[str, Any, str, str]] = [
    ("colour", "red", "m1: unknown key 'colour'", "refresh, target, measure, judge"),
    ("measure.round", 3, "m1.measure: unknown key 'round'", "did you mean 'rounds'?"),
    ("measure.fixed.heads", 2, "m1.measure.fixed: unknown key 'heads'", "allowed are"),
    ("judge.knee", 2, "m1.judge: unknown key 'knee'", "allowed are"),
    ("measure.rounds", LEFT_OUT, "m1.measure: key 'rounds' is missing", "needed are"),
    ("measure.fixed.dtype", LEFT_OUT, "m1.measure.fixed: key 'dtype' is missing", "needed are"),
    ("measure.fixed.sequence_length", LEFT_OUT, "fixed: key 'sequence_length' is missing", "varied"),
    ("measure.by", "guess", "m1.measure: 'by' is 'guess'", "must be one of decode_paths, "),
    ("measure.by", "decode_path", "m1.measure: 'by' is 'decode_path'", "did you mean 'decode_paths'?"),
    ("measure.by", LEFT_OUT, "m1.measure: key 'by' is missing", ""),
    ("refresh", "daily", "m1.refresh: is 'daily'", "must be one of auto, manual"),
    ("target", "-R", "m1.target: is '-R'", "of the form"),
    (
        "measure.vary.sequence_length",
        [8],
        "measure.vary: varies batch_size and sequence_length",
        "one unknown",
    ),
    ("measure.vary", {}, "measure.vary: varies nothing", "one axis"),
    (
        "measure.vary",
        {"streams": [1]},
        "m1.measure: vary: streams is no axis",
        "one of batch_size, sequence_length",
    ),
    ("measure.vary", {"speed": [1]}, "measure.vary: unknown key 'speed'", "allowed are batch_size"),
    ("measure.vary.batch_size", [], "vary.batch_size: is empty", "one entry"),
    ("measure.vary.batch_size", [0, 1], "vary.batch_size.0: is 0", "at least 1"),
    ("measure.vary.batch_size", [1, 1], "vary.batch_size: is [1, 1]", "once"),
    ("measure.vary.batch_size", 4, "vary.batch_size: is 4", "a list"),
    ("measure.vary.batch_size", None, "vary.batch_size: is None", "a list"),
    ("measure.fixed.batch_size", 2, "m1.measure: batch_size", "both varied and fixed"),
    ("measure.fixed.sequence_length", 0, "fixed.sequence_length: is 0", "at least 1"),
    ("measure.fixed.d_model", 4.0, "fixed.d_model: is 4.0", "a whole number"),
    ("measure.fixed.d_model", True, "fixed.d_model: is True", "a whole number"),
    ("measure.fixed.dtype", "float16", "fixed.dtype: is 'float16'", "one of float32, float64"),
    ("measure.fixed.seed", -1, "fixed.seed: is -1", "at least 0"),
    ("measure.rounds", -3, "measure.rounds: is -3", "at least 1"),
    ("measure.rounds", "many", "measure.rounds: is 'many'", "a whole number"),
    ("measure.processes", None, "measure.processes: is None", "a whole number"),
    ("measure.replica", "yes", "measure.replica: is 'yes'", "true or false"),
    ("measure.paths", [], "measure.paths: is empty", ""),
    ("measure.paths", ["dynamic", "paged"], "measure.paths.1: is 'paged'", "one of"),
    ("measure.paths", ["dynamic", "dynamic"], "measure.paths: is ['dynamic', 'dynamic']", "once"),
    ("measure.baseline", "no_cache", "baseline is 'no_cache'", "one of paths: dynamic, preallocated"),
    ("measure.quiet_wait_s", INF, "quiet_wait_s: is inf", "a number"),
    ("measure.quiet_wait_s", 10**400, "quiet_wait_s: is 1000", "a number"),
    ("measure.quiet_wait_s", "1e3", "quiet_wait_s: is '1e3'", "write 1000.0 without quotes"),
    ("measure.quiet_wait_s", True, "quiet_wait_s: is True", "a number"),
    ("measure.quiet_cores", 0, "quiet_cores: is 0", "more than 0"),
    ("judge.by", "guess", "judge.by: is 'guess'", "one of timing"),
    ("judge.knee_factor", 1, "knee_factor: is 1", "more than 1"),
    ("judge.knee_factor", NAN, "knee_factor: is nan", "a number"),
    ("judge.knee_factor", None, "knee_factor: is None", "a number"),
    ("judge.max_others_cpu", None, "max_others_cpu: is None", "a number"),
    ("judge.slo", {"tpot": 1}, "judge.slo.tpot: is 'tpot'", "of the form"),
    ("judge.slo", {"tpot_ms": 0}, "judge.slo.tpot_ms: is 0", "more than 0"),
    ("judge.figures", {"latency.png": "figures.latency"}, "is 'latency.png'", "of the form"),
    ("judge.figures", {"analysis.md": "figures.latency"}, "is 'analysis.md'", "of the form"),
    ("judge.figures", {1: "figures.latency"}, "judge.figures.1: is 1", "text"),
    ("judge.figures", {"latency.svg": "os.system"}, "is 'os.system'", "of the form"),
    ("measure", [], "m1.measure: is []", "a mapping"),
    ("judge", LEFT_OUT, "m1: key 'judge' is missing", "needed are"),
]


def config_with(where: str, value: Any) -> dict[str, Any]:
    """A config that is right but for one place."""
    at = section = copy.deepcopy(SECTION)
    *path, key = where.split(".")
    for name in path:
        at = at[name]
    at[key] = value
    if value is LEFT_OUT:
        del at[key]
    return {"experiments": {"m1": section}}


class Refusals(unittest.TestCase):
    """What config.yaml may say."""

    def refusal(self, config: Any) -> str:
        """The one line with which a config is refused."""
        with self.assertRaisesRegex(ConfigError, r"\A[^\n]+\Z") as raised:
            check_config(config)
        return str(raised.exception)

    def test_one_place(self) -> None:
        """File, key, value and rule are in the line."""
        check_config({"experiments": {"m1": SECTION}})
        for where, value, *parts in REFUSED:
            with self.subTest(where, value=str(value)[:20]):
                words = self.refusal(config_with(where, value))
                for part in ("config.yaml: experiments.m1", *parts):
                    self.assertIn(part, words)

    def test_another_shape(self) -> None:
        """An empty file, a list, no experiment, and a name that is no folder."""
        for config, part in (
            (None, "the top level: is None, must be a mapping"),
            ([], "the top level: is [], must be a mapping"),
            ({}, "key 'experiments' is missing"),
            ({"experiments": {}}, "experiments: is empty"),
            ({"experiments": {"M 1/..": SECTION}}, "is 'M 1/..', must be of the form"),
            ({"experiments": {"m1": SECTION}, "seed": 1}, "the top level: unknown key 'seed'"),
        ):
            with self.subTest(part):
                self.assertIn(part, self.refusal(config))

    def test_the_first_of_several_faults(self) -> None:
        """Two faults are one line, the same one in every order of keys."""
        faulty = config_with("measure.rounds", 0)["experiments"]["m1"]
        faulty["judge"]["knee_factor"] = 0
        words = self.refusal({"experiments": {"m1": faulty}})
        self.assertIn("judge.knee_factor", words)
        self.assertEqual(words, self.refusal({"experiments": {"m1": dict(reversed(faulty.items()))}}))

    def test_a_calibration_leads_to_its_end(self) -> None:
        """It is another experiment and does not rely in turn on the one that relies on it."""
        place = "experiments.m1.judge.calibration"
        for other, relies_on, words in (
            ("m2", "", ""),
            ("m1", "", f"{place}: leads back to 'm1'"),
            ("m2", "m1", f"{place}: leads back to 'm1'"),
            ("m9", "", f"{place}: names 'm9'"),
        ):
            judges = ({**SECTION["judge"], "calibration": name} for name in (other, relies_on))
            sections = ({**SECTION, "judge": judge} for judge in judges)
            config = {"experiments": dict(zip(("m1", "m2"), sections, strict=True))}
            with self.subTest(words):
                self.assertIn(words, self.refusal(config) if words else str(check_config(config)))


class Files(unittest.TestCase):
    """A YAML file before its meaning."""

    def read(self, text: str | bytes) -> Any:
        """The value in a config.yaml of this text."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "config.yaml")
            file.write_bytes(text.encode() if isinstance(text, str) else text)
            return read_yaml(file)

    def test_refused(self) -> None:
        """A key twice, a torn file, and values that PyYAML itself stumbles over are one line."""
        twice = "experiments:\n  m1:\n    vary: {batch_size: [1]}\n    vary: {sequence_length: [1]}\n"
        values = ("a: 2026-13-45", '!!int "x"', '!!int ""', "!!bool x", "!!float ''", "!!timestamp x")
        torn = ("a: [1", "a: \tb: c", "[" * 3000 + "]" * 3000)
        for text, rule in (
            (twice, "not YAML .*key 'vary' twice.* line 4.*"),
            (b"a: \xff", r"cannot be read \(it is not UTF-8 text\); restore it"),
            *((text, "not YAML .*") for text in (*values, *torn)),
        ):
            with self.subTest(text[:20]), self.assertRaisesRegex(ConfigError, rf"^\S*config\.yaml: {rule}$"):
                self.read(text)
        with self.assertRaisesRegex(ConfigError, "no/config.yaml: no such file"):
            load_config(Path("no/config.yaml"))

    def test_allowed(self) -> None:
        """A key that a merge brings in too is not twice there; a byte order mark belongs to no key."""
        self.assertEqual(self.read("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\n")["b"], {"x": 3, "y": 2})
        self.assertEqual(self.read(b"\xef\xbb\xbfa: 1\n"), {"a": 1})
        self.assertIn("m1", load_config(ROOT / "config.yaml").experiments)

    def test_aliases_that_grow_beyond_measure(self) -> None:
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


if __name__ == "__main__":
    unittest.main()

"""Does `inference-lab new` add an experiment that the workflow takes, or leave everything as it was?"""

import contextlib
import shutil
import tempfile
import unittest
from pathlib import Path

from inference_lab.commands.new import new
from inference_lab.config.experiments import load_config
from inference_lab.config.prediction import load_prediction
from inference_lab.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


class NewTest(unittest.TestCase):
    """The project's own config.yaml, in a folder of its own."""

    def setUp(self) -> None:
        """A copy of config.yaml and of the predictions."""
        self.enterContext(contextlib.chdir(self.enterContext(tempfile.TemporaryDirectory())))
        shutil.copy(ROOT / "config.yaml", "config.yaml")
        shutil.copytree(ROOT / "predictions", "predictions")

    def test_an_axis_of_its_own(self) -> None:
        """It varies what was asked and fixes what the other one varied; no other section changes."""
        before = load_config().given()["experiments"]
        for like, vary, axis, fixed in (
            ("m1", "d_model=32,64", {"d_model": [32, 64]}, {"batch_size": 1, "sequence_length": 128}),
            ("m2_decode_t", "num_kv_heads=8,2", {"num_kv_heads": [8, 2]}, {"sequence_length": 128}),
            ("m1_cache", "", {"sequence_length": [32, 64, 128, 256, 512]}, {"batch_size": 1}),
        ):
            with self.subTest(like, vary=vary):
                name = f"mine_{like}"
                self.assertIn(f"predictions/{name}.yaml", new(name, like, vary))
                section = load_config().experiments[name].given()
                measure, judge = section["measure"], section["judge"]
                self.assertEqual(measure["vary"], axis)
                self.assertEqual({key: measure["fixed"][key] for key in fixed}, fixed)
                self.assertFalse(set(axis) & set(measure["fixed"]))
                self.assertNotIn("pages.knee", judge["figures"].values())
                with self.assertRaisesRegex(ConfigError, "claims: "):  # blank: nothing is measured with it
                    load_prediction(Path(f"predictions/{name}.yaml"))
        after = load_config().given()["experiments"]
        self.assertEqual({name: after[name] for name in before}, before)

    def test_what_is_refused_changes_nothing(self) -> None:
        """A name taken or unfit, an unknown experiment, axis or value: one line, and no file is touched."""
        before = Path("config.yaml").read_text(), sorted(Path("predictions").iterdir())
        for name, like, vary, words in (
            ("m1", "m1", "", "m1 is there already"),
            ("../x", "m1", "", r"\.\./x"),
            ("mine", "m9", "", "no experiment 'm9'; one of: p0, m1"),
            ("mine", "m1", "d_modle=1,2", "d_modle"),
            ("mine", "m1", "d_model=0,2", "d_model"),
            ("mine", "m1", "d_model=[,{", "d_model"),
            ("mine", "m1", "d_model", "d_model"),
            ("mine", "p0", "d_model=1", "p0 has no line `vary: {...}`"),
        ):
            with self.subTest(name, like=like, vary=vary):
                with self.assertRaisesRegex(ConfigError, words) as refused:
                    new(name, like, vary)
                self.assertNotIn("\n", str(refused.exception))
                self.assertEqual(
                    (Path("config.yaml").read_text(), sorted(Path("predictions").iterdir())), before
                )

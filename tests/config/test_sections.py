"""The models of config.yaml: what is written is what is given, and each key is described."""

import unittest

from inference_lab.config.closed import Closed
from inference_lab.config.experiments import check_config
from inference_lab.config.sections import Section, Vary
from inference_lab.config.yaml_file import read_yaml
from inference_lab.records.files import canonical
from tests.checkout import ROOT


def models(kind: type[Closed]) -> list[type[Closed]]:
    """Every model below this one."""
    return [each for below in kind.__subclasses__() for each in (below, *models(below))]


class Sections(unittest.TestCase):
    """`given()` is what was written."""

    def test_the_committed_config(self) -> None:
        """A default that was written out would change every digest."""
        written = read_yaml(ROOT / "config.yaml")
        self.assertEqual(canonical(check_config(written).given()), canonical(written))

    def test_each_key_is_described(self) -> None:
        """In its own class or in one above; of an axis and a kind of claim the name says it."""
        for model in models(Closed):
            for name in [] if model is Vary else {*model.model_fields} - {"kind"}:
                with self.subTest(f"{model.__name__}.{name}"):
                    fields = (getattr(base, "model_fields", {}).get(name) for base in model.__mro__)
                    self.assertTrue(any(field.description for field in fields if field))

    def test_a_default_decides_nothing(self) -> None:
        """What is left out of conditions is nothing: no closure has these types, no digest a default."""
        conditions = [model for model in models(Closed) if model.__module__ == Section.__module__]
        self.assertGreater(len(conditions), 20)
        for model in conditions:
            for name, field in model.model_fields.items():
                with self.subTest(f"{model.__name__}.{name}"):
                    default = None if field.is_required() else field.get_default(call_default_factory=True)
                    self.assertFalse(default.given() if isinstance(default, Closed) else default)

    def test_each_kind_has_its_module(self) -> None:
        """`by: x` names src/inference_lab/experiments/x.py, and its axes are known."""
        for kind in models(Section):
            for name in getattr(kind.model_fields["by"].annotation, "__args__", ()):
                self.assertTrue((ROOT / f"src/inference_lab/experiments/{name}.py").is_file(), name)
                self.assertLessEqual({*kind.axes}, {*Vary.model_fields})

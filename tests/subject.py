"""Which implementation the public tests try: this package's, or a reader's own file.

    INFERENCE_LAB_SUBJECT=mine.py uv run python -m unittest tests.mechanisms.test_multi_head -v

A reader's file defines functions under the package's names, with the package's arguments. A test that
needs a name the file lacks is skipped and says so; a file that defines none of them is refused.
"""

import importlib.util
import os
import unittest
from pathlib import Path
from types import ModuleType
from typing import Any


class Subject:
    """The public names of a package module, taken from the reader's file when there is one."""

    def __init__(self, source: ModuleType) -> None:
        self._source = source

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._source, name)
        except AttributeError:
            raise unittest.SkipTest(f"{self._source.__file__} defines no {name}") from None


def of(package: ModuleType) -> Subject:
    """What the tests of `package` try. Raises ImportError for a reader's file that cannot be meant."""
    name = os.environ.get("INFERENCE_LAB_SUBJECT")
    if not name:
        return Subject(package)
    path = Path(name)
    if not path.is_file():
        raise ImportError(f"INFERENCE_LAB_SUBJECT is {name}: no such file; name your own .py file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"INFERENCE_LAB_SUBJECT is {name}: not a Python file; name your own .py file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    public = [name for name in vars(package) if not name.startswith("_")]
    own = [name for name in public if getattr(vars(module).get(name), "__module__", None) == module.__name__]
    if not own:
        raise ImportError(f"{path} defines none of the names of {package.__name__}; use its names")
    return Subject(module)

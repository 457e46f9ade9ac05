"""Runs the unit tests and says what came out of each: the evidence the `tests` receipt holds.

run_unit_tests()     in the run's process: starts a fresh one, which no shell's variables steer
outcomes(folder)     in that one: collects the tests and runs them
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference_lab.errors import LabError
from inference_lab.records.installed import check_loaded
from inference_lab.records.locks import die_with_parent
from inference_lab.timing import machine

# What each folder's tests build on comes before them. The first layer with a fault ends the run.
_LAYERS = (
    "mechanisms",
    "timing",
    "config",
    "records",
    "stream_load",
    "analysis",
    "experiments",
    "figures",
    "pages",
)
_MODULE = re.compile(r"(?:unittest\.loader\._FailedTest\.|tests\.)?((?:\w+\.)*?)(test_\w+)")
SUBJECT = "INFERENCE_LAB_SUBJECT"  # names a reader's own file, which the public tests then try: no evidence


class TestsFailed(LabError):
    """A unit test failed, or none was found: there is no evidence that this source is right."""


class _Outcomes(unittest.TextTestResult):
    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # pyright: ignore[reportArgumentType, reportCallIssue]
        self.outcomes: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802  (unittest's name)
        super().addSuccess(test)
        self.outcomes[test.id()] = "passed"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802  (unittest's name)
        super().addSkip(test, reason)
        self.outcomes[test.id()] = f"skipped: {reason}"

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:  # noqa: N802  (unittest's name)
        # A fault is told by its first case alone.
        if err is None or all(_method(known) is not test for known, _ in self.failures + self.errors):
            super().addSubTest(test, subtest, err)


def run_unit_tests() -> dict[str, str]:
    """`{test id: outcome}` of every unit test of this checkout, sorted; each passed or was skipped.

    They run in a process of their own, with one thread of arithmetic. Raises TestsFailed when one fails or
    none is found; unittest's own words stand on stderr.
    """
    of_others = {SUBJECT, "PYTHONSAFEPATH"}  # what tests start finds `tests` in its working directory
    variables = {k: v for k, v in machine.with_threads(1).items() if k not in of_others}
    with tempfile.TemporaryFile() as file:
        command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(file.fileno())]
        status = subprocess.run(command, env=variables, pass_fds=(file.fileno(),), check=False).returncode
        file.seek(0)
        text = file.read()
    if not text:
        raise TestsFailed(f"the tests' process ended with status {status} before it was done")
    if isinstance(found := json.loads(text), str):
        raise TestsFailed(found)
    return found


def outcomes(folder: str = "tests") -> dict[str, str]:
    """`{test id: outcome}` of what `python -m unittest discover -s folder` finds. Raises TestsFailed."""
    sys.path.append(str(Path.cwd()))  # behind the standard library: tests import each other as `tests.`
    if not Path(folder).is_dir():
        raise TestsFailed(f"{folder}/: no such folder here; run this in a checkout of the project")
    layers: dict[int, unittest.TestSuite] = {}
    for test in _flat(unittest.TestLoader().discover(folder)):
        layers.setdefault(_layer(test), unittest.TestSuite()).addTest(test)
    found: dict[str, str] = {}
    for _, suite in sorted(layers.items()):
        result = unittest.TextTestRunner(resultclass=_Outcomes, buffer=True).run(suite)
        assert isinstance(result, _Outcomes)
        if not result.wasSuccessful():  # what builds on this layer would fail for the same reason
            raise TestsFailed(_first_fault(result, folder))
        found |= result.outcomes
    if not found:
        raise TestsFailed(f"no test was collected under {folder}/: nothing shows that this source is right")
    return dict(sorted(found.items()))


def _flat(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _flat(test)
        else:
            yield test


def _home(test: unittest.TestCase) -> tuple[list[str], str]:
    """Folders and module of a test, also of one that cannot be imported or set up."""
    found = _MODULE.search(test.id())
    assert found is not None
    return found[1].split(".")[:-1], found[2]


def _layer(test: unittest.TestCase) -> int:
    folder, *_ = (*_home(test)[0], "")
    return _LAYERS.index(folder) if folder in _LAYERS else len(_LAYERS)


def _method(test: Any) -> Any:
    return getattr(test, "test_case", test)


def _first_fault(result: _Outcomes, folder: str) -> str:
    """How many tests of a layer fail, the first of them, what it protects and which module to look at."""
    bad = [test for test, _ in (*result.failures, *result.errors)] + result.unexpectedSuccesses
    first = _method(bad[0])
    words = f"{len(bad)} of {result.testsRun} unit tests failed, first {first.id()}"
    if protects := first.shortDescription():
        words += f": {protects}"
    folders, module = _home(first)
    home = Path("src/inference_lab", *folders)
    near = [path for path in home.glob("*.py") if module.startswith(f"test_{path.stem}")]
    look = max(near, key=lambda path: len(path.stem), default=Path(folder, *folders, f"{module}.py"))
    return f"{words}\nlook at {look.as_posix()}"


def main() -> int:
    """Exit status of the tests' process: what came out goes as JSON to the open file it is given."""
    parent, file = map(int, sys.argv[1:])
    try:
        die_with_parent(parent)
        found: dict[str, str] | str = outcomes()
        check_loaded(beside=Path("tests"))
    except LabError as error:
        found = str(error)
    except KeyboardInterrupt:
        return 130
    os.write(file, json.dumps(found).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())

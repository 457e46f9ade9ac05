"""Runs the unit tests and says what came out of each: the evidence the `tests` receipt holds.

run_unit_tests()     in the run's process: starts a fresh one, which no shell's variables steer
outcomes(folder)     in that one: collects the tests and runs them
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from inference_lab.errors import LabError
from inference_lab.records.installed import check_loaded
from inference_lab.records.locks import die_with_parent
from inference_lab.timing import machine

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
    suite = unittest.TestLoader().discover(folder)
    result = unittest.TextTestRunner(resultclass=_Outcomes, buffer=True).run(suite)
    if not isinstance(result, _Outcomes) or result.testsRun == 0:
        raise TestsFailed(f"no test was collected under {folder}/: nothing shows that this source is right")
    if not result.wasSuccessful():
        bad = [test for test, _ in (*result.failures, *result.errors)] + result.unexpectedSuccesses
        words = f"{len(bad)} of {result.testsRun} unit tests failed, first {bad[0].id()}"
        raise TestsFailed(f"{words}; correct them")
    return dict(sorted(result.outcomes.items()))


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

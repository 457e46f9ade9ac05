"""Runs the unit tests and says what came out of each: the evidence the `tests` receipt holds."""

import sys
import unittest
from pathlib import Path

from inference_lab.errors import LabError


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


def run_unit_tests(folder: str = "tests") -> dict[str, str]:
    """`{test id: outcome}` of every unit test under `folder`, sorted; each passed or was skipped.

    Finds what `python -m unittest discover -s tests` finds. Raises TestsFailed when one fails or none is
    found; unittest's own words stand on stderr.
    """
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    if not Path(folder).is_dir():
        raise TestsFailed(f"{folder}/: no such folder here; run this in a checkout of the project")
    suite = unittest.TestLoader().discover(folder)
    result = unittest.TextTestRunner(resultclass=_Outcomes, verbosity=1, buffer=True).run(suite)
    if not isinstance(result, _Outcomes) or result.testsRun == 0:
        raise TestsFailed(f"no test was collected under {folder}/: nothing shows that this source is right")
    if not result.wasSuccessful():
        bad = [test for test, _ in (*result.failures, *result.errors)]
        bad += result.unexpectedSuccesses
        raise TestsFailed(
            f"{len(bad)} of {result.testsRun} unit tests failed, first {bad[0].id()}; mend them"
        )
    return dict(sorted(result.outcomes.items()))

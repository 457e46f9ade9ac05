"""Kill or hinder what writes files, at each of its steps in turn.

    for left in crashes.killed_at_every_step(prepare, act): ...   # what a SIGKILL leaves
    for error in crashes.refused_at_every_step(prepare, act, OSError(...)): ...

A step is a rename, an fsync or a new folder. `prepare` runs before every attempt.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any
from unittest import mock

STEPS = ("os.replace", "os.fsync", "os.mkdir")


@contextlib.contextmanager
def before_step(number: int, happens: Callable[[], Any]) -> Generator[None]:
    """`happens` is called in place of the step of this number, counted from 0."""
    left = itertools.count(number, -1)

    def counted(step: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: happens() if next(left) == 0 else step(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        for name in STEPS:
            stack.enter_context(mock.patch(name, counted(getattr(os, name.removeprefix("os.")))))
        yield


def killed_at_every_step(prepare: Callable[[], Any], act: Callable[[], Any]) -> Iterator[int]:
    """The number of each step of `act` that a process of its own was killed at; ends when it got through."""
    for number in itertools.count():
        prepare()
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException), before_step(number, lambda: os._exit(9)):
                act()
                status = 0
            os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        if code != 9:
            raise AssertionError(f"failed with {code} before step {number} instead of being killed there")
        yield number


def refused_at_every_step(
    prepare: Callable[[], Any], act: Callable[[], Any], error: OSError
) -> Iterator[tuple[int, Exception]]:
    """(number of the step, what `act` raised) when that step fails with `error`; ends when none does."""

    def fail() -> None:
        raise error

    for number in itertools.count():
        prepare()
        try:
            with before_step(number, fail):
                act()
        except Exception as raised:  # noqa: BLE001  (the caller says which it may be)
            yield number, raised
        else:
            return

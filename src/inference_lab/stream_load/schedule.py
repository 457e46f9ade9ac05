"""When requests are due: closed loop, all at once, at a constant rate, or as a Poisson process.

Pure: the same schedule gives the same offsets, whatever the client does. Knows no clock and no server.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice, repeat, takewhile
from typing import Literal

from inference_lab.errors import InputError


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which requests are due when, as offsets from the start.

    closed    a request is due as soon as another ends
    burst     all are due at 0 and wait for the concurrency limit
    constant  request i is due at i / rate
    poisson   gaps are exponential with mean 1 / rate, seeded

    Stops after `requests` of them or before `duration_s`, whichever comes first.
    Raises InputError when it never stops or when a rate is missing or has no use.
    """

    process: Literal["closed", "burst", "constant", "poisson"]
    requests: int | None = None
    duration_s: float | None = None
    rate_per_s: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.requests is None and (self.duration_s is None or self.process == "burst"):
            raise InputError("a schedule must stop: give a number of requests or a duration")
        for name in ("requests", "duration_s", "rate_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise InputError(f"{name} is {value}, must be a positive, finite number")
        if (self.rate_per_s is not None) != (self.process in ("constant", "poisson")):
            raise InputError(f"rate is {self.rate_per_s}: constant and poisson need one, others have none")

    @property
    def is_closed(self) -> bool:
        """Whether arrivals follow completions, so that no offset is known beforehand."""
        return self.process == "closed"

    def offsets_ns(self) -> Iterator[int]:
        """Offset from the start at which request 0, 1, 2 ... is due; 0 for all in a closed loop.

        An open loop's duration ends it here; a closed loop's duration is for its driver to watch.
        """
        endless, limit_s = self._endless(), None if self.is_closed else self.duration_s
        within = endless if limit_s is None else takewhile(lambda at_ns: at_ns < limit_s * 1e9, endless)
        return islice(within, self.requests)

    def _endless(self) -> Iterator[int]:
        if self.rate_per_s is None:
            yield from repeat(0)
        elif self.process == "constant":
            yield from (round(index * 1e9 / self.rate_per_s) for index in count())
        else:
            gaps = random.Random(self.seed)
            at_s = 0.0
            while True:
                at_s -= math.log1p(-gaps.random()) / self.rate_per_s
                yield round(at_s * 1e9)

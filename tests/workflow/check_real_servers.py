"""What real servers send gives the same record however its bytes are cut: at once, byte by byte, anyhow."""

import random
from collections.abc import Iterable

from tests.stream_load.server_cases import CASES
from tests.stream_load.test_real_servers import CaseTable, Cut, answers, recorded

_SHORT = [case for case in CASES if sum(map(len, case.writes)) < 20_000]


def at_once(data: bytes) -> Iterable[bytes]:
    """All of it in one write."""
    return [data]


def bytewise(data: bytes) -> Iterable[bytes]:
    """Every byte in a write of its own."""
    return (data[at : at + 1] for at in range(len(data)))


def pieces(seed: int, longest: int) -> Cut:
    """Writes of any length up to `longest`."""

    def cut(data: bytes) -> Iterable[bytes]:
        chosen, start = random.Random(seed), 0
        while start < len(data):
            end = start + chosen.randint(1, longest)
            yield data[start:end]
            start = end

    return cut


class RealServersInPieces(CaseTable):
    """The table of the unit tests, its answers cut in other ways."""

    def test_cuts(self) -> None:
        """Of every case the record says the same; long ones come in pieces of some length."""
        for name, cases, cut in (
            ("at once", CASES, at_once),
            ("byte by byte", _SHORT, bytewise),
            *((f"pieces {seed}", _SHORT, pieces(seed, 40)) for seed in range(4)),
            ("long pieces", CASES, pieces(0, 2000)),
        ):
            for case, record in zip(cases, recorded([answers(case, cut) for case in cases]), strict=True):
                with self.subTest(case.name, cut=name):
                    self.check(case, record)

"""What a person sees while a load runs: a live line on a terminal, plain lines elsewhere."""

import asyncio
import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

_TERMINAL_EVERY_S = 0.5  # drawing takes about 1 ms, in which user stamps are late
_PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a run: requests in flight, finished, failed, and tokens so far."""

    in_flight: int
    done: int
    failed: int
    tokens: int


def describe(now: Snapshot, *, total: int | None, elapsed_s: float, tokens_per_s: float) -> str:
    """The state of a run as one line."""
    of_total = "" if total is None else f"/{total}"
    eta = ""
    if total is not None and now.done:
        eta = f", about {elapsed_s / now.done * (total - now.done):.0f} s to go"
    return (
        f"{elapsed_s:.0f} s: {now.in_flight} in flight, {now.done}{of_total} done,"
        f" {now.failed} failed, {tokens_per_s:.0f} tokens/s{eta}"
    )


def say(line: str) -> None:
    """Tell the person who watches, on stderr; where nobody can be told, the run goes on untold."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


async def show_progress(sample: Callable[[], Snapshot], *, total: int | None) -> None:
    """Show the run on stderr until cancelled."""
    started_s = monotonic()
    before_s, tokens = started_s, 0

    def line() -> str:
        nonlocal before_s, tokens
        now, now_s = sample(), monotonic()
        rate = max(now.tokens - tokens, 0) / max(now_s - before_s, 1e-9)
        before_s, tokens = now_s, now.tokens
        return describe(now, total=total, elapsed_s=now_s - started_s, tokens_per_s=rate)

    if not sys.stderr.isatty():
        while True:
            await asyncio.sleep(_PLAIN_EVERY_S)
            say(line())
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        while True:
            await asyncio.sleep(_TERMINAL_EVERY_S)
            live.update(line(), refresh=True)

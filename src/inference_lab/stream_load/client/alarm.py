"""Waking at an absolute time to some tens of µs; event loops round their timers up to whole ms."""

import asyncio
import ctypes
import os
import struct
import sys
from time import monotonic_ns

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_ITIMERSPEC = struct.Struct("@4l")


class Alarm:
    """Lets one task at a time sleep until a time of `monotonic_ns` (a Linux timerfd; elsewhere ms)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(
                _CLOCK_MONOTONIC, os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
            )
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._ring)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew since the loop was told
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def sleep_until(self, deadline_ns: int) -> None:
        """Return at the deadline, or, when it has passed, after the loop had a turn."""
        if monotonic_ns() >= deadline_ns:
            await asyncio.sleep(0)
        while (now_ns := monotonic_ns()) < deadline_ns:
            if self._fd < 0:
                await asyncio.sleep((deadline_ns - now_ns) / 1e9)
                continue
            self._waiter = self._loop.create_future()
            seconds, nanoseconds = divmod(deadline_ns, 1_000_000_000)
            setting = _ITIMERSPEC.pack(0, 0, seconds, nanoseconds)
            self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, setting, None)
            await self._waiter

    def close(self) -> None:
        """Give the timer back."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

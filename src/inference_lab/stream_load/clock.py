"""When bytes arrived, by the kernel's stamps, and waking at a given time: both on the monotonic clock."""

import asyncio
import ctypes
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from time import monotonic_ns

_SO_TIMESTAMPNS = 35  # Linux; the socket module does not name it
_TIMESPEC = struct.Struct("@ll")
_FORGET_NS = 1_000_000_000  # no bytes lie unread for longer than that
_STEP_NS = 50_000  # slewing moves both clocks alike; only a step changes their distance
_TFD_TIMER_ABSTIME = 1
_ITIMERSPEC = struct.Struct("@4l")
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
Ancillary = tuple[int, int, bytes]


class ArrivalClock:
    """Converts kernel stamps to the monotonic clock; None for a stamp that cannot be trusted.

    `SO_TIMESTAMPNS` gives the arrival on the wall clock to a few µs, however late the process comes to read.
    The wall clock can be stepped (some virtual machines do it ten times a second, by 0.5 ms), so both clocks
    are compared after every round of reads. A step happened between two comparisons. A stamp is trusted if
    only one of the two offsets, before and after the step, gives it a possible time.
    """

    def __init__(
        self,
        *,
        kernel: bool = True,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self.steps = 0
        self._step: tuple[int, int, int] | None = None  # not before, not after, offset until then
        self._compared_ns = monotonic_ns()
        self._keep_alive: socket.socket | None = None
        self.kernel = kernel and sys.platform == "linux"
        if self.kernel:
            # The kernel starts stamping some ms after the first socket asks, and stops after the last:
            # this one asks before any connection does.
            self._keep_alive = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self.enable(self._keep_alive)
        self.offset_ns = self._measure()
        self.first_offset_ns = self.offset_ns

    def _measure(self) -> int:
        """Monotonic minus wall clock, from the tightest of 9 brackets."""
        brackets: list[tuple[int, int]] = []
        for _ in range(9):
            before, wall, after = self._monotonic_ns(), self._wall_ns(), self._monotonic_ns()
            brackets.append((after - before, (before + after) // 2 - wall))
        return min(brackets)[1]

    def enable(self, sock: socket.socket) -> None:
        """Ask the kernel to stamp what this socket receives; user stamps remain if it will not."""
        if self.kernel:
            try:
                sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            except OSError:
                self.kernel = False

    def compare(self) -> None:
        """Find out whether the wall clock was stepped: after reads, before their stamps are converted."""
        now_ns = self._monotonic_ns()
        if abs(now_ns - self._wall_ns() - self.offset_ns) > _STEP_NS:
            self._look_for_step()
        self._compared_ns = now_ns

    def arrival_ns(self, ancillary: Sequence[Ancillary], read_ns: int) -> int | None:
        """When the bytes read at `read_ns` arrived, on the monotonic clock; `None` if unknown.

        The clocks must have been compared since that read.
        """
        if not ancillary:
            return None
        seconds, nanoseconds = _TIMESPEC.unpack(ancillary[0][2])
        stamp_ns = seconds * 1_000_000_000 + nanoseconds
        after_ns = min(stamp_ns + self.offset_ns, read_ns)
        if self._step is None:
            return after_ns
        not_before_ns, not_after_ns, offset_ns = self._step
        if read_ns - not_after_ns > _FORGET_NS:
            self._step = None
        before_ns = stamp_ns + offset_ns
        may_be_before = before_ns <= not_after_ns
        may_be_after = not_before_ns <= after_ns and stamp_ns + self.offset_ns < read_ns + _STEP_NS
        if may_be_before == may_be_after:
            return None
        return before_ns if may_be_before else after_ns

    def _look_for_step(self) -> None:
        """A large drift is a step, or a pause between the two readings: measure again to know."""
        offset_ns = self._measure()
        if abs(offset_ns - self.offset_ns) > _STEP_NS:
            self._step = (self._compared_ns, self._monotonic_ns(), self.offset_ns)
            self.offset_ns = offset_ns
            self.steps += 1

    def close(self) -> None:
        """Stop asking for stamps and compare the clocks once more."""
        self._look_for_step()
        if self._keep_alive is not None:
            self._keep_alive.close()

    def conditions(self) -> dict[str, int | str]:
        """Which clock was used, and what the wall clock did meanwhile."""
        return {
            "stamps": "kernel" if self.kernel else "user",
            "offset_start_ns": self.first_offset_ns,
            "offset_end_ns": self.offset_ns,
            "wall_clock_steps": self.steps,
        }


class PreciseTimer:
    """Lets one task at a time sleep until a time of `monotonic_ns`, to some tens of µs.

    By a timerfd of Linux: event loops round their own timers up to whole ms. Elsewhere by these.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._ring)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # it was set again since the loop was notified
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
        """Release the timer."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

"""Continuous batching, reduced to time: which requests are in which step, and how long it lasts.

Never reads a clock: it is given the time. No weights, no tokenizer, no memory limit.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import islice

from inference_lab.errors import InputError

_LONGEST_MS = 3_600_000  # a step of an hour


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine's limits and times.

    A step of decodes lasts `itl_ms`; a step that prefills a whole prompt lasts `ttft_ms`, one that
    prefills a part of it, that part of `ttft_ms`, and never less than its decodes. At most
    `max_num_seqs` requests share a step, and `max_num_batched_tokens` tokens: one for each decode, the rest
    for prompts in order of arrival.
    """

    max_num_seqs: int = 64
    max_num_batched_tokens: int = 8192
    ttft_ms: float = 20.0
    itl_ms: float = 10.0

    def __post_init__(self) -> None:
        seqs, tokens, times_ms = self.max_num_seqs, self.max_num_batched_tokens, (self.ttft_ms, self.itl_ms)
        if not 1 <= seqs <= tokens:
            words = f"max_num_seqs is {seqs}, max_num_batched_tokens {tokens}"
            raise InputError(f"{words}: must be 1 <= max_num_seqs <= max_num_batched_tokens")
        if not all(0 < step_ms <= _LONGEST_MS for step_ms in times_ms):
            words = f"ttft_ms is {self.ttft_ms} and itl_ms {self.itl_ms}"
            raise InputError(f"{words}: must be above 0, at most {_LONGEST_MS}")


@dataclass(slots=True, eq=False)
class Job:
    """One request inside the engine. `emit` is called with each of its tokens' numbers, from 1.

    `started_ns` is when the first step with it started.
    """

    prompt_tokens: int
    output_tokens: int
    emit: Callable[[int], None]
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    is_aborted: bool = False
    started_ns: int | None = None

    @property
    def is_over(self) -> bool:
        """Whether the engine has finished it."""
        return self.is_aborted or self.num_output_tokens >= self.output_tokens

    @property
    def uncomputed(self) -> int:
        """How many tokens of its prompt are to be prefilled."""
        return self.prompt_tokens - self.num_computed_tokens


@dataclass(frozen=True, slots=True)
class EngineStep:
    """One step of the engine: the jobs in it and what they do."""

    number: int
    started_ns: int
    ends_ns: int
    batch: tuple[Job, ...]
    prefill_tokens: int
    decode_tokens: int
    waiting: int

    def row(self, ended_ns: int) -> dict[str, int]:
        """Return the step as it is recorded: how many were in it, not which."""
        return {
            "step": self.number,
            "started_ns": self.started_ns,
            "ended_ns": ended_ns,
            "batch": len(self.batch),
            "prefill_requests": len(self.batch) - self.decode_tokens,
            "prefill_tokens": self.prefill_tokens,
            "decode_requests": self.decode_tokens,
            "decode_tokens": self.decode_tokens,
            "waiting": self.waiting,
        }


@dataclass(slots=True)
class Scheduler:
    """First come, first served; running requests before waiting ones; prompts in chunks if they must."""

    settings: EngineSettings
    waiting: deque[Job] = field(default_factory=deque[Job])
    running: list[Job] = field(default_factory=list[Job])
    steps: int = 0
    _has_work: asyncio.Event = field(default_factory=asyncio.Event)

    def submit(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        self.waiting.append(job)
        self._has_work.set()

    def next_step(self, now_ns: int) -> EngineStep | None:
        """Return the step that starts now, its prefill already counted; None when there is nothing to do."""
        settings = self.settings
        self.running = [job for job in self.running if not job.is_over]
        self.waiting = deque(job for job in self.waiting if not job.is_over)
        batch = [job for job in self.running if not job.uncomputed]
        decodes = len(batch)
        duration_ms = settings.itl_ms if decodes else 0.0
        budget = before = settings.max_num_batched_tokens - decodes
        unfinished = [job for job in self.running if job.uncomputed]
        for job in [*unfinished, *islice(self.waiting, settings.max_num_seqs - len(self.running))]:
            if not budget:
                break
            if job.started_ns is None:
                job.started_ns = now_ns
                self.running.append(self.waiting.popleft())
            part = min(job.uncomputed, budget)
            job.num_computed_tokens += part
            budget -= part
            batch.append(job)
            duration_ms = max(duration_ms, settings.ttft_ms * part / job.prompt_tokens)
        if not batch:
            return None
        self.steps += 1
        ends_ns, prefilled = now_ns + round(duration_ms * 1e6), before - budget
        return EngineStep(self.steps, now_ns, ends_ns, tuple(batch), prefilled, decodes, len(self.waiting))

    def finish_step(self, step: EngineStep) -> int:
        """Emit one token for each job of the step whose prompt is complete; return how many."""
        emitting = [job for job in step.batch if not (job.uncomputed or job.is_over)]
        for job in emitting:
            job.num_output_tokens += 1
            job.emit(job.num_output_tokens)
        return len(emitting)

    async def run(
        self,
        *,
        now_ns: Callable[[], int],
        sleep_until: Callable[[int], Awaitable[None]],
        on_step: Callable[[EngineStep, int], None],
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        """Run steps without end.

        `on_step` is called with each step that ended and how many tokens it emitted.
        A step that follows another starts when that one was due to end, so lateness does not add up; an
        engine that is late by more than a step starts anew from now.
        """
        starts_ns = now_ns()
        while True:
            step = self.next_step(starts_ns)
            if step is None:
                on_idle()
                self._has_work.clear()
                await self._has_work.wait()
                starts_ns = now_ns()
                continue
            await sleep_until(step.ends_ns)
            on_step(step, self.finish_step(step))
            late = now_ns() - step.ends_ns > step.ends_ns - step.started_ns
            starts_ns = now_ns() if late else step.ends_ns

"""The scheduler batches as it is told, without knowing the time."""

import unittest
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import InputError
from inference_lab.stream_load.reference.scheduler import EngineSettings, EngineStep, Job, Scheduler

MS = 1_000_000


def scheduler(*sizes: tuple[int, int], **limits: Any) -> tuple[Scheduler, list[Job]]:
    """A scheduler with jobs of these (prompt, output) tokens, which go nowhere."""
    made = Scheduler(EngineSettings(**limits))
    jobs = [Job(prompt, output, lambda number: None) for prompt, output in sizes]
    for job in jobs:
        made.submit(job)
    return made, jobs


def run(scheduler: Scheduler, most: int = 1000) -> list[EngineStep]:
    """Its steps until nothing is left to do, at most so many."""
    steps: list[EngineStep] = []
    while len(steps) < most and (step := scheduler.next_step(steps[-1].ends_ns if steps else 0)):
        scheduler.finish_step(step)
        steps.append(step)
    return steps


class TestScheduler(unittest.TestCase):
    """Batches, budgets and durations."""

    def test_one_request(self) -> None:
        """Alone, the first token comes after ttft_ms and each other after itl_ms."""
        engine, _ = scheduler((100, 3), ttft_ms=20, itl_ms=10)
        self.assertEqual([step.ends_ns // MS for step in run(engine)], [20, 30, 40])

    def test_at_most_max_num_seqs(self) -> None:
        """Batches of 2 when 16 wait; the next joins when one is over."""
        engine, _ = scheduler(*[(10, 4)] * 16, max_num_seqs=2)
        steps = run(engine)
        self.assertEqual([len(step.batch) for step in steps], [2] * 8 * 4)
        self.assertEqual(steps[0].waiting, 14)

    def test_a_prompt_over_the_budget_is_prefilled_in_chunks(self) -> None:
        """Decodes go first; the prompt takes what the budget leaves, and its share of ttft_ms."""
        engine, _ = scheduler((100, 9), max_num_seqs=4, max_num_batched_tokens=101, ttft_ms=40, itl_ms=10)
        run(engine, most=1)
        engine.submit(Job(400, 1, lambda number: None))
        steps = run(engine)
        self.assertEqual([step.prefill_tokens for step in steps[:5]], [100, 100, 100, 100, 0])
        self.assertEqual([(s.ends_ns - s.started_ns) // MS for s in steps[:2]], [10, 10])
        self.assertEqual([step.decode_tokens for step in steps[:2]], [1, 1])

    def test_an_aborted_job_leaves(self) -> None:
        """A job that is aborted gets no further token and frees its place."""
        engine, (first, second) = scheduler((1, 1000), (1, 2), max_num_seqs=1)
        step = engine.next_step(0)
        assert step is not None
        first.is_aborted = True
        self.assertEqual(engine.finish_step(step), 0)
        self.assertEqual([len(step.batch) for step in run(engine)], [1, 1])
        self.assertEqual(second.num_output_tokens, 2)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(
        st.integers(1, 5),
        st.integers(5, 40),
        st.lists(st.tuples(st.integers(1, 90), st.integers(1, 6)), min_size=1, max_size=12),
    )
    def test_every_request_gets_its_tokens_within_the_limits(
        self, max_num_seqs: int, budget: int, sizes: list[tuple[int, int]]
    ) -> None:
        """Whatever is asked: no step over a limit, no token lost, no prompt token counted twice."""
        engine, jobs = scheduler(*sizes, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget)
        steps = run(engine)
        self.assertEqual([job.num_output_tokens for job in jobs], [output for _, output in sizes])
        self.assertEqual(sum(step.prefill_tokens for step in steps), sum(p for p, _ in sizes))
        for step in steps:
            self.assertLessEqual(len(step.batch), max_num_seqs)
            self.assertLessEqual(step.prefill_tokens + step.decode_tokens, budget)

    def test_refusals(self) -> None:
        """An engine that could never step is refused."""
        for limits in ({"max_num_seqs": 0}, {"max_num_batched_tokens": 3}, {"itl_ms": 0}):
            with self.subTest(limits), self.assertRaises(InputError):
                scheduler(**limits)

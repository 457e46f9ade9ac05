"""What chunks show against what totals say: the rules that hold for any numbers."""

import unittest

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.stream_load.client.usage import Chunk, Total, correct

_SHOWN = st.tuples(st.integers(0, 4), st.booleans()).map(lambda it: it if it[1] else (max(it[0], 1), False))
_MOST = 50


def corrected(
    shown: list[tuple[int, bool]], totals: dict[int, int], most: int
) -> tuple[dict[int, int], str | None]:
    """The tokens of every chunk that holds some, and why the totals were not believed."""
    chunks = [Chunk(event, *each) for event, each in enumerate(shown)]
    note = correct(chunks, totals, lambda: most)
    return {chunk.event: chunk.tokens for chunk in chunks if chunk.tokens}, note


class TestTokens(unittest.TestCase):
    """How a total is shared among chunks."""

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(
        st.lists(_SHOWN, max_size=8),
        st.dictionaries(st.integers(0, 8), st.integers(0, 80), max_size=8),
    )
    def test_any_chunks_and_totals(self, shown: list[tuple[int, bool]], said: dict[int, int]) -> None:
        """A chunk with text keeps a token; the last total holds exactly, or is doubted in words."""
        events = [(event, tokens, is_empty) for event, (tokens, is_empty) in enumerate(shown)]
        totals = {upto: said[upto] for upto in sorted(said) if upto <= len(events)}
        found, note = corrected(shown, totals, _MOST)
        self.assertTrue(all(tokens > 0 for tokens in found.values()))
        self.assertTrue(all(event in found for event, _, is_empty in events if not is_empty))
        if not totals or not events:
            self.assertEqual((found, note), ({event: tokens for event, tokens, _ in events if tokens}, None))
            return
        known, total = list(totals.items())[-1]
        texts = sum(not is_empty for _, _, is_empty in events[:known])
        self.assertEqual(note is None, texts <= total <= _MOST)
        if note is None and known:
            self.assertEqual(sum(found.get(event, 0) for event in range(known)), total)
        elif note is not None:
            self.assertEqual(found, {event: tokens for event, tokens, _ in events if tokens})

    def test_chunks_that_may_hold_one(self) -> None:
        """What is missing goes to the end, or to the empty ones at the start, where it is just as many."""
        opening, text, end = [(0, True)] * 2, [(1, False)] * 2, [(0, True)]
        for total, tokens in (
            (2, {2: 1, 3: 1}),
            (3, {2: 1, 3: 1, 4: 1}),
            (4, {0: 1, 1: 1, 2: 1, 3: 1}),
            (5, {0: 1, 1: 1, 2: 1, 3: 1, 4: 1}),
            (6, {2: 3, 3: 3}),
        ):
            with self.subTest(total):
                self.assertEqual(corrected([*opening, *text, *end], {5: total}, 99)[0], tokens)

    def test_hidden_tokens(self) -> None:
        """Reasoning is hidden unless it was streamed; what is said in other forms is none."""
        for usage, streamed, expected in (
            ({"completion_tokens": 9}, False, (9, 0)),
            ({"completion_tokens": 9, "reasoning_tokens": 4}, False, (5, 4)),
            ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 4}}, False, (5, 4)),
            ({"completion_tokens": 9, "reasoning_tokens": 4}, True, (9, 0)),
            ({"completion_tokens": 9, "reasoning_tokens": 4, "total_tokens": 13}, False, (9, 4)),
            ({"completion_tokens": 9, "reasoning_tokens": "4"}, False, (9, 0)),
            ({"completion_tokens": 9, "completion_tokens_details": [3]}, False, (9, 0)),
        ):
            with self.subTest(usage):
                total = Total.of(usage)
                assert total
                self.assertEqual(
                    (total.visible(streamed=streamed), total.hidden(streamed=streamed)), expected
                )
        for usage in ({}, {"completion_tokens": True}, {"completion_tokens": -1}, {"completion_tokens": 8.0}):
            self.assertIsNone(Total.of(usage))

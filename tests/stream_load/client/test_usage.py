"""What chunks show against what totals say: the rules that hold for any numbers."""

import unittest

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.stream_load.client.usage import correct, total

_SHOWN = st.tuples(st.integers(0, 4), st.booleans()).map(lambda it: it if it[1] else (max(it[0], 1), False))
_MOST = 50


def corrected(shown: list[tuple[int, bool]], totals: dict[int, int]) -> tuple[list[int], str | None]:
    """The tokens of every chunk, and why the totals were not believed."""
    tokens = [tokens for tokens, _ in shown]
    note = correct(tokens, [is_empty for _, is_empty in shown], totals, lambda: _MOST)
    return tokens, note


class TestTokens(unittest.TestCase):
    """How a total is shared among chunks."""

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(st.lists(_SHOWN, max_size=8), st.dictionaries(st.integers(0, 8), st.integers(0, 80), max_size=8))
    def test_any_chunks_and_totals(self, shown: list[tuple[int, bool]], said: dict[int, int]) -> None:
        """A chunk with text keeps a token; the last total holds exactly, or is doubted in words."""
        totals = {upto: said[upto] for upto in sorted(said) if upto <= len(shown)}
        found, note = corrected(shown, totals)
        before = [tokens for tokens, _ in shown]
        self.assertTrue(
            all(tokens >= (not is_empty) for tokens, (_, is_empty) in zip(found, shown, strict=True))
        )
        if not totals or not shown:
            self.assertEqual((found, note), (before, None))
            return
        known, last = list(totals.items())[-1]
        texts = sum(not is_empty for _, is_empty in shown[:known])
        self.assertEqual(note is None, texts <= last <= _MOST)
        if note is not None:
            self.assertEqual(found, before)
        elif known:
            self.assertEqual(sum(found[:known]), last)

    def test_chunks_that_may_hold_one(self) -> None:
        """What is missing goes to the end, or to the empty ones at the start, where it is just as many."""
        shown = [(0, True), (0, True), (1, False), (1, False), (0, True)]
        for said, tokens in (
            (2, [0, 0, 1, 1, 0]), (3, [0, 0, 1, 1, 1]), (4, [1, 1, 1, 1, 0]),
            (5, [1] * 5), (6, [0, 0, 3, 3, 0]),
        ):  # fmt: skip
            with self.subTest(said):
                self.assertEqual(corrected(shown, {5: said}), (tokens, None))

    def test_hidden_tokens(self) -> None:
        """Reasoning is hidden unless it was streamed; what is said in other forms is none."""
        for more, streamed, expected in (
            ({}, False, (9, None)),
            ({"reasoning_tokens": 4}, False, (5, 4)),
            ({"completion_tokens_details": {"reasoning_tokens": 4}}, False, (5, 4)),
            ({"reasoning_tokens": 4}, True, (9, 0)),
            ({"reasoning_tokens": 4, "total_tokens": 13}, False, (9, 4)),
            ({"reasoning_tokens": "4"}, False, (9, None)),
            ({"completion_tokens_details": [3]}, False, (9, None)),
        ):
            with self.subTest(more):
                self.assertEqual(total({"completion_tokens": 9, **more}, streamed=streamed), expected)
        for none in ({}, {"completion_tokens": True}, {"completion_tokens": -1}, {"completion_tokens": 8.0}):
            self.assertIsNone(total(none, streamed=False))

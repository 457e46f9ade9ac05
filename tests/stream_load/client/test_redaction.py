"""An API key that a server echoes is found however it was cut or spelt."""

import json
import unittest
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from inference_lab.stream_load.client.outcome import redacted, redacting

KEY = "sk-Proj-7hQ/2x+Lm9Vw=Rt4YbN8cKdE3fGhJ5"
redact = redacting(KEY)


class TestRedaction(unittest.TestCase):
    """What is left of a text with a key in it."""

    def test_every_spelling(self) -> None:
        """Whole, in another case, escaped, or masked in the middle: no 8 characters in a row are left."""
        for said, left in (
            (f"bad key {KEY}!", "bad key [key]!"),
            (f"{KEY.upper()}{KEY}", "[key][key]"),
            (f"GET /?key={quote(KEY, safe='')} failed", "GET /?key=[key] failed"),
            (f"{KEY[:12]}****{KEY[-9:]}", "[key]****[key]"),
            (f"İ {KEY}", "İ [key]"),
            ("nothing of it", "nothing of it"),
        ):
            self.assertEqual(redact(said), left)

    @given(st.text(), st.integers(0, len(KEY) - 8), st.integers(8, len(KEY)))
    def test_any_part(self, around: str, start: int, length: int) -> None:
        """Of a part of the key between other texts nothing of 8 characters survives."""
        part = KEY[start : start + length]
        self.assertNotIn(part.lower(), redact(f"{around}{part}{around}").lower())

    def test_values(self) -> None:
        """Texts and names of fields inside a JSON value are redacted, other values are left as they are."""
        value = {"tokens": 3, KEY: [f"x{KEY}", None, {"a": KEY}]}
        left = {"tokens": 3, "[key]": ["x[key]", None, {"a": "[key]"}]}
        self.assertEqual(redacted(value, redact), left)
        self.assertNotIn(KEY[:8], json.dumps(left))

    def test_a_short_key(self) -> None:
        """A key that may be a word of its own is told only as it is; without a key nothing is."""
        self.assertEqual(redacting("EMPTY")("empty body for EMPTY"), "empty body for [key]")
        self.assertEqual(redacting(None)("any"), "any")

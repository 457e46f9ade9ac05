"""What an answer means: tokens, their times, and the status its end amounts to."""

import json
import unittest
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.stream_load.client.stream import Capture
from tests.stream_load.support import record_of

DONE = b"[DONE]"


def chunk(text: str | None = " t", *, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A completion chunk."""
    return {"choices": [{"text": text, "finish_reason": finish} | more]}


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chat chunk."""
    return {"choices": [{"delta": fields, "finish_reason": finish}]}


def usage(tokens: int, chunk: dict[str, Any] | None = None) -> dict[str, Any]:
    """A chunk that says how many tokens there are by now."""
    return {"choices": []} | (chunk or {}) | {"usage": {"prompt_tokens": 3, "completion_tokens": tokens}}


END = chunk(finish="stop")


def capture(*payloads: dict[str, Any] | bytes, ended: str = "complete") -> Capture:
    """A capture whose payload i arrived at 100 * (i + 1), each in a read of its own."""
    made = Capture(sent_ns=10, http_status=200)
    for index, payload in enumerate(payloads):
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        made.add(data, 100 * (index + 1), 5)
    made.end(ended, 100 * (len(payloads) + 1), "connection lost" if ended == "closed" else None)
    return made


_PLAIN = st.none() | st.integers(-2, 3) | st.sampled_from(["", "a"])
_ODD = _PLAIN | st.lists(_PLAIN, max_size=2) | st.dictionaries(st.sampled_from("ab"), _PLAIN, max_size=1)


def odd_object(*keys: str, **strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with any of these keys, whose values may be anything."""
    values = dict.fromkeys(keys, _ODD) | strategies
    return st.fixed_dictionaries({}, optional=values)


_CHOICE = odd_object("text", "finish_reason", "token_ids", delta=_ODD | odd_object("role", "content"))
_USAGE = odd_object("completion_tokens", "prompt_tokens")
_ANYTHING = _ODD | odd_object("error", choices=_ODD | st.lists(_CHOICE | _ODD), usage=_ODD | _USAGE)


class TestTokens(unittest.TestCase):
    """Which chunks are tokens, how many, and when."""

    def test_chunks(self) -> None:
        """The chunks of a stream hold these tokens, arrived at these times, 100 apart."""
        calls = [delta(reasoning_content="a"), delta(reasoning="b"), delta("stop", tool_calls=[{}])]
        role = delta(role="assistant", content="")
        growing = [usage(3, chunk()), usage(3, chunk("")), usage(4, chunk(finish="stop")), usage(4)]
        for name, payloads, chunk_tokens, times in (
            ("empty text", [chunk(""), chunk(" "), END], (1, 1, 1), [100, 200, 300]),
            ("role", [role, delta(content="a"), delta(content=""), delta("stop")], (1, 1), [200, 300]),
            ("role and text", [delta("stop", role="assistant", content="a")], (1,), [100]),
            ("reasoning and tool calls", calls, (1, 1, 1), [100, 200, 300]),
            ("ids", [chunk(token_ids=[1, 2]), chunk("", finish="stop", token_ids=[])], (2,), [100, 100]),
            ("a total in every chunk", growing, (3, 1), [100, 100, 100, 300]),
            ("spread over them", [chunk(), chunk(), END, usage(5)], (2, 2, 1), [100, 100, 200, 200, 300]),
            ("a bare end", [chunk(""), chunk(), chunk("", finish="stop"), usage(2)], (1, 1), [100, 200]),
        ):
            with self.subTest(name):
                record = record_of(capture(*payloads))
                self.assertEqual((record.status, record.chunk_tokens), ("ok", chunk_tokens))
                self.assertEqual([record.first_token_ns, *record.token_times_ns], times)

    def test_disagreement_is_recorded(self) -> None:
        """What the chunks showed stays beside what the server said; a total alone has no time of a token."""
        record = record_of(capture(chunk(), END, usage(5)))
        self.assertEqual((record.counted_tokens, record.output_tokens), (2, 5))
        self.assertEqual((record.usage or {})["completion_tokens"], 5)
        self.assertEqual(record.prompt_tokens, 3)
        record = record_of(capture(usage(5), DONE))
        self.assertEqual((record.output_tokens, record.first_token_ns), (0, None))

    def test_a_time_never_comes_before_the_one_before(self) -> None:
        """A kernel stamp that follows a later user stamp is moved up to it."""
        made = Capture(sent_ns=10, http_status=200)
        for at_ns, lag_ns in ((500, None), (400, 7)):
            made.add(json.dumps(END).encode(), at_ns, lag_ns)
        made.end("complete", 600)
        record = record_of(made)
        self.assertEqual((record.first_token_ns, record.token_times_ns), (500, (500,)))
        self.assertEqual((record.user_stamped_chunks, record.max_read_lag_ns), ((0,), 7))


class TestStatus(unittest.TestCase):
    """How the end of a capture is named."""

    def test_ends(self) -> None:
        """A finish_reason alone makes an answer whole; what came before another end is kept."""
        bad = (b"\xff", b"[1]", {"error": {"message": "m"}}, {"object": "error", "message": "m"}, b'{"a": [')
        for payloads, ended, expected in (
            *(((chunk(), END), ended, ("ok", 2)) for ended in ("complete", "closed", "timeout", "cancelled")),
            *(((chunk(),), ended, ("truncated", 1)) for ended in ("complete", "closed")),
            *(((chunk(),), ended, (ended, 1)) for ended in ("timeout", "cancelled")),
            ((chunk(), DONE), "complete", ("truncated", 1)),
            ((), "complete", ("truncated", 0)),
            *(((chunk(), odd, END, DONE), "complete", ("stream_error", 2)) for odd in bad),
            ((chunk(), {"error": "m"}, END), "complete", ("stream_error", 2)),
            ((chunk(finish="abort"),), "complete", ("stream_error", 1)),
        ):
            with self.subTest(payloads, ended=ended):
                record = record_of(capture(*payloads, ended=ended))
                self.assertEqual((record.status, record.output_tokens), expected)

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.lists(_ANYTHING, max_size=4))
    def test_whatever_a_server_sends_has_a_record(self, said: list[Any]) -> None:
        """No JSON value, however far from a chunk, keeps a request from being recorded."""
        record = record_of(capture(*(json.dumps(value).encode() for value in said)))
        self.assertIn(record.status, ("ok", "truncated", "stream_error"))

    def test_only_the_first_end_counts(self) -> None:
        """What happens to a connection after its capture ended changes nothing."""
        made = capture(chunk(), ended="timeout")
        made.end("closed", 999)
        self.assertEqual((record_of(made).status, made.end_ns), ("timeout", 200))

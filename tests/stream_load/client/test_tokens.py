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

    def check(self, payloads: list[Any], chunk_tokens: tuple[int, ...], times: list[int]) -> None:
        """The chunks of a stream hold these tokens, arrived at these times."""
        record = record_of(capture(*payloads))
        self.assertEqual(record.chunk_tokens, chunk_tokens)
        self.assertEqual([record.first_token_ns, *record.token_times_ns], times)
        self.assertEqual(record.status, "ok")

    def test_empty_text_is_a_token(self) -> None:
        """A chunk counts whatever its text is."""
        self.check([chunk(""), chunk(" "), END], (1, 1, 1), [100, 200, 300])

    def test_role_only_first_chunk_is_none(self) -> None:
        """A role alone has no time; an empty text later is a token, a delta without content none."""
        first = delta(role="assistant", content="")
        payloads = [first, delta(content="a"), delta(content=""), delta(finish="stop")]
        self.check(payloads, (1, 1), [200, 300])

    def test_a_first_chunk_with_role_and_text_is_a_token(self) -> None:
        """Some servers send the first token together with the role."""
        self.check([delta(role="assistant", content="a", finish="stop")], (1,), [100])

    def test_reasoning_and_tool_calls_are_tokens(self) -> None:
        """Text that is not the answer is generated, too."""
        payloads = [delta(reasoning_content="a"), delta(reasoning="b"), delta("stop", tool_calls=[{}])]
        self.check(payloads, (1, 1, 1), [100, 200, 300])

    def test_token_ids_count(self) -> None:
        """Where a chunk lists its ids, they say how many tokens it has."""
        payloads = [chunk(token_ids=[1, 2]), chunk("", finish="stop", token_ids=[])]
        self.check(payloads, (2,), [100, 100])

    def test_usage_in_every_chunk_counts(self) -> None:
        """Each chunk has as many tokens as the total grew by; one by which it did not grow has none."""
        payloads = [usage(3, chunk()), usage(3, chunk("")), usage(4, chunk(finish="stop")), usage(4)]
        self.check(payloads, (3, 1), [100, 100, 100, 300])

    def test_usage_at_the_end_wins(self) -> None:
        """Tokens that the chunks do not show are spread over them, the earliest first."""
        self.check([chunk(), chunk(), END, usage(5)], (2, 2, 1), [100, 100, 200, 200, 300])

    def test_a_bare_finish_is_no_token_when_usage_says_so(self) -> None:
        """What usage does not count is taken from empty chunks first, from the end."""
        self.check([chunk(""), chunk(), chunk("", finish="stop"), usage(2)], (1, 1), [100, 200])

    def test_disagreement_is_recorded(self) -> None:
        """What the chunks showed stays beside what the server said."""
        record = record_of(capture(chunk(), END, usage(5)))
        self.assertEqual((record.counted_tokens, record.output_tokens), (2, 5))
        self.assertEqual((record.usage or {})["completion_tokens"], 5)
        self.assertEqual(record.prompt_tokens, 3)

    def test_usage_without_a_chunk_gives_no_token(self) -> None:
        """A total alone has no time at which a token came."""
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

    def status(self, *payloads: Any, ended: str = "complete") -> tuple[str, int]:
        """(status, tokens) of a capture."""
        record = record_of(capture(*payloads, ended=ended))
        return record.status, record.output_tokens

    def test_a_finish_reason_completes(self) -> None:
        """With a finish_reason the answer is whole, whatever became of the connection."""
        for ended in ("complete", "closed", "timeout", "cancelled"):
            with self.subTest(ended):
                self.assertEqual(self.status(chunk(), END, ended=ended), ("ok", 2))

    def test_without_one_nothing_does(self) -> None:
        """Neither a clean end nor [DONE] makes a stream whole."""
        self.assertEqual(self.status(chunk()), ("truncated", 1))
        self.assertEqual(self.status(chunk(), DONE), ("truncated", 1))
        self.assertEqual(self.status(chunk(), ended="closed"), ("truncated", 1))
        self.assertEqual(self.status(chunk(), ended="timeout"), ("timeout", 1))
        self.assertEqual(self.status(chunk(), ended="cancelled"), ("cancelled", 1))
        self.assertEqual(self.status(), ("truncated", 0))

    def test_errors_inside_a_stream(self) -> None:
        """An error object, a payload that is not JSON, an abort: kept tokens, no success."""
        error = {"error": {"message": "out of memory"}}
        old_style = {"object": "error", "message": "out of memory"}
        for bad in (error, old_style, {"error": "out of memory"}, b'{"choices": [', b"\xff", b"[1]"):
            with self.subTest(bad):
                self.assertEqual(self.status(chunk(), bad, END, DONE), ("stream_error", 2))
        self.assertEqual(self.status(chunk(finish="abort")), ("stream_error", 1))

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

    def test_long_errors_become_one_short_line(self) -> None:
        """An HTML page of an error is cut and has no line end."""
        made = Capture(sent_ns=1, http_status=502, body_start=b"<html>\n" + b"x" * 5000)
        made.end("complete", 2)
        error = record_of(made).error or ""
        self.assertTrue(error.startswith("HTTP 502: <html> xxx"))
        self.assertLessEqual(len(error), 300)

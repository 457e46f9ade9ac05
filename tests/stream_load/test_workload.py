"""Request i of a workload is always the same, of the length that was asked."""

import json
import tempfile
import unittest
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.errors import InputError
from inference_lab.stream_load.workload import Length, Workload

NINE = Length(9, 9)


def body(workload: Workload, index: int = 0) -> dict[str, Any]:
    """The body of one request."""
    return json.loads(workload.body(index))


class TestWorkload(unittest.TestCase):
    """Bodies, lengths, prefixes, files."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "prompts.jsonl"

    def workload(self, text: str, **more: Any) -> Workload:
        """A workload whose file of prompts has this text."""
        self.path.write_text(text, encoding="utf-8")
        return Workload("m", prompts_file=self.path, **more)

    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(st.integers(0, 10_000), st.integers(1, 40), st.integers(0, 40))
    def test_lengths(self, index: int, low: int, more: int) -> None:
        """Token-id prompts and outputs have lengths within the bounds; the same index, the same body."""
        length = Length(low, low + more)
        workload = Workload("m", prompt="ids", input_tokens=length, output_tokens=length)
        asked = body(workload, index)
        self.assertTrue(low <= len(asked["prompt"]) <= low + more)
        self.assertTrue(low <= asked["max_tokens"] <= low + more)
        self.assertTrue(all(3 <= token < 512 for token in asked["prompt"]))
        self.assertEqual(workload.body(index), workload.body(index))

    def test_every_length_is_drawn(self) -> None:
        """Both bounds of a uniform length occur; none beyond memory, and nothing else, is a length."""
        for text in ("0", "9:3", "99999999999999", "x", "1:2:3", ""):
            with self.subTest(text), self.assertRaisesRegex(InputError, "LOW"):
                Length.parse(text)
        self.assertEqual(Length.parse("3:5"), Length(3, 5))
        workload = Workload("m", prompt="ids", input_tokens=Length(2, 5))
        self.assertEqual({len(body(workload, index)["prompt"]) for index in range(100)}, {2, 3, 4, 5})

    def test_shared_prefixes(self) -> None:
        """Requests of one group share exactly the prefix, those of two groups do not."""
        workload = Workload("m", prompt="ids", input_tokens=Length(40, 40), prefix_groups=2, prefix_tokens=30)
        first, other, same = (body(workload, index)["prompt"] for index in (0, 1, 2))
        self.assertEqual(first[:30], same[:30])
        self.assertNotEqual(first[30:], same[30:])
        self.assertNotEqual(first[:30], other[:30])
        self.assertEqual(len(first), 40)

    def test_text_and_chat(self) -> None:
        """Text has as many words as tokens were asked for, in a prompt or a message; what is added wins."""
        self.assertEqual(len(body(Workload("m", input_tokens=NINE))["prompt"].split()), 9)
        chat = body(Workload("m", endpoint="chat", input_tokens=NINE))
        self.assertEqual(len(chat["messages"][0]["content"].split()), 9)
        self.assertNotIn("prompt", chat)
        asked = body(Workload("m", extra_body={"max_tokens": 3, "temperature": 0}, ignore_eos=True))
        self.assertEqual((asked["max_tokens"], asked["temperature"]), (3, 0))
        self.assertTrue(asked["ignore_eos"] and asked["stream"])

    def test_a_file_of_prompts(self) -> None:
        """Lines are asked in turn, with their own max_tokens."""
        workload = self.workload('{"prompt": "a\\u2028b", "max_tokens": 5}\n\n{"prompt": [1, 2]}\n')
        self.assertEqual(body(workload, 2), body(workload, 0))
        self.assertEqual((body(workload)["prompt"], body(workload)["max_tokens"]), ("a\u2028b", 5))
        self.assertEqual((body(workload, 1)["prompt"], body(workload, 1)["max_tokens"]), ([1, 2], 64))

    def test_what_a_line_says_of_its_request(self) -> None:
        """Known keys go into that request's body alone; its length replaces the drawn one."""
        tools = [{"type": "function", "function": {"name": "look"}}]
        said = [{"role": "user", "content": "a"}]
        lines = [
            {"messages": said, "output_tokens": 7, "tools": tools},
            {"messages": said, "max_completion_tokens": 5, "temperature": 0.5},
            {"messages": said},
        ]
        text = "\ufeff" + "\n".join(map(json.dumps, lines))
        workload = self.workload(text, endpoint="chat")
        sent = {"model": "m", "messages": said, "stream": True, "stream_options": {"include_usage": True}}
        for index, more in enumerate(
            (
                {"max_tokens": 7, "tools": tools},
                {"max_completion_tokens": 5, "temperature": 0.5},
                {"max_tokens": 64},
            )
        ):
            self.assertEqual(body(workload, index), sent | more)
        own = self.workload(text, endpoint="chat", extra_body={"max_tokens": 2})
        self.assertEqual(body(own)["max_tokens"], 2)

    def test_lines_that_are_refused(self) -> None:
        """What would be dropped, asked twice, or could not be sent is refused with its line and the rule."""
        for line, says in (
            ('{"prompt": "a", "outputs": 5}', "unknown key 'outputs'; known are prompt, output_tokens, max_"),
            ('{"prompt": "a", "messages": []}', "unknown key 'messages'"),
            ('{"prompt": "a", "n": 2}', "unknown key 'n'"),
            ('{"prompt": "a", "output_tokens": 5, "max_tokens": 5}', "are the same"),
            ('{"prompt": "a", "output_tokens": 0}', "max_tokens is 0, must be a whole number"),
            ('{"prompt": "a", "max_tokens": "5"}', "max_tokens is '5'"),
            ('{"prompt": "a", "temperature": NaN}', "cannot be sent as JSON"),
            ('{"prompt": "a", "temperature": 1e999}', "cannot be sent as JSON"),
            ('{"prompt": ["one", "two"]}', "prompt must be one text or one list of token ids"),
            ('{"prompt": [[1, 2]]}', "prompt must be one text"),
            ('{"prompt": [1, -2]}', "prompt must be one text"),
            ('{"prompt": 42}', "prompt must be one text"),
            ('{"prompt": null}', "must be an object with 'prompt'"),
            ('{"prompt": ""}', "prompt must be one text"),
            ("42", "must be an object with 'prompt'"),
            ('["one", "two"]', "must be an object with 'prompt'"),
            ("NaN", "must be an object with 'prompt'"),
            ("[" * 100_000, "not JSON"),
        ):
            with self.subTest(line[:60]), self.assertRaises(InputError) as refused:
                self.workload(f'{{"prompt": "good"}}\n{line}\n').body(0)
            self.assertIn(f"{self.path} line 2: ", str(refused.exception))
            self.assertIn(says, str(refused.exception))
        with self.assertRaisesRegex(InputError, "line 1: must be an object with 'messages'"):
            self.workload('{"prompt": "good"}', endpoint="chat").body(0)
        with self.assertRaisesRegex(InputError, "holds no prompt"):
            self.workload("").body(0)
        with self.assertRaisesRegex(InputError, "cannot be read"):
            Workload("m", prompts_file=self.path.with_name("none")).body(0)

    def test_refusals(self) -> None:
        """Contradictions are refused before anything is sent."""
        wrong: tuple[dict[str, Any], ...] = (
            {"prompt": "ids", "endpoint": "chat"},
            {"prefix_groups": 2},
            {"prefix_groups": 2, "prefix_tokens": 64},
            {"extra_body": {"n": 2}},
            {"extra_body": {"stream": False}},
            {"vocab_size": 2},
            {"extra_body": {"prompt": ["one", "two"]}},
            {"extra_body": {"messages": "hi"}},
            {"extra_body": {"max_tokens": 0}},
            {"extra_body": {"temperature": float("nan")}},
        )
        for values in wrong:
            with self.subTest(values), self.assertRaises(InputError):
                Workload("m", **values)

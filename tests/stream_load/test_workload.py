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


def body(workload: Workload, index: int = 0) -> dict[str, Any]:
    """The body of one request."""
    return json.loads(workload.body(index))


class TestWorkload(unittest.TestCase):
    """Bodies, lengths, prefixes, files."""

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
        """Both bounds of a uniform length occur; none beyond memory."""
        for text in ("0", "9:3", "99999999999999"):
            with self.assertRaisesRegex(InputError, "1 <= LOW <= HIGH"):
                Length.parse(text)
        workload = Workload("m", prompt="ids", input_tokens=Length(2, 5))
        lengths = {len(body(workload, index)["prompt"]) for index in range(100)}
        self.assertEqual(lengths, {2, 3, 4, 5})

    def test_shared_prefixes(self) -> None:
        """Requests of one group share exactly the prefix, those of two groups do not."""
        workload = Workload("m", prompt="ids", input_tokens=Length(40, 40), prefix_groups=2, prefix_tokens=30)
        first, other, same = (body(workload, index)["prompt"] for index in (0, 1, 2))
        self.assertEqual(first[:30], same[:30])
        self.assertNotEqual(first[30:], same[30:])
        self.assertNotEqual(first[:30], other[:30])
        self.assertEqual(len(first), 40)

    def test_text_and_chat(self) -> None:
        """Text has as many words as tokens were asked for, in a prompt or in a message."""
        text = body(Workload("m", input_tokens=Length(9, 9)))
        self.assertEqual(len(text["prompt"].split()), 9)
        chat = body(Workload("m", endpoint="chat", input_tokens=Length(9, 9)))
        self.assertEqual(len(chat["messages"][0]["content"].split()), 9)
        self.assertNotIn("prompt", chat)

    def test_extra_body_wins(self) -> None:
        """What is added replaces what stood there."""
        asked = body(Workload("m", extra_body={"max_tokens": 3, "temperature": 0}, ignore_eos=True))
        self.assertEqual((asked["max_tokens"], asked["temperature"]), (3, 0))
        self.assertTrue(asked["ignore_eos"] and asked["stream"])

    def test_a_file_of_prompts(self) -> None:
        """Lines are asked in turn, with their own max_tokens; a bad line is named."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prompts.jsonl"
            path.write_text('{"prompt": "a\\u2028b", "max_tokens": 5}\n\n{"prompt": [1, 2]}\n')
            workload = Workload("m", prompts_file=path)
            self.assertEqual(body(workload, 2), body(workload, 0))
            self.assertEqual((body(workload)["prompt"], body(workload)["max_tokens"]), ("a\u2028b", 5))
            self.assertEqual((body(workload, 1)["prompt"], body(workload, 1)["max_tokens"]), ([1, 2], 64))
            with self.assertRaisesRegex(InputError, "line 1: must be an object with 'messages'"):
                Workload("m", endpoint="chat", prompts_file=path).body(0)
            for text, says in (("", "holds no prompt"), ("\n{", "line 2: not JSON")):
                path.write_text(text)
                with self.assertRaisesRegex(InputError, says):
                    Workload("m", prompts_file=path).body(0)
            with self.assertRaisesRegex(InputError, "cannot be read"):
                Workload("m", prompts_file=path.with_name("none")).body(0)

    def test_what_a_line_says_of_its_request(self) -> None:
        """Known keys go into that request's body alone; its length replaces the drawn one."""
        tools = [{"type": "function", "function": {"name": "look"}}]
        lines = [
            {"messages": [{"role": "user", "content": "a"}], "output_tokens": 7, "tools": tools},
            {"messages": [{"role": "user", "content": "b"}], "max_completion_tokens": 5, "temperature": 0.5},
            {"messages": [{"role": "user", "content": "c"}]},
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prompts.jsonl"
            path.write_text("\ufeff" + "\n".join(map(json.dumps, lines)), encoding="utf-8")
            workload = Workload("m", endpoint="chat", prompts_file=path)
            first, second, third = (body(workload, index) for index in range(3))
            own = body(Workload("m", endpoint="chat", prompts_file=path, extra_body={"max_tokens": 2}))
        self.assertEqual((first["max_tokens"], first["tools"]), (7, tools))
        self.assertEqual((second["max_completion_tokens"], second["temperature"]), (5, 0.5))
        self.assertNotIn("max_tokens", second)
        self.assertEqual((third["max_tokens"], "tools" in third), (64, False))
        self.assertNotIn("output_tokens", first)
        self.assertEqual(own["max_tokens"], 2)

    def test_lines_that_are_refused(self) -> None:
        """What would be dropped, asked twice, or could not be sent is refused with its line and the rule."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "prompts.jsonl"
            for line, says in (
                (
                    '{"prompt": "a", "outputs": 5}',
                    "unknown key 'outputs'; known are prompt, output_tokens, max_",
                ),
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
                path.write_text(f'{{"prompt": "good"}}\n{line}\n')
                with self.subTest(line[:60]), self.assertRaises(InputError) as refused:
                    Workload("m", prompts_file=path).body(0)
                self.assertIn(f"{path} line 2: ", str(refused.exception))
                self.assertIn(says, str(refused.exception))
                self.assertNotIn("\n", str(refused.exception))
            for line in (
                '{"messages": "hi"}',
                '{"messages": []}',
                '{"messages": ["hi"]}',
                '{"messages": [{}]}',
            ):
                path.write_text(line)
                with (
                    self.subTest(line),
                    self.assertRaisesRegex(InputError, "line 1: messages must be a list"),
                ):
                    Workload("m", endpoint="chat", prompts_file=path).body(0)

    def test_refusals(self) -> None:
        """Contradictions are refused before anything is sent."""
        wrong: tuple[dict[str, Any], ...] = (
            {"endpoint": "embeddings"},
            {"prompt": "ids", "endpoint": "chat"},
            {"prompt": "words"},
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
        for text in ("0", "x", "5:4", "1:2:3", ""):
            with self.subTest(text), self.assertRaises(InputError):
                Length.parse(text)
        self.assertEqual(Length.parse("3:5"), Length(3, 5))

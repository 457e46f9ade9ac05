"""The fast path of a response counts what the parser, the scanner and JSON would have counted."""

import asyncio
import json
import random
import unittest
from typing import Any
from unittest import mock

from inference_lab.stream_load.client.stream import Capture, Response, Timeouts
from inference_lab.stream_load.client.tokens import TokenCounter

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value: Any, *, is_ascii: bool = True) -> bytes:
    """One chunk of HTTP that is one event of JSON."""
    return chunk(b"data: %s\n\n" % json.dumps(value, ensure_ascii=is_ascii).encode())


def completion(text: Any, **more: Any) -> dict[str, Any]:
    """A completion chunk."""
    return {"choices": [{"text": text, "finish_reason": None} | more]}


_SHAPES = (
    lambda text: completion(text),
    lambda text: completion(text, token_ids=[1, 2]),
    lambda text: completion("x", delta={"content": text}),
    lambda text: completion(text, index=1),
    lambda text: completion(text, finish_reason="stop"),
    lambda text: completion(text) | {"usage": {"completion_tokens": 3}},
    lambda text: {"choices": [{"delta": {"content": text}}]},
    lambda text: {"choices": [{"delta": {"role": "assistant", "content": text}}]},
    lambda text: {"choices": [{"delta": {"thinking": "t", "content": text}}]},
    lambda text: completion("x") | {"text": text},
    lambda text: {"error": {"message": "m", "text": text}},
    lambda text: [text],
)
_TEXTS = (" t", "xx", "", "é", "漢🙂", 'a"', "\\", "\n", '"content":"y"', "\x7f", "\ud800")
_USUAL = event(completion(" t"))
_ODD_TEXTS = (
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf0\x80\x80\x80",
    b'"',
    b"\\",
    b"\\x",
    b"\n",
    b"\x01",
    b"\r",
)
_PARTS = [
    *(event(shape(text)) for shape in _SHAPES for text in ("x", "")),
    *(event(completion(text), is_ascii=is_ascii) for text in _TEXTS[:-1] for is_ascii in (True, False)),
    event(completion(_TEXTS[-1])),
    *(chunk(_USUAL[:-2].partition(b"\r\n")[2].replace(b" t", text)) for text in _ODD_TEXTS),
    chunk(b'data: {"choices": [{"text": ", "finish_reason": null}]}\n\n'),
    _USUAL.replace(b" null", b'"yyy"'),
    *(_USUAL.replace(b"3c", size) for size in (b"3d", b"3b", b"03c", b"3C", b"3c;a")),
    *(chunk(part) for part in (b"data: [DONE]\n\n", b"data: a\n", b"\n", b": c\n\n", b"data: a\r\n\r\n")),
    *(chunk(part) for part in (b"data:", b" b\n\n", b"data: {}\r\n\n")),
    *(
        b"a\r\ndata: ab",
        b"\n\n\r\n",
        b"5\r\n",
        b"B\r\ndata: {}\n\n\r\n",
        b"\r\n",
        b"0\r\n\r\n",
        b"0\r\n",
        b"5",
    ),
]


async def outcome(*reads: bytes) -> dict[str, Any]:
    """Everything that a response knows after these reads."""
    capture = Capture(sent_ns=1)
    response = Response(capture, 4096)
    for number, data in enumerate((_HEAD, *reads)):
        response.receive(data, 10 * number, number)
    response.expire(10**12, Timeouts())
    values = {name: getattr(capture, name) for name in Capture.__slots__}
    values |= {"counter": vars(capture.counter), "settled": capture.counter.settle(lambda size: size)}
    return values | {"reusable": response.reusable, "finished": response.finished.done()}


class TestFastPath(unittest.IsolatedAsyncioTestCase):
    """Reads that are counted without being parsed."""

    async def asyncSetUp(self) -> None:
        """No warnings of a loop whose turns are long here."""
        asyncio.get_running_loop().set_debug(False)

    async def check(self, *reads: bytes) -> None:
        """The fast path changes nothing."""
        fast = await outcome(*reads)
        with mock.patch.object(Response, "_known", return_value=None):
            slow = await outcome(*reads)
        if fast != slow:
            self.assertEqual(fast, slow, reads)

    async def test_changes_nothing(self) -> None:
        """After usual reads, any part as a read of its own or behind another one, then usual reads again."""
        for part in _PARTS:
            await self.check(_USUAL, _USUAL, part, _USUAL, _USUAL)
            await self.check(_USUAL, _USUAL, _USUAL + part, _USUAL, _USUAL)
            await self.check(part, part, part, _USUAL, part)
        lines = b'{"choices": [{"text": " t",\n%s"finish_reason": null}]}\n\n'
        several, torn = (chunk(b"data: " + lines % field) for field in (b"data: ", b""))
        await self.check(_USUAL, several, torn)
        one, two = ([event(shape(text)) for text in ("", "a", "")] for shape in _SHAPES[:2])
        await self.check(_USUAL, *one, two[1], two[0])

    async def test_changes_nothing_wherever_reads_are_cut(self) -> None:
        """Any three parts as two reads."""
        generator = random.Random(5)
        for _ in range(400):
            data = b"".join(generator.choices([_USUAL, *_PARTS], [20, *[1] * len(_PARTS)], k=3))
            cut = generator.randrange(len(data))
            reads = [part for part in (data[:cut], data[cut:]) if part]
            await self.check(_USUAL, _USUAL, *reads, _USUAL, _USUAL)

    async def test_is_taken(self) -> None:
        """The first chunk depends on what came before; after the second only odd ones are parsed."""
        texts = [" t", " a", "b", "", "c", "line\n", 0, "漢", "", " e"]
        slow = [0, 1, 3, 6]
        add = TokenCounter.add
        with mock.patch.object(TokenCounter, "add", autospec=True, side_effect=add) as parsed:
            made = await outcome(*(event(completion(text)) for text in texts))
        self.assertEqual((made["counter"]["_events"], made["settled"][1]), (len(texts), len(texts)))
        payloads = [json.loads(call.args[1])["choices"][0]["text"] for call in parsed.call_args_list]
        self.assertEqual(payloads, [texts[index] for index in slow])

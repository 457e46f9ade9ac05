"""Reads of one whole event take a short way, which must change nothing."""

import asyncio
import unittest
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_lab.stream_load.client import stream
from inference_lab.stream_load.client.stream import Capture

_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP."""
    return b"%x\r\n%s\r\n" % (len(data), data)


_WHOLE = [chunk(b"data: %s\n\n" % payload) for payload in (b"{}", b'{"text": " t"}', b"[DONE]", b"x\r")]
_PARTS = [
    *_WHOLE,
    *(chunk(part) for part in (b"data: a\n", b"\n", b": c\n\n", b"data: a\r\n\r\n", b"data:", b" b\n\n")),
    *(b"a\r\ndata: ab", b"\n\n\r\n", b"5\r\n", b"B\r\ndata: {}\n\n\r\n", b"\r\n", b"0\r\n\r\n", b"0\r\n"),
]


def outcome(reads: list[bytes]) -> dict[str, Any]:
    """Everything that a response knows after these reads, the first of which begins with the head."""

    async def run() -> dict[str, Any]:
        capture = Capture(sent_ns=1)
        taken = stream.Response(capture, 4096)
        for number, data in enumerate(reads):
            taken.receive(data, 10 * number, number)
        taken.expire(10**12, stream.Timeouts())
        values = {name: getattr(capture, name) for name in Capture.__slots__}
        return values | {"reusable": taken.reusable, "finished": taken.finished.done()}

    return asyncio.run(run())


class TestResponse(unittest.TestCase):
    """The short way beside the parser."""

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(
        st.lists(st.sampled_from(_WHOLE), max_size=2),
        st.lists(st.lists(st.sampled_from(_PARTS), min_size=1, max_size=2).map(b"".join), max_size=6),
        st.integers(0, 60),
    )
    def test_same_as_parser_and_scanner(self, first: list[bytes], more: list[bytes], cut: int) -> None:
        """Whatever is read, whole events, parts or nonsense, the capture is what the parser makes of it."""
        reads = [_HEAD, *first, *more]
        data = reads.pop()
        reads += [part for part in (data[:cut], data[cut:]) if part]
        short = outcome(reads)
        with mock.patch.object(stream, "_whole_event", return_value=None):
            self.assertEqual(short, outcome(reads))

    def test_the_short_way_is_taken(self) -> None:
        """After the first event, a read of one whole event reaches neither parser nor scanner."""
        whole = stream.Response.on_body
        with mock.patch.object(stream.Response, "on_body", autospec=True, side_effect=whole) as on_body:
            made = outcome([_HEAD, *_WHOLE[:1] * 5])
        self.assertEqual((len(made["payloads"]), on_body.call_count), (5, 1))

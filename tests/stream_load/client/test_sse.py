"""The event scanner finds the same payloads however a stream is cut."""

import re
import unittest
from collections.abc import Iterable
from itertools import pairwise
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from sseclient import SSEClient

from inference_lab.stream_load.client import sse
from inference_lab.stream_load.client.sse import EventScanner

_PAYLOADS = ['{"text":"é漢🙂"}', '{"text":" "}', "[DONE]"]


def scan(pieces: Iterable[bytes]) -> list[bytes]:
    """The payloads of a stream fed in these pieces."""
    scanner = EventScanner()
    for piece in pieces:
        scanner.feed(piece)
    return scanner.payloads


def stream(end: str, space: str = " ") -> bytes:
    """A stream with everything a server may put between its payloads."""
    first, second, last = _PAYLOADS
    lines = [": ping", "", f"data:{space}{first}", "", ": ping", "event: m", "id: 7"]
    lines += [f"data:{space}{second}", "retry: 10", "", "database: no", "", f"data:{space}{last}", "", ""]
    return end.join(lines).encode()


def peer(data: bytes) -> list[str]:
    """The payloads that a kept SSE library finds."""
    return [event.data for event in SSEClient(iter([data])).events()]


class TestEventScanner(unittest.TestCase):
    """Cuts, line ends and fields change nothing."""

    def test_cut_at_every_offset(self) -> None:
        """One cut at any byte, in a field name, a character or a line end, leaves the payloads alone."""
        wanted = [text.encode() for text in _PAYLOADS]
        for end in ("\n", "\r\n", "\r"):
            for space in (" ", ""):
                data = stream(end, space)
                for cut in range(len(data) + 1):
                    self.assertEqual(scan([data[:cut], data[cut:]]), wanted, (end, space, cut))
                self.assertEqual(scan(bytes([byte]) for byte in data), wanted, (end, space))
                self.assertEqual(peer(data), _PAYLOADS)

    @settings(max_examples=150, deadline=None, derandomize=True)
    @given(
        st.lists(st.sampled_from(["\n", "\r", "\r\n", ":", " ", "data", "data:", "x", "é", "\ufeff"])),
        st.lists(st.integers(0, 60)),
    )
    def test_any_text_cut_anywhere(self, parts: list[str], cuts: list[int]) -> None:
        """Any text, however malformed, gives the same payloads whole and in pieces."""
        data = "".join(parts).encode()
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        pieces = [data[start:stop] for start, stop in pairwise(edges)]
        self.assertEqual(scan(pieces), scan([data]))

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1)),
        st.sampled_from(["\n", "\r\n", "\r"]),
        st.sampled_from(["", " "]),
    )
    def test_same_as_a_kept_library(self, texts: list[str], end: str, space: str) -> None:
        """On well-formed streams the payloads are those of sseclient-py."""
        texts = [text.lstrip() or "x" for text in texts]
        data = "".join(f": c{end}event: m{end}data:{space}{text}{end}{end}" for text in texts).encode()
        self.assertEqual([payload.decode() for payload in scan([data])], peer(data))

    def test_what_is_one_payload(self) -> None:
        """Several data lines are one, a byte order mark is no name, an event ends with its blank line."""
        for data, payloads in (
            (b"data: a\ndata:b\n\n", [b"a\nb"]),
            (b"data: a\n\ndata: b\n", [b"a"]),
            (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        ):
            self.assertEqual(scan([data]), payloads)

    def test_a_long_event_is_looked_at_once(self) -> None:
        """An event of 2 MB that comes in pieces costs its length, not its length times the pieces."""
        looked_at: list[int] = []

        def split(data: bytes) -> list[bytes]:
            looked_at.append(len(data))
            return re.split(rb"\r\n|\r|\n", data)

        pieces = [b"data: ", *[b"x" * 1000] * 2000, b"\n\n"]
        with mock.patch.object(sse, "_LINE_END", mock.Mock(split=split)):
            self.assertEqual(scan(pieces), [b"x" * 2_000_000])
        self.assertEqual(sum(looked_at), sum(map(len, pieces)))

    def test_errors_stand_apart(self) -> None:
        """An event named error and a field error are no payloads, however they are cut."""
        data = b"event: error\ndata: a\n\nerror: b\n\ndata: c\n\nevent: error\n\ndata: d\n\n"
        for cut in range(len(data)):
            scanner = EventScanner()
            scanner.feed(data[:cut])
            scanner.feed(data[cut:])
            self.assertEqual((scanner.errors, scanner.payloads), ([b"a", b"b"], [b"c", b"d"]))

    def test_what_is_left(self) -> None:
        """The words that are in no event are kept: an unfinished one before a line of no known field."""
        for data, left in (
            (b"data: a\n\n", b""),
            (b"data: a\n\nno room\n", b"no room"),
            (b"data: a\n\nno room\n\ndata: b\n", b"b"),
            (b"data: a\n\ndata: b", b"b"),
        ):
            scanner = EventScanner()
            scanner.feed(data)
            self.assertEqual(scanner.left, left)

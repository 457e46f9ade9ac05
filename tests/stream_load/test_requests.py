"""A request record checks itself, and a file of them says what is wrong with it."""

import json
import tempfile
import unittest
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from inference_lab.errors import RecordError
from inference_lab.stream_load.requests import RequestRecord, read_requests, read_truth, short_truth

GOOD = RequestRecord(
    request_id="r1",
    load="r",
    attempt=1,
    scheduled_ns=1,
    arrival_ns=2,
    admitted_ns=3,
    sent_ns=4,
    first_token_ns=10,
    token_times_ns=(10, 20),
    chunk_tokens=(2, 1),
    finish_ns=30,
    status="ok",
    http_status=200,
    prompt_tokens=None,
    output_tokens=3,
    counted_tokens=2,
    usage={"completion_tokens": 3},
    error=None,
    clock="kernel",
    coalesced_reads=0,
    censored_chunks=(),
    user_stamped_chunks=(1,),
    max_read_lag_ns=7,
)


class TestRequestRecord(unittest.TestCase):
    """What a record may say, and its file."""

    def test_a_record_that_contradicts_itself_is_refused(self) -> None:
        """Every rule of the record holds when it is built."""
        wrong: tuple[dict[str, Any], ...] = (
            {"status": "failed"},
            {"clock": "wall"},
            {"output_tokens": 4},
            {"chunk_tokens": (3, 0)},
            {"token_times_ns": (10,)},
            {"first_token_ns": None},
            {"token_times_ns": (20, 10)},
            {"first_token_ns": 11},
            {"admitted_ns": 1},
            {"sent_ns": 2},
        )
        for values in wrong:
            with self.subTest(values), self.assertRaises(RecordError):
                replace(GOOD, **values)

    def test_file(self) -> None:
        """What is written is read again; a torn end is dropped and counted in a partial file alone."""
        other = replace(GOOD, attempt=2, status="cancelled", sent_ns=None, error="é\n", notes=("odd",))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "requests.jsonl"
            path.write_bytes(GOOD.line() + other.line())
            self.assertEqual(read_requests(path), ([GOOD, other], 0))
            for cut in (1, 10, len(other.line()) - 1):
                path.write_bytes(GOOD.line() + other.line()[:cut])
                self.assertEqual(read_requests(path, partial=True), ([GOOD], cut))
                with self.assertRaisesRegex(RecordError, "last line is cut off"):
                    read_requests(path)

    def test_a_record_of_before(self) -> None:
        """What a record of an older form does not say is unknown, not an error."""
        values = asdict(GOOD)
        for name in ("resent", "hidden_tokens", "notes"):
            del values[name]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "requests.jsonl"
            path.write_text(json.dumps(values) + "\n")
            self.assertEqual(read_requests(path), ([GOOD], 0))

    def test_truth(self) -> None:
        """A line of truth is read as the server wrote it, and in the form of older records as it is."""
        lines = [{"request_id": "r", "token_ns": times} for times in ([10, 12, 12, 19], [7], [])]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "truth.jsonl"
            for written in (lines, [short_truth(line) for line in lines]):
                path.write_text("".join(f"{json.dumps(line)}\n" for line in written))
                self.assertEqual(read_truth(path), lines)
            path.write_text(json.dumps(short_truth(lines[0])).replace("[2", "[null") + "\n")
            with self.assertRaisesRegex(RecordError, "line 1: itl_ns"):
                read_truth(path)

    def test_bad_files(self) -> None:
        """A file that is missing, doubled, not JSON or of another shape is named with the line."""
        extra = json.loads(GOOD.line()) | {"speed": 1}
        listed = json.loads(GOOD.line()) | {"chunk_tokens": None}
        bad = (
            (GOOD.line() * 2, "line 2: attempt 1 of request r1 is a duplicate of line 1"),
            (b"{\n", "line 1: not JSON"),
            (
                GOOD.line().replace(b'"itl_ns":[', b'"itl_ns":[1.5,'),
                "line 1: itl_ns must be a list of integers",
            ),
            (b"[]\n", "line 1: must be an object;"),
            (json.dumps(extra).encode() + b"\n", "line 1: must be an object with exactly"),
            (json.dumps(listed).encode() + b"\n", "line 1: .*not iterable"),
            (GOOD.line().replace(b'"ok"', b'"good"'), "line 1: .*status is 'good'"),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "requests.jsonl"
            for data, says in bad:
                path.write_bytes(data)
                with self.subTest(says), self.assertRaisesRegex(RecordError, says):
                    read_requests(path)
            with self.assertRaisesRegex(RecordError, "cannot be read"):
                read_requests(path.with_name("none"))

"""A server that settings ask for: known keys, its engine's steps, its death told with the end of its log."""

import json
import tempfile
import unittest
from pathlib import Path
from urllib.request import Request, urlopen

from inference_lab.errors import ConfigError, InputError, MeasurementRefused
from inference_lab.stream_load.servers.start import STEP_COLUMNS, start_server


class ServerTest(unittest.TestCase):
    """start_server."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.log = Path(self.enterContext(tempfile.TemporaryDirectory())) / "server.log"

    def test_the_steps_of_a_reference_server(self) -> None:
        """They come from its truth, whole after the end; it knows what it ignored; its port is its own."""
        settings = {"kind": "reference", "ttft_ms": 2, "itl_ms": 1, "max_num_seqs": 3, "block_size": 16}
        with start_server(settings, self.log) as server:
            server.check()
            asked = {"model": "reference", "prompt": [1, 2], "max_tokens": 3, "stream": True}
            urlopen(Request(f"{server.base_url}/completions", json.dumps(asked).encode())).read()
            with start_server({"kind": "external", "base_url": server.base_url}, self.log) as other:
                self.assertEqual((other.facts["version"], other.steps()), ("reference", []))
            port = int(server.base_url.rpartition(":")[2].partition("/")[0])
            second = start_server({"kind": "reference", "port": port}, self.log.with_name("second.log"))
            with self.assertRaisesRegex(MeasurementRefused, r"(?s)exit code 2.*\n  \| cannot serve on"):
                second.__enter__()
        with self.assertRaisesRegex(MeasurementRefused, "ended"):
            server.check()
        with self.assertRaisesRegex(MeasurementRefused, "answers neither"):
            other.check()
        self.assertEqual(server.facts["arguments"], {"max_num_seqs": 3, "ttft_ms": 2, "itl_ms": 1})
        self.assertEqual(server.facts["ignored"], ["block_size"])
        steps = server.steps()
        self.assertEqual([tuple(step) for step in steps], [STEP_COLUMNS] * 3)
        self.assertEqual([step["prefill_requests"] for step in steps], [1, 0, 0])
        self.assertEqual([step["decode_requests"] for step in steps], [0, 1, 1])

    def test_what_settings_may_not_say(self) -> None:
        """An unknown kind or key, no URL and no model are refused before anything starts."""
        for settings, words in (
            ({"kind": "other"}, "must be one of reference, vllm, external"),
            ({"kind": "reference", "itl": 1}, "no setting 'itl'; known are"),
            ({"kind": "vllm", "ttft_ms": 1}, "no setting 'ttft_ms'"),
            ({"kind": "external"}, "base URL ''"),
        ):
            with self.subTest(settings), self.assertRaisesRegex((ConfigError, InputError), words):
                start_server(settings, self.log).__enter__()
        self.assertFalse(self.log.exists())


if __name__ == "__main__":
    unittest.main()

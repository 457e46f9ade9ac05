"""The reference server is what it says it is: clients that others wrote stream from it without a warning."""

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from tests.stream_load.support import reference_server

_SCRIPT = Path(__file__).with_name("peer_clients.py")
_SEEN = {"text": " t" * 5, "reasons": ["length"], "usage": [[3, 5, 8]], "ids": 1}


class PeerClientsTest(unittest.TestCase):
    """OpenAI's package, and Hugging Face's, whose reading of events shares nothing with it."""

    seen: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        """Both clients against one server, in an environment of the group `peers`; a warning is an error."""
        command = ["uv", "run", "--quiet", "--isolated", "--only-group", "peers", "python", "-W", "error"]
        with tempfile.TemporaryDirectory() as home, reference_server(itl_ms=1) as url:
            ended = subprocess.run(
                [*command, str(_SCRIPT), url], capture_output=True, text=True, timeout=300, check=False,
                cwd=_SCRIPT.parent, env={**os.environ, "HF_HOME": home, "NO_PROXY": "127.0.0.1"},
            )  # fmt: skip
        assert not ended.returncode, ended.stderr
        cls.warned, cls.seen = ended.stderr, json.loads(ended.stdout)

    def test_openai(self) -> None:
        """Models, chat, completions, one chunk of usage each; errors have the right class and our words."""
        errors = {
            "model": "NotFoundError The model `other` does not exist.",
            "max_tokens": "BadRequestError max_tokens is 0: Input should be greater than or equal to 1",
        }
        expected = {"models": ["reference"], "chat": _SEEN, "completions": _SEEN, "errors": errors}
        self.assertEqual(self.seen["openai"], expected)

    def test_huggingface(self) -> None:
        """Chat with its usage, and the words of an error; neither client logs a word."""
        seen = self.seen["huggingface"]
        self.assertEqual(seen["chat"], _SEEN)
        self.assertIn("The model `other` does not exist.", seen["error"])
        self.assertEqual(self.warned, "")


if __name__ == "__main__":
    unittest.main()

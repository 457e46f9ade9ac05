"""A reference server in a process of its own, which lives no longer than the one that needs it."""

import json
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from inference_lab.errors import MeasurementRefused
from inference_lab.records import installed
from inference_lab.stream_load.reference import cli as reference_cli


@contextmanager
def reference_server(arguments: Sequence[str] = ()) -> Generator[str]:
    """The base URL of a reference server on a free port of 127.0.0.1.

    `arguments` are those of `serve-reference`. Stopped by SIGTERM at the end, so that its truth file is
    whole; the kernel kills it when the thread that started it ends. Raises MeasurementRefused when it
    does not start.
    """
    command = [sys.executable, "-m", reference_cli.__name__, "--port", "0"]
    command += ["--die-with-parent", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=installed.of_child()) as process:
        try:
            first_line = process.stdout.readline() if process.stdout else b""
            if not first_line:
                raise MeasurementRefused("the reference server did not start; its message is above")
            yield json.loads(first_line)["base_url"]
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

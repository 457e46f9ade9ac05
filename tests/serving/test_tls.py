"""An https server: the same records, with user stamps."""

import asyncio
import os
import shutil
import ssl
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from inference_lab.records.requests import RequestRecord
from inference_lab.serving.arrival_clock import ArrivalClock
from inference_lab.serving.client import Client
from inference_lab.serving.target import Target
from tests.serving.support import ask, record_of

_CHUNK = b'data: {"choices":[{"text":"a","finish_reason":%s}]}\n\n'
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
    _CHUNK % b"null",
    _CHUNK % b'"stop"',
)


@unittest.skipUnless(shutil.which("openssl"), "openssl makes the certificate")
class TestTls(unittest.TestCase):
    """A stream through TLS."""

    def test_user_stamps(self) -> None:
        """The stream is read whole, its clock named user; a certificate nobody signed is refused."""
        with tempfile.TemporaryDirectory() as folder:
            certificate, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
            command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"]
            command += ["ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost"]
            command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
            command += ["-keyout", str(key), "-out", str(certificate)]
            subprocess.run(command, check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            trusted = mock.patch.dict(os.environ, {"SSL_CERT_FILE": str(certificate)})
            with trusted:
                record = asyncio.run(self.ask(context))
            self.assertEqual((record.status, record.output_tokens, record.clock), ("ok", 2, "user"))
            record = asyncio.run(self.ask(context))
            self.assertEqual(record.status, "connect_error")
            self.assertIn("certificate", record.error or "")

    async def ask(self, context: ssl.SSLContext) -> RequestRecord:
        """The record of one request to a TLS server that answers with two tokens."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in _ANSWER:
                writer.write(piece)
                await writer.drain()
            writer.close()

        clock = ArrivalClock()
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context) as server:
            port = server.sockets[0].getsockname()[1]
            async with Client(Target("https", "127.0.0.1", port, ""), clock=clock) as client:
                record = record_of(await ask(client), client.clock_name)
        clock.close()
        return record

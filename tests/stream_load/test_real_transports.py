"""How requests reach servers of the world: through the command's own entry, in its own event loop."""

import contextlib
import io
import json
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from inference_lab.errors import InputError
from inference_lab.stream_load.cli import main
from inference_lab.stream_load.client.client import Client
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.clock import ArrivalClock
from inference_lab.stream_load.event_loop import LOOP_NAME, run_in_event_loop
from inference_lab.stream_load.requests import RequestRecord, read_requests
from inference_lab.stream_load.servers.process import get
from inference_lab.stream_load.session import INFO
from tests.stream_load.scripted import CLOSE, Actions, answer, scripted, stream

KEY = "sk-Proj-7hQ/2x+Lm9Vw=Rt4YbN8cKdE3fGhJ5"


def good(_connection: int, _request: int) -> Actions:
    """Every request is answered with a good stream."""
    return [stream()]


class TransportCase(unittest.TestCase):
    """A folder for each test, and the command as its user starts it."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        self.place = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.output = self.place / "run"

    def load(self, url: str, *more: str, requests: int = 1, model: str = "m") -> int:
        """The exit code of `load`; what it printed is in `said`."""
        words = (
            f"--base-url {url} --output {self.output} --requests {requests} --output-tokens 3 --concurrency 1"
        )
        words += f" --model {model}" * bool(model)
        shutil.rmtree(self.output, ignore_errors=True)
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                return main([*words.split(), *more])
            finally:
                self.said = out.getvalue()

    def records(self) -> list[RequestRecord]:
        """What was recorded."""
        return read_requests(self.output / "requests.jsonl")

    def record(self) -> RequestRecord:
        """The only record."""
        (record,) = self.records()
        return record

    def info(self) -> dict[str, Any]:
        """What the run says of itself."""
        return json.loads((self.output / INFO).read_text())


@unittest.skipUnless(shutil.which("openssl"), "openssl makes the certificate")
class TestTls(TransportCase):
    """https, in the event loop that a load really uses."""

    def setUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        super().setUp()
        self.certificate, key = self.place / "cert.pem", self.place / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        command += ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, key)
        self.server = self.enterContext(scripted(good, tls=context))

    def test_who_vouches_for_a_certificate(self) -> None:
        """The system, a file, or nobody and the record says so; without one of them nothing is sent."""
        self.assertEqual(LOOP_NAME, "uvloop")
        system = {"SSL_CERT_FILE": str(self.certificate)}
        for words, environ, is_checked in (
            ([], system, True),
            (["--ca", str(self.certificate)], {}, True),
            (["--insecure"], {}, False),
        ):
            with self.subTest(words), mock.patch.dict(os.environ, environ):
                self.assertEqual(self.load(self.server.url, *words, requests=3), 0, self.said)
                self.assertEqual({record.clock for record in self.records()}, {"user"})
                (session,) = self.info()["sessions"]
                self.assertEqual(session["tls"]["certificate_checked"], is_checked)
                clock = session["clock"]
                self.assertEqual((clock["stamps"], clock["asked"]), ("user", "kernel"))
                self.assertEqual((session["connections"], session["resent_requests"]), (1, 0))
                self.assertEqual("nobody checked" in self.said, not is_checked)
        seen = len(self.server.seen)
        self.assertEqual(self.load(self.server.url), 1)
        self.assertEqual(self.record().status, "connect_error")
        self.assertIn("certificate", self.record().error or "")
        self.assertEqual(len(self.server.seen), seen)

    def test_what_cannot_be_meant(self) -> None:
        """Certificates without https, a file that holds none, both ways at once: one line, no folder."""
        empty = self.place / "empty.pem"
        empty.touch()
        plain = self.server.url.replace("https", "http")
        for url, words, said in (
            (plain, ["--insecure"], "only https has"),
            (self.server.url, ["--ca", str(empty)], "empty.pem: no certificate can be read"),
            (self.server.url, ["--ca", "none.pem"], "none.pem: no certificate can be read"),
            (self.server.url, ["--ca", "none.pem", "--insecure"], "is checked or it is not"),
        ):
            self.assertEqual(self.load(url, *words), 2)
            self.assertIn(said, self.said)
            self.assertEqual(self.said.count("\n"), 1)
        self.assertFalse(self.output.exists())


class TestReuse(TransportCase):
    """Kept connections that servers close when they like."""

    def test_a_server_that_closes_soon_after_its_answers(self) -> None:
        """However soon after an answer the end comes, no request is lost and each resend is counted."""

        def closing(connection: int, request: int) -> Actions:
            number = connection * 7 + request * 3
            return [stream(), (number % 25 + 1) * 0.2e-3, CLOSE] if number % 3 else [stream()]

        with scripted(closing) as server:
            self.assertEqual(self.load(server.url, "--concurrency", "2", requests=60), 0, self.said)
        again = sum(record.resent for record in self.records())
        self.assertEqual({record.status for record in self.records()}, {"ok"})
        (session,) = self.info()["sessions"]
        self.assertEqual(session["resent_requests"], again)
        self.assertEqual(f"{again} requests went over a second" in self.said, again > 0)

    def test_a_request_goes_once_more(self) -> None:
        """A kept connection that ends without a byte: the request is sent again, timed by the last time."""
        for end in (CLOSE, None):
            began: list[int] = []

            def second_fails(connection: int, request: int, end: bytes | None = end) -> Actions:
                began.append(time.monotonic_ns())  # noqa: B023
                return [0.02, end] if (connection, request) == (0, 1) else [stream()]

            with scripted(second_fails) as server:
                self.assertEqual(self.load(server.url, requests=2), 0, self.said)
                self.assertEqual([seen[:2] for seen in server.seen], [(0, 0), (0, 1), (1, 0)])
            first, second = self.records()
            self.assertEqual((first.resent, second.resent), (0, 1))
            self.assertGreater(second.sent_ns or 0, began[1])
            self.assertEqual(second.attempt, 1)

    def test_what_goes_only_once(self) -> None:
        """Neither on a new connection nor after a first byte is anything sent again; once more means once."""
        for script, seen, resent in (
            (lambda _n, _m: [CLOSE], 1, 0),
            (lambda _n, m: [b"HTTP/1.1 2", CLOSE] if m else [stream()], 2, 0),
            (lambda _n, m: [stream()[:-30], CLOSE] if m else [stream()], 2, 0),
            (lambda n, m: [CLOSE] if n or m else [stream()], 3, 1),
        ):
            with scripted(script) as server:
                self.assertEqual(self.load(server.url, requests=min(seen, 2)), 1)
                self.assertEqual(len(server.seen), seen)
            self.assertIn(self.records()[-1].status, ("connect_error", "truncated"))
            self.assertEqual(self.records()[-1].resent, resent)

    def test_an_end_is_noticed_before_the_next_request(self) -> None:
        """A connection that the server closed while it was idle is not used, however short ago that was."""
        with scripted(lambda _n, _m: [stream(), CLOSE]) as server, closing(ArrivalClock()) as clock:

            async def run() -> list[int]:
                async with Client(Endpoint.parse(server.url), clock=clock) as client:
                    again: list[int] = []
                    for number in range(3):
                        again.append((await client.send(client.request("/completions", b"{}", ""))).resent)
                        while number not in server.ended:
                            time.sleep(0.001)  # noqa: ASYNC251  (the event loop hears nothing of the end)
                    return again

            self.assertEqual(run_in_event_loop(run), [0, 0, 0])
            self.assertEqual([seen[:2] for seen in server.seen], [(0, 0), (1, 0), (2, 0)])


class TestAddresses(TransportCase):
    """A host with several addresses, some of which nobody answers."""

    def setUp(self) -> None:
        """The host's name means the addresses in `hosts`; its look-ups and all connects are counted."""
        super().setUp()
        self.hosts = ["127.0.0.2", "127.0.0.3", "127.0.0.1"]
        self.looked_up = 0
        self.connected: list[str] = []
        connect = uvloop.Loop.sock_connect

        async def look_up(_loop: object, name: str, port: int, **_: Any) -> list[Any]:
            self.looked_up += name == "host"
            hosts = self.hosts if name == "host" else [name]  # the loop asks for an address, too
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in hosts]

        async def connecting(loop: uvloop.Loop, sock: socket.socket, where: Any) -> None:
            self.connected.append(where[0])
            self.on_connect()
            await connect(loop, sock, where)

        self.on_connect: Callable[[], None] = lambda: None
        self.enterContext(mock.patch.multiple(uvloop.Loop, getaddrinfo=look_up, sock_connect=connecting))

    def test_the_last_good_one_is_first(self) -> None:
        """The address that answered is asked first from then on; the name is not looked up again."""
        with scripted(lambda _n, _m: [stream(), CLOSE]) as server:
            self.assertEqual(self.load(server.url.replace("127.0.0.1", "host"), requests=4), 0, self.said)
        self.assertEqual(self.looked_up, 1)
        self.assertEqual(self.connected[:3], self.hosts)
        self.assertEqual(set(self.connected[3:]), {"127.0.0.1"})

    def test_a_server_that_is_away_for_a_while(self) -> None:
        """While nobody answers, each attempt tries every address and says why; later ones succeed."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        self.hosts = ["127.0.0.2", "127.0.0.1"]
        stack = self.enterContext(contextlib.ExitStack())

        def come() -> None:
            if len(self.connected) == 5:
                stack.enter_context(scripted(good, at=("127.0.0.1", port)))

        self.on_connect = come
        code = self.load(f"http://host:{port}/v1", "--retries", "4", requests=4)
        self.assertEqual(code, 1)  # the first attempts failed, and say so
        statuses = [record.status for record in self.records()]
        self.assertEqual(statuses, [*["connect_error"] * (len(statuses) - 4), *["ok"] * 4])
        refused = "127.0.0.2: Connection refused; 127.0.0.1: Connection refused"
        self.assertEqual(self.records()[0].error, refused)
        self.assertGreater(self.looked_up, 1)

    def test_addresses_share_the_time(self) -> None:
        """An address that never answers takes its share of the connect time-out, not all of it."""
        with socket.create_server(("127.0.0.2", 0), backlog=0) as silent:
            where = silent.getsockname()
            with contextlib.ExitStack() as stack:
                for _ in range(2):
                    filling = stack.enter_context(socket.socket())
                    filling.setblocking(False)
                    filling.connect_ex(where)
                stack.enter_context(scripted(good, at=("127.0.0.1", where[1])))
                self.hosts = ["127.0.0.2", "127.0.0.1"]
                code = self.load(f"http://host:{where[1]}/v1", "--connect-timeout", "1")
        self.assertEqual(code, 0, self.said)


class TestWhatIsSent(TransportCase):
    """The bytes of requests, and where they go."""

    def test_headers_query_and_key(self) -> None:
        """Extra headers go in place of our own, the query behind every path, the key into its one header."""
        models = answer(b'{"data":[{"id":"tiny"}]}')
        with (
            scripted(lambda n, m: [stream() if n or m else models]) as server,
            mock.patch.dict(os.environ, {"LAB_KEY": KEY}),
        ):
            more = ("--header", "X-Team: lab", "--header", "accept: */*")
            more += ("--api-key-env", "LAB_KEY", "--api-key-header", "api-key")
            code = self.load(f"{server.url}?api-version=2026-01", *more, model="")
        self.assertEqual(code, 0, self.said)
        (_, _, listing), (_, _, asking) = server.seen
        self.assertTrue(listing.startswith(b"GET /v1/models?api-version=2026-01 HTTP/1.1\r\n"))
        self.assertTrue(asking.startswith(b"POST /v1/completions?api-version=2026-01 HTTP/1.1\r\n"))
        for line in ("X-Team: lab", "accept: */*", f"api-key: {KEY}", "Accept-Encoding: identity"):
            self.assertIn(f"\r\n{line}\r\n".encode(), asking)
        self.assertEqual(asking.lower().count(b"\r\naccept: "), 1)
        self.assertNotIn(b"Authorization", asking)
        self.assertEqual(self.info()["conditions"]["headers"], {"X-Team": "lab", "accept": "*/*"})

    def test_null_takes_a_key_out(self) -> None:
        """A null in --extra-body is not sent: the key is left out, which strict servers ask for."""
        with scripted(good) as server:
            extra = '{"max_tokens": null, "max_completion_tokens": 3, "stream_options": null, "n": null}'
            self.assertEqual(self.load(server.url, "--extra-body", extra), 0, self.said)
        body = json.loads(server.seen[0][2].partition(b"\r\n\r\n")[2])
        self.assertEqual(sorted(body), ["max_completion_tokens", "model", "prompt", "stream"])

    def test_a_unix_socket(self) -> None:
        """--unix-socket connects to a file; the kernel stamps nothing there, and the record says so."""
        path = self.place / "server.socket"
        with scripted(good, at=path) as server:
            code = self.load(server.url, "--unix-socket", str(path), "--concurrency", "2", requests=4)
        self.assertEqual(code, 0, self.said)
        self.assertIn(b"\r\nHost: localhost\r\n", server.seen[0][2])
        self.assertEqual({record.clock for record in self.records()}, {"user"})
        self.assertEqual(self.info()["sessions"][0]["clock"]["stamps"], "user")

    def test_proxies_are_ignored(self) -> None:
        """What the environment says of proxies counts for nothing, in a load and in what asks /metrics."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            dead = f"http://127.0.0.1:{listener.getsockname()[1]}"
        names = ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY")
        self.enterContext(mock.patch.dict(os.environ, dict.fromkeys(names, dead)))
        os.environ.pop("no_proxy", None)
        with scripted(good) as server:
            self.assertEqual(self.load(server.url), 0, self.said)
        with scripted(lambda _n, _m: [answer(b"x")]) as page:
            self.assertEqual(get(f"{page.url}/metrics"), b"x")

    def test_a_redirect_is_not_followed(self) -> None:
        """The record tells where it pointed to; nothing, and least of all the key, goes there."""
        with scripted(good) as other, mock.patch.dict(os.environ, {"LAB_KEY": KEY}):
            moved = answer(b"", "307 Temporary Redirect", f"Location: {other.url}/completions?k={KEY}")
            with scripted(lambda _n, _m: [moved]) as server:
                code = self.load(server.url, "--api-key-env", "LAB_KEY")
                self.assertEqual((code, len(server.seen), other.seen), (1, 1, []))
        said = f"HTTP 307: empty body; Location: {other.url}/completions?k=[key]"
        self.assertIn(said, self.record().error or "")

    def test_base_urls_and_headers_that_are_refused(self) -> None:
        """What is no address, and secrets that records would keep; no message repeats a secret."""
        self.assertEqual(Endpoint.parse("https://h/v1/"), Endpoint("https", "h", 443, "/v1"))
        self.assertEqual(Endpoint.parse("http://[::1]:8000/v1").host, "::1")
        for wrong in (
            "127.0.0.1:8000", "ftp://h/v1", f"http://u:{KEY}@h/v1", f"http://u:{KEY}@h:x/v1",
            f"http://h/v1?api_key={KEY}", f"http://h/v1?a=b&subscription-key={KEY}", "http://h:x/v1",
            "http://h/#a", "http://h /v1", "http://h/v 1", "http://.h./v1", f"http://{'h' * 64}/v1",
            "http://[::1/v1",
        ):  # fmt: skip
            with self.subTest(wrong), self.assertRaises(InputError) as refused:
                Endpoint.parse(wrong)
            self.assertNotIn(KEY, str(refused.exception))
        for name, value in (
            ("Authorization", KEY), ("api-key", KEY), ("X-Auth-Token", KEY), ("Cookie", KEY),
            ("Content-Length", "3"), ("a b", "c"), ("a", "b\r\nc: d"), ("", "x"),
        ):  # fmt: skip
            with self.subTest(name), self.assertRaises(InputError) as refused:
                Endpoint.parse("http://h/v1", headers={name: value})
            self.assertNotIn(KEY, str(refused.exception))


class TestKeys(TransportCase):
    """What a server echoes of a key, wherever it does."""

    def test_no_file_and_no_word_holds_it(self) -> None:
        """Errors cut anywhere, usage, a model's name, a header: no 8 characters of the key are kept."""
        models = [answer(json.dumps({"data": [{"id": f"m-{KEY}"}]}).encode())]
        for script in (
            *([answer(b"x" * n + KEY.encode() + b"y" * 9000, "400 Bad")] for n in (0, 270, 290, 4070)),
            [answer(b" " * 4065 + KEY.encode() * 3, "400 Bad", "Content-Type: text/html")],
            [answer(json.dumps({"error": {"message": f"bad {KEY[:20]}***{KEY[-10:]}"}}).encode(), "401 No")],
            [answer(b"data: {" + KEY.encode() + b"\n\n")],
            [answer(b"data: [" + b"1," * 30 + b'"' + KEY.encode() + b'"]\n\n')],
            [stream(3, completion_tokens=3, prompt_tokens=1, echo={KEY: [KEY]})],
            [b"HTTP/1.1 " + KEY.encode() + b"\r\n\r\n"],
        ):
            with (
                mock.patch.dict(os.environ, {"LAB_KEY": KEY}),
                scripted(lambda n, m, script=script: script if n or m else models) as server,
            ):
                self.load(server.url, "--api-key-env", "LAB_KEY", model="")
            told = self.said + "".join(path.read_text() for path in self.output.iterdir())
            for start in range(len(KEY) - 7):
                self.assertNotIn(KEY[start : start + 8], told)
            self.assertIn("m-[key]", told)

    def test_an_option_that_holds_it(self) -> None:
        """The record keeps options: one that holds the key is refused, and not repeated."""
        with mock.patch.dict(os.environ, {"LAB_KEY": KEY}):
            extra = json.dumps({"user": f"me {KEY}"})
            self.assertEqual(self.load("http://h/v1", "--api-key-env", "LAB_KEY", "--extra-body", extra), 2)
        self.assertIn("an option holds the key of LAB_KEY", self.said)
        self.assertNotIn(KEY, self.said)


class TestWaiting(TransportCase):
    """Servers that ask to be asked later."""

    def after(self, status: str, asked: str, *more: str) -> list[RequestRecord]:
        """The records of a request whose first answer asks to wait so long."""
        busy = answer(b"busy", status, f"Retry-After: {asked}")
        with scripted(lambda _n, m: [stream() if m else busy]) as server:
            self.load(server.url, "--retries", "3", *more)
        return self.records()

    def test_a_retry_waits_as_it_was_told(self) -> None:
        """After 429 with Retry-After: 0.75 the next attempt comes 0.75 s later."""
        first, second = self.after("429 Too Many Requests", "0.75")
        self.assertEqual((first.http_status, first.notes, second.status), (429, (), "ok"))
        self.assertGreaterEqual((second.sent_ns or 0) - first.finish_ns, 750_000_000)

    def test_a_wait_that_cannot_be_read(self) -> None:
        """Words, a negative and an overflowing number are noted; the retry comes after the usual wait."""
        for asked in ("soon", "-3", "1e999", "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"):
            with self.subTest(asked):
                first, second = self.after("429 Too Many Requests", asked)
                self.assertEqual(first.notes, (f"Retry-After cannot be read: {asked}",))
                self.assertEqual(second.status, "ok")

    def test_no_wait_is_longer_than_the_request_may_take(self) -> None:
        """A retry that would come after the total time-out is not made."""
        (record,) = self.after("503 Service Unavailable", "3600", "--total-timeout", "5")
        self.assertEqual(record.notes, ("no retry: its wait of 3600 s ends after the time-out",))

"""A streaming client of one OpenAI-compatible server: prepared bytes in, captures out."""

import asyncio
import contextlib
import json
import ssl
from time import monotonic_ns

from inference_lab.errors import MeasurementRefused
from inference_lab.stream_load.client.endpoint import Endpoint
from inference_lab.stream_load.client.outcome import answer_text, redacting
from inference_lab.stream_load.client.pool import ConnectionPool, Line
from inference_lab.stream_load.client.stream import Capture, Response, Timeouts
from inference_lab.stream_load.clock import ArrivalClock


class Client:
    """Requests to one server. Use as an async context manager.

    `api_key` goes into its one header and nowhere else; no redirect is followed. `resent` counts the requests
    that went over a second connection.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        clock: ArrivalClock,
        timeouts: Timeouts = Timeouts(),  # noqa: B008  (it is frozen)
        api_key: str | None = None,
        spare: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._endpoint, self._clock, self._timeouts = endpoint, clock, timeouts
        self._api_key, self.redact = api_key, redacting(api_key)
        self.pool = ConnectionPool(endpoint, clock, timeouts.connect_s, spare, tls)
        self.resent = 0
        self._live: set[Response] = set()

    async def __aenter__(self) -> "Client":
        self._watch = asyncio.create_task(self._watch_timeouts())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watch
        self.pool.close()

    @property
    def clock_name(self) -> str:
        """The clock of the stamps, as records name it."""
        return "kernel" if self._clock.kernel and self._endpoint.is_plain_tcp else "user"

    @property
    def live_events(self) -> int:
        """How many events the running streams have brought so far."""
        return sum(len(response.capture.stamps_ns) for response in self._live)

    def request(self, path: str, body: bytes, request_id: str) -> bytes:
        """The bytes of a POST, ready to be sent."""
        return self._endpoint.request("POST", path, body, request_id=request_id, key=self._api_key)

    async def send(self, request: bytes, *, keep_body_bytes: int = 4096) -> Capture:
        """Send prepared bytes and return what became of them, also when cancelled.

        A request whose kept connection ended before any byte of an answer goes once more over a new one.
        """
        capture = Capture(request)
        try:
            await self._answer(await self.pool.take(), capture, keep_body_bytes)
            if capture.ended is None:
                capture.resent += 1
                capture.sent_ns = None
                self.resent += 1
                await self._answer(await self.pool.open(), capture, keep_body_bytes)
        except OSError as error:
            capture.end("connect", monotonic_ns(), self.pool.why(error))
        except asyncio.CancelledError:
            capture.end("cancelled", monotonic_ns(), "cancelled")
        return capture

    async def _answer(self, line: Line, capture: Capture, keep_body_bytes: int) -> None:
        """Send the request over this line and wait for the end of its response; keep the line if possible."""
        response = Response(capture, keep_body_bytes)
        self._live.add(response)
        try:
            line.start(capture.request, response)
            await response.finished
        finally:
            self._live.discard(response)
            if line.is_open and response.reusable:
                self.pool.give_back(line)
            else:
                line.close()
                if capture.ended in ("complete", "closed"):
                    self.pool.open_ahead()  # this server keeps no connection: have the next one ready

    async def _watch_timeouts(self) -> None:
        limits = self._timeouts
        shortest_s = min(limits.first_token_s, limits.between_tokens_s, limits.total_s)
        period_s = min(max(shortest_s / 20, 0.001), 0.1)
        while True:
            before_ns = monotonic_ns()
            await asyncio.sleep(period_s)
            now_ns = monotonic_ns()
            # Otherwise this process was suspended: the sockets are read before any timeout is judged.
            if now_ns - before_ns < (period_s + 0.1) * 1e9:
                for response in tuple(self._live):
                    response.expire(now_ns, limits)

    async def discover_model(self) -> str:
        """The first model the server lists; raises MeasurementRefused when it lists none."""
        endpoint = self._endpoint
        url = f"{endpoint.scheme}://{endpoint.host}:{endpoint.port}{endpoint.prefix}/models"
        request = endpoint.request("GET", "/models", key=self._api_key)
        capture = await self.send(request, keep_body_bytes=1 << 22)
        way_out = "start the server, correct --base-url, or name --model"
        if capture.http_status is None:
            raise MeasurementRefused(f"{url}: no answer ({capture.detail}); {way_out}")
        answer = f"{url}: HTTP {capture.http_status}"
        if not 200 <= capture.http_status < 300:
            raise MeasurementRefused(self.redact(f"{answer}: {answer_text(capture)}; {way_out}"))
        try:
            return str(json.loads(capture.body_start)["data"][0]["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            raise MeasurementRefused(f"{answer} lists no model; {way_out}") from None

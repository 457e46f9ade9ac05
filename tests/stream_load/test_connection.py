"""A connection writes everything in order and ends once."""

import asyncio
import socket
import unittest

from inference_lab.stream_load.clock import ArrivalClock
from inference_lab.stream_load.connection import Connection, SocketReader

_MEGABYTE = 1 << 20


class TestConnection(unittest.IsolatedAsyncioTestCase):
    """Writes that do not fit, and ends."""

    async def asyncSetUp(self) -> None:
        """Have what every test of the class needs, gone at its end."""
        clock = ArrivalClock()
        self.addCleanup(clock.close)
        self.reader = SocketReader(clock)
        self.addCleanup(self.reader.close)
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def connection(self, sock: socket.socket) -> Connection:
        """A connection whose end is awaited as `ended`."""
        sock.setblocking(False)
        return Connection(sock, self.reader, lambda *_: None, self.ended.set_result)

    async def test_a_write_that_does_not_fit(self) -> None:
        """More than the kernel takes goes out as the peer reads, in order; `sent` hears once, at the end."""
        here, there = socket.socketpair()
        there.setblocking(False)
        sent: list[int] = []
        connection = self.connection(here)
        data = bytes(range(256)) * (4 * _MEGABYTE // 256)
        connection.send(data[: 3 * _MEGABYTE], sent.append)
        connection.send(data[3 * _MEGABYTE :], sent.append)
        self.assertEqual(sent, [])
        got = b""
        while len(got) < len(data):
            got += await asyncio.get_running_loop().sock_recv(there, _MEGABYTE)
        self.assertEqual((got == data, len(sent)), (True, 1))
        there.close()
        self.assertEqual(await self.ended, "closed")
        connection.send(b"too late")
        connection.close()  # a second end would be an error of the future

    async def test_a_reset_is_told(self) -> None:
        """A peer that resets ends the connection with the reason."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            here = socket.create_connection(listener.getsockname())
            there, _ = listener.accept()
        self.connection(here)
        self.connection(there).close(reset=True)
        self.assertEqual(await self.ended, "Connection reset by peer")

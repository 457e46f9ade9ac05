"""A connection writes everything in order and ends once."""

import asyncio
import socket
import unittest

from inference_lab.stream_load.clock import ArrivalClock
from inference_lab.stream_load.connection import Connection, SocketReader

_MEGABYTE = 1 << 20


class TestConnection(unittest.TestCase):
    """Writes that do not fit, and ends."""

    def test_a_write_that_does_not_fit(self) -> None:
        """More than the kernel takes goes out as the peer reads, in order; `sent` hears once, at the end."""

        async def run() -> None:
            here, there = socket.socketpair()
            here.setblocking(False)
            there.setblocking(False)
            clock = ArrivalClock(kernel=False)
            reader = SocketReader(clock)
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            sent: list[int] = []
            connection = Connection(here, reader, lambda *_: None, ended.set_result)
            data = bytes(range(256)) * (4 * _MEGABYTE // 256)
            connection.send(data[: 3 * _MEGABYTE], sent.append)
            connection.send(data[3 * _MEGABYTE :], sent.append)
            self.assertEqual(sent, [])
            loop = asyncio.get_running_loop()
            got = b""
            while len(got) < len(data):
                got += await loop.sock_recv(there, _MEGABYTE)
            self.assertEqual(got, data)
            self.assertEqual(len(sent), 1)
            there.close()
            self.assertEqual(await ended, "closed")
            connection.send(b"too late")
            connection.close()  # a second end would be an error of the future
            reader.close()
            clock.close()

        asyncio.run(run())

    def test_a_reset_is_told(self) -> None:
        """A peer that resets ends the connection with the reason."""

        async def run() -> None:
            clock = ArrivalClock()
            reader = SocketReader(clock)
            ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            with socket.create_server(("127.0.0.1", 0)) as listener:
                here = socket.create_connection(listener.getsockname())
                there, _ = listener.accept()
            here.setblocking(False)
            there.setblocking(False)
            Connection(here, reader, lambda *_: None, ended.set_result)
            Connection(there, reader, lambda *_: None, ended.set_result).close(reset=True)
            self.assertEqual(await ended, "Connection reset by peer")
            reader.close()
            clock.close()

        asyncio.run(run())

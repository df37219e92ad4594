"""A proxy between clients and a broker that knows requests from one another, and can keep some back."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio

END_TXN = 26


class Held:
    """A request that was kept back, and the way to the broker it was on."""

    def __init__(self, frame: bytes, broker: asyncio.StreamWriter) -> None:
        self._frame = frame
        self._broker = broker

    async def release(self) -> None:
        """It arrives after all."""
        self._broker.write(self._frame)
        await self._broker.drain()


class FrameProxy:
    """Passes everything on, unless `hold` or `mute` say otherwise for a kind of request."""

    def __init__(self) -> None:
        self.port = 0
        self.broker_port = 0
        self.hold: Callable[[int], bool] = lambda api_key: False
        """By API key: the request does not get to the broker."""
        self.mute: Callable[[int], bool] = lambda api_key: False
        """By API key: it does, and nothing comes back on that connection any more."""
        self.held: list[Held] = []
        self.answered_late = anyio.Event()
        """Something came back on a connection with a held request whose client had gone."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self.broker_port)
        except OSError:
            writer.close()
            return
        self._writers += (writer, broker_writer)
        muted = asyncio.Event()
        holds = asyncio.Event()
        back = asyncio.create_task(self._back(broker_reader, writer, muted, holds))
        self._tasks.add(back)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await reader.readexactly(4)
                frame = size + await reader.readexactly(struct.unpack(">i", size)[0])
                (api_key,) = struct.unpack_from(">h", frame, 4)
                if self.hold(api_key):
                    holds.set()
                    self.held.append(Held(frame, broker_writer))
                    continue
                if self.mute(api_key):
                    muted.set()
                broker_writer.write(frame)
                await broker_writer.drain()
        writer.close()
        if not holds.is_set():  # else somebody may still release what was held
            broker_writer.close()

    async def _back(
        self, broker: asyncio.StreamReader, client: asyncio.StreamWriter, muted: asyncio.Event, holds: asyncio.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await broker.read(65_536):
                if client.is_closing():
                    if holds.is_set():
                        self.answered_late.set()
                    continue
                if not muted.is_set():
                    client.write(data)
        client.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[FrameProxy]:
        """On a free port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for writer in self._writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

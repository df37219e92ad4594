"""A proxy between clients and a broker that knows requests from one another: it keeps back, doubles, cuts off."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

PRODUCE = 0
OFFSET_COMMIT = 8
ADD_PARTITIONS_TO_TXN = 24
ADD_OFFSETS_TO_TXN = 25
END_TXN = 26
TXN_OFFSET_COMMIT = 28

Chosen = Callable[[int], bool]
"""By API key."""


def nothing(api_key: int) -> bool:
    return False


def first(count: int, *api_keys: int) -> Chosen:
    """The first ``count`` requests of these kinds."""
    left = count

    def is_chosen(api_key: int) -> bool:
        nonlocal left
        if api_key not in api_keys or not left:
            return False
        left -= 1
        return True

    return is_chosen


class Held:
    """A request that was kept back, or a copy of one."""

    def __init__(self, frame: bytes, broker_port: int) -> None:
        self._frame = frame
        self._broker_port = broker_port

    async def release(self) -> bytes:
        """It arrives after all, on a connection that nobody listens to any more; what the broker says to it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._broker_port)
        try:
            writer.write(self._frame)
            return await reader.readexactly(struct.unpack(">i", await reader.readexactly(4))[0])
        finally:
            writer.close()
            await writer.wait_closed()


class _Marks:
    """What is to become of the answers on one connection, by correlation id."""

    def __init__(self) -> None:
        self.is_muted = False
        self.cut: set[bytes] = set()
        self.doubled: set[bytes] = set()


class FrameProxy:
    """Passes everything on, unless it is told otherwise for a kind of request."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        """0: any free one, known once it runs."""
        self.broker_port = 0
        self.hold: Chosen = nothing
        """The request does not get to the broker."""
        self.lose: Chosen = nothing
        """Nor does it, and the client sees its connection end: it will ask again."""
        self.copy: Chosen = nothing
        """It does, and a copy of it is held."""
        self.double: Chosen = nothing
        """It arrives twice, one behind the other."""
        self.mute: Chosen = nothing
        """It does, and nothing comes back on that connection any more."""
        self.cut: Chosen = nothing
        """It does, and in place of the answer the client sees its connection end."""
        self.held: list[Held] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    def pass_all(self) -> None:
        """Meddle no more."""
        self.hold = self.lose = self.copy = self.double = self.mute = self.cut = nothing

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.append(writer)
        try:
            broker_reader, broker_writer = await asyncio.open_connection("127.0.0.1", self.broker_port)
        except OSError:
            writer.close()
            return
        self._writers.append(broker_writer)
        marks = _Marks()
        back = asyncio.create_task(self._back(broker_reader, writer, marks))
        self._tasks.add(back)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while await self._forth(reader, broker_writer, marks):
                pass
        writer.close()
        broker_writer.close()

    async def _forth(self, client: asyncio.StreamReader, broker: asyncio.StreamWriter, marks: _Marks) -> bool:
        """One request; False ends the connection."""
        size = await client.readexactly(4)
        frame = size + await client.readexactly(struct.unpack(">i", size)[0])
        (api_key,) = struct.unpack_from(">h", frame, 4)
        is_lost = self.lose(api_key)
        if is_lost or self.hold(api_key):
            self.held.append(Held(frame, self.broker_port))
            return not is_lost
        if self.copy(api_key):
            self.held.append(Held(frame, self.broker_port))
        if self.mute(api_key):
            marks.is_muted = True
        correlation_id = frame[8:12]
        if self.cut(api_key):
            marks.cut.add(correlation_id)
        if self.double(api_key):
            marks.doubled.add(correlation_id)
            frame += frame
        broker.write(frame)
        await broker.drain()
        return True

    async def _back(self, broker: asyncio.StreamReader, client: asyncio.StreamWriter, marks: _Marks) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = await broker.readexactly(4)
                answer = await broker.readexactly(struct.unpack(">i", size)[0])
                correlation_id = answer[:4]
                if correlation_id in marks.cut:
                    break
                if not marks.is_muted:
                    client.write(size + answer)
                if correlation_id in marks.doubled:  # the next of that name answers the double
                    marks.doubled.remove(correlation_id)
                    await broker.readexactly(struct.unpack(">i", await broker.readexactly(4))[0])
        client.close()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[FrameProxy]:
        """On its port."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.close()  # which ends the tasks that read on the same connection
            await asyncio.gather(*self._tasks)
            for writer in self._writers:
                writer.close()  # of those that were connecting
            await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

"""The network between three brokers, their controllers and their clients, made of proxies: it can be cut, unprivileged.

Each broker advertises the addresses of proxies, so everything that anybody says to it passes one. Who speaks is told by
the client id of a connection's first request: brokers and controllers put their number there. A cut connection stays
open and silent, as it is when packets are dropped; what was on its way arrives once the cut is healed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

from tests.ports import kept_ports

CLIENTS, BROKERS, CONTROLLERS = "clients", "brokers", "controllers"
Trap = Callable[[int, int], object]
"""(node, API key): called in the network's thread."""


class End(NamedTuple):
    """Where a connection goes."""

    node: int
    kind: str
    port: int


class _Connection:
    def __init__(self, end: End, source: int | None) -> None:
        self.end = end
        self.source = source
        """The node that speaks; None: a client."""
        self.is_open = asyncio.Event()


class Network:
    """Runs in a thread of its own, while it is entered: brokers talk to one another between tests, too."""

    def __init__(self) -> None:
        self.on_request: Trap = _ignore
        """Before a client's request is passed on."""
        self.on_answer: Trap = _ignore
        """When a broker has answered one, before the client is told."""
        self._ends: dict[int, End] = {}
        """By the port that is advertised."""
        self._connections: set[_Connection] = set()
        self._cut_off: dict[int, bool] = {}
        """Nodes, and whether their clients are on the other side, too."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._started = threading.Event()
        self._stop = asyncio.Event()

    def port_for(self, node: int, kind: str, port: int) -> int:
        """What to advertise in place of a port. Before the network is entered."""
        (advertised,) = kept_ports(self, 1)
        self._ends[advertised] = End(node, kind, port)
        return advertised

    def cut_off(self, node: int, *, clients_too: bool) -> None:
        """Nothing passes between this node and the others; ``clients_too``: nor between it and its clients."""
        self._cut_off[node] = clients_too
        self._loop.call_soon_threadsafe(self._look)

    def heal(self) -> None:
        self._cut_off.clear()
        self._loop.call_soon_threadsafe(self._look)

    def __enter__(self) -> Network:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        servers = [await asyncio.start_server(self._accept, "127.0.0.1", port) for port in self._ends]
        self._started.set()
        await self._stop.wait()
        for server in servers:
            server.close()

    def _look(self) -> None:
        for connection in self._connections:
            self._judge(connection)

    def _judge(self, connection: _Connection) -> None:
        node, source = connection.end.node, connection.source
        if source is None:
            is_cut = self._cut_off.get(node, False)
        else:
            is_cut = (node in self._cut_off) != (source in self._cut_off)
        if is_cut:
            connection.is_open.clear()
        else:
            connection.is_open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = self._ends[writer.get_extra_info("sockname")[1]]
        connection: _Connection | None = None
        broker: asyncio.StreamWriter | None = None
        try:
            first = await _frame(reader)
            connection = _Connection(end, None if end.kind == CLIENTS else _source(first))
            self._connections.add(connection)
            self._judge(connection)
            await connection.is_open.wait()
            back, broker = await asyncio.open_connection("127.0.0.1", end.port)
            asked: dict[bytes, int] = {}
            answers = asyncio.create_task(self._back(connection, back, writer, asked))
            try:
                while True:
                    await connection.is_open.wait()
                    if end.kind == CLIENTS:
                        asked[first[8:12]] = api_key = int.from_bytes(first[4:6])
                        self.on_request(end.node, api_key)
                    broker.write(first)
                    await broker.drain()
                    first = await _frame(reader)
            finally:
                answers.cancel()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one of the two has gone
        finally:
            self._connections.discard(connection)  # pyright: ignore[reportArgumentType]
            for one in (writer, broker):
                if one is not None:
                    one.close()

    async def _back(
        self,
        connection: _Connection,
        broker: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        asked: dict[bytes, int],
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                answer = await _frame(broker)
                await connection.is_open.wait()
                if connection.end.kind == CLIENTS:
                    self.on_answer(connection.end.node, asked.pop(answer[4:8], -1))
                client.write(answer)
                await client.drain()
        client.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(struct.unpack(">i", size)[0])


def _source(first: bytes) -> int:
    """The node that opened a connection: "broker-2-fetcher-0", "raft-client-2", "2"."""
    size = struct.unpack_from(">h", first, 12)[0]
    client_id = first[14 : 14 + max(size, 0)].decode()
    found = re.search(r"\d+", client_id)
    assert found, f"a client id without a node: {client_id!r}"
    return int(found[0])


def _ignore(node: int, api_key: int) -> None:
    """No trap is set."""

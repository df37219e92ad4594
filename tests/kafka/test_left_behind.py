"""A request to a Kafka that is given up half way leaves nothing open."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from eventbus.backends.kafka.settings import read_settings
from eventbus.backends.kafka.wire import Connection, Wire
from eventbus.backends.urls import open_backend
from eventbus.protocol import messages as m
from eventbus.testing import KafkaServer

pytestmark = pytest.mark.system


async def test_a_request_given_up_when_all_is_closed_closes_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[Connection] = []
    asked, go_on, answered = threading.Event(), threading.Event(), threading.Event()
    call, ask_by = Connection.call, Wire._ask_by  # pyright: ignore[reportPrivateUsage]

    def held(connection: Connection, request: Any, version: int) -> Any:
        answer = call(connection, request, version)
        if type(request).__name__ == "ListGroupsRequest":
            opened.append(connection)
            asked.set()
            go_on.wait(30)
        return answer

    def told(*args: Any) -> Any:
        answer = ask_by(*args)
        if opened:
            answered.set()
        return answer

    monkeypatch.setattr(Connection, "call", held)
    monkeypatch.setattr(Wire, "_ask_by", told)
    with KafkaServer() as server:
        backend = open_backend(f"kafka://{server.bootstrap}", {})
        await backend.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(backend.list_groups)
            assert await anyio.to_thread.run_sync(asked.wait, 30)
            tasks.cancel_scope.cancel()
        await backend.aclose()
        go_on.set()
        assert await anyio.to_thread.run_sync(answered.wait, 30)
    assert [connection._socket.fileno() for connection in opened] == [-1]  # pyright: ignore[reportPrivateUsage]


async def test_a_request_that_begins_after_the_close_keeps_no_connection() -> None:
    """A request that was cancelled before its thread had begun: it goes on, and nobody closes what it leaves."""
    with KafkaServer() as server:
        wire = Wire(read_settings(server.bootstrap, {}), 10)
        wire.close()
        await anyio.to_thread.run_sync(wire.call, m.ApiVersionsRequest(), 0)
        assert not wire._idle  # pyright: ignore[reportPrivateUsage]
        wire.open()
        await anyio.to_thread.run_sync(wire.call, m.ApiVersionsRequest(), 0)
        assert wire._idle  # pyright: ignore[reportPrivateUsage]
        wire.close()

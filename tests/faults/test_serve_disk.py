"""The disk fails under a server: its clients are told, go on reading, and go on writing when it heals."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id
from eventbus.log.storage import Storage
from eventbus.protocol import messages as m
from eventbus.server import Listener, Server, ServerConfig
from eventbus.testing import FakeClock
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full, io_error
from tests.server.batches import batch, fetch, make, produce, produce_request, values_in
from tests.server.wire import WireClient

STORAGE_ERROR = 56
VERSIONS = m.ApiVersionsRequest(client_software_name="wire", client_software_version="1")


def server_on(storage: Storage, **settings: Any) -> Server:
    """A server on a storage of the test's own."""
    clock = FakeClock()
    config = broker_config({"auto_create_topics": True, **settings})
    server = Server("memory://disk", ServerConfig(listeners=(Listener(port=0),)))
    server._backend = EmbeddedBackend("disk", lambda: Engine("disk", storage, config, clock, new_id), clock)
    return server


@pytest.mark.system
async def test_a_full_disk_is_an_error_of_that_partition_and_heals() -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with server_on(storage) as server, WireClient(server) as client:
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(b"before"))).error_code == 0
        storage.fail_at = storage.calls_count + 1
        for _ in range(3):
            answer = await produce(client, "t", 0, batch(b"lost"))
            assert answer.error_code == STORAGE_ERROR
            assert "t-0" in answer.error_message
        assert [value for _, value in values_in(await fetch(client, "t", 0, 0))] == [b"before"]
        assert (await client.call(VERSIONS, 3)).error_code == 0
        storage.heal()
        answer = await produce(client, "t", 0, batch(b"after"))
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert [value for _, value in values_in(await fetch(client, "t", 0, 0))] == [b"before", b"after"]


async def test_who_waits_for_no_answer_learns_of_a_full_disk_by_the_end_of_the_connection() -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with server_on(storage) as server, WireClient(server) as client, WireClient(server) as other:
        await make(client, "t")
        storage.fail_at = storage.calls_count + 1
        client.send(produce_request({("t", 0): batch(b"lost")}, acks=0), 9)
        assert await client.is_closed()
        assert (await other.call(VERSIONS, 3)).error_code == 0
        storage.heal()


async def test_a_flush_that_failed_is_no_acknowledgement(caplog: pytest.LogCaptureFixture) -> None:
    """All who wait for it are told; nothing is written any more, and what is there can be read."""
    caplog.set_level(logging.ERROR, "asyncio")
    storage = FaultyStorage(CrashStorage(), error=io_error, only=("sync",))
    async with server_on(storage, fsync="commit") as server, WireClient(server) as client, WireClient(server) as other:
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(b"safe"))).error_code == 0
        storage.fail_at = storage.calls_count + 1
        sent = [one.send(produce_request({("t", 0): batch(b"unknown")}), 9) for one in (client, other)]
        for one, number in zip((client, other), sent, strict=True):
            (answer,) = (await one.receive(number)).responses[0].partition_responses
            assert answer.error_code == STORAGE_ERROR
        storage.heal()  # the next fsync would report success: it must not be asked
        assert (await produce(client, "t", 0, batch(b"refused"))).error_code == STORAGE_ERROR
        assert (b"safe") in [value for _, value in values_in(await fetch(client, "t", 0, 0))]
    assert not caplog.records

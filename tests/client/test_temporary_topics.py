"""Topics that live as long as a bus: created at its start, deleted when it closes, and never those of others."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.errors import EventBusError, StorageFull, TopicAlreadyExists

URL = "memory://temporary-topics"


def declaring(*topics: str) -> EventBus:
    bus = EventBus(URL)
    for topic in topics:
        bus.topic(topic, partitions=2, temporary=True)
    return bus


async def test_they_are_there_while_the_bus_runs_and_each_run_begins_anew() -> None:
    async with EventBus(URL) as log:
        bus, read = declaring("clicks"), list[str]()

        @bus.consumer("clicks", group="reader")
        async def reader(click: str) -> None:
            read.append(click)

        await log.admin.create_topic("kept")
        for run in ("one", "two"):
            async with bus:
                assert await log.admin.list_topics() == ["clicks", "kept"]
                await bus.send("clicks", run)
                await bus.drain()
            assert await log.admin.list_topics() == ["kept"]
            assert await log.admin.group_offsets("reader") == {}
        assert read == ["one", "two"]


async def test_the_admin_makes_them_too() -> None:
    async with EventBus(URL) as log:
        async with EventBus(URL) as bus:
            topic = await bus.admin.create_topic("clicks", 3, temporary=True)
            assert len(topic.partitions) == 3
            await bus.admin.create_topic("asked", temporary=True, validate_only=True)
            assert await log.admin.list_topics() == ["clicks"]
        assert await log.admin.list_topics() == []


async def test_what_is_there_already_is_somebody_elses() -> None:
    async with EventBus(URL) as log:
        await log.admin.create_topic("orders")
        await log.send("orders", "precious")
        with pytest.raises(TopicAlreadyExists, match="eventbus topics delete orders"):
            async with declaring("mine", "orders", "more"):
                pass
        assert await log.admin.list_topics() == ["orders"], "what the start had made is gone, the rest untouched"
        async with log.new_consumer("orders", value=str) as consumer:
            assert [record.value for record in await consumer.poll()] == ["precious"]


async def test_they_go_whatever_ends_the_bus() -> None:
    async with EventBus(URL) as log:
        with pytest.raises(ZeroDivisionError):
            async with declaring("clicks"):
                raise ZeroDivisionError
        assert await log.admin.list_topics() == []
        with anyio.CancelScope() as scope:
            async with declaring("clicks"):
                scope.cancel()
                await anyio.sleep_forever()
        assert await log.admin.list_topics() == []


async def test_one_that_the_program_has_deleted_is_no_trouble(caplog: pytest.LogCaptureFixture) -> None:
    async with EventBus(URL) as log:
        async with declaring("clicks", "pages") as bus:
            await bus.admin.delete_topics("clicks")
        assert await log.admin.list_topics() == []
        assert caplog.text == ""


async def test_what_is_left_behind_is_named(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async with EventBus(URL) as log:

        async def refuse(*_: object) -> None:
            raise error

        error: EventBusError = StorageFull("no space left")
        async with declaring("clicks"):
            monkeypatch.setattr(EmbeddedBackend, "delete_topics", refuse)
        assert "temporary topics could not be deleted, clicks: no space left" in caplog.text
        assert await log.admin.list_topics() == ["clicks"]

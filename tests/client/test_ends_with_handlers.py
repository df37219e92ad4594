"""``bus.run(ends_with_handlers=True)`` returns when no handler takes records any more."""

from __future__ import annotations

import anyio
import pytest

from dlq import Retry
from eventbus.testing import TestBus
from tests.client.fakes import on_both, others_run


def fragile(bus: TestBus, topic: str, partitions: int = 1, **options: object) -> None:
    """A handler that raises at every record."""
    bus.topic(topic, partitions=partitions)

    @bus.consumer(topic, group=f"of-{topic}", name=topic, **options)  # type: ignore[call-overload]
    async def handle(value: int) -> None:
        raise ValueError("no such customer")


@on_both
async def test_a_record_in_the_retry_topic_does_not_stop_its_handler() -> None:
    bus, returned = TestBus(), anyio.Event()
    fragile(bus, "one")
    fragile(bus, "other", retry=Retry(immediate=0, delays=["1h"]))

    async def run() -> None:
        await bus.run(ends_with_handlers=True)
        returned.set()

    async with bus, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await bus.send("one", 1)
        await bus.send("other", 1)
        await bus.clock.settle()
        assert bus.failure is not None and not returned.is_set()
        bus.stop()


@pytest.mark.parametrize("ends_with_handlers", [True, False])
@on_both
async def test_it_returns_when_the_last_partition_of_the_last_handler_has_stopped(ends_with_handlers: bool) -> None:
    bus, returned = TestBus(), anyio.Event()
    fragile(bus, "one", partitions=2)
    fragile(bus, "other")

    async def run() -> None:
        await bus.run(ends_with_handlers=ends_with_handlers)
        returned.set()

    async with bus, anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for topic, partition in (("one", 0), ("other", 0), ("one", 1)):
            await others_run()
            assert not returned.is_set()
            await bus.send(topic, 1, partition=partition)
            await bus.clock.settle()
        assert returned.is_set() is ends_with_handlers
        assert "no such customer" in str(bus.failure)
        bus.stop()


@on_both
async def test_handlers_that_had_stopped_before() -> None:
    bus = TestBus()
    fragile(bus, "one")
    async with bus:
        await bus.send("one", 1)
        await bus.clock.settle()
        with anyio.fail_after(5):
            await bus.run(ends_with_handlers=True)

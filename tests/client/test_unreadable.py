"""A partition that the log cannot read stops alone; a damaged record and a failing disk are never skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus, TopicPartition, consumer
from eventbus.errors import (
    ConfigError,
    CorruptRecord,
    EventBusError,
    HandlerError,
    LogPoisoned,
    StorageError,
    error_for_code,
)
from eventbus.types import FetchedRecords
from tests.client.fakes import T0, T1, Running, on_both, others_run, records, running
from tests.support import until


def fails(run: Running, error: EventBusError, partition: TopicPartition | None) -> None:
    """The next fetch raises it."""
    error.topic_partition = partition

    async def order() -> list[FetchedRecords]:
        raise error

    run.consumer._order(order)


def collecting(done: list[int], **options: Any) -> Any:
    @consumer("t", group="g", **options)
    async def handle(value: bytes) -> None:
        done.append(int(value))

    return handle


SHAPES: list[dict[str, Any]] = [
    {}, {"on_error": "skip"}, {"order": "none", "concurrency": 2}, {"delivery": "at-most-once"},
]  # fmt: skip


@pytest.mark.parametrize("options", SHAPES, ids=str)
@pytest.mark.parametrize("error", [StorageError("EIO"), CorruptRecord("the CRC does not match")], ids=repr)
@on_both
async def test_it_stops_alone_when_what_was_fetched_before_is_handled(
    options: dict[str, Any], error: EventBusError
) -> None:
    done: list[int] = []
    async with running(collecting(done, **options)) as run:
        run.consumer.deliver(records(T0, range(3)), records(T1, range(100, 103)))
        fails(run, error, T0)
        run.consumer.deliver(records(T1, range(103, 106)))
        await others_run()
        assert sorted(done) == [0, 1, 2, *range(100, 106)]
        assert T0 in run.consumer.paused and T1 not in run.consumer.paused
        assert "cannot read on" in str(run.runner.error)
        await run.runner.commit()
        assert run.consumer.offsets[T0].offset == 3 and not run.runner.has_left


@on_both
async def test_it_stops_before_anything_of_it_was_read() -> None:
    done: list[int] = []
    async with running(collecting(done)) as run:
        fails(run, StorageError("EIO"), T0)
        run.consumer.deliver(records(T1, range(100, 103)))
        await others_run()
        assert done == [100, 101, 102]
        assert list(await run.runner.lag()) == [T1], "an offline partition has no end"
        assert not run.runner.has_stopped
        fails(run, StorageError("EIO"), T1)
        await others_run()
        assert run.runner.has_stopped


@on_both
async def test_on_error_crash_ends_the_bus() -> None:
    with pytest.raises((HandlerError, ExceptionGroup)):
        async with running(collecting([], on_error="crash")) as run:
            fails(run, StorageError("EIO"), T0)
            await others_run()


@pytest.mark.parametrize(
    ("error", "partition"),
    [
        (ConfigError("the group is not allowed"), None),
        (error_for_code(29, "the topic is not allowed"), None),
        (LogPoisoned("a flush failed"), T0),
    ],
    ids=["of the group", "of a topic", "of the whole log"],
)
@on_both
async def test_an_error_of_no_partition_ends_the_handler_and_not_its_bus(
    error: EventBusError, partition: TopicPartition | None
) -> None:
    done: list[int] = []
    async with running(collecting(done)) as run:
        run.consumer.deliver(records(T1, range(3)))
        await others_run()
        fails(run, error, partition)
        await others_run()
        assert run.runner.has_left and run.runner.has_stopped
        assert run.runner.error is not None and run.runner.error.__cause__ is error
        assert done == [0, 1, 2] and run.consumer.offsets[T1].offset == 3, "what was fetched before is committed"


@on_both
async def test_an_error_of_a_partition_that_is_not_held_ends_nothing() -> None:
    """A topic that may not be described any more: librdkafka reports that when the group has given it up."""
    done: list[int] = []
    async with running(collecting(done)) as run:
        fails(run, error_for_code(29, "the topic is not allowed"), TopicPartition("u", 0))
        run.consumer.deliver(records(T0, range(3)))
        await others_run()
        assert done == [0, 1, 2] and not run.runner.has_left
        assert "not allowed" in str(run.runner.error), "drain() raises it"


@on_both
async def test_an_error_of_the_log_in_a_task_of_a_handler_does_not_end_its_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(collecting([])) as run:
        error = error_for_code(30, "the group is not allowed")

        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(run.runner, "_next_chunk", fail)
        run.consumer.deliver(records(T0, range(3)))
        await others_run()
        assert run.runner.has_left
        assert run.runner.error is not None and run.runner.error.__cause__ is error


@on_both
async def test_a_bus_starts_with_a_partition_that_is_offline(tmp_path: Path) -> None:
    done: list[int] = []

    def bus() -> EventBus:
        bus = EventBus(f"file://{tmp_path}/log")
        bus.topic("t", partitions=2)
        return bus

    async with bus() as first:
        for partition in range(2):
            await first.send("t", partition, partition=partition)
    [segment] = tmp_path.glob("log/t-0/*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[-1] ^= 1
    segment.write_bytes(damaged)

    second = bus()

    @second.consumer("t", group="g")
    async def handle(value: int) -> None:
        done.append(value)

    async with second:
        with pytest.raises(HandlerError, match="cannot read on: t-0 is offline"):
            await second.drain()
        await until(lambda: done == [1])

"""A partition that the log cannot read stops alone; a damaged record and a failing disk are never skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eventbus import EventBus, TopicPartition, consumer
from eventbus.errors import CorruptRecord, EventBusError, HandlerError, LogPoisoned, StorageError
from eventbus.types import FetchedRecords
from tests.client.fakes import T0, T1, Running, on_both, others_run, records, running


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


@pytest.mark.parametrize(
    ("options", "error", "partition"),
    [
        ({"on_error": "crash"}, StorageError("EIO"), T0),
        ({}, StorageError("EIO"), None),
        ({}, LogPoisoned("a flush failed"), T0),
    ],
    ids=["as on_error says", "of no partition", "of the whole log"],
)
@on_both
async def test_it_ends_the_handler(options: dict[str, Any], error: EventBusError, partition: TopicPartition) -> None:
    with pytest.raises((HandlerError, ExceptionGroup)):
        async with running(collecting([], **options)) as run:
            fails(run, error, partition)
            await others_run()


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
        assert done == [1]

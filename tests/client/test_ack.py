"""``record.ack()``: a record is finished when its handler says so, and not before."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition, consumer
from eventbus.client.handling.middleware import CallNext
from eventbus.client.handling.work_actions import Commit
from eventbus.errors import ConfigError, IllegalGeneration
from eventbus.testing import TestBus
from tests.client.dispatching import chunk_of, dispatched
from tests.support import others_wait


async def manual(function: Any, *values: bytes, **options: Any) -> Any:
    return await dispatched(consumer("t", ack="manual", **options)(function), *values)


# where it is refused --------------------------------------------------------------------------------------------------


async def test_records_of_other_handlers_say_where_it_belongs() -> None:
    errors: list[str] = []

    @consumer("t")
    async def handle(record: ConsumerRecord) -> None:
        with pytest.raises(ConfigError) as caught:
            record.ack()
        errors.append(str(caught.value))
        with pytest.raises(ConfigError):
            await record.ack_now()

    assert (await dispatched(handle, b"1")).work.finished == 1
    assert "t-0 offset 0: ack() is for handlers with @consumer(..., ack='manual')" in errors[0]


async def test_records_of_a_consumer_name_its_commit() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"x")
        async with bus.new_consumer("t", group="g") as reader:
            [record] = await reader.poll()
            with pytest.raises(
                ConfigError, match=r"consumer\.commit\(\{record\.topic_partition: record\.next_offset\}"
            ):
                record.ack()
            await reader.commit({record.topic_partition: record.next_offset})  # what it says works


# what it means --------------------------------------------------------------------------------------------------------


async def test_a_record_is_finished_when_it_is_acknowledged() -> None:
    records: list[ConsumerRecord] = []

    async def handle(record: ConsumerRecord) -> None:
        records.append(record)

    driver = await manual(handle, b"1", b"2", b"3")
    assert driver.work.finished == 0
    records[1].ack()
    assert driver.work.finished == 0
    records[0].ack()
    assert driver.work.finished == 2
    records[0].ack()
    records[1].ack()
    assert driver.work.finished == 2
    records[2].ack()
    assert driver.work.finished == 3


async def test_the_payload_and_its_record() -> None:
    async def handle(payload: bytes, record: ConsumerRecord) -> None:
        assert payload == record.value
        assert repr(record) == repr(chunk_of(b"1", b"2").record(record.offset))  # nothing of the inside shows
        record.ack()

    assert (await manual(handle, b"1", b"2")).work.finished == 2


async def test_a_plain_function_acknowledges_from_its_thread() -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.value != b"2":
            record.ack()

    assert (await manual(handle, b"1", b"2", b"3")).work.finished == 1


async def test_batches_acknowledge_record_by_record() -> None:
    async def handle(records: list[ConsumerRecord]) -> None:
        for record in records:
            if record.value != b"3":
                record.ack()

    assert (await manual(handle, b"1", b"2", b"3", b"4", batch=2)).work.finished == 2


async def test_an_acknowledged_record_stays_finished_when_its_handler_raises() -> None:
    async def handle(record: ConsumerRecord) -> None:
        record.ack()
        raise ValueError("after it")

    driver = await manual(handle, b"1", b"2")
    assert driver.work.finished == 1
    assert "offset 0" in str(driver.error)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_failure_that_is_skipped_needs_no_acknowledgement(is_async: bool) -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.value == b"bad":
            raise ValueError("no")
        record.ack()

    async def handle_later(record: ConsumerRecord) -> None:
        handle(record)

    driver = await manual(handle_later if is_async else handle, b"bad", b"2", on_error="skip")
    assert driver.work.finished == 2


@pytest.mark.parametrize("kind", ["async", "sync", "batch"])
async def test_what_the_handler_never_saw_needs_no_acknowledgement(kind: str) -> None:
    seen: list[bytes] = []

    async def odd_ones(record: Any, call_next: CallNext) -> Any:
        if isinstance(record, list):
            return await call_next([one for one in record if one.offset % 2])
        return await call_next(record) if record.offset % 2 else None

    def handle(record: ConsumerRecord) -> None:
        seen.append(record.value)
        record.ack()

    async def handle_later(record: ConsumerRecord) -> None:
        handle(record)

    async def handle_batch(records: list[ConsumerRecord]) -> None:
        for record in records:
            handle(record)

    function: Any = {"async": handle_later, "sync": handle, "batch": handle_batch}[kind]
    driver = await manual(
        function,
        b"0",
        b"1",
        b"2",
        b"3",
        middleware=[odd_ones],
        filter=lambda record: record.offset < 3,
        batch=kind == "batch",
    )
    assert (seen, driver.work.finished) == ([b"1"], 4)


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_filter_alone(kind: str) -> None:
    def handle(record: ConsumerRecord) -> None:
        if record.value == b"1":
            record.ack()

    async def handle_later(record: ConsumerRecord) -> None:
        handle(record)

    function: Any = handle if kind == "sync" else handle_later
    driver = await manual(function, b"0", b"1", b"2", filter=lambda record: record.value != b"0")
    assert driver.work.finished == 2


async def test_a_copy_of_the_record_acknowledges_the_same() -> None:
    async def decrypt(record: ConsumerRecord, call_next: CallNext) -> Any:
        return await call_next(msgspec.structs.replace(record, value=b"clear"))

    kept: list[ConsumerRecord] = []

    async def handle(payload: bytes, record: ConsumerRecord) -> None:
        assert payload == record.value == b"clear"
        kept.append(record)

    driver = await manual(handle, b"secret", middleware=[decrypt])
    assert driver.work.finished == 0
    kept[0].ack()
    assert driver.work.finished == 1


# now ------------------------------------------------------------------------------------------------------------------


async def test_ack_now_returns_when_the_commit_is_stored() -> None:
    records: list[ConsumerRecord] = []

    @consumer("t", ack="manual")
    async def handle(record: ConsumerRecord) -> None:
        records.append(record)

    driver = await dispatched(handle, b"1", b"2")
    done: list[int] = []

    async def acknowledge(record: ConsumerRecord) -> None:
        await record.ack_now()
        done.append(record.offset)

    async with anyio.create_task_group() as tasks:
        for record in records:
            tasks.start_soon(acknowledge, record)
        await others_wait()
        assert (driver.work.finished, done) == (2, [])
        driver.stored(Commit(1))
        await others_wait()
        assert done == [0]
        driver.stored(driver.work.next_commit())
    assert done == [0, 1]
    await records[1].ack_now()


async def test_a_partition_that_is_lost() -> None:
    records: list[ConsumerRecord] = []

    @consumer("t", ack="manual")
    async def handle(record: ConsumerRecord) -> None:
        records.append(record)

    driver = await dispatched(handle, b"1")
    driver.close(abandon=True)
    records[0].ack()
    with pytest.raises(IllegalGeneration, match="handles it again"):
        await records[0].ack_now()


# on a bus -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("order", ["partition", "none"])
def test_on_a_bus_what_is_not_acknowledged_comes_again(order: str, backend: str) -> None:
    seen: list[list[str]] = []

    async def main() -> None:
        bus = TestBus()
        bus.topic("t", partitions=1)
        late: list[ConsumerRecord] = []

        @bus.consumer("t", group="g", ack="manual", order=order, concurrency=2, drain_timeout_ms=0)
        async def handle(payload: str, record: ConsumerRecord) -> None:
            seen[-1].append(payload)
            if payload == "late" and len(seen) == 1:
                late.append(record)
            elif payload != "never":
                record.ack()

        for values in (["a", "late", "b", "never", "c"], []):
            seen.append([])
            async with bus:
                for value in values:
                    await bus.send("t", value, partition=0)
                while len(seen[-1]) < (5 if values else 2):
                    await anyio.lowlevel.checkpoint()
                if values:
                    assert bus.log.committed("g").get(TopicPartition("t", 0), 0) <= 1
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(late.pop().ack_now)
                        await bus.clock.advance(seconds=1)
                    assert bus.log.committed("g")[TopicPartition("t", 0)] == 3

    anyio.run(main, backend=backend)
    assert [sorted(values) for values in seen] == [["a", "b", "c", "late", "never"], ["c", "never"]]

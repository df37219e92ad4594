"""Bugs that were found once, each by what holds now."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.errors import ConfigError, HandlerError, NoCommittedOffset, RecordTooLarge, StorageError
from eventbus.log.commit import Flush
from eventbus.log.storage import OutOfDescriptors
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage
from tests.support import others_wait

T0 = TopicPartition("t", 0)


async def values(bus: EventBus, topic: str = "t") -> list[bytes]:
    async with bus.new_consumer(topic) as reader:
        found: list[bytes] = []
        while records := await reader.poll(timeout_ms=0, max_records=10_000):
            found += [record.value for record in records]
        return found


async def test_a_send_under_wait_for_does_not_wedge_the_log(file_url: str) -> None:
    """A native task.cancel() goes through anyio's shields; the flush must not be lost with the task."""
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        for number in range(30):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(bus.send("t", b"cancelled %d" % number), 0)
            task = asyncio.ensure_future(bus.send("t", b"half way %d" % number))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        with anyio.fail_after(10):
            await bus.send("t", b"last")
            await bus.flush()
        assert (await values(bus))[-1] == b"last"


async def test_what_a_cancelled_send_wrote_becomes_readable(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bus.send, "t", b"first")
            with anyio.move_on_after(0.0):
                await bus.send("t", b"second")
        end = (await bus.admin.describe_topics(["t"]))[0].partitions[0].log_end_offset
        with anyio.fail_after(10):
            while (await bus.admin.list_offsets({T0: -1}))[T0].offset < end:
                await anyio.lowlevel.checkpoint()


async def test_nothing_is_committed_past_an_output_that_failed(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("in")
    bus.topic("out", configs={"max.message.bytes": 2000})
    release = anyio.Event()

    @bus.consumer("in", group="g")
    @bus.producer("out")
    async def handle(number: int) -> bytes | None:
        if number == 1:
            return b"x" * 5000
        if number == 3:
            await release.wait()
        return None

    async with bus:
        await bus.send_many("in", range(6))
        with pytest.raises(HandlerError, match=r"in-0: what the handler published for offset 1"):
            with anyio.fail_after(10):
                while bus.failure is None:
                    await anyio.lowlevel.checkpoint()
                    release.set()
                await bus.drain()
        offsets = await bus.admin.group_offsets("g")
        assert offsets.get(TopicPartition("in", 0), (0,))[0] <= 1
    async with bus.__class__(bus.url) if bus.url.startswith("file") else make_bus() as again:
        offsets = await again.admin.group_offsets("g")
        assert offsets.get(TopicPartition("in", 0), (0,))[0] <= 1


async def test_outputs_that_fail_are_skipped_where_asked(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("in")
    bus.topic("out", configs={"max.message.bytes": 2000})

    @bus.consumer("in", group="g", on_error="skip")
    @bus.producer("out")
    async def handle(number: int) -> bytes:
        return b"x" * 5000 if number == 1 else b"%d" % number

    async with bus:
        await bus.send_many("in", range(4))
        await bus.drain()
        assert await values(bus, "out") == [b"0", b"2", b"3"]


async def test_a_topic_made_anew_is_read_from_its_beginning(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: list[str] = []

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None:
        seen.append(text)

    async with bus:
        await bus.send_many("t", [f"old{n}" for n in range(5)])
        await bus.drain()
        await bus.admin.delete_topics("t")
        await bus.admin.create_topic("t")
        await bus.send_many("t", [f"new{n}" for n in range(3)])
        await bus.drain()
    assert seen[5:] == ["new0", "new1", "new2"]
    if bus.url.startswith("file"):
        async with bus:
            assert (await bus.admin.group_offsets("g"))[T0].offset == 3


async def test_a_record_of_a_deleted_topic_is_not_committed_into_its_successor(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    at_work, go_on = anyio.Event(), anyio.Event()

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None:
        if text == "old4":
            at_work.set()
            await go_on.wait()

    async with bus:
        await bus.send_many("t", [f"old{n}" for n in range(5)])
        await at_work.wait()
        await bus.admin.delete_topics("t")
        await bus.admin.create_topic("t")
        go_on.set()
        await bus.drain()
        assert await bus.admin.group_offsets("g") == {}


async def test_flush_ends_while_others_keep_sending(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")

        async def chatter() -> None:
            while True:
                bus.send_nowait("t", b"x")
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chatter)
            await anyio.lowlevel.checkpoint()
            mine = bus.send_nowait("t", b"mine")
            with anyio.fail_after(10):
                await bus.flush()
            assert mine.done()
            tasks.cancel_scope.cancel()


async def test_a_callback_that_sends_to_its_own_partition_loses_nothing(make_bus: Any) -> None:
    async with make_bus(batch_size=1000) as bus:
        await bus.admin.create_topic("t")
        handles: list[Any] = []

        def again(metadata: Any, error: Any) -> None:
            handles.append(bus.send_nowait("t", b"from the callback"))

        handles.append(bus.send_nowait("t", b"small", on_delivery=again))
        handles.append(bus.send_nowait("t", b"x" * 2000))
        await bus.flush()
        await bus.flush()
        assert all(handle.done() for handle in handles)
        assert len(await values(bus)) == 3


async def test_drain_sees_partitions_and_topics_that_came_meanwhile(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("a.1")
    seen: list[str] = []

    @bus.consumer(pattern=r"a\..*", group="g", start="latest")
    async def handle(text: str) -> None:
        seen.append(text)

    async with bus:
        await bus.admin.add_partitions("a.1", 2)
        await bus.send("a.1", "grown", partition=1)
        await bus.drain()
        assert seen == ["grown"]
        await bus.admin.create_topic("a.2")
        await bus.send("a.2", "new topic")
        await bus.drain()
        assert seen == ["grown", "new topic"]
        await bus.admin.delete_topics("a.2")
        await bus.drain()


async def test_buses_of_one_log_must_agree_on_its_settings(file_url: str) -> None:
    async with EventBus(file_url, fsync="os"):
        with pytest.raises(ConfigError, match=r"fsync='os', and cannot be opened with fsync='commit'"):
            async with EventBus(file_url):
                pass


async def test_a_loop_of_awaited_sends_lets_others_run(make_bus: Any) -> None:
    async with make_bus(acks=1) as bus:
        await bus.admin.create_topic("t")
        sent = 0
        with anyio.move_on_after(0.05) as scope:
            while True:
                await bus.send("t", b"x")
                sent += 1
        assert scope.cancelled_caught and sent


async def test_a_producer_sends_without_being_entered(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        producer = bus.new_producer(linger_ms=1)
        with anyio.fail_after(10):
            assert (await producer.send("t", b"x")).offset == 0
        left_open = producer.send_nowait("t", b"y")
    assert left_open.result().offset == 1


async def test_a_failed_start_can_be_repeated() -> None:
    storage = CrashStorage()
    bus = bus_on(storage)
    bus.topic("t")

    @bus.consumer("t", group="g", start="none")
    async def handle(text: str) -> None: ...

    for _ in range(2):
        with pytest.raises(NoCommittedOffset):
            async with bus:
                pass
    async with bus_on(storage) as other:
        await other.admin.alter_group_offsets("g", {T0: 0})
    async with bus:
        assert "running" in repr(bus)


async def test_a_handler_that_cannot_start_leaves_its_group() -> None:
    async with EventBus("memory://claims") as one:
        await one.admin.create_topic("t1")
        two = EventBus("memory://claims")

        @two.consumer("t1", group="g", start="none")
        async def handle(record: ConsumerRecord) -> None: ...

        with pytest.raises(NoCommittedOffset):
            async with two:
                pass
        assert (await one.admin.describe_group("g")).members == ()


def test_one_bus_may_run_under_one_loop_after_another() -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    seen: list[str] = []

    @bus.consumer("t")
    async def handle(text: str) -> None:
        seen.append(text)

    async def main() -> None:
        async with bus:
            await bus.send("t", "x")
            await bus.drain()

    for backend in ("asyncio", "trio", "asyncio"):
        anyio.run(main, backend=backend)
    assert len(seen) == 3


@pytest.mark.system
async def test_large_keys_and_headers_fail_alone(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        innocent = bus.send_nowait("t", b"innocent")
        for large in ({"key": b"x" * 2_000_000}, {"headers": {"h": b"x" * 2_000_000}}):
            with pytest.raises(RecordTooLarge):
                bus.send_nowait("t", b"v", **large)
            with pytest.raises(RecordTooLarge):
                await bus.send("t", b"v", **large)
        assert (await innocent).offset == 0


async def test_send_many_raises_its_own_errors_only(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        await bus.admin.create_topic("small", configs={"max.message.bytes": 500})
        other = bus.send_nowait("small", b"x" * 5000)
        await bus.send_many("t", [b"1", b"2"])
        assert other.exception() is not None


@pytest.mark.system
async def test_offsets_are_committed_while_a_slow_fetch_is_at_work(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    hold = anyio.Event()

    @bus.consumer("t", group="g")
    async def handle(number: int) -> None:
        if number == 5:
            await hold.wait()

    async with bus:
        await bus.send_many("t", range(10))
        with anyio.fail_after(10):
            while (await bus.admin.group_offsets("g")).get(T0, (0,))[0] != 5:
                await anyio.lowlevel.checkpoint()
        hold.set()


async def test_two_handlers_that_crash_are_one_handler_error(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t", partitions=2)

    @bus.consumer("t", on_error="crash")
    async def handle(text: str) -> None:
        raise ValueError(text)

    with pytest.raises(HandlerError):
        async with bus:
            await bus.send("t", "a", partition=0)
            await bus.send("t", "b", partition=1)
            await anyio.sleep_forever()


async def test_a_group_of_exceptions_raised_inside_stays_one(make_bus: Any) -> None:
    with pytest.raises(ExceptionGroup, match="mine"):
        async with make_bus():
            raise ExceptionGroup("mine", [ValueError("x")])
    with pytest.raises(ValueError, match="alone"):
        async with make_bus():
            raise ValueError("alone")


async def test_a_handler_that_drains_is_told_that_it_waits_for_itself(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")

    @bus.consumer("t")
    async def handle(text: str) -> None:
        await bus.drain()

    async with bus:
        await bus.send("t", "x")
        with pytest.raises(HandlerError, match="waits for itself"):
            while True:
                await bus.drain()


async def test_run_can_be_called_again(make_bus: Any) -> None:
    async with make_bus() as bus:
        bus.stop()
        await bus.run()
        with anyio.move_on_after(0.02) as scope:
            await bus.run()
        assert scope.cancelled_caught


async def test_fetch_min_bytes_waits_for_company(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_consumer("t", fetch_min_bytes=300) as consumer, anyio.create_task_group() as tasks:
            polled: list[ConsumerRecord] = []

            async def poll() -> None:
                polled.extend(await consumer.poll(timeout_ms=60_000))

            tasks.start_soon(poll)
            await bus.send("t", b"x" * 50)
            await others_wait()
            assert not polled
            await bus.send("t", b"x" * 250)
        assert len(polled) == 2


async def test_a_flush_without_a_descriptor_is_reported_and_repeated(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"0")

        def run(flush: Flush) -> None:
            raise OutOfDescriptors(errno.EMFILE, "Too many open files")

        monkeypatch.setattr("eventbus.backends.flushes._PAUSE_SECONDS", 0)
        with monkeypatch.context() as patched:
            patched.setattr(Flush, "run", run)
            with pytest.raises(StorageError, match="Too many open files"):
                await bus.send("t", b"1")
        with anyio.fail_after(10):
            assert (await bus.send("t", b"2")).offset == 2
        assert await values(bus) == [b"0", b"1", b"2"]

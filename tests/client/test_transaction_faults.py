"""Transactions that are interrupted: cancelled at every wait, on a disk that is full or fails at every call, or killed.

Whatever happens, a transaction is visible whole or not at all, its outcome says which, and the next one works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import anyio
import pytest

from eventbus import (
    EventBus,
    OffsetAndMetadata,
    TopicPartition,
    Transaction,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from eventbus.client import producers
from eventbus.client.producer import Producer
from eventbus.client.producing import shutdown_work
from eventbus.errors import EventBusError, InvalidTxnState, LogPoisoned, StorageError, StorageFull
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, FaultyStorage, SimulatedCrash, disk_full
from tests.client.reading import engine_of, values
from tests.tiers import quick

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class CancelAt:
    """Await a coroutine, and cancel it at its n-th wait as asyncio does: past every shield of anyio."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], *at: int) -> None:
        self._coroutine = coroutine
        self._at = at
        self.waits = 0

    @property
    def was_cancelled(self) -> bool:
        return self.waits >= self._at[0]

    def __await__(self) -> Generator[Any, Any, Any]:
        resume: Callable[[], Any] = partial(self._coroutine.send, None)
        while True:
            try:
                waits_for = resume()
            except StopIteration as done:
                return done.value
            self.waits += 1
            if self.waits in self._at:
                resume = partial(self._coroutine.throw, asyncio.CancelledError())
                continue
            try:
                yield waits_for
            except BaseException as error:
                resume = partial(self._coroutine.throw, error)
            else:
                resume = partial(self._coroutine.send, None)


async def two_partitions(bus: EventBus, transactional_id: str, value: bytes, seen: list[Transaction]) -> None:
    async with bus.transaction(transactional_id) as tx:
        seen.append(tx)
        await tx.send("t", value, partition=0)
        tx.send_nowait("t", value, partition=1)
        await tx.send_offsets({T0: int(value)}, "g")


async def check_whole(bus: EventBus, value: bytes, tx: Transaction | None) -> None:
    """The value is in both partitions and its offset committed, or nothing of it is; as the outcome says."""
    found = (await values(bus, "t")).count(value)
    offset = (await bus.admin.group_offsets("g")).get(T0)
    assert found in (0, 2), f"{value!r} is in {found} partition(s)"
    assert (offset is not None and offset.offset == int(value)) == (found == 2)
    if tx is not None and tx.outcome != "unknown":
        assert tx.outcome == ("committed" if found else "aborted")


# -- cancelled at every wait -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), (1,), (1, 2)], ids=["once", "twice", "three times"])
async def test_a_block_cancelled_at_any_wait_is_whole(make_bus: Any, more: tuple[int, ...]) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        outcomes: set[str] = set()
        for n in range(1, 200):
            seen: list[Transaction] = []
            stepped = CancelAt(two_partitions(bus, "id", b"%d" % n, seen), n, *(n + later for later in more))
            with anyio.fail_after(10):
                with suppress(asyncio.CancelledError):
                    await stepped
                tx = seen[0] if seen else None
                if tx is not None and tx.outcome == "unknown":
                    outcomes.add("unknown")
                    with anyio.move_on_after(0):  # asked again, in vain
                        await tx.settle()
                    await tx.settle()
                await two_partitions(bus, "id", b"%d" % (1000 + n), [])
            if tx is not None:
                assert tx.outcome in ("committed", "aborted")
                outcomes.add(tx.outcome)
            offset = (await bus.admin.group_offsets("g"))[T0]
            assert offset.offset == 1000 + n
            found = await values(bus, "t")
            assert found.count(b"%d" % (1000 + n)) == 2
            assert found.count(b"%d" % n) == (2 if tx is not None and tx.outcome == "committed" else 0)
            if not stepped.was_cancelled:
                break
        else:
            raise AssertionError("it never came to its end")
        assert "committed" in outcomes
        engine_of(bus).broker.check()


async def test_a_commit_cancelled_at_any_wait_is_finished_by_asking_again(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        async with bus.new_producer(transactional_id="id") as producer:
            for n in range(1, 200):
                stepped = await start(producer, n, producer.commit)
                if stepped.was_cancelled:
                    with pytest.raises(InvalidTxnState):
                        producer._backend.begin_transaction()
                    await producer.commit()
                assert (await values(bus, "t")).count(b"%d" % n) == 2
                if not stepped.was_cancelled:
                    break
            await start(producer, 1000, producer.commit)
        engine_of(bus).broker.check()


async def test_an_abort_cancelled_at_any_wait_is_finished_by_asking_again(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        async with bus.new_producer(transactional_id="id") as producer:
            for n in range(1, 200):
                stepped = await start(producer, n, producer.abort)
                if stepped.was_cancelled:
                    with pytest.raises((InvalidTxnState, TransactionAborted)):
                        await producer.commit()
                        raise AssertionError("committed after an abort")
                    with suppress(InvalidTxnState):  # the commit may have seen the abort through
                        await producer.abort()
                else:
                    break
            assert await values(bus, "t") == []
            await start(producer, 1000, producer.commit)
            assert await values(bus, "t") == [b"1000", b"1000"]
        engine_of(bus).broker.check()


async def test_init_and_flush_cancelled_at_any_wait(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        for n in range(1, 200):
            async with bus.new_producer(transactional_id="id") as producer:
                init = CancelAt(producer.init(), n)
                with suppress(asyncio.CancelledError), anyio.fail_after(10):
                    await init
                flush = await start(producer, n, producer.flush)
                await producer.commit()
            assert (await values(bus, "t")).count(b"%d" % n) == 2
            if not init.was_cancelled and not flush.was_cancelled:
                break


async def start(producer: Producer, n: int, call: Callable[[], Coroutine[Any, Any, None]]) -> CancelAt:
    """A transaction over two partitions, and then the call, cancelled at its n-th wait."""
    await producer.begin()
    producer.send_nowait("t", b"%d" % n, partition=0)
    producer.send_nowait("t", b"%d" % n, partition=1)
    stepped = CancelAt(call(), n)
    with suppress(asyncio.CancelledError), anyio.fail_after(10):
        await stepped
    return stepped


async def test_a_scope_that_ends_inside_a_block_aborts_it(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        with anyio.CancelScope() as scope:
            async with bus.transaction("id") as tx:
                tx.send_nowait("t", b"no")
                scope.cancel()
        assert tx.outcome == "aborted"
        with anyio.CancelScope() as scope:
            async with bus.transaction("id") as tx:
                await tx.send("t", b"no")
                scope.cancel()
                await anyio.sleep_forever()
        assert tx.outcome == "aborted"
        async with bus.transaction("id") as tx:
            await tx.send("t", b"yes")
        assert await values(bus, "t") == [b"yes"]


async def test_wait_for_around_a_block(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        seen: list[Transaction] = []
        for n in range(50):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(two_partitions(bus, "id", b"%d" % n, seen), timeout=n / 10_000)
        await bus.send("t", b"-1", partition=0)
        await bus.send("t", b"-1", partition=1)
        found = await values(bus, "t")
        for n in range(50):
            assert found.count(b"%d" % n) in (0, 2)
        assert len(found) == 2 + 2 * [tx.outcome for tx in seen].count("committed")


# -- on a disk that is full --------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("persistent", [False, True], ids=["one call", "from then on"])
async def test_a_full_disk_at_any_append(persistent: bool) -> None:
    await at_every_call(
        FaultyStorage(CrashStorage(), error=disk_full, persistent=persistent, only=("append", "pwrite"))
    )


@pytest.mark.parametrize("only", ["open", "makedirs"])
async def test_an_error_at_any_other_call(only: str) -> None:
    await at_every_call(FaultyStorage(CrashStorage(), error=disk_full, only=(only,)))


async def at_every_call(storage: FaultyStorage) -> None:
    """A transaction for every call that can fail in it, and one after it that works."""
    failed_count = 0
    async with bus_on(storage, max_block_ms=50) as bus:
        for n in range(1, 100):
            topic = f"t{n}"  # its files are made anew each time
            await bus.admin.create_topic(topic)
            seen: list[Transaction] = []
            storage.calls_count, storage.failures_count, storage.fail_at = 0, 0, n
            error = None
            with anyio.fail_after(20):
                try:
                    await one_more(bus, topic, b"1", seen)
                except (StorageError, TransactionAborted, TransactionOutcomeUnknown) as raised:
                    error = raised
            has_failed = storage.failures_count > 0
            failed_count += has_failed
            storage.heal()
            await one_more(bus, topic, b"2", [])
            found = await values(bus, topic)
            outcome = seen[0].outcome if seen else "aborted"
            assert found in ([b"2"], [b"1", b"2"])
            if outcome != "unknown":
                assert outcome == ("committed" if b"1" in found else "aborted")
            assert (outcome == "committed") == (error is None)
            assert await bus.admin.group_offsets(topic) == {TopicPartition(topic, 0): OffsetAndMetadata(2)}
            if not has_failed:
                assert outcome == "committed"
                break
        else:
            raise AssertionError("it never came to its end")
        assert failed_count
        engine_of(bus).broker.check()


async def one_more(bus: EventBus, topic: str, value: bytes, seen: list[Transaction]) -> None:
    async with bus.transaction("id") as tx:
        seen.append(tx)
        await tx.send(topic, value)
        await tx.send_offsets({TopicPartition(topic, 0): int(value)}, topic)


async def test_a_commit_that_found_no_room_can_be_asked_again() -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with bus_on(storage) as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id", max_block_ms=200) as producer:
            await producer.begin()
            await producer.send("t", b"x")
            storage.calls_count, storage.fail_at = 0, 1
            with pytest.raises(StorageFull):
                await producer.commit()
            with pytest.raises(StorageFull):
                await producer.commit()
            storage.heal()
            await producer.commit()
            await producer.begin()
            await producer.send("t", b"no")
            storage.calls_count, storage.fail_at = 0, 1
            with pytest.raises(StorageFull):
                await producer.abort()
            with pytest.raises(TransactionAborted, match="can only be aborted"):
                await producer.send("t", b"no")
            storage.heal()
            with pytest.raises(TransactionAborted):
                await producer.commit()
            await producer.begin()
            await producer.commit()
        assert await values(bus, "t") == [b"x"]


@pytest.mark.system
async def test_markers_that_find_no_room_are_written_later() -> None:
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    async with bus_on(storage) as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id", max_block_ms=100) as producer:
            await producer.begin()
            await producer.send("t", b"x")
            storage.calls_count, storage.fail_at = 0, 2  # the decision is written, its marker is not
            with pytest.raises(TransactionOutcomeUnknown, match="could not be ended within"):
                await producer.commit()
            assert await values(bus, "t") == []
            storage.heal()
        async with bus.transaction("id") as tx:  # a new producer waits until it is done
            await tx.send("t", b"y")
        assert await values(bus, "t") == [b"x", b"y"]


async def test_a_cancelled_transaction_and_the_bus_end_although_the_disk_is_full(monkeypatch) -> None:
    """Its markers wait for room for up to max_block_ms, a minute. A task that is cancelled does not."""
    monkeypatch.setattr(shutdown_work, "_AT_ONCE_SECONDS", 0.05)
    monkeypatch.setattr(producers, "_LEAST_SECONDS", 0.05)
    storage = FaultyStorage(CrashStorage(), error=disk_full, persistent=True, only=("append",))
    seen: list[Transaction] = []
    with anyio.fail_after(20):
        async with bus_on(storage, drain_timeout_ms=50) as bus:
            await bus.admin.create_topic("t")
            with anyio.move_on_after(0.1) as scope:
                async with bus.transaction("id") as tx:
                    seen.append(tx)
                    await tx.send("t", b"x")
                    storage.calls_count, storage.fail_at = 0, 2  # the decision is written, its marker is not
    assert scope.cancelled_caught
    assert seen[0].outcome == "unknown"
    storage.heal()
    async with bus_on(storage) as bus:
        assert await values(bus, "t") == [b"x"], "it was decided, so the next start finishes it"


# -- on a disk that fails a flush --------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("only", ["sync", "sync_dir"])
async def test_a_flush_that_fails_at_any_place(only: str) -> None:
    """The failure poisons the log. Reopened, it shows the outcome of the transaction."""
    outcomes: list[str] = []
    for n in range(1, 50):
        disk = CrashStorage()
        seen: list[Transaction] = []
        failures = 0
        storage = FaultyStorage(disk, only=(only,))
        with suppress(StorageError):
            async with bus_on(storage) as bus:
                await bus.admin.create_topic("t", partitions=2)
                await two_partitions(bus, "id", b"1", [])
                storage.calls_count, storage.failures_count, storage.fail_at = 0, 0, n
                failed: BaseException | None = None
                with anyio.fail_after(10):
                    try:
                        await two_partitions(bus, "id", b"2", seen)
                    except EventBusError as error:
                        failed = error
                    failures = storage.failures_count
                    if failures:
                        with pytest.raises(EventBusError):
                            await two_partitions(bus, "id", b"3", [])
        tx = seen[0]
        outcomes.append(tx.outcome)
        if tx.outcome == "unknown":
            assert isinstance(failed, TransactionOutcomeUnknown)
        elif tx.outcome == "aborted":
            assert isinstance(failed, (TransactionAborted, LogPoisoned, StorageError))
        async with bus_on(disk.kill()) as bus:
            await check_whole(bus, b"2", tx)
            await two_partitions(bus, "id", b"4", [])
            await check_whole(bus, b"4", None)
            engine_of(bus).broker.check()
        if not failures:
            break
    assert outcomes[-1] == "committed" and (only != "sync" or {"unknown", "aborted"} <= set(outcomes))


# -- a process that dies -----------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("every", quick([3, 1], 1))
async def test_a_process_that_dies_at_any_call_leaves_no_half_transaction(every: int) -> None:
    for n in range(1, 200, every):
        disk = CrashStorage()
        seen: list[Transaction] = []
        with suppress(SimulatedCrash):
            async with bus_on(disk) as bus:
                await bus.admin.create_topic("t", partitions=2)
                await two_partitions(bus, "id", b"1", [])
                disk.crash_at_call = disk.calls_count + n
                await two_partitions(bus, "id", b"2", seen)
        finished = not disk.stopped
        for survivor in (disk.crash(Random(n)), disk.kill()):
            async with bus_on(survivor) as bus:
                acknowledged = bool(seen) and seen[0].outcome == "committed"
                found = (await values(bus, "t")).count(b"2")
                assert found == 2 if acknowledged else found in (0, 2)
                await two_partitions(bus, "id", b"3", [])  # the id of the dead is taken over
                await check_whole(bus, b"3", None)
                engine_of(bus).broker.check()
        if finished:
            break


async def test_the_id_of_a_dead_producer_is_taken_over() -> None:
    disk = CrashStorage()
    with suppress(SimulatedCrash):
        async with bus_on(disk) as bus:
            await bus.admin.create_topic("t", partitions=2)
            producer = bus.new_producer(transactional_id="id")
            await producer.begin()
            await producer.send("t", b"open", partition=0)
            disk.crash_at_call = disk.calls_count + 1
            await producer.send("t", b"open", partition=1)
    async with bus_on(disk.kill()) as bus:
        await two_partitions(bus, "id", b"1", [])
        assert await values(bus, "t") == [b"1", b"1"]
        assert await values(bus, "t", "read_uncommitted") == [b"open", b"1", b"1"]


# -- the order of a commit ---------------------------------------------------------------------------------------------


def undurable(bus: EventBus) -> set[str]:
    """The partitions that hold something which is not on disk yet."""
    partitions: Any = engine_of(bus).broker._partitions
    return {str(tp) for tp, one in partitions.items() if one.log.high_watermark < one.log.log_end_offset}


async def test_the_decision_comes_after_the_data(file_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t", partitions=2)
        broker = engine_of(bus).broker
        end, seen = broker.transactions.end, list[set[str]]()

        def look(*args: Any, **options: Any) -> Any:
            seen.append({name for name in undurable(bus) if not name.startswith("__transaction_state")})
            return end(*args, **options)

        monkeypatch.setattr(broker.transactions, "end", look)
        for n in range(3):
            async with bus.transaction("id") as tx:
                tx.send_nowait("t", b"%d" % n, partition=0)
                tx.send_nowait("t", b"%d" % n, partition=1)
                await tx.send_offsets({T0: n}, "g")
            where = broker.groups.partition_of("g")
            assert not {"t-0", "t-1", str(where)} & undurable(bus)
        async with bus.transaction("id") as tx:
            await tx.send_offsets({T0: 9}, "g")  # nothing else that would be waited for
        assert seen == [set()] * 4


async def test_an_epoch_is_given_out_after_a_flush(file_url: str) -> None:
    async with EventBus(file_url) as bus, bus.new_producer(transactional_id="id") as producer:
        await producer.init()
        assert undurable(bus) == set()


async def test_a_commit_that_was_decided_is_not_interrupted_by_a_scope(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        broker = engine_of(bus).broker
        end = broker.transactions.end
        committed = False
        with anyio.CancelScope() as scope:
            async with bus.new_producer(transactional_id="id") as producer:
                await producer.begin()
                producer.send_nowait("t", b"x")

                def decide(*args: Any, **options: Any) -> Any:
                    scope.cancel()
                    return end(*args, **options)

                monkeypatch.setattr(broker.transactions, "end", decide)
                await producer.commit()
                committed = True
        assert committed
        assert await values(bus, "t") == [b"x"]


async def test_a_batch_that_went_with_its_topic_before_it_was_durable(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        await bus.admin.create_topic("gone")
        async with bus.new_producer(transactional_id="id") as producer:
            await producer.begin()
            await producer.send("t", b"no")
            lost = producer.send_nowait("gone", b"no")
            backend: Any = producer._backend
            backend.close_open()
            await bus.admin.delete_topics("gone")
            with pytest.raises(TransactionAborted):
                await producer.commit()
            assert lost.exception() is not None
        assert await values(bus, "t") == []

"""What a server does with a flush: callbacks, told in order, whatever becomes of the disk, the topic or a neighbour."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from eventbus.backends.cleaning import clean_next
from eventbus.backends.clock import system_clock
from eventbus.backends.engine import Engine
from eventbus.broker import BrokerConfig, TopicSpec
from eventbus.coordinator.requests import JoinGroup, JoinGroupResult
from eventbus.errors import KafkaError, LogPoisoned, StorageError, UnknownTopicOrPartition
from eventbus.log.commit import Flush
from eventbus.log.storage import MemoryStorage, OutOfDescriptors, Storage
from eventbus.records import BatchBuilder
from eventbus.testing.storage import CrashStorage, FaultyStorage, io_error
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

PLACE = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
DEADLINE_S = 30


class Disk:
    """Holds every flush back until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        self.free.set()
        self.flushes = 0
        self.begun = threading.Event()
        run = Flush.run

        def held(flush: Flush) -> None:
            self.flushes += 1
            self.begun.set()
            assert self.free.wait(DEADLINE_S)
            run(flush)

        monkeypatch.setattr(Flush, "run", held)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        self.free.clear()
        try:
            yield
        finally:
            self.free.set()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def engine_on(storage: Storage, **settings: object) -> Engine:
    ids = itertools.count(2)
    engine = Engine("test", storage, BrokerConfig(**settings), system_clock, lambda: next(ids).to_bytes(16, "big"))
    engine.attach()
    engine.broker.create_topics([TopicSpec("t", 2)], engine.clock())
    return engine


def append(engine: Engine, place: TopicPartition = PLACE) -> int:
    builder = BatchBuilder()
    builder.append(b"key", b"value", (), engine.clock())
    return engine.broker.produce(place, builder.build(), engine.clock()).last_offset


def large_batch() -> bytearray:
    builder = BatchBuilder()
    builder.append(b"key", bytes(700_000), (), system_clock())
    return builder.build()


class Told:
    """What the callbacks were told, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.errors: dict[str, KafkaError | None] = {}
        self._event = asyncio.Event()

    def by(self, name: str):
        def then(error: KafkaError | None) -> None:
            assert name not in self.errors, "told twice"
            self.names.append(name)
            self.errors[name] = error
            self._event.set()

        return then

    async def wait(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.names) < count:
                self._event.clear()
                await self._event.wait()


@pytest.mark.parametrize("mode", ["os", "interval"])
async def test_nothing_to_wait_for_is_told_at_once(mode: str) -> None:
    engine, told = engine_on(CrashStorage(), fsync=mode), Told()
    engine.flushes.when_durable(PLACE, append(engine), told.by("record"))
    engine.flushes.when_flushed(told.by("group"))
    assert told.names == ["record", "group"] and set(told.errors.values()) == {None}
    engine.detach()


async def test_one_flush_for_all_who_came_in_one_turn_and_the_next_for_the_rest(disk: Disk) -> None:
    engine, told = engine_on(CrashStorage()), Told()
    disk.flushes = 0
    with disk.busy():
        for number in range(3):
            engine.flushes.when_durable(PLACE, append(engine), told.by(f"first {number}"))
        await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
        offset = append(engine, OTHER)
        engine.flushes.when_durable(OTHER, offset, told.by("second"))
        engine.flushes.when_flushed(told.by("all of it"))
        engine.flushes.when_durable(PLACE, 0, told.by("first again"))
        assert not told.names
    await told.wait(6)
    assert told.names == ["first 0", "first 1", "first 2", "first again", "second", "all of it"]
    assert set(told.errors.values()) == {None}
    assert disk.flushes == 2
    engine.flushes.when_durable(OTHER, offset, told.by("afterwards"))
    engine.flushes.when_flushed(told.by("clean"))
    assert told.names[-2:] == ["afterwards", "clean"]
    engine.detach()


async def test_a_group_waits_for_the_flush_under_way_alone_when_it_covers_all(disk: Disk) -> None:
    engine, told = engine_on(CrashStorage()), Told()
    disk.flushes = 0
    with disk.busy():
        commit = {PLACE: OffsetAndMetadata(0)}
        engine.groups.commit_offsets("g", commit, engine.now_ms())
        engine.flushes.when_flushed(told.by("one"))
        disk.begun.clear()
        await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
        engine.flushes.when_flushed(told.by("two"))
    await told.wait(2)
    assert told.names == ["one", "two"] and disk.flushes == 1
    engine.detach()


async def test_a_callback_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    engine, told = engine_on(CrashStorage()), Told()

    def broken(error: KafkaError | None) -> None:
        raise RuntimeError("mine")

    offset = append(engine)
    engine.flushes.when_durable(PLACE, offset, told.by("before"))
    engine.flushes.when_durable(PLACE, offset, broken)
    engine.flushes.when_durable(PLACE, offset, told.by("after"))
    with caplog.at_level(logging.ERROR):
        await told.wait(2)
        engine.flushes.when_durable(PLACE, offset, broken)
    assert told.names == ["before", "after"]
    assert len(caplog.records) == 2 and all(record.exc_info for record in caplog.records)
    engine.detach()


async def test_who_waits_is_told_also_when_a_flush_is_not_completed_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug in what follows a flush, say in a transaction's end, is not everybody's."""
    engine, told = engine_on(CrashStorage()), Told()

    def broken(now_ms: int) -> None:
        raise RuntimeError("mine")

    monkeypatch.setattr(engine.broker.transactions, "prepared", {"a"})
    monkeypatch.setattr(engine.broker.transactions, "finish_prepared", broken)
    for name in ("first", "second"):
        engine.flushes.when_durable(PLACE, append(engine), told.by(name))
        engine.flushes.when_flushed(told.by(f"{name} group"))
        await told.wait(len(told.names) + 2)
    assert told.names == ["first", "first group", "second", "second group"]
    assert set(told.errors.values()) == {None}
    assert "mine" in caplog.text
    monkeypatch.undo()
    engine.detach()


async def test_what_a_callback_appends_shares_the_next_flush(disk: Disk) -> None:
    engine, told = engine_on(CrashStorage()), Told()
    disk.flushes = 0

    def again(name: str):
        def then(error: KafkaError | None) -> None:
            assert error is None
            engine.flushes.when_durable(OTHER, append(engine, OTHER), told.by(name))

        return then

    offset = append(engine)
    engine.flushes.when_durable(PLACE, offset, again("third"))
    engine.flushes.when_durable(PLACE, offset, again("fourth"))
    engine.flushes.when_durable(PLACE, offset, told.by("first"))
    await told.wait(3)
    assert told.names == ["first", "third", "fourth"]
    assert disk.flushes == 2
    engine.detach()


async def test_a_topic_deleted_meanwhile_is_said_even_when_another_has_its_name(disk: Disk) -> None:
    engine, told = engine_on(CrashStorage()), Told()
    with disk.busy():
        engine.flushes.when_durable(PLACE, append(engine), told.by("deleted"))
        engine.flushes.when_durable(OTHER, append(engine, OTHER), told.by("its neighbour"))
        disk.begun.clear()
        await asyncio.to_thread(disk.begun.wait, DEADLINE_S)
        engine.broker.delete_topics(["t"], engine.clock())
        engine.broker.create_topics([TopicSpec("t", 1)], engine.clock())
        assert append(engine) == 0, "the same place in another log"
    await told.wait(2)
    assert {type(error) for error in told.errors.values()} == {UnknownTopicOrPartition}
    engine.flushes.when_durable(OTHER, 0, told.by("no such partition"))
    assert isinstance(told.errors["no such partition"], UnknownTopicOrPartition)
    engine.detach()


async def test_a_failed_flush_is_told_to_all_whom_it_covered_and_to_those_who_come_later() -> None:
    storage = FaultyStorage(CrashStorage(), error=io_error, only=("sync",))
    engine, told = engine_on(storage), Told()
    storage.calls_count, storage.fail_at = 0, 1
    offset = append(engine)
    engine.flushes.when_durable(PLACE, offset, told.by("record"))
    engine.flushes.when_flushed(told.by("group"))
    await told.wait(2)
    engine.flushes.when_durable(PLACE, offset, told.by("later"))
    engine.flushes.when_flushed(told.by("group later"))
    assert told.names == ["record", "group", "later", "group later"]
    assert {type(error) for error in told.errors.values()} == {LogPoisoned}
    with contextlib.suppress(KafkaError):
        engine.detach()


class NoDescriptor:
    """The first flushes find no file descriptor, the next one does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int = 1) -> None:
        self.tries = 0
        loop = asyncio.get_running_loop()
        self.found = asyncio.Event()
        run = Flush.run

        def scarce(flush: Flush) -> None:
            self.tries += 1
            if self.tries <= failures:
                raise OutOfDescriptors(errno.EMFILE, "Too many open files")
            run(flush)
            loop.call_soon_threadsafe(self.found.set)

        monkeypatch.setattr(Flush, "run", scarce)
        monkeypatch.setattr("eventbus.backends.flushes._PAUSE_SECONDS", 0)


async def test_everyone_who_waits_is_told_that_there_is_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_on(CrashStorage())
    scarce = NoDescriptor(monkeypatch, failures=3)
    told: list[KafkaError | None] = []
    offset = append(engine)
    engine.flushes.when_durable(PLACE, offset, told.append)
    with pytest.raises(StorageError, match="Too many open files"):
        await engine.flushes.wait_durable(PLACE, offset)
    assert [str(error).partition(". ")[0] for error in told] == [f"flushing {engine.name}: Too many open files"]
    await engine.flushes.wait_durable(PLACE, append(engine))
    assert scarce.tries > 3 and engine.broker.trouble == ""
    assert len(caplog.messages) == 1, "one warning, however many attempts"
    engine.detach()


async def test_a_change_that_is_appended_during_a_flush_is_waited_for(disk: Disk) -> None:
    engine = engine_on(CrashStorage())
    with disk.busy():
        append(engine)
        engine.flushes.begin()
        offset = append(engine)
        flushed = asyncio.create_task(engine.flushes.flush_all())
        await asyncio.sleep(0)
    await flushed
    assert engine.broker.is_durable(PLACE, offset)
    engine.detach()


async def test_the_housekeeping_survives_a_flush_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the server along, and with it the sessions and timeouts of all."""
    engine = engine_on(CrashStorage(), fsync="interval", fsync_interval_ms=1)
    scarce = NoDescriptor(monkeypatch)
    append(engine)
    housekeeping = asyncio.create_task(engine.run())
    async with asyncio.timeout(DEADLINE_S):
        await scarce.found.wait()
    assert not housekeeping.done()
    housekeeping.cancel()
    await asyncio.wait([housekeeping])
    engine.detach()


async def test_the_compaction_survives_a_flush_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_on(CrashStorage(), fsync="os")
    engine.broker.alter_configs("t", {"segment.bytes": 1 << 20}, [], engine.clock())
    scarce = NoDescriptor(monkeypatch)
    for _ in range(2):  # a segment that is sealed, and the next
        engine.broker.produce(PLACE, large_batch(), engine.clock())
    assert engine.broker.needs_sync
    assert not await clean_next(engine) and scarce.tries
    engine.detach()


async def test_a_log_that_is_closed_answers_who_still_waits(disk: Disk) -> None:
    engine, told = engine_on(CrashStorage()), Told()
    engine.flushes.when_durable(PLACE, append(engine), told.by("record"))
    engine.detach()
    assert isinstance(told.errors["record"], StorageError)
    await asyncio.sleep(0)  # the flush that was to begin finds no log


@pytest.mark.parametrize("clients_may_return", [True, False])
def test_clients_of_a_server_come_back_after_it_was_restarted(clients_may_return: bool) -> None:
    storage = MemoryStorage()
    engine = engine_on(storage)
    now_ms = engine.now_ms()
    joined: list[JoinGroupResult | KafkaError] = []
    engine.groups.join(JoinGroup(group="g", protocols=(("range", b"what"),)), now_ms, joined.append)
    engine.groups.tick(now_ms + 10_000)
    (member,) = joined
    assert isinstance(member, JoinGroupResult)
    synced: list[object] = []
    me = GroupMetadata("g", member.generation_id, member.member_id, None)
    engine.groups.sync(me, {member.member_id: b"all of it"}, now_ms, synced.append)
    producer = engine.broker.transactions.init_producer_id("tx", 60_000, now_ms)
    engine.broker.transactions.add_partitions("tx", producer, [PLACE], now_ms)
    engine.detach()
    engine = Engine("test", storage, BrokerConfig(), system_clock, lambda: os.urandom(16))
    engine.attach(clients_may_return=clients_may_return)
    (group,) = engine.groups.describe(["g"])
    assert [one.member_id for one in group.members] == ([member.member_id] if clients_may_return else [])
    state = engine.broker.transactions.describe("tx").state
    assert (state == "Ongoing") is clients_may_return
    engine.detach()

"""Connectors at work: each record once, one writer at a time, failures that pass and failures that do not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import anyio
import anyio.to_thread
import msgspec
import pytest

from eventbus import EventBus
from eventbus.client.handling.invocation import abandoned_threads
from eventbus.connect import (
    Connectors,
    ConnectorsFailed,
    Key,
    Offset,
    Refused,
    SinkConnector,
    SinkRecord,
    SourceConnector,
    SourceRecord,
)
from eventbus.connect.offsets import OffsetTopic
from eventbus.connect.source_run import SourceRun
from eventbus.errors import ConfigError, ProducerFenced, SerializationError
from eventbus.testing import FakeClock, TestBus
from eventbus.types import TopicPartition
from tests.connect.conftest import Notes, all_values
from tests.support import records_of, until

pytestmark = pytest.mark.system

HERE = "tests.connect.test_connectors"


class Numbers(SourceConnector):
    """0, 1, 2, ... up to ``until``; breaks once after each of ``breaks``."""

    keys: ClassVar[Sequence[Key]] = (
        Key("until", "int", 3), Key("breaks", "list", ()), Key("topic", default="numbers"), Key("bad", "int", -1),
    )  # fmt: skip
    broken: ClassVar[set[str]] = set()
    started_at: ClassVar[list[int]] = []
    more: ClassVar[list[str]] = []

    def start(self, offsets: Mapping[str, Offset]) -> None:
        self.next = offsets.get('{"of":"numbers"}', {"next": 0})["next"]
        self.started_at.append(self.next)

    def poll(self) -> Sequence[SourceRecord]:
        number = self.next
        if str(number) in self.settings["breaks"] and str(number) not in self.broken:
            self.broken.add(str(number))
            raise OSError("the line is down")
        if number == self.settings["until"] + len(self.more):
            return ()
        self.next += 1
        value: Any = SerializationError("it is bad") if number == self.settings["bad"] else number
        partition, offset = {"of": "numbers"}, {"next": self.next}
        return [SourceRecord(topic=self.settings["topic"], value=value, partition=partition, offset=offset)]


class Shelf(SinkConnector):
    """Keeps what it is given; refuses ``bad``."""

    kept: ClassVar[list[Any]] = []
    flushed: ClassVar[list[Mapping[TopicPartition, int]]] = []
    fails: ClassVar[list[int]] = []

    def start(self) -> None:
        """Nothing to open."""

    def put(self, records: Sequence[SinkRecord]) -> Iterable[Refused] | None:
        if self.fails:
            self.fails.pop()
            raise OSError("the shelf is full")
        self.kept.extend(one.value for one in records if one.value != "bad")
        return [Refused(one, ValueError("it is bad")) for one in records if one.value == "bad"]

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        self.flushed.append(offsets)


class Wrong(SourceConnector):
    def __init__(self, context: Any) -> None:
        super().__init__(context)
        raise ConfigError("it never works")

    def start(self, offsets: Mapping[str, Offset]) -> None: ...

    def poll(self) -> Sequence[SourceRecord]:
        return ()


@pytest.fixture(autouse=True)
def clean() -> None:
    for one in (Numbers.broken, Numbers.started_at, Numbers.more, Shelf.kept, Shelf.flushed, Shelf.fails):
        one.clear()


def numbers(**settings: Any) -> dict[str, Any]:
    return {"name": "numbers", "connector.class": f"{HERE}:Numbers", **settings}


def shelf(**settings: Any) -> dict[str, Any]:
    return {"name": "shelf", "connector.class": f"{HERE}:Shelf", "topics": "numbers", **settings}


async def test_records_and_offsets_are_one_transaction(make_bus: Callable[[], EventBus], notes: Notes) -> None:
    bus = make_bus()
    bus.include(Connectors(numbers(), note=notes.append))
    async with bus:
        await bus.drain()
        assert await all_values(bus, "numbers") == ["0", "1", "2"]
        [stored] = (await OffsetTopic("connect-offsets").read(bus)).values()
        assert stored == ("numbers", {"of": "numbers"}, {"next": 3})
        [first, *_] = await records_of(bus, "connect-offsets")
        assert (first.key, first.value) == (b'["numbers",{"of":"numbers"}]', b'{"next":1}'), "as Kafka Connect has it"


async def test_it_goes_on_after_a_restart(notes: Notes, tmp_path: Any) -> None:
    for last in (2, 5):
        bus = EventBus(f"file://{tmp_path}/log")
        bus.include(Connectors(numbers(until=last), note=notes.append))
        async with bus:
            await bus.drain()
            assert await all_values(bus, "numbers") == [str(number) for number in range(last)]
    assert Numbers.started_at == [0, 2]


async def test_a_source_that_fails_begins_again_where_the_log_says(
    clock: FakeClock, bus: TestBus, notes: Notes
) -> None:
    bus.include(part := Connectors(numbers(breaks="1,2"), note=notes.append))
    async with bus:
        for _ in range(2):
            await bus.drain()
            assert part.runs[0].state == "waiting"
            await clock.advance(seconds=2)
        await bus.drain()
        assert await all_values(bus, "numbers") == ["0", "1", "2"]
        assert part.runs[0].restarts == 2 and part.runs[0].error is None
    assert [note for note in notes if "the line is down" in note] == [
        "numbers: OSError: the line is down; it begins again in 1 s"
    ] * 2
    assert Numbers.started_at == [0, 1, 2]


async def test_pauses_grow_while_nothing_works(clock: FakeClock, bus: TestBus, notes: Notes) -> None:
    settings = shelf(**{"errors.retry.delay.max.ms": 3_000})
    bus.topic("numbers")
    bus.include(part := Connectors(settings, note=notes.append))
    Shelf.fails.extend(range(4))
    async with bus:
        await bus.send("numbers", b"1")
        for seconds in (1, 2, 3, 3):
            await bus.drain()
            assert part.runs[0].state == "waiting"
            await clock.advance(seconds=seconds)
        await bus.drain()
    assert [note.rpartition(" in ")[2] for note in notes if "begins again" in note] == ["1 s", "2 s", "3 s", "3 s"]
    assert Shelf.kept == [1]


async def test_another_of_the_same_name_stops_this_one(make_bus: Callable[[], EventBus], notes: Notes) -> None:
    """Both would write every record."""
    bus = make_bus()
    bus.include(part := Connectors(numbers(until=2), note=notes.append))
    async with bus:
        await bus.drain()
        async with bus.new_producer(transactional_id="connect-numbers-0") as other:
            await other.init()
            Numbers.more.append("one")
            await bus.drain()
        assert part.runs[0].state == "failed" and isinstance(part.runs[0].error, ProducerFenced)
        assert await all_values(bus, "numbers") == ["0", "1"]
    assert notes.has("another worker runs a connector of this name")


async def test_a_record_that_is_no_offset_is_ignored(make_bus: Callable[[], EventBus]) -> None:
    bus = make_bus()
    topic = OffsetTopic("connect-offsets")
    async with bus:
        await topic.create(bus)
        await bus.send("connect-offsets", b'{"next":7}', key=b'["numbers",{"of":"numbers"}]')
        for odd in (b"\xff", b'["\xff",{}]', b"[" * 5_000 + b"]" * 5_000, b"7"):
            await bus.send("connect-offsets", b"{}", key=odd)
            await bus.send("connect-offsets", odd, key=b'["other",{}]')
        assert await topic.of(bus, "numbers") == {'{"of":"numbers"}': {"next": 7}}


async def test_offsets_are_read_behind_a_transaction_that_is_open(
    make_bus: Callable[[], EventBus], notes: Notes
) -> None:
    """Another connector's, begun before our last one was committed: who reads what is committed stops before it."""
    bus = make_bus()
    topic = OffsetTopic("connect-offsets")
    async with bus:
        await topic.create(bus)
        async with bus.new_producer(transactional_id="other") as other:
            await other.begin()
            await other.send("connect-offsets", b"{}", key=b'["other",{}]')
            async with bus.transaction("mine") as tx:
                await tx.send("connect-offsets", b'{"next":7}', key=b'["numbers",{"of":"numbers"}]')
            found: list[Any] = []

            async def read() -> None:
                found.append(await topic.of(bus, "numbers"))
                bus.stop()

            bus.context.start_soon(read)
            await bus.flush()
            assert not found, "it waits for the open one"
            await other.abort()
            await bus.run()
        assert found == [{'{"of":"numbers"}': {"next": 7}}]


@pytest.mark.parametrize("tolerance", ["none", "all"])
async def test_a_bad_record_of_a_source(make_bus: Callable[[], EventBus], notes: Notes, tolerance: str) -> None:
    bus = make_bus()
    bus.include(part := Connectors(numbers(bad=1, **{"errors.tolerance": tolerance}), note=notes.append))
    async with bus:
        await bus.drain()
        run = part.runs[0]
        if tolerance == "all":
            assert await all_values(bus, "numbers") == ["0", "2"]
            assert (run.state, run.errors, run.records) == ("running", 1, 2)
        else:
            assert await all_values(bus, "numbers") == ["0"]
            assert run.state == "failed" and notes.has("{'of': 'numbers'} at {'next': 2}: it is bad")


async def test_bad_records_of_a_sink_become_dead_letters(make_bus: Callable[[], EventBus], notes: Notes) -> None:
    settings = shelf(**{
        "errors.tolerance": "all", "errors.deadletterqueue.topic.name": "dead",
        "errors.deadletterqueue.context.headers.enable": "true",
    })  # fmt: skip
    bus = make_bus()
    bus.topic("numbers")
    bus.include(part := Connectors(settings, note=notes.append))
    async with bus:
        for value in (b'"good"', b"no json", b'"bad"'):
            await bus.send("numbers", value, key=b"k", headers={"h": b"1"})
        await bus.drain()
        dead = await records_of(bus, "dead")
    assert Shelf.kept == ["good"] and part.runs[0].errors == 2
    assert [(one.key, one.value, one.header("h")) for one in dead] == [(b"k", b"no json", b"1"), (b"k", b'"bad"', b"1")]
    stages = [(one.header("__connect.errors.stage"), one.header("__connect.errors.offset")) for one in dead]
    assert stages == [(b"VALUE_CONVERTER", b"1"), (b"TASK_PUT", b"2")]


async def test_a_sink_stops_at_a_bad_record_unless_it_is_told_otherwise(
    make_bus: Callable[[], EventBus], notes: Notes
) -> None:
    bus = make_bus()
    bus.topic("numbers")
    bus.include(part := Connectors(shelf(), note=notes.append))
    async with bus:
        await bus.send("numbers", b"no json")
        await bus.drain()
        assert part.runs[0].state == "failed"
        assert await bus.admin.group_offsets("connect-shelf") == {}
    assert notes.has("numbers-0 offset 0 (VALUE_CONVERTER): no JSON")


async def test_a_sink_commits_what_it_has_made_durable(clock: FakeClock, bus: TestBus, notes: Notes) -> None:
    bus.include(Connectors(numbers(until=4), shelf(), note=notes.append))
    async with bus:
        await bus.drain()
        [offset] = (await bus.admin.group_offsets("connect-shelf")).values()
    assert Shelf.kept == [0, 1, 2, 3]
    assert Shelf.flushed[-1] == {TopicPartition("numbers", 0): offset.offset}


async def test_what_ends_with_the_last_connector(notes: Notes) -> None:
    bus = EventBus("memory://")
    bus.topic("numbers")
    bus.include(Connectors(shelf(), note=notes.append, ends=True))
    with pytest.raises(ConnectorsFailed, match=r"shelf: numbers-0 offset 0"):
        async with bus:
            await bus.send("numbers", b"no json")
            await bus.run()


async def test_missing_topics_are_made_or_missed(make_bus: Callable[[], EventBus], notes: Notes) -> None:
    settings = {"topic.creation.default.partitions": 3, "topic.creation.default.cleanup.policy": "compact"}
    bus = make_bus()
    bus.include(Connectors(numbers(**settings), note=notes.append))
    async with bus:
        await bus.drain()
        [made] = await bus.admin.describe_topics(["numbers"])
    assert len(made.partitions) == 3 and made.configs["cleanup.policy"].value == "compact"
    bus = EventBus("memory://")
    worker = {"topic.creation.enable": "false"}
    bus.include(part := Connectors(numbers(topic="nowhere"), worker=worker, note=notes.append))
    async with bus:
        await bus.drain()
        assert part.runs[0].state == "waiting"
    assert notes.has("topic 'nowhere' does not exist, and topic.creation.enable is false")


async def test_a_topic_that_would_forget_offsets_is_refused(notes: Notes) -> None:
    bus = EventBus("memory://")
    bus.topic("connect-offsets")
    bus.include(Connectors(numbers(), note=notes.append))
    with pytest.raises(ConfigError, match=r"cleanup.policy=delete and would forget offsets"):
        await bus.start()


async def test_offsets_are_nobody_elses_topic(notes: Notes) -> None:
    bus = EventBus("memory://")
    bus.include(part := Connectors(numbers(topic="connect-offsets"), note=notes.append))
    async with bus:
        await bus.drain()
        assert part.runs[0].state == "failed" and notes.has("holds the offsets of connectors")


def test_what_a_connector_says_against_its_settings_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="it never works"):
        Connectors({"name": "w", "connector.class": f"{HERE}:Wrong"})


async def test_headers_keys_partitions_and_times_go_along(notes: Notes) -> None:
    class Once(SourceConnector):
        def start(self, offsets: Mapping[str, Offset]) -> None:
            self.left = 1

        def poll(self) -> Sequence[SourceRecord]:
            self.left, left = 0, self.left
            return [
                SourceRecord(topic="t", value=None, key="k", headers=(("a", b"1"),), topic_partition=1, timestamp_ms=5)
            ] * left

    globals()["Once"] = Once
    settings = {"name": "once", "connector.class": f"{HERE}:Once", "topic.creation.default.partitions": 2}
    bus = EventBus("memory://")
    bus.include(part := Connectors(settings, note=notes.append))
    async with bus:
        await bus.drain()
        [record] = await records_of(bus, "t")
    assert (record.key, record.value, record.headers) == (b"k", None, (("a", b"1"),))
    assert (record.partition, record.timestamp_ms) == (1, 5)
    assert isinstance(part.runs[0], SourceRun) and msgspec.json.encode(part.runs[0].transactions) == b"1"


async def test_a_partition_that_comes_back_is_not_committed_where_it_was(
    clock: FakeClock, bus: TestBus, notes: Notes
) -> None:
    """Another member has read on meanwhile: a flush of the other partition must not take its offset back."""
    bus.topic("numbers", partitions=2)
    bus.include(Connectors(shelf(), note=notes.append))
    both = [TopicPartition("numbers", number) for number in range(2)]
    async with bus:
        for one in both:
            await bus.send("numbers", b"1", partition=one.partition)
        await bus.drain()
        async with bus.new_consumer("numbers", group="connect-shelf", start="earliest") as other:
            while len(other.assignment()) != 1:
                await other.poll(0)
                await clock.advance(ms=500)
            [moved] = other.assignment()
            await bus.send("numbers", b"2", partition=moved.partition)
            while not await other.poll(0):
                await clock.advance(ms=500)
            await other.commit()
        [kept] = {*both} - {moved}
        for _ in range(20):
            await clock.advance(ms=500)
        await bus.send("numbers", b"3", partition=kept.partition)
        await bus.drain()
        async with bus.new_consumer(partitions=both, group="connect-shelf") as looker:
            assert {one: at.offset for one, at in (await looker.committed(*both)).items()} == dict.fromkeys(both, 2)
    assert Shelf.kept == [1, 1, 3]


async def test_a_sink_that_is_given_no_partition_is_not_waited_for(
    clock: FakeClock, bus: TestBus, notes: Notes
) -> None:
    """Another worker with the same sink has the only one."""
    bus.topic("numbers")
    bus.include(part := Connectors(shelf(), note=notes.append))
    other = Connectors(shelf(), note=notes.append)
    bus.include(other)
    drained = False

    async def drain() -> None:
        nonlocal drained
        await bus.drain()
        drained = True

    async with bus:
        await bus.send("numbers", b"1")
        bus.context.start_soon(drain)
        # `bus.log.drain()` would wait for both sinks without moving the clock, and one of them may wait for the next
        # tick: the record came after its poll, its flush is due in 100 ms.
        while not drained:
            await clock.advance(ms=100)
            await anyio.to_thread.run_sync(int)  # the sinks' threads are at work: time does not run away from them
        assert [part.runs[0].records, other.runs[0].records] in ([1, 0], [0, 1])
    assert Shelf.kept == [1]


class Stuck(SourceConnector):
    """Waits in its thread for what never comes."""

    began: ClassVar[threading.Event] = threading.Event()
    goes_on: ClassVar[threading.Event] = threading.Event()

    def start(self, offsets: Mapping[str, Offset]) -> None:
        """Nothing to open."""

    def poll(self) -> Sequence[SourceRecord]:
        self.began.set()
        self.goes_on.wait()
        return ()


async def test_a_connector_that_never_returns_holds_up_neither_the_bus_nor_the_end_of_the_process(
    make_bus: Callable[[], EventBus], notes: Notes
) -> None:
    bus = make_bus()
    given = {"name": "stuck", "connector.class": f"{HERE}:Stuck"}
    bus.include(Connectors(given, worker={"task.shutdown.graceful.timeout.ms": 1}, note=notes.append))
    Stuck.began.clear()
    Stuck.goes_on.clear()
    try:
        async with bus:
            await anyio.to_thread.run_sync(Stuck.began.wait)
        assert notes.has("stuck: not stopped within 0.001 s, and was abandoned; nothing of it is stored")
        assert any(thread.is_alive() for thread in abandoned_threads), "the command does not wait for these at its end"
    finally:
        Stuck.goes_on.set()


async def test_a_topic_deleted_under_a_sink_and_a_source_that_fails_show_in_health() -> None:
    """The sink read nothing for ever; no connector was in health."""
    bus = TestBus()
    sink = {"name": "out", "connector.class": f"{HERE}.Shelf", "topics": "letters"}
    source = {"name": "in", "connector.class": f"{HERE}.Numbers", "topic": "numbers", "breaks": "1"}
    connectors = Connectors(sink, source, note=lambda text: None)
    bus.include(connectors)

    async def is_restarted() -> bool:
        await bus.clock.advance(seconds=2)
        return connectors.runs[0].restarts > 0 and connectors.runs[0].state == "running"

    async with bus:
        await until(lambda: connectors.health().status == "degraded", poll_seconds=0.01)
        reason = "connector 'in' waits to begin again: OSError: the line is down"
        assert (await bus.health()).reason == f"connectors: {reason}"
        await bus.clock.advance(seconds=20)
        await bus.drain()
        assert (await bus.health()).status == "ok"
        await bus.admin.delete_topics(["letters"])
        await until(is_restarted, poll_seconds=0.01)
        await bus.send("letters", b"7")
        await bus.drain()
        assert len(Shelf.kept) == 1

"""Partitions read to their ends, and the topic of a ledger found or created."""

from __future__ import annotations

from functools import partial

import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend, BackendConsumer
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.errors import InvalidPartitions, RequestTimedOut, TopicAlreadyExists, UnknownTopicOrPartition
from eventbus.ledger import ends_of, find_or_create, read_partitions, read_to_end
from eventbus.types import ConsumerRecord, IsolationLevel, TopicPartition

HERE = TopicPartition("states", 0)
COMPACT = TopicSpec("states", 1, configs={"cleanup.policy": "compact"})


class Script:
    """A consumer whose fetches are scripted: what each returns or raises, and the position after it."""

    def __init__(self, *fetches: tuple[str | Exception, int]) -> None:
        self.left = list(fetches)
        self.at = 0
        self.applied: list[str] = []

    async def position(self, partition: TopicPartition) -> int:
        return self.at

    async def fetch(self) -> str:
        fetched, self.at = self.left.pop(0)
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    async def read(self, end: int) -> list[str]:
        await read_to_end(self, self.fetch, {HERE: end}, self.applied.append)
        return self.applied


@pytest.mark.parametrize(
    ("fetches", "applied"),
    [
        pytest.param([("ab", 2), ("", 3)], ["ab", ""], id="a transaction marker is last"),
        pytest.param([("a", 1), ("d", 9)], ["a", "d"], id="compaction has removed offsets, the last among them"),
        pytest.param([("", 0), ("", 0), ("abc", 3)], ["", "", "abc"], id="a fetch returns nothing at first"),
    ],
)
async def test_reading_ends_with_the_position_and_not_with_a_record(
    fetches: list[tuple[str | Exception, int]], applied: list[str]
) -> None:
    consumer = Script(*fetches, ("too much", 99))
    assert await consumer.read(3) == applied


async def test_an_empty_partition_is_not_fetched() -> None:
    assert await Script().read(0) == []


async def test_reading_that_failed_halfway_goes_on_after_what_was_applied() -> None:
    consumer = Script(("ab", 2), (RequestTimedOut("no answer"), 2), ("cd", 4))
    with pytest.raises(RequestTimedOut):
        await consumer.read(4)
    assert await consumer.read(4) == ["ab", "cd"]


async def test_aborted_records_are_passed_and_open_transactions_waited_for() -> None:
    async with EventBus("memory://") as bus:
        await find_or_create(bus.context.backend, COMPACT)
        values: list[bytes] = []

        def take(records: list[ConsumerRecord]) -> None:
            values.extend(record.value or b"" for record in records)

        async with bus.new_producer(transactional_id="writer") as producer:
            for value, ends in ((b"lost", producer.abort), (b"kept", producer.commit)):
                await producer.begin()
                await producer.send("states", value, key=value, partition=0)
                await ends()
            await producer.begin()
            await producer.send("states", b"open", key=b"o", partition=0)
            committed = await ends_of(bus.context.backend, [HERE])
            all_of_it = await ends_of(bus.context.backend, [HERE], IsolationLevel.READ_UNCOMMITTED)
            assert (committed, all_of_it) == ({HERE: 4}, {HERE: 5})
            async with bus.new_consumer(partitions=[HERE], start="earliest") as consumer:
                await read_to_end(consumer, partial(consumer.poll, 0), committed, take)
                assert values == [b"kept"]
                await producer.commit()
                await read_to_end(consumer, partial(consumer.poll, 0), all_of_it, take)
        assert values == [b"kept", b"open"]


async def test_a_consumer_that_serves_nothing_else_is_closed_also_if_applying_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with EventBus("memory://") as bus:
        await find_or_create(bus.context.backend, TopicSpec("states", 1))
        for value in (b"1", b"2", b"3"):
            await bus.send("states", value, partition=0)
        closed: list[str] = []

        def opened(name: str) -> BackendConsumer:
            consumer = bus.context.reader(start="earliest")
            close = consumer.aclose

            async def noted() -> None:
                closed.append(name)
                await close()

            monkeypatch.setattr(consumer, "aclose", noted)
            return consumer

        values: list[bytes | None] = []
        await read_partitions(
            opened("good"), {HERE: 3}, lambda records: values.extend(records.values), starts={HERE: 1}
        )
        with pytest.raises(ZeroDivisionError):
            await read_partitions(opened("bad"), {HERE: 3}, lambda records: 1 / 0)
        assert (values, closed) == ([b"2", b"3"], ["good", "bad"])


# the topic -----------------------------------------------------------------------------------------------------------


async def test_a_topic_is_created_once_and_found_as_it_is() -> None:
    async with EventBus("memory://") as bus:
        created = await find_or_create(bus.context.backend, COMPACT)
        found = await find_or_create(bus.context.backend, TopicSpec("states", 3))
        assert (created.topic_id, found.configs["cleanup.policy"].value, len(found.partitions)) == (
            found.topic_id,
            "compact",
            1,
        )


async def test_another_process_may_create_the_topic_at_the_same_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with EventBus("memory://") as bus:
        backend: Backend = bus.context.backend
        created = await find_or_create(backend, COMPACT)
        describe, calls = backend.describe_topics, [0]

        async def not_there_yet(names: list[str]) -> list[TopicDescription]:
            calls[0] += 1
            if calls[0] == 1:
                raise UnknownTopicOrPartition("not yet")
            return await describe(names)

        monkeypatch.setattr(backend, "describe_topics", not_there_yet)
        assert (await find_or_create(backend, COMPACT)).topic_id == created.topic_id


async def test_what_prevents_the_creation_is_raised() -> None:
    async with EventBus("memory://") as bus:
        with pytest.raises(InvalidPartitions) as caught:
            await find_or_create(bus.context.backend, TopicSpec("states", 0))
        assert not isinstance(caught.value, TopicAlreadyExists)

"""Fetch: what is in an answer, whose limits it keeps, and when it is given."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from eventbus.protocol import messages as m
from eventbus.testing import KafkaServer
from eventbus.types import TopicPartition
from tests.server.batches import (
    batch,
    create,
    fetch,
    fetch_request,
    partitions_of,
    produce,
    produce_request,
    values_in,
)
from tests.server.wire import WireClient

OUT_OF_RANGE, UNKNOWN_TOPIC, SESSION_NOT_FOUND, UNKNOWN_LEADER_EPOCH, UNKNOWN_ID = 1, 3, 70, 75, 100
LONG_MS = 60_000
"""Longer than any test takes: who is answered was woken."""


async def parked(server: KafkaServer, client: WireClient, count: int = 1, place: tuple[str, int] = ("t", 0)) -> None:
    """Return when so many fetches wait for the partition; ``client`` is one that does not."""
    listeners = server.node.engine._listeners
    async with asyncio.timeout(20):
        while len(listeners.get(TopicPartition(*place), ())) != count:
            await client.call(m.ApiVersionsRequest(), 0)


@pytest.mark.parametrize("version", range(4, 19))
async def test_every_version_gives_batches_as_they_lie_in_the_log(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        topic_id = await create(client, "t", 2)
        await produce(client, "t", 1, batch(b"a", b"b"))
        ids = {"t": topic_id} if version >= 13 else None
        response = await client.call(fetch_request({("t", 1): 0, ("t", 0): 0}, ids=ids), version)
        assert response.error_code == response.session_id == response.throttle_time_ms == 0
        (topic,) = response.responses
        assert topic.topic == ("" if version >= 13 else "t") and (version < 13 or topic.topic_id == topic_id)
        full, empty = topic.partitions
        assert values_in(full) == [(0, b"a"), (1, b"b")]
        assert (full.partition_index, full.error_code, full.high_watermark, full.last_stable_offset) == (1, 0, 2, 2)
        assert full.log_start_offset == (0 if version >= 5 else -1) and full.preferred_read_replica == -1
        assert full.current_leader.leader_id == full.current_leader.leader_epoch == -1, "no leader that moved"
        assert full.aborted_transactions is None
        assert (empty.partition_index, empty.error_code, empty.high_watermark) == (0, 0, 0)
        assert bytes(empty.records) == b"", "null is an error to librdkafka"


async def test_an_offset_inside_a_batch_gives_the_whole_batch() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"a", b"b", b"c"))
        await produce(client, "t", 0, batch(b"d"))
        for offset in (0, 1, 2):
            assert [where for where, _ in values_in(await fetch(client, "t", 0, offset))] == [0, 1, 2, 3]
        assert values_in(await fetch(client, "t", 0, 3)) == [(3, b"d")]
        assert values_in(await fetch(client, "t", 0, 4)) == []


async def test_offsets_beyond_the_log_are_out_of_range() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"a"))
        for offset in (2, -1, 1 << 62):
            answer = await fetch(client, "t", 0, offset, max_wait_ms=LONG_MS)
            assert (answer.error_code, answer.high_watermark, bytes(answer.records)) == (OUT_OF_RANGE, -1, b"")


async def test_what_is_not_there_is_said_at_once() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        topic_id = await create(client, "t")
        for topic, number in (("other", 0), ("t", 1), ("t", -1)):
            assert (await fetch(client, topic, number, 0, max_wait_ms=LONG_MS)).error_code == UNKNOWN_TOPIC
        ids = {"t": b"x" * 16}
        answer = await fetch(client, "t", 0, 0, version=13, ids=ids, max_wait_ms=LONG_MS)
        assert answer.error_code == UNKNOWN_ID and bytes(answer.records) == b""
        await client.call(m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), 5)
        await create(client, "t")
        answer = await fetch(client, "t", 0, 0, version=13, ids={"t": topic_id}, max_wait_ms=LONG_MS)
        assert answer.error_code == UNKNOWN_ID, "another topic of the same name"
        assert not server.node.broker.has_topic("other")


async def test_a_leader_nobody_has_heard_of() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        request = fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS)
        request.topics[0].partitions[0].current_leader_epoch = 1
        (answer,) = partitions_of(await client.call(request, 9)).values()
        assert answer.error_code == UNKNOWN_LEADER_EPOCH
        request.max_wait_ms = 0
        (answer,) = partitions_of(await client.call(request, 8)).values()
        assert answer.error_code == 0, "not in this version"


# limits --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_bytes", [0, 1, 300, 1 << 20])
async def test_every_partition_asked_for_is_in_the_answer_whatever_the_limits(max_bytes: int) -> None:
    """The Java client and kafka-python drop an answer that omits one; then nobody gets anywhere."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 4)
        await create(client, "u", 1)
        offsets = {("t", number): 0 for number in range(4)} | {("u", 0): 0}
        for topic, number in offsets:
            await produce(client, topic, number, batch(b"x" * 200))
        for version in (4, 7, 12):
            response = await client.call(fetch_request(offsets, max_bytes=max_bytes, partition_max_bytes=400), version)
            found = partitions_of(response)
            assert list(found) == list(offsets)
            assert all(answer.error_code == 0 and answer.high_watermark == 1 for answer in found.values())
            full = [answer for answer in found.values() if len(answer.records)]
            assert len(full) == (5 if max_bytes > 2_000 else 1)


async def test_small_limits_starve_no_partition() -> None:
    """A consumer with fetch_max_bytes=300 over four partitions gets everything."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 4)
        for number in range(4):
            for turn in range(5):
                await produce(client, "t", number, batch(b"%d" % turn * 200))
        offsets = {("t", number): 0 for number in range(4)}
        for _ in range(40):
            response = await client.call(fetch_request(offsets, max_bytes=300), 11)
            for place, answer in partitions_of(response).items():
                offsets[place] += len(values_in(answer))
        assert set(offsets.values()) == {5}


async def test_a_busy_partition_that_comes_first_leaves_room_for_the_others() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 2)
        for _ in range(30):
            await produce(client, "t", 0, batch(b"busy" * 100))
        await produce(client, "t", 1, batch(b"quiet"))
        served = set()
        for _ in range(4):
            response = await client.call(fetch_request({("t", 0): 0, ("t", 1): 0}, max_bytes=500), 11)
            served |= {place for place, answer in partitions_of(response).items() if len(answer.records)}
        assert served == {("t", 0), ("t", 1)}


async def test_the_first_batch_may_be_larger_than_all_limits_and_no_other() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"x" * 10_000))
        await produce(client, "t", 0, batch(b"y"))
        answer = await fetch(client, "t", 0, 0, max_bytes=1, partition_max_bytes=1)
        assert [where for where, _ in values_in(answer)] == [0]
        answer = await fetch(client, "t", 0, 0, partition_max_bytes=11_000)
        assert [where for where, _ in values_in(answer)] == [0, 1]


# sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [7, 12, 18])
async def test_no_session_is_kept_so_every_request_is_complete(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        topic_id = await create(client, "t")
        ids = {"t": topic_id} if version >= 13 else None
        for session_id, epoch in ((0, 0), (0, -1), (5, -1), (5, 0)):
            request = fetch_request({("t", 0): 0}, ids=ids, session_id=session_id, session_epoch=epoch)
            response = await client.call(request, version)
            assert (response.error_code, response.session_id) == (0, 0) and len(response.responses) == 1
        response = await client.call(m.FetchRequest(session_id=5, session_epoch=1, max_wait_ms=LONG_MS), version)
        assert (response.error_code, response.session_id, response.responses) == (SESSION_NOT_FOUND, 0, [])


# waiting -------------------------------------------------------------------------------------------------------------


async def test_a_fetch_that_finds_nothing_waits_for_records() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        await create(client, "t", 2)
        sent = client.send(fetch_request({("t", 0): 0, ("t", 1): 0}, max_wait_ms=LONG_MS), 11)
        await parked(server, other)
        await produce(other, "t", 1, batch(b"a"))
        found = partitions_of(await client.receive(sent))
        assert list(found) == [("t", 0), ("t", 1)]
        assert values_in(found["t", 1]) == [(0, b"a")] and found["t", 0].high_watermark == 0
        assert not server.node.engine._listeners, "nothing is left behind"


@pytest.mark.parametrize(("version", "topics"), [(11, {}), (11, {("t", 0): 0})])
async def test_at_the_end_of_its_time_it_is_answered_empty(version: int, topics: dict[tuple[str, int], int]) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        for max_wait_ms in (0, 1, 20):
            response = await client.call(fetch_request(topics, max_wait_ms=max_wait_ms), version)
            assert [values_in(answer) for answer in partitions_of(response).values()] == [[]] * len(topics)
        assert not server.node.engine._listeners


async def test_it_waits_for_as_many_bytes_as_it_asked_for() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        await create(client, "t", 2)
        size = len(batch(b"x" * 100))
        offsets = {("t", 0): 0, ("t", 1): 0}
        sent = client.send(fetch_request(offsets, max_wait_ms=LONG_MS, min_bytes=3 * size), 11)
        await parked(server, other)
        for number in (0, 1):
            await produce(other, "t", number, batch(b"x" * 100))
            await parked(server, other)
        await produce(other, "t", 0, batch(b"x" * 100))
        found = partitions_of(await client.receive(sent))
        assert [len(values_in(answer)) for answer in found.values()] == [2, 1]
        response = await client.call(fetch_request(offsets, max_wait_ms=LONG_MS, min_bytes=size, max_bytes=size), 11)
        assert sum(len(values_in(answer)) for answer in partitions_of(response).values()) == 1


async def test_more_bytes_than_an_answer_may_hold_are_not_waited_for() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"x" * 100))
        answer = await fetch(client, "t", 0, 0, max_wait_ms=LONG_MS, min_bytes=1 << 30, max_bytes=100)
        assert len(values_in(answer)) == 1


async def test_all_who_wait_are_woken_and_one_that_is_gone_disturbs_nobody() -> None:
    """A parked fetch of a dead consumer, woken from a producer's request, once closed the producer's connection."""
    async with KafkaServer() as server, WireClient(server) as producer, WireClient(server) as waiting:
        await create(producer, "t")
        async with WireClient(server) as dead:
            dead.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
            sent = waiting.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
            await parked(server, producer, 2)
        assert (await produce(producer, "t", 0, batch(b"a"))).error_code == 0
        (answer,) = partitions_of(await waiting.receive(sent)).values()
        assert values_in(answer) == [(0, b"a")]
        await parked(server, producer, 0)
        assert (await produce(producer, "t", 0, batch(b"b"))).error_code == 0


async def test_a_client_that_disappears_leaves_nothing_behind() -> None:
    async with KafkaServer() as server, WireClient(server) as other:
        await create(other, "t")
        async with WireClient(server) as client:
            client.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
            await parked(server, other)
        await parked(server, other, 0)
        async with WireClient(server) as client:
            client.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
            await parked(server, other)
            client.writer.transport.abort()
            await parked(server, other, 0)


async def test_who_waits_hears_that_the_topic_is_gone() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        await create(client, "t")
        sent = client.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
        await parked(server, other)
        await other.call(m.DeleteTopicsRequest(topic_names=["t"], timeout_ms=1_000), 5)
        (answer,) = partitions_of(await client.receive(sent)).values()
        assert answer.error_code == UNKNOWN_TOPIC


async def test_answers_keep_their_order_behind_a_fetch_that_waits() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        await create(client, "t")
        first = client.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
        second = client.send(m.MetadataRequest(topics=None), 9)
        third = client.send(produce_request({("t", 0): batch(b"a")}), 9)
        assert values_in(partitions_of(await client.receive(first))["t", 0]) == [(0, b"a")], "woken by its own client"
        await client.receive(second)
        await client.receive(third)
        assert (await produce(other, "t", 0, batch(b"b"))).base_offset == 1


async def test_it_is_woken_by_a_bus_in_the_servers_process() -> None:
    async with KafkaServer() as server, server.bus() as bus, WireClient(server) as client, WireClient(server) as other:
        await create(client, "t")
        sent = client.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS), 11)
        await parked(server, other)
        await bus.send("t", "from the bus")
        (answer,) = partitions_of(await client.receive(sent)).values()
        assert [value for _, value in values_in(answer)] == [b"from the bus"]


# transactions --------------------------------------------------------------------------------------------------------


class Transaction:
    """One producer, driven at the broker: its batches come over the wire."""

    def __init__(self, server: KafkaServer, client: WireClient) -> None:
        self._node = server.node
        self._client = client
        self._sequences: dict[tuple[str, int], int] = {}
        self.producer = self._node.broker.transactions.init_producer_id("x", 60_000, self._node.now_ms())

    async def send(self, topic: str, number: int, *values: bytes) -> None:
        place = TopicPartition(topic, number)
        self._node.broker.transactions.add_partitions("x", self.producer, [place], self._node.now_ms())
        sequence = self._sequences.get(place, 0)
        data = batch(
            *values,
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        answer = await produce(self._client, topic, number, data, transactional_id="x")
        assert answer.error_code == 0
        self._sequences[place] = sequence + len(values)

    async def end(self, committed: bool) -> None:
        request = m.EndTxnRequest(
            transactional_id="x",
            producer_id=self.producer.producer_id,
            producer_epoch=self.producer.producer_epoch,
            committed=committed,
        )
        assert (await self._client.call(request, 3)).error_code == 0


@pytest.mark.parametrize("version", [4, 11, 18])
async def test_readers_of_committed_records_see_up_to_the_first_open_transaction(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        topic_id = await create(client, "t")
        ids = {"t": topic_id} if version >= 13 else None
        transaction = Transaction(server, client)
        await produce(client, "t", 0, batch(b"before"))
        await transaction.send("t", 0, b"aborted")
        await produce(client, "t", 0, batch(b"between"))
        read: Any = {"version": version, "ids": ids}
        answer = await fetch(client, "t", 0, 0, isolation=1, **read)
        assert values_in(answer) == [(0, b"before")] and answer.aborted_transactions == []
        assert (answer.high_watermark, answer.last_stable_offset) == (3, 1)
        assert len(values_in(await fetch(client, "t", 0, 0, **read))) == 3
        await transaction.end(committed=False)
        answer = await fetch(client, "t", 0, 0, isolation=1, **read)
        assert answer.last_stable_offset == 4 and len(values_in(answer)) >= 3
        (aborted,) = answer.aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (transaction.producer.producer_id, 1)
        answer = await fetch(client, "t", 0, 2, isolation=1, **read)
        assert len(answer.aborted_transactions) == 1, "its marker is still to come"
        assert (await fetch(client, "t", 0, 4, isolation=1, **read)).aborted_transactions == []


async def test_bytes_of_an_open_transaction_wake_nobody_who_reads_committed_records() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        await create(client, "t")
        transaction = Transaction(server, other)
        sent = client.send(fetch_request({("t", 0): 0}, max_wait_ms=LONG_MS, isolation=1), 11)
        await parked(server, other)
        await transaction.send("t", 0, b"a")
        await parked(server, other)
        await transaction.end(committed=True)
        (answer,) = partitions_of(await client.receive(sent)).values()
        assert values_in(answer)[0] == (0, b"a")

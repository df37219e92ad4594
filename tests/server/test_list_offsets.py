"""ListOffsets and OffsetForLeaderEpoch: ends, starts, times; DeleteRecords, which moves a start."""

from __future__ import annotations

import pytest

from eventbus.protocol import messages as m
from eventbus.records import BatchBuilder, iter_batches
from eventbus.testing import KafkaServer
from eventbus.types import Compression
from tests.server.batches import START_MS, batch, create, fetch, produce, values_in
from tests.server.wire import WireClient

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
OUT_OF_RANGE, UNKNOWN_TOPIC, INVALID_TOPIC, UNSUPPORTED_VERSION, POLICY = 1, 3, 17, 35, 44
FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH = 74, 75


async def list_offsets(
    client: WireClient,
    at: int,
    *,
    version: int = 7,
    topic: str = "t",
    number: int = 0,
    isolation: int = 0,
    epoch: int = -1,
) -> tuple[int, int, int, int]:
    """(error code, offset, timestamp, leader epoch)."""
    partition = m.ListOffsetsRequest.ListOffsetsPartition(
        partition_index=number, timestamp=at, current_leader_epoch=epoch
    )
    request = m.ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[partition])],
    )
    response = await client.call(request, version)
    (answer,) = response.topics[0].partitions
    assert (response.topics[0].name, answer.partition_index) == (topic, number)
    return answer.error_code, answer.offset, answer.timestamp, answer.leader_epoch


async def test_ends_starts_and_times_in_every_version() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"a", b"b", b"c"))
        await produce(client, "t", 0, batch(b"d", timestamp_ms=START_MS + 100))
        for version in range(1, 12):
            epoch = 0 if version >= 4 else -1
            assert await list_offsets(client, LATEST, version=version) == (0, 4, -1, epoch)
            assert await list_offsets(client, EARLIEST, version=version) == (0, 0, -1, epoch)
            assert await list_offsets(client, START_MS + 1, version=version) == (0, 1, START_MS + 1, epoch)
            assert await list_offsets(client, START_MS + 50, version=version) == (0, 3, START_MS + 100, epoch)
            assert await list_offsets(client, START_MS + 101, version=version) == (0, -1, -1, -1), "no error"
            assert await list_offsets(client, 0, version=version) == (0, 0, START_MS, epoch)


async def test_special_times_are_known_from_their_version_on() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"new", timestamp_ms=START_MS + 5))
        await produce(client, "t", 0, batch(b"old"))
        since = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11, -7: 99}
        found = {MAX_TIMESTAMP: (0, 0, START_MS + 5, 0), EARLIEST_LOCAL: (0, 0, -1, 0)}
        for at, first in since.items():
            for version in range(1, 12):
                answer = await list_offsets(client, at, version=version)
                if version < first:
                    assert answer == (UNSUPPORTED_VERSION, -1, -1, -1)
                else:
                    assert answer == found.get(at, (0, -1, -1, -1))


async def test_by_time_the_record_is_found_not_its_batch() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(*[b"x"] * 50))
        for delta in (0, 1, 25, 49):
            assert await list_offsets(client, START_MS + delta) == (0, delta, START_MS + delta, 0)


@pytest.mark.parametrize("codec", Compression)
async def test_times_are_looked_up_in_records_also_when_they_are_compressed_and_out_of_order(
    codec: Compression,
) -> None:
    """Headers of batches know neither which record has the largest time, nor which lie before the log's start."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        builder = BatchBuilder(codec)
        for delta in (0, 9, 3, 9, 1):
            builder.append(b"key", b"value", (), START_MS + delta)
        await produce(client, "t", 0, builder.build())
        assert await list_offsets(client, START_MS + 2) == (0, 1, START_MS + 9, 0)
        assert await list_offsets(client, MAX_TIMESTAMP) == (0, 1, START_MS + 9, 0), "the first of them"
        await delete_records(client, 2)
        assert await list_offsets(client, 0) == (0, 2, START_MS + 3, 0)
        assert await list_offsets(client, MAX_TIMESTAMP) == (0, 3, START_MS + 9, 0)
        await delete_records(client, 4)
        assert await list_offsets(client, 0) == (0, 4, START_MS + 1, 0)
        assert await list_offsets(client, START_MS + 2) == (0, -1, -1, -1)


async def test_the_end_is_the_last_stable_offset_for_readers_of_committed_records() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"a"))
        transactions = server.node.broker.transactions
        producer = transactions.init_producer_id("x", 60_000, server.node.now_ms())
        transactions.add_partitions("x", producer, [("t", 0)], server.node.now_ms())
        data = batch(
            b"open", producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=0,
            is_transactional=True,
        )  # fmt: skip
        assert not (await produce(client, "t", 0, data, transactional_id="x")).error_code
        assert (await list_offsets(client, LATEST, isolation=0))[1] == 2
        assert (await list_offsets(client, LATEST, isolation=1))[1] == 1
        assert (await list_offsets(client, START_MS + 1, isolation=1))[1] == -1


async def test_what_is_not_there_is_said() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        assert await list_offsets(client, LATEST) == (0, 0, -1, 0)
        assert await list_offsets(client, MAX_TIMESTAMP) == (0, -1, -1, -1)
        assert (await list_offsets(client, LATEST, topic="other"))[0] == UNKNOWN_TOPIC
        for number in (1, -1):
            assert (await list_offsets(client, LATEST, number=number))[0] == UNKNOWN_TOPIC
        assert not server.node.broker.has_topic("other"), "nobody asked for it to be created"


async def test_leader_epochs_are_checked() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        assert (await list_offsets(client, LATEST, epoch=0))[0] == 0
        assert (await list_offsets(client, LATEST, epoch=1))[0] == UNKNOWN_LEADER_EPOCH
        assert (await list_offsets(client, LATEST, epoch=-2))[0] == FENCED_LEADER_EPOCH
        assert (await list_offsets(client, LATEST, epoch=5, version=3))[0] == 0, "not in this version"


async def end_of_epoch(client: WireClient, epoch: int, version: int, *, current: int = -1, topic: str = "t") -> object:
    partition = m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    asked = m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[partition])
    response = await client.call(m.OffsetForLeaderEpochRequest(topics=[asked]), version)
    (answer,) = response.topics[0].partitions
    assert (response.topics[0].topic, answer.partition) == (topic, 0)
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_the_only_leaders_term_ends_where_the_log_does(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        assert await end_of_epoch(client, 0, version) == (0, 0, 0)
        await produce(client, "t", 0, batch(b"a", b"b"))
        assert await end_of_epoch(client, 0, version) == (0, 0, 2)
        assert await end_of_epoch(client, 1, version) == (0, -1, -1)
        assert await end_of_epoch(client, -1, version) == (0, -1, -1)
        assert await end_of_epoch(client, 0, version, current=0) == (0, 0, 2)
        assert await end_of_epoch(client, 0, version, current=3) == (UNKNOWN_LEADER_EPOCH, -1, -1)
        assert await end_of_epoch(client, 0, version, topic="other") == (UNKNOWN_TOPIC, -1, -1)


async def delete_records(
    client: WireClient, offset: int, version: int = 2, *, topic: str = "t", number: int = 0
) -> tuple[int, int]:
    partition = m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=number, offset=offset)
    asked = m.DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[partition])
    response = await client.call(m.DeleteRecordsRequest(topics=[asked], timeout_ms=1_000), version)
    (answer,) = response.topics[0].partitions
    assert (response.topics[0].name, answer.partition_index) == (topic, number)
    return answer.error_code, answer.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_records_are_deleted_up_to_an_offset_also_inside_a_batch(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await produce(client, "t", 0, batch(b"a", b"b", b"c"))
        assert await delete_records(client, 2, version) == (0, 2)
        assert await delete_records(client, 1, version) == (0, 2)
        assert (await list_offsets(client, EARLIEST))[1] == 2
        assert (await fetch(client, "t", 0, 1)).error_code == OUT_OF_RANGE
        answer = await fetch(client, "t", 0, 2)
        assert values_in(answer) == [(0, b"a"), (1, b"b"), (2, b"c")] and answer.log_start_offset == 2
        assert await delete_records(client, -1, version) == (0, 3)
        assert await delete_records(client, 4, version) == (OUT_OF_RANGE, -1)
        assert await delete_records(client, -2, version) == (OUT_OF_RANGE, -1)


async def test_what_cannot_be_deleted_is_said() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        await create(client, "table", cleanup_policy="compact")
        server.node.broker.groups.partition_of("some group")
        assert await delete_records(client, 0, topic="other") == (UNKNOWN_TOPIC, -1)
        assert await delete_records(client, 0, number=1) == (UNKNOWN_TOPIC, -1)
        assert await delete_records(client, 0, topic="table") == (POLICY, -1)
        assert await delete_records(client, 0, topic="__consumer_offsets") == (INVALID_TOPIC, -1)


async def test_offsets_that_compaction_took_lead_to_the_next_record() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "table", cleanup_policy="compact", segment_bytes=str(1 << 20))
        for first_key in (b"a", b"b", b"c", b"d"):
            builder = BatchBuilder()
            for key in (first_key, b"again"):
                builder.append(key, bytes(300_000), (), START_MS)
            await produce(client, "table", 0, builder.build())
        server.node.broker.clean_now(server.node.now_ms())
        offset, found = 0, []
        for _ in range(3):  # an answer's batches are of one file
            answer = await fetch(client, "table", 0, offset, max_bytes=8 << 20, partition_max_bytes=8 << 20)
            found += [where for where, _ in values_in(answer)]
            offset = [one.header.last_offset for one in iter_batches(bytes(answer.records))][-1] + 1
        assert (found, offset) == ([0, 2, 4, 5, 6, 7], 8), "no gap stops a reader"
        for gap, batch_of in ((1, [0, 2]), (3, [2])):
            answer = await fetch(client, "table", 0, gap, max_bytes=8 << 20, partition_max_bytes=8 << 20)
            assert [where for where, _ in values_in(answer)] == batch_of, "the batch that held it leads on"

"""Produce: what is stored, what is refused and with which code, and when it is answered."""

from __future__ import annotations

import asyncio
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from eventbus.backends.engine import Engine
from eventbus.log.commit import Flush
from eventbus.protocol import messages as m
from eventbus.records.batch import write_crc
from eventbus.testing import KafkaServer
from eventbus.types import Compression, TopicPartition
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

CORRUPT, UNKNOWN_TOPIC, TOO_LARGE, INVALID_TOPIC, INVALID_ACKS = 2, 3, 10, 17, 21
OUT_OF_ORDER, INVALID_EPOCH, INVALID_TXN_STATE = 45, 47, 48
ABORTABLE = 120
UNSUPPORTED_COMPRESSION, INVALID_RECORD = 76, 87
PATIENCE_SECONDS = 30


def changed(data: bytearray, layout: str, position: int, value: int) -> bytearray:
    struct.pack_into(layout, data, position, value)
    write_crc(data)
    return data


@pytest.mark.parametrize("version", range(3, 12))
async def test_every_version_stores_and_says_where(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 2)
        for turn in range(2):
            data = batch(b"a%d" % turn, b"b%d" % turn)
            request = produce_request({("t", 1): data, ("t", 0): data})
            response = await client.call(request, version)
            (topic,) = response.responses
            assert topic.name == "t"
            for number, answer in zip((1, 0), topic.partition_responses, strict=True):
                assert (answer.index, answer.error_code, answer.base_offset) == (number, 0, 2 * turn)
                assert answer.log_append_time_ms == -1 and answer.error_message is None
                assert answer.log_start_offset == (0 if version >= 5 else -1)
        assert values_in(await fetch(client, "t", 1, 0)) == [(0, b"a0"), (1, b"b0"), (2, b"a1"), (3, b"b1")]


@pytest.mark.parametrize(("base_offset", "leader_epoch"), [(0, -1), (0, 0), (77, 5), (-1, -1)])
async def test_a_batchs_offset_and_leader_epoch_are_ours_to_write(base_offset: int, leader_epoch: int) -> None:
    """Sarama sends epoch 0, franz-go -1; no CRC covers them."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        data = batch(b"a")
        struct.pack_into(">q", data, 0, base_offset)
        struct.pack_into(">i", data, 12, leader_epoch)
        assert (await produce(client, "t", 0, data)).base_offset == 0
        stored = bytes((await fetch(client, "t", 0, 0)).records)
        assert struct.unpack_from(">q", stored, 0) == (0,) and struct.unpack_from(">i", stored, 12) == (0,)
        assert stored[16:] == data[16:], "everything else is as it came"


@pytest.mark.parametrize("codec", list(Compression))
async def test_batches_keep_their_codec(codec: Compression) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        data = batch(*[b"the same again and again"] * 50, codec=codec)
        assert (await produce(client, "t", 0, bytes(data))).error_code == 0
        assert bytes((await fetch(client, "t", 0, 0)).records)[16:] == data[16:]


async def test_zstd_needs_version_7() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        for version in range(3, 12):
            answer = await produce(client, "t", 0, batch(b"x", codec=Compression.ZSTD), version=version)
            assert answer.error_code == (UNSUPPORTED_COMPRESSION if version < 7 else 0)


BAD = {
    "nothing": (None, INVALID_RECORD),
    "no byte": (b"", INVALID_RECORD),
    "a header cut short": (batch(b"a")[:60], CORRUPT),
    "a batch cut short": (batch(b"a")[:-1], CORRUPT),
    "two batches": (batch(b"a") + batch(b"b"), INVALID_RECORD),
    "a flipped bit": (batch(b"a")[:-2] + b"\x7f\0", CORRUPT),
    "magic 1": (changed(batch(b"a"), ">b", 16, 1), INVALID_RECORD),
    "magic 3": (changed(batch(b"a"), ">b", 16, 3), CORRUPT),
    "no records": (changed(batch(b"a"), ">i", 57, 0), INVALID_RECORD),
    "a wrong count": (changed(batch(b"a"), ">i", 57, 2), INVALID_RECORD),
    "a control batch": (changed(batch(b"a"), ">h", 21, 0x20), INVALID_RECORD),
    "a codec nobody knows": (changed(batch(b"a"), ">h", 21, 5), UNSUPPORTED_COMPRESSION),
    "a producer without a sequence": (changed(batch(b"a"), ">q", 43, 9), INVALID_RECORD),
}


@pytest.mark.parametrize("what", BAD)
async def test_a_bad_batch_is_refused_alone(what: str) -> None:
    data, code = BAD[what]
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", 2)
        request = produce_request({("t", 0): data, ("t", 1): batch(b"good")})
        bad, good = (await client.call(request, 9)).responses[0].partition_responses
        assert (bad.error_code, bad.base_offset, bad.log_append_time_ms, bad.log_start_offset) == (code, -1, -1, -1)
        assert bad.error_message and "t-0" in bad.error_message
        assert (good.error_code, good.base_offset) == (0, 0)
        assert (await fetch(client, "t", 0, 0)).high_watermark == 0
        assert (await produce(client, "t", 0, batch(b"after"), version=5)).base_offset == 0


async def test_what_is_not_there_is_said_and_not_created() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        server.node.broker.groups.partition_of("some group")
        for topic, number, code in (
            ("other", 0, UNKNOWN_TOPIC), ("t", 1, UNKNOWN_TOPIC), ("t", -1, UNKNOWN_TOPIC),
            ("__consumer_offsets", 0, INVALID_TOPIC),
        ):  # fmt: skip
            assert (await produce(client, topic, number, batch(b"a"))).error_code == code
        assert not server.node.broker.has_topic("other")


async def test_a_batch_above_the_topics_limit() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", max_message_bytes="500")
        answer = await produce(client, "t", 0, batch(b"x" * 500))
        assert answer.error_code == TOO_LARGE and "max.message.bytes=500" in answer.error_message
        assert (await produce(client, "t", 0, batch(b"x" * 300))).error_code == 0


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4])
async def test_records_without_key_in_a_compacted_topic_are_named_one_by_one(codec: Compression) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "table", cleanup_policy="compact")
        for version in range(3, 12):
            answer = await produce(client, "table", 0, batch(b"a", b"b", key=None, codec=codec), version=version)
            assert answer.error_code == INVALID_RECORD
            assert [one.batch_index for one in answer.record_errors] == ([0, 1] if version >= 8 else [])
        assert (await produce(client, "table", 0, batch(b"a"))).base_offset == 0


async def test_the_logs_own_time_is_told() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t", message_timestamp_type="LogAppendTime")
        before = server.node.clock()
        answer = await produce(client, "t", 0, batch(b"a", timestamp_ms=5))
        assert before <= answer.log_append_time_ms <= server.node.clock()


@pytest.mark.parametrize("acks", [2, -2, 100])
async def test_other_acks_are_refused(acks: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        assert (await produce(client, "t", 0, batch(b"a"), acks=acks)).error_code == INVALID_ACKS
        assert (await fetch(client, "t", 0, 0)).high_watermark == 0


async def test_idempotent_producers_are_held_to_their_sequences() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")

        async def send(sequence: int, epoch: int = 1) -> tuple[int, int]:
            data = batch(b"a", b"b", producer_id=7, producer_epoch=epoch, base_sequence=sequence)
            answer = await produce(client, "t", 0, data)
            return answer.error_code, answer.base_offset

        for number in range(7):
            assert await send(2 * number) == (0, 2 * number)
        assert await send(4) == (0, 4), "one of the last five: its first offset once more"
        assert await send(12) == (0, 12)
        assert (await send(2))[0] == OUT_OF_ORDER, "too long ago to tell"
        assert (await send(16))[0] == OUT_OF_ORDER
        assert (await send(0, epoch=0))[0] == INVALID_EPOCH
        assert (await send(5, epoch=2))[0] == OUT_OF_ORDER, "a new epoch begins at 0"
        assert await send(0, epoch=2) == (0, 14)


async def test_sequences_survive_a_restart(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/log"
    data = batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    async with KafkaServer(url) as server, WireClient(server) as client:
        await create(client, "t")
        assert (await produce(client, "t", 0, data)).base_offset == 0
    async with KafkaServer(url) as server, WireClient(server) as client:
        assert (await produce(client, "t", 0, data)).base_offset == 0
        data = batch(b"b", producer_id=7, producer_epoch=0, base_sequence=1)
        assert (await produce(client, "t", 0, data)).base_offset == 1


async def test_a_partition_belongs_to_a_transaction_before_it_is_written_to() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        producer = server.node.broker.transactions.init_producer_id("x", 60_000, server.node.now_ms())
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        for version, code in ((3, INVALID_TXN_STATE), (10, INVALID_TXN_STATE), (11, ABORTABLE), (12, 0)):
            data = batch(b"a", **identity, base_sequence=0, is_transactional=True)
            answer = await produce(client, "t", 0, data, version=version, transactional_id="x")
            assert answer.error_code == code


# acks ----------------------------------------------------------------------------------------------------------------


async def test_acks_0_is_never_answered_and_the_next_answer_is_the_next_requests() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client, "t")
        for number in range(3):
            client.send(produce_request({("t", 0): batch(b"%d" % number)}, acks=0), 9)
        answer = await produce(client, "t", 0, batch(b"3"))
        assert answer.base_offset == 3
        assert values_in(await fetch(client, "t", 0, 0)) == [(number, b"%d" % number) for number in range(4)]


async def test_what_fails_with_acks_0_ends_the_connection() -> None:
    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        await create(other, "t")
        client.send(produce_request({("t", 0): batch(b"kept"), ("nowhere", 0): batch(b"lost")}, acks=0), 9)
        assert await client.is_closed()
        assert values_in(await fetch(other, "t", 0, 0)) == [(0, b"kept")]


class Disk:
    """Whose flushes take as long as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free = threading.Event()
        run = Flush.run

        def held(flush: Flush) -> None:
            assert self.free.wait(PATIENCE_SECONDS)
            run(flush)

        monkeypatch.setattr(Flush, "run", held)


@pytest.mark.parametrize("acks", [-1, 1])
async def test_an_answer_waits_for_the_disk_and_what_is_answered_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """With acks=1 too: clients read what they have written, and Kafka with one replica lets them."""
    async with KafkaServer(f"file://{tmp_path}/log") as server, WireClient(server) as client:
        await create(client, "t")
        disk = Disk(monkeypatch)
        try:
            async with WireClient(server) as other:
                sent = other.send(produce_request({("t", 0): batch(b"a")}, acks=acks), 9)
                waits = asyncio.create_task(other.receive(sent))
                await written(server, client, 1)
                assert (await fetch(client, "t", 0, 0)).high_watermark == 0, "not to be read before it is on disk"
                assert not waits.done()
                disk.free.set()
                (answer,) = (await waits).responses[0].partition_responses
                assert (answer.error_code, answer.base_offset) == (0, 0)
                assert values_in(await fetch(client, "t", 0, 0)) == [(0, b"a")]
        finally:
            disk.free.set()


async def test_records_of_acks_0_reach_the_disk_and_their_readers_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rest(engine: Engine) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Engine, "run", rest)  # housekeeping would flush them within seconds
    async with KafkaServer(f"file://{tmp_path}/log") as server, WireClient(server) as client:
        await create(client, "t")
        async with WireClient(server) as other:
            waits = other.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
            client.send(produce_request({("t", 0): batch(b"a")}, acks=0), 9)
            (answer,) = partitions_of(await other.receive(waits)).values()
            assert values_in(answer) == [(0, b"a")]


async def written(server: KafkaServer, client: WireClient, end_offset: int) -> None:
    """Return when the log of t-0 ends there; ``client`` is one that does not wait."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while server.node.broker.end_offset(TopicPartition("t", 0)) < end_offset:
            await client.call(m.ApiVersionsRequest(), 0)


async def test_answers_leave_in_the_order_of_the_requests_whatever_each_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with KafkaServer(f"file://{tmp_path}/log") as server, WireClient(server) as client:
        await create(client, "t")
        disk = Disk(monkeypatch)
        try:
            first = client.send(produce_request({("t", 0): batch(b"one")}), 9)
            second = client.send(m.MetadataRequest(topics=None), 9)
            third = client.send(produce_request({("t", 0): batch(b"two")}, acks=1), 9)
            async with WireClient(server) as other:
                await written(server, other, 2)
            disk.free.set()
            for sent in (first, second, third):
                await client.receive(sent)  # which checks whose answer it is
        finally:
            disk.free.set()


async def test_a_failed_flush_is_answered_and_the_log_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(flush: Any) -> None:
        raise OSError(5, "Input/output error")

    server = KafkaServer(f"file://{tmp_path}/log")
    async with server, WireClient(server) as client:
        await create(client, "t")
        with monkeypatch.context() as patched:
            patched.setattr(Flush, "run", refuse)
            answer = await produce(client, "t", 0, batch(b"lost"))
            assert answer.error_code == 56 and "flush" in answer.error_message and answer.base_offset == -1
        answer = await produce(client, "t", 0, batch(b"later"))
        assert answer.error_code == 56 and "takes no more writes" in answer.error_message

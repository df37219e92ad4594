"""Transactions over the wire, before and after KIP-890: the answer to each version, and who is fenced."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.protocol import messages as m
from eventbus.testing import FakeClock
from eventbus.testing.server import KafkaServer
from tests.server.groups import Member, TransactionalProducer, clocked_server, committed, create, read
from tests.server.wire import WireClient

UNKNOWN_TOPIC, ILLEGAL_GENERATION, TOPIC_AUTHORIZATION, INVALID_REQUEST, INVALID_EPOCH = 3, 22, 29, 42, 47
INVALID_STATE, INVALID_MAPPING, INVALID_TIMEOUT, CONCURRENT, NOT_ATTEMPTED = 48, 49, 50, 51, 55
COORDINATOR_FENCED, PRODUCER_FENCED, ID_NOT_FOUND, ABORTABLE = 52, 90, 105, 120


# init -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(6))
async def test_a_producer_without_a_transactional_id_is_always_a_new_one(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        given = []
        for _ in range(3):
            answer = await client.call(
                m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2_147_483_647), version
            )
            assert (answer.error_code, answer.producer_epoch) == (0, 0)
            given.append(answer.producer_id)
        assert len(set(given)) == 3


async def test_what_init_is_refused_for() -> None:
    async with KafkaServer(transaction_max_timeout_ms=900_000) as server, WireClient(server) as client:

        async def code(**fields: object) -> int:
            answer = await client.call(m.InitProducerIdRequest(**{"transaction_timeout_ms": 60_000, **fields}), 4)
            assert (answer.producer_id, answer.producer_epoch) == (-1, -1) or not answer.error_code
            return answer.error_code

        assert await code(transactional_id="") == INVALID_REQUEST
        for timeout_ms in (-1, 0, 900_001):
            assert await code(transactional_id="tx", transaction_timeout_ms=timeout_ms) == INVALID_TIMEOUT
        assert await code(transactional_id="tx", producer_id=3) == INVALID_REQUEST
        assert await code(transactional_id="tx", producer_epoch=3) == INVALID_REQUEST


@pytest.mark.parametrize("acks", [-1, 1])
async def test_trap_a_new_producer_aborts_what_the_one_before_left_open(acks: int) -> None:
    """Or it would commit a dead producer's records as its own (fact 4)."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        dead, heir = TransactionalProducer(client), TransactionalProducer(client)
        await dead.init()
        assert await dead.add(("t", 0)) == {("t", 0): 0}
        assert await dead.send("t", 0, "A0", "A1", acks=acks) == 0
        answer = await heir.init()
        assert (answer.error_code, answer.producer_id) == (0, dead.producer_id)
        assert answer.producer_epoch > dead.epoch
        assert await heir.add(("t", 0)) == {("t", 0): 0}
        assert await heir.send("t", 0, "B0", "B1") == 0
        assert await heir.end() == 0
        assert await read(client, "t") == ["B0", "B1"]
        assert await read(client, "t", committed=False) == ["A0", "A1", "B0", "B1"]
        assert await dead.send("t", 0, "A2") == INVALID_EPOCH


@pytest.mark.parametrize(
    ("version", "code"), [(0, INVALID_EPOCH), (1, INVALID_EPOCH), (2, PRODUCER_FENCED), (3, PRODUCER_FENCED)]
)
async def test_trap_who_is_fenced_is_told_so_in_a_code_its_version_knows(version: int, code: int) -> None:
    """PRODUCER_FENCED is unknown to old requests; aiokafka (v0) and KafkaJS (v1) would not stop (fact 5)."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        old = TransactionalProducer(client, version=version)
        await old.init()
        await TransactionalProducer(client).init()
        assert await old.add(("t", 0)) == {("t", 0): code}
        assert await old.add_offsets("g") == code
        assert await old.end() == code
        assert await old.commit_offsets("g", {("t", 0): 1}) == {("t", 0): INVALID_EPOCH}


@pytest.mark.parametrize(("version", "code"), [(3, INVALID_EPOCH), (4, PRODUCER_FENCED), (5, PRODUCER_FENCED)])
async def test_trap_init_by_a_fenced_producer(version: int, code: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        old = TransactionalProducer(client)
        await old.init()
        await TransactionalProducer(client).init()
        assert (await old.init(version, again=True)).error_code == code


async def test_a_producer_goes_on_after_an_error_by_its_own_epoch() -> None:
    """KIP-360; and its request may be repeated."""
    async with KafkaServer() as server, WireClient(server) as client:
        producer = TransactionalProducer(client)
        await producer.init()
        before = producer.producer_id, producer.epoch
        first = await producer.init(again=True)
        assert (first.producer_id, first.producer_epoch) == (before[0], before[1] + 1)
        producer.producer_id, producer.epoch = before
        second = await producer.init(again=True)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch)


# what belongs to a transaction ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4))
async def test_a_transaction_in_every_version(version: int) -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client, version=version)
        await producer.init(min(version, 4))
        for number in range(3):
            assert await producer.add(("t", 0), ("t", 1)) == {("t", 0): 0, ("t", 1): 0}
            assert await producer.send("t", 0, f"a{number}") == 0
            assert await producer.send("t", 1, f"b{number}") == 0
            assert await producer.add_offsets("g") == 0
            assert await producer.commit_offsets("g", {("t", 0): number}) == {("t", 0): 0}
            assert await producer.end(committed=number != 1) == 0
        assert await read(client, "t", 0) == ["a0", "a2"]
        assert await read(client, "t", 1) == ["b0", "b2"]
        assert await committed(client, "g", [("t", 0)]) == {("t", 0): (2, "", 0)}
        assert producer.epoch == 0


async def test_trap_one_bad_partition_and_the_others_are_not_attempted() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        await producer.add_offsets("g")
        wanted = [("t", 0), ("t", 9), ("none", 0), ("__consumer_offsets", 0)]
        assert await producer.add(*wanted) == dict(
            zip(wanted, (NOT_ATTEMPTED, UNKNOWN_TOPIC, UNKNOWN_TOPIC, TOPIC_AUTHORIZATION), strict=True)
        )
        assert await producer.send("t", 0, "x") == INVALID_STATE


async def test_who_is_not_the_id() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        stranger = TransactionalProducer(client, "another")
        stranger.producer_id, stranger.epoch = producer.producer_id, producer.epoch
        assert await stranger.add(("t", 0)) == {("t", 0): INVALID_MAPPING}
        assert await stranger.add_offsets("g") == INVALID_MAPPING
        assert await stranger.commit_offsets("g", {("t", 0): 1}) == {("t", 0): INVALID_MAPPING}
        assert await stranger.end() == INVALID_MAPPING


@pytest.mark.parametrize(("version", "code"), [(2, INVALID_STATE), (3, INVALID_STATE), (4, ABORTABLE)])
async def test_trap_offsets_that_come_late_do_not_begin_the_next_transaction(version: int, code: int) -> None:
    """An epoch stays for many transactions: what was sent for one that has ended must not count in the next."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client, version=version)
        await producer.init()
        assert await producer.add_offsets("g") == 0
        assert await producer.commit_offsets("g", {("t", 0): 1}) == {("t", 0): 0}
        assert await producer.end(committed=False) == 0
        assert await producer.commit_offsets("g", {("t", 0): 2}) == {("t", 0): code}
        assert await committed(client, "g", [("t", 0)], require_stable=True) == {("t", 0): (-1, "", 0)}


async def test_offsets_are_fenced_by_the_groups_generation() -> None:
    """KIP-447: a member that was thrown out cannot move the offsets any more, not even in its transaction."""
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        member = Member(client)
        await member.enter()
        assert await producer.add_offsets("g") == 0
        me = {"generation": member.generation, "member_id": member.member_id}
        assert await producer.commit_offsets("g", {("t", 0): 1}, **me) == {("t", 0): 0}
        assert await producer.commit_offsets("g", {("t", 0): 2}, **(me | {"generation": 7})) == {
            ("t", 0): ILLEGAL_GENERATION
        }
        assert await producer.commit_offsets("h", {("t", 0): 2}, generation=1, member_id="x") == {
            ("t", 0): INVALID_STATE
        }
        assert await producer.add_offsets("h") == 0
        assert await producer.commit_offsets("h", {("t", 0): 2}, generation=1, member_id="x") == {
            ("t", 0): ILLEGAL_GENERATION
        }
        assert await producer.end() == 0
        assert await committed(client, "g", [("t", 0)]) == {("t", 0): (1, "", 0)}


# ends -----------------------------------------------------------------------------------------------------------------


async def test_an_end_asked_for_again_is_told_the_same_and_the_opposite_is_refused() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        assert await producer.end() == INVALID_STATE
        await producer.add(("t", 0))
        assert await producer.end() == 0
        assert await producer.end() == 0
        assert await producer.end(committed=False) == INVALID_STATE
        await producer.add(("t", 0))
        assert await producer.end(committed=False) == 0
        assert await producer.end(committed=False) == 0
        assert await producer.end() == INVALID_STATE


async def test_trap_a_transaction_that_times_out_is_aborted_and_its_producer_fenced() -> None:
    clock = FakeClock()
    async with clocked_server(clock) as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init(timeout_ms=10_000)
        await producer.add(("t", 0))
        assert await producer.send("t", 0, "late") == 0
        await clock.advance(seconds=9)
        assert await read(client, "t", committed=False) == ["late"]
        assert (await describe(client, "tx"))[1] == "Ongoing"
        await clock.advance(seconds=11)  # Kafka looks every 10 s
        assert (await describe(client, "tx"))[1] == "CompleteAbort"
        assert await producer.end() == PRODUCER_FENCED
        # It may go on with a new epoch, as nobody came between (KIP-588).
        assert (await producer.init(again=True)).error_code == 0
        await producer.add(("t", 0))
        assert await producer.send("t", 0, "again") == 0
        assert await producer.end() == 0
        assert await read(client, "t") == ["again"]


@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_trap_a_producer_of_transactions_v2_continues_after_a_timeout(storage: str, tmp_path: Path) -> None:
    """The Java client 4.3 sends these requests: a batch, which is refused, an abort, the next transaction."""
    clock = FakeClock()
    url = None if storage == "memory" else f"file://{tmp_path}"
    async with clocked_server(clock, url) as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client, version=5)
        await producer.init(timeout_ms=1_000)
        assert await producer.send("t", 0, "late") == 0
        await clock.advance(seconds=11)
        assert await producer.send("t", 0, "later") == INVALID_EPOCH
        assert await producer.send("t", 1, "elsewhere") == INVALID_EPOCH
        assert await producer.commit_offsets("g", {("t", 0): 1}) == {("t", 0): INVALID_EPOCH}
        assert await producer.end(committed=True) == INVALID_STATE
        assert await producer.end(committed=False) == 0
        assert producer.epoch == 1
        for number in (0, 1):
            assert await producer.send("t", number, "again") == 0
        assert await producer.commit_offsets("g", {("t", 0): 2}) == {("t", 0): 0}
        assert await producer.end() == 0
        assert await read(client, "t", 0) == await read(client, "t", 1) == ["again"]
        assert await committed(client, "g", [("t", 0)]) == {("t", 0): (2, "", 0)}
        server.node.broker.check()


async def test_the_next_transaction_of_v2_begins_without_a_retry(tmp_path: Path) -> None:
    """An end is answered after its markers: a first batch that had to be sent again would pause for 100 ms."""
    async with KafkaServer(f"file://{tmp_path}") as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client, version=5)
        await producer.init()
        for number in range(5):
            assert await producer.send("t", 0, f"{number}") == 0
            assert await producer.commit_offsets("g", {("t", 0): number}) == {("t", 0): 0}
            assert await producer.end(committed=number != 3) == 0
        assert await read(client, "t") == ["0", "1", "2", "4"]
        assert producer.epoch == 5


# admin ----------------------------------------------------------------------------------------------------------------


async def describe(client: WireClient, transactional_id: str) -> tuple[int, str, list[tuple[str, list[int]]]]:
    request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    (found,) = (await client.call(request, 0)).transaction_states
    assert found.transactional_id == transactional_id
    return found.error_code, found.transaction_state, [(one.topic, one.partitions) for one in found.topics]


async def test_describe_and_list_transactions() -> None:
    clock = FakeClock()
    async with clocked_server(clock) as server, WireClient(server) as client:
        await create(client, "t")
        await create(client, "u")
        assert await describe(client, "nobody") == (ID_NOT_FOUND, "", [])
        idle, busy = TransactionalProducer(client, "idle"), TransactionalProducer(client, "busy")
        await idle.init()
        await busy.init()
        await busy.add(("u", 1), ("t", 1), ("t", 0))
        assert await describe(client, "busy") == (0, "Ongoing", [("t", [0, 1]), ("u", [1])])
        assert await describe(client, "idle") == (0, "Empty", [])

        async def listed(version: int = 1, **filters: object) -> list[tuple[str, int, str]]:
            answer = await client.call(m.ListTransactionsRequest(**filters), version)
            assert answer.error_code == 0
            assert answer.unknown_state_filters == [one for one in filters.get("state_filters", ()) if one == "Odd"]
            return [(one.transactional_id, one.producer_id, one.transaction_state) for one in answer.transaction_states]

        both = [("busy", busy.producer_id, "Ongoing"), ("idle", idle.producer_id, "Empty")]
        assert await listed(0) == await listed(1) == both
        assert await listed(state_filters=["Ongoing", "Odd"]) == both[:1]
        assert await listed(state_filters=["Odd"]) == []
        assert await listed(producer_id_filters=[idle.producer_id]) == both[1:]
        assert await listed(duration_filter=5_000) == []
        await clock.advance(seconds=6)
        assert await listed(duration_filter=5_000) == both[:1]


async def test_producers_of_a_partition_and_a_transaction_that_hangs_is_aborted_by_hand() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        await producer.add(("t", 0))
        assert await producer.send("t", 0, "a", "b") == 0
        topic = m.DescribeProducersRequest.TopicRequest
        request = m.DescribeProducersRequest(topics=[topic(name="t", partition_indexes=[0, 1, 9])])
        (found,) = (await client.call(request, 0)).topics
        (first, second, third) = found.partitions
        assert [one.error_code for one in found.partitions] == [0, 0, UNKNOWN_TOPIC]
        (state,) = first.active_producers
        assert (state.producer_id, state.producer_epoch, state.last_sequence) == (producer.producer_id, 0, 1)
        assert (state.current_txn_start_offset, second.active_producers, third.active_producers) == (0, [], [])

        marker = m.WriteTxnMarkersRequest.WritableTxnMarker
        request = m.WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=state.producer_id,
                    producer_epoch=state.producer_epoch,
                    transaction_result=False,
                    coordinator_epoch=0,
                    topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1, 9])],
                )
            ]
        )
        (result,) = (await client.call(request, 1)).markers
        assert result.producer_id == producer.producer_id
        assert [(one.partition_index, one.error_code) for one in result.topics[0].partitions] == [
            (0, 0),
            (1, 0),
            (9, UNKNOWN_TOPIC),
        ]
        assert await read(client, "t") == []
        assert await read(client, "t", committed=False) == ["a", "b"]
        server.node.broker.check()
        stale = request.markers[0]
        stale.topics[0].partition_indexes = [0]
        stale.producer_epoch = -1
        (result,) = (await client.call(request, 1)).markers
        assert result.topics[0].partitions[0].error_code == INVALID_EPOCH


@pytest.mark.parametrize("storage", ["memory", "file"])
async def test_a_marker_of_a_later_coordinator_stops_neither_the_producer_nor_others(
    storage: str, tmp_path: Path
) -> None:
    """`kafka-transactions abort --coordinator-epoch 5`, and the producer goes on; so does the log, opened again."""
    url = None if storage == "memory" else f"file://{tmp_path}"
    async with KafkaServer(url) as server, WireClient(server) as client:
        await create(client)
        producer = TransactionalProducer(client)
        await producer.init()
        assert await producer.add(("t", 0)) == {("t", 0): 0}
        assert await producer.send("t", 0, "a") == 0
        marker = m.WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transaction_result=False,
            coordinator_epoch=5,
            topics=[m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
        )
        (result,) = (await client.call(m.WriteTxnMarkersRequest(markers=[marker]), 1)).markers
        assert result.topics[0].partitions[0].error_code == 0
        assert await producer.end(committed=False) == 0
        assert await producer.add(("t", 0)) == {("t", 0): 0}
        assert await producer.send("t", 0, "b") == 0
        assert await producer.end() == 0
        assert await producer.add(("t", 0)) == {("t", 0): 0}, "the last one came to its end"
        assert await read(client, "t") == ["b"]
        marker.coordinator_epoch = 4
        (result,) = (await client.call(m.WriteTxnMarkersRequest(markers=[marker]), 1)).markers
        assert result.topics[0].partitions[0].error_code == COORDINATOR_FENCED
        assert await producer.send("t", 0, "c") == 0
        heir = TransactionalProducer(client)
        assert (await heir.init()).error_code == 0
        assert await read(client, "t") == ["b"]
        server.node.broker.check()
    if url is not None:
        async with KafkaServer(url) as server, WireClient(server) as client:
            assert await read(client, "t") == ["b"]

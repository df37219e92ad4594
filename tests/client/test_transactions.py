"""Transactions through the client: what readers see and when, who may write, and what is refused by name."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from eventbus import (
    EventBus,
    GroupMetadata,
    OffsetAndMetadata,
    ProducerFenced,
    TopicPartition,
    Transaction,
    TransactionAborted,
)
from eventbus.errors import (
    ConfigError,
    IllegalGeneration,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    ProducerClosed,
    RecordTooLarge,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from tests.client.reading import Clock, batches, engine_of, values
from tests.support import others_wait

UNCOMMITTED = "read_uncommitted"


# -- what readers see --------------------------------------------------------------------------------------------------


async def test_nothing_is_seen_before_the_commit_and_everything_after(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("orders", partitions=3)
        await bus.admin.create_topic("audit")
        async with bus.transaction("importer-1") as tx:
            for partition in range(3):
                await tx.send("orders", b"o%d" % partition, partition=partition)
            tx.send_nowait("audit", b"three orders")
            assert tx.outcome == "open"
            assert await values(bus, "orders") == [] and await values(bus, "audit") == []
            assert await values(bus, "orders", UNCOMMITTED) == [b"o0", b"o1", b"o2"]
        assert tx.outcome == "committed"
        assert await values(bus, "orders") == [b"o0", b"o1", b"o2"]
        assert await values(bus, "audit") == [b"three orders"]


async def test_an_exception_aborts_and_propagates(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        with pytest.raises(LookupError, match="the caller's own"):
            async with bus.transaction("id") as tx:
                await tx.send("t", b"no", partition=0)
                gathered = tx.send_nowait("t", b"no", partition=1)
                raise LookupError("the caller's own")
        assert tx.outcome == "aborted"
        assert isinstance(gathered.exception(), TransactionAborted)
        async with bus.transaction("id") as tx:
            await tx.send_many("t", [b"yes", b"yes"])
        assert await values(bus, "t") == [b"yes", b"yes"]


async def test_interleaved_transactions_each_end_in_their_own_way(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="a") as a, bus.new_producer(transactional_id="b") as b:
            await a.begin()
            await b.begin()
            await a.send("t", b"a1")
            await b.send("t", b"b1")
            await bus.send("t", b"plain")
            await a.send("t", b"a2")
            await b.abort()
            assert await values(bus, "t") == []  # the oldest transaction is open
            await a.commit()
            assert await values(bus, "t") == [b"a1", b"plain", b"a2"]
            assert await values(bus, "t", UNCOMMITTED) == [b"a1", b"b1", b"plain", b"a2"]


async def test_offsets_are_seen_with_the_commit(make_bus: Any) -> None:
    source = TopicPartition("source", 0)
    async with make_bus() as bus:
        await bus.admin.create_topic("source")
        await bus.admin.create_topic("target")
        async with bus.new_producer(transactional_id="id") as producer:
            await producer.begin()
            await producer.send("target", b"x")
            await producer.send_offsets({source: OffsetAndMetadata(7, "why")}, GroupMetadata("g"))
            await producer.send_offsets({source: 8}, "g")
            assert await bus.admin.group_offsets("g") == {}
            await producer.commit()
            assert await bus.admin.group_offsets("g") == {source: OffsetAndMetadata(8)}
            async with bus.transaction("other") as tx:
                await tx.send_offsets({source: 9}, "g")
                await tx.send_offsets({}, "g")
            await producer.begin()
            await producer.send_offsets({source: 99}, "g")
            await producer.abort()
            assert await bus.admin.group_offsets("g") == {source: OffsetAndMetadata(9)}


async def test_a_consumer_stands_for_its_group(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("source")
        await bus.send("source", b"1")
        async with bus.new_consumer("source", group="g") as consumer:
            (record,) = await consumer.poll()
            async with bus.transaction("id") as tx:
                await tx.send_offsets({record.topic_partition: record.next_offset}, consumer)
        assert await bus.admin.group_offsets("g") == {record.topic_partition: OffsetAndMetadata(1)}


async def test_a_member_that_lost_its_place_spoils_the_transaction(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("source")
        with pytest.raises((IllegalGeneration, UnknownMemberId)):
            async with bus.transaction("id") as tx:
                await tx.send("source", b"no")
                await tx.send_offsets({TopicPartition("source", 0): 1}, GroupMetadata("g", 41, "nobody"))
        assert tx.outcome == "aborted"
        assert await values(bus, "source") == []


async def test_an_empty_transaction_is_committed_and_aborted(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id") as producer:
            for _ in range(2):
                await producer.begin()
                await producer.commit()
                await producer.begin()
                await producer.abort()
            async with producer.transaction() as tx:
                await tx.send("t", b"x")
        assert await values(bus, "t") == [b"x"]
        (end,) = (await bus.admin.list_offsets({TopicPartition("t", 0): -1})).values()
        assert end.offset == 2  # the record and its marker: the empty ones left nothing


async def test_every_transaction_has_an_epoch_of_its_own(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id") as producer:
            for n in range(4):
                await producer.begin()
                for _ in range(3):
                    producer.send_nowait("t", b"%d" % n)
                await producer.send("t", b"%d" % n)
                await (producer.abort() if n % 2 else producer.commit())
        headers = [batch.header for batch in batches(bus, TopicPartition("t", 0))]
        data = [h for h in headers if not h.is_control]
        markers = [h for h in headers if h.is_control]
        assert len({h.producer_id for h in headers}) == 1
        assert len({h.producer_epoch for h in data}) == 4 and all(h.is_transactional for h in headers)
        assert [h.producer_epoch for h in markers] == [e + 1 for e in sorted({h.producer_epoch for h in data})]
        for epoch in {h.producer_epoch for h in data}:
            sequences = [(h.base_sequence, h.records_count) for h in data if h.producer_epoch == epoch]
            assert sequences[0][0] == 0 and sum(count for _, count in sequences) == 4


# -- what is refused by name -------------------------------------------------------------------------------------------


async def test_begin_send_commit_and_abort_have_their_order(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id") as producer:
            with pytest.raises(InvalidTxnState, match="begin one first"):
                await producer.init()
                await producer.commit()
            with pytest.raises(InvalidTxnState, match="begin one first"):
                await producer.abort()
            with pytest.raises(InvalidTxnState, match=r"cannot send offsets.*begin one first"):
                await producer.send_offsets({TopicPartition("t", 0): 1}, "g")
            with pytest.raises(InvalidTxnState, match=r"cannot send.*begin one first"):
                await producer.send("t", b"outside")
            with pytest.raises(InvalidTxnState, match=r"cannot send.*begin one first"):
                producer.send_nowait("t", b"outside")
            with pytest.raises(InvalidTxnState, match=r"cannot send.*begin one first"):
                await producer.send_many("t", [b"outside"])
            await producer.begin()
            with pytest.raises(InvalidTxnState, match="commit or abort it first"):
                await producer.begin()
            await producer.send("t", b"inside")
            await producer.commit()
            with pytest.raises(InvalidTxnState, match="begin one first"):
                await producer.send("t", b"outside")  # through a door that was open a moment ago
        assert await values(bus, "t", UNCOMMITTED) == [b"inside"]


async def test_a_producer_without_a_transactional_id_has_no_transactions(make_bus: Any) -> None:
    async with make_bus() as bus, bus.new_producer() as producer:
        for call in (producer.init, producer.begin, producer.commit, producer.abort):
            with pytest.raises(InvalidTxnState, match=r"bus\.transaction\(id\)"):
                await call()


async def test_a_finished_transaction_refuses_by_name(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        early = bus.transaction("id")
        with pytest.raises(InvalidTxnState, match="has not begun"):
            await early.send("t", b"x")
        async with bus.transaction("id") as tx:
            pass
        assert isinstance(tx, Transaction) and repr(tx) == "<Transaction of 'id', committed>"
        with pytest.raises(InvalidTxnState, match=r"'id' is over \(committed\)"):
            await tx.send("t", b"x")
        with pytest.raises(InvalidTxnState, match="is over"):
            tx.send_nowait("t", b"x")
        with pytest.raises(InvalidTxnState, match="is over"):
            await tx.send_many("t", [b"x"])
        with pytest.raises(InvalidTxnState, match="cannot send offsets"):
            await tx.send_offsets({}, "g")
        with pytest.raises(InvalidTxnState, match="has been used"):
            async with tx:
                pass
        assert await values(bus, "t", UNCOMMITTED) == []


async def test_a_transaction_inside_itself_is_refused(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.transaction("outer") as outer:
            await outer.send("t", b"1")
            with pytest.raises(InvalidTxnState, match="'outer' is open in this very task"):
                async with bus.transaction("outer"):
                    pass
            async with bus.transaction("inner") as inner:
                await inner.send("t", b"2")
        assert await values(bus, "t") == [b"1", b"2"]


async def test_transactions_of_one_id_wait_for_each_other(make_bus: Any) -> None:
    log: list[str] = []
    async with make_bus() as bus:
        await bus.admin.create_topic("t")

        async def work(name: str) -> None:
            async with bus.transaction("id") as tx:
                log.append(name)
                await anyio.lowlevel.checkpoint()
                await tx.send("t", name.encode())
                log.append(name)

        async with anyio.create_task_group() as tasks:
            for name in "abcde":
                tasks.start_soon(work, name)
        assert log == [name for name in "abcde" for _ in range(2)]
        assert await values(bus, "t") == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_cancelled_wait_for_the_turn_leaves_the_line(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")

        async def wait() -> None:
            with anyio.CancelScope() as scope:
                waiting.append(scope)
                async with bus.transaction("id"):
                    raise AssertionError("it is not its turn")

        waiting: list[anyio.CancelScope] = []
        async with anyio.create_task_group() as tasks, bus.transaction("id"):
            tasks.start_soon(wait)
            while not waiting:
                await anyio.lowlevel.checkpoint()
            await others_wait()
            waiting[0].cancel()
        async with bus.transaction("id") as tx:
            await tx.send("t", b"x")
        assert await values(bus, "t") == [b"x"]


async def test_settings_that_contradict_each_other(make_bus: Any) -> None:
    with pytest.raises(ConfigError, match="belongs to one producer"):
        make_bus(transactional_id="id")
    async with make_bus() as bus:
        with pytest.raises(ConfigError, match=r'needs acks="all", not acks=1'):
            bus.new_producer(transactional_id="id", acks=1)
        with pytest.raises(ConfigError, match="leave enable_idempotence=False out"):
            bus.new_producer(transactional_id="id", enable_idempotence=False)
        with pytest.raises(ConfigError, match="not empty"):
            bus.new_producer(transactional_id="")
        with pytest.raises(InvalidTransactionTimeout, match="transaction_max_timeout_ms"):
            async with bus.transaction("id", timeout_ms=86_400_001):
                pass
        async with bus.transaction("id", timeout_ms=5_000) as tx:
            pass
        assert tx.outcome == "committed"
    with pytest.raises(ConfigError, match="not running"):
        bus.transaction("id")


async def test_a_bus_that_does_not_wait_for_acks_waits_in_transactions(make_bus: Any) -> None:
    async with make_bus(acks=0, enable_idempotence=False) as bus:
        await bus.admin.create_topic("t")
        async with bus.transaction("id") as tx:
            assert (await tx.send("t", b"x")).offset == 0
        assert await values(bus, "t") == [b"x"]


# -- what fails inside -------------------------------------------------------------------------------------------------


async def test_after_a_failed_batch_only_abort_is_possible(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", configs={"max.message.bytes": 1000})
        async with bus.new_producer(transactional_id="id") as producer:
            await producer.begin()
            await producer.send("t", b"small")
            failed = producer.send_nowait("t", b"x" * 5000)
            await producer.flush()
            assert isinstance(failed.exception(), RecordTooLarge)
            with pytest.raises(TransactionAborted, match="can only be aborted"):
                await producer.send("t", b"small")
            with pytest.raises(TransactionAborted, match="can only be aborted"):
                await producer.send_offsets({TopicPartition("t", 0): 1}, "g")
            with pytest.raises(TransactionAborted, match=r"was aborted: .*max\.message\.bytes") as caught:
                await producer.commit()
            assert isinstance(caught.value.__cause__, RecordTooLarge)
            await producer.begin()  # the commit has aborted it
            await producer.send("t", b"again")
            await producer.commit()
        assert await values(bus, "t") == [b"again"]


async def test_a_commit_finds_what_was_not_stored(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", configs={"max.message.bytes": 1000})
        with pytest.raises(TransactionAborted, match=r"max\.message\.bytes"):
            async with bus.transaction("id") as tx:
                tx.send_nowait("t", b"small")
                tx.send_nowait("t", b"x" * 5000)
        assert tx.outcome == "aborted"
        with pytest.raises(TransactionAborted, match="max_request_size"):
            async with bus.transaction("id") as tx:
                await tx.send("t", b"small")
                with pytest.raises(RecordTooLarge):
                    await tx.send("t", b"x" * 2_000_000)  # refused before it was accepted: swallowed, yet it is missing
        assert await values(bus, "t") == []


async def test_a_topic_deleted_with_an_open_transaction(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("gone")
        await bus.admin.create_topic("stays")
        async with bus.new_producer(transactional_id="id") as producer:
            for end in (producer.commit, producer.abort):
                await producer.begin()
                await producer.send("gone", b"x")
                await producer.send("stays", b"x")
                await bus.admin.delete_topics("gone")
                with pytest.raises(UnknownTopicOrPartition):
                    await producer.send("gone", b"x")
                await end()
                await bus.admin.create_topic("gone")
                assert await values(bus, "gone", UNCOMMITTED) == []
            # Made anew while the transaction is open: what comes after belongs to it, what came before is gone.
            await producer.begin()
            await producer.send("gone", b"old")
            await bus.admin.delete_topics("gone")
            await bus.admin.create_topic("gone")
            await producer.send("gone", b"new")
            await producer.commit()
            assert await values(bus, "gone") == [b"new"]
        assert await values(bus, "stays") == [b"x"]
        async with bus.transaction("other") as tx:
            await tx.send("gone", b"later")
        assert await values(bus, "gone") == [b"new", b"later"]


async def test_a_transaction_that_is_open_too_long_is_aborted(make_bus: Any) -> None:
    clock = Clock()
    async with make_bus(clock=clock) as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id", transaction_timeout_ms=10_000) as producer:
            await producer.begin()
            await producer.send("t", b"late")
            clock.now_ms += 20_001  # Kafka looks every 10 s
            engine_of(bus).tick()
            with pytest.raises(TransactionAborted, match=r"transaction_timeout_ms=10,000"):
                await producer.commit()
            await producer.begin()  # the same producer goes on (KIP-588)
            await producer.send("t", b"in time")
            await producer.commit()
            await producer.begin()
            await producer.send("t", b"late")
            clock.now_ms += 20_001
            engine_of(bus).tick()
            await engine_of(bus).flushes.flush_all()
            with pytest.raises(KafkaError):
                await producer.send("t", b"later")
            await producer.abort()
            with pytest.raises(TransactionAborted):
                async with producer.transaction() as tx:
                    await tx.send("t", b"late")
                    clock.now_ms += 20_001
                    engine_of(bus).tick()
            assert tx.outcome == "aborted"
        with pytest.raises(TransactionAborted):
            async with bus.transaction("id", timeout_ms=1_000) as tx:
                await tx.send("t", b"late")
                clock.now_ms += 11_001
                engine_of(bus).tick()
        async with bus.transaction("id", timeout_ms=1_000) as tx:
            await tx.send("t", b"in time")
        assert await values(bus, "t") == [b"in time", b"in time"]


# -- who may write -----------------------------------------------------------------------------------------------------


async def test_whoever_takes_an_id_over_fences_who_had_it(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        async with bus.new_producer(transactional_id="id") as dead, bus.new_producer(transactional_id="id") as heir:
            await dead.begin()
            await dead.send("t", b"dead", partition=0)
            gathered = dead.send_nowait("t", b"dead", partition=1)
            await heir.begin()
            await heir.send("t", b"heir", partition=0)
            await heir.commit()
            assert await values(bus, "t") == [b"heir"]
            with pytest.raises(ProducerFenced, match="taken over"):
                await dead.commit()
            assert gathered.done()
            for call in (dead.commit, dead.abort, dead.begin, dead.init):
                with pytest.raises(ProducerFenced):
                    await call()
            with pytest.raises(ProducerFenced):
                await dead.send("t", b"dead", partition=0)
            with pytest.raises(ProducerFenced):
                dead.send_nowait("t", b"dead", partition=1)
            with pytest.raises(ProducerFenced):
                await dead.send_offsets({TopicPartition("t", 0): 1}, "g")
            await heir.begin()
            await heir.send("t", b"heir", partition=1)
            await heir.commit()
        assert await values(bus, "t") == [b"heir", b"heir"]


async def test_another_bus_takes_an_id_over(file_url: str) -> None:
    async with EventBus(file_url) as one, EventBus(file_url) as other:
        await one.admin.create_topic("t")
        async with one.transaction("id") as tx:
            await tx.send("t", b"1")
        with pytest.raises(ProducerFenced):
            async with one.transaction("id") as tx:
                await tx.send("t", b"no")
                async with other.transaction("id") as heir:
                    await heir.send("t", b"2")
        assert (tx.outcome, heir.outcome) == ("aborted", "committed")
        with pytest.raises(ProducerFenced):  # not taken back in silence: two services would fence each other for ever
            async with one.transaction("id"):
                pass
        async with other.transaction("id") as heir:
            await heir.send("t", b"3")
        assert await values(other, "t") == [b"1", b"2", b"3"]


async def test_a_producer_that_closes_aborts_what_is_open(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(transactional_id="id") as producer:
            await producer.begin()
            await producer.send("t", b"no")
            left = producer.send_nowait("t", b"no")
        assert isinstance(left.exception(), TransactionAborted)
        with pytest.raises(ProducerClosed):
            await producer.begin()
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"no")
        await bus.send("t", b"yes")
        assert await values(bus, "t") == [b"yes"]


async def test_a_bus_that_closes_aborts_what_is_open(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        producer = bus.new_producer(transactional_id="id")
        await producer.begin()
        await producer.send("t", b"no")
    async with EventBus(file_url) as bus:
        await bus.send("t", b"yes")
        assert await values(bus, "t") == [b"yes"]
        async with bus.transaction("id") as tx:
            await tx.send("t", b"also")
        assert await values(bus, "t") == [b"yes", b"also"]


async def test_idle_producers_of_a_bus_are_bounded(make_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.client.transaction._IDLE_PRODUCERS", 3)
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.transaction("held") as held:
            for n in range(8):
                async with bus.transaction(f"import-{n}") as tx:
                    await tx.send("t", b"%d" % n)
            await held.send("t", b"held")
        assert len(bus.context.bus_run.producers) <= 3 + 2
        async with bus.transaction("import-0") as tx:  # one that was let go comes back
            await tx.send("t", b"again")
        assert sorted(await values(bus, "t")) == sorted([b"%d" % n for n in range(8)] + [b"again", b"held"])

"""A ledger with several writers: what is left on a shelf, which never holds less than nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Literal

import anyio
import pytest

from eventbus import EventBus
from eventbus.broker import TopicSpec
from eventbus.client import ledger_writer
from eventbus.client.ledger_writer import LedgerBatch, LedgerRecord, LedgerWriter
from eventbus.errors import (
    ConfigError,
    InvalidProducerIdMapping,
    RecordTooLarge,
    RequestTimedOut,
    StorageError,
    TransactionOutcomeUnknown,
)
from eventbus.ledger import ends_of, find_or_create, read_to_end
from eventbus.testing import TestBus
from eventbus.types import ConsumerRecord, RecordMetadata, TopicPartition

HERE = TopicPartition("shelf", 0)
OTHER = "orders"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_writer, "FIRST_PAUSE_SECONDS", 0.0001)
    monkeypatch.setattr(ledger_writer, "LONGEST_PAUSE_SECONDS", 0.0001)


class Shelf:
    """The fold of one process, and its decisions."""

    def __init__(self, bus: EventBus, most_failures: int = 8) -> None:
        self._bus = bus
        self._left = 0
        self._next = 0
        self.seen: list[int] = []
        """The state that each decision was based on."""
        self._writer = LedgerWriter(bus, "shelf", self._read_on, most_failures=most_failures)

    async def _read_on(self) -> None:
        ends = await ends_of(self._bus.context.backend, [HERE])
        async with self._bus.new_consumer(partitions=[HERE], start="earliest") as consumer:
            consumer.seek(HERE, self._next)
            await read_to_end(consumer, partial(consumer.poll, 0), ends, self._apply)
            self._next = await consumer.position(HERE)

    def _apply(self, records: Sequence[ConsumerRecord]) -> None:
        self._left += sum(int(record.value or b"") for record in records)

    async def change(self, *counts: int, first_offset: int | None = None, order: bytes = b"") -> None:
        """Put things on the shelf, or take them off, with an order for another topic."""

        async def decide() -> LedgerBatch:
            self.seen.append(self._left)
            if self._left + sum(counts) < 0:
                raise ConfigError(f"{self._left} left")
            orders = [LedgerRecord(OTHER, None, b"k", order)] if order else []
            changes = [LedgerRecord(*HERE, b"k", b"%d" % count) for count in counts]
            return LedgerBatch([*orders, *changes], partial(self._stored, counts), first_offset)

        await self._writer.write(decide)

    def _stored(self, counts: Sequence[int], places: Sequence[RecordMetadata]) -> None:
        for count, place in zip(counts, places[len(places) - len(counts) :], strict=True):
            if place.offset >= self._next:  # a commit in doubt may have been read back already
                self._left += count
                self._next = place.offset + 1

    async def aclose(self) -> None:
        await self._writer.release()


@asynccontextmanager
async def shelves(count: int = 1, **options: int) -> AsyncGenerator[tuple[TestBus, list[Shelf]]]:
    async with TestBus() as bus:
        await find_or_create(bus.context.backend, TopicSpec(HERE.topic, 1))
        await find_or_create(bus.context.backend, TopicSpec(OTHER, 1))
        opened = [Shelf(bus, **options) for _ in range(count)]
        yield bus, opened
        for shelf in opened:
            await shelf.aclose()


async def values(bus: EventBus, topic: str = HERE.topic) -> list[bytes | None]:
    async with bus.new_consumer(topic, start="earliest") as consumer:
        return [record.value async for record in consumer.until_end()]


async def test_decisions_follow_one_another_on_the_state_that_they_leave() -> None:
    async with shelves() as (bus, [shelf]):
        await shelf.change(3, 2)
        await shelf.change(-4, order=b"four")
        with pytest.raises(ConfigError, match="1 left"):
            await shelf.change(-2)
        await shelf.change()
        await shelf.change(-1)
        assert shelf.seen == [0, 5, 1, 1, 1]
        assert (await values(bus), await values(bus, OTHER)) == ([b"3", b"2", b"-4", b"-1"], [b"four"])


async def test_a_fenced_writer_reads_on_and_decides_again() -> None:
    async with shelves(2) as (bus, [one, other]):
        await one.change(3)
        await other.change(-2)
        with pytest.raises(ConfigError, match="1 left"):
            await one.change(-2)
        await other.change(-1)
        assert (one.seen, other.seen) == ([0, 3, 1], [3, 1, 1])
        assert await values(bus) == [b"3", b"-2", b"-1"]


async def test_writers_at_the_same_time_take_nothing_twice() -> None:
    async with shelves(3) as (bus, opened):
        await opened[0].change(20)
        refused: list[ConfigError] = []

        async def take(shelf: Shelf) -> None:
            try:
                await shelf.change(-1, order=b"one")
            except ConfigError as error:
                refused.append(error)

        async with anyio.create_task_group() as tasks:
            for shelf in opened * 10:
                tasks.start_soon(take, shelf)
        assert len(refused) == 10
        assert (await values(bus), await values(bus, OTHER)) == ([b"20"] + [b"-1"] * 20, [b"one"] * 20)


async def test_a_record_of_a_writer_without_the_id_makes_the_decision_again() -> None:
    """Another program may write without taking the transactional id."""
    async with shelves() as (bus, [shelf]):
        await shelf.change(2)
        await bus.send(HERE.topic, b"-1", key=b"k", partition=0)
        # The first try is aborted. The records of the second one follow the foreign record and the aborted transaction.
        offsets = iter([2, 5])

        async def decide() -> LedgerBatch:
            shelf.seen.append(shelf._left)
            return LedgerBatch([LedgerRecord(*HERE, b"k", b"-1")], lambda _: None, next(offsets))

        await shelf._writer.write(decide)
        assert (shelf.seen, await values(bus)) == ([0, 2, 1], [b"2", b"-1", b"-1"])


@pytest.mark.parametrize("error", [TransactionOutcomeUnknown("no answer"), RequestTimedOut("no answer")])
@pytest.mark.parametrize("after", [True, False])
async def test_a_commit_without_an_answer_is_found_out(error: Exception, after: bool) -> None:
    async with shelves() as (bus, [shelf]):
        await shelf.change(1)
        bus.log.faults.fail_next("commit_transaction", error, after=after)
        await shelf.change(-1, order=b"one")
        await shelf.change(5)
        assert shelf.seen == ([0, 1, 0] if after else [0, 1, 1, 0])
        assert (await values(bus), await values(bus, OTHER)) == ([b"1", b"-1", b"5"], [b"one"])


async def test_a_commit_is_found_out_although_the_log_does_not_answer_for_a_while() -> None:
    async with shelves() as (bus, [shelf]):
        await shelf.change(1)
        bus.log.faults.fail_next("commit_transaction", TransactionOutcomeUnknown("no answer"), after=True)
        reads_on, failures = shelf._read_on, iter([RequestTimedOut("no answer")] * 3)

        async def answers_late() -> None:
            for failure in failures:
                raise failure
            await reads_on()

        shelf._writer._taken = answers_late
        await shelf.change(-1)
        assert (shelf.seen, await values(bus)) == ([0, 1], [b"1", b"-1"])


@pytest.mark.parametrize("step", ["send", "flush", "init_transactions"])
async def test_a_request_that_is_lost_is_made_again(step: Literal["send", "flush", "init_transactions"]) -> None:
    async with shelves() as (bus, [shelf]):
        await shelf.change(1)
        await bus.log.faults.fence("shelf")
        bus.log.faults.fail_next(step, RequestTimedOut("no answer"), times=2)
        await shelf.change(1)
        assert await values(bus) == [b"1", b"1"]


async def test_a_transactional_id_that_the_log_has_forgotten_is_taken_again() -> None:
    async with shelves() as (bus, [shelf]):
        await shelf.change(1)
        bus.log.faults.fail_next("flush", InvalidProducerIdMapping("forgotten"))
        await shelf.change(1)
        assert await values(bus) == [b"1", b"1"]


@pytest.mark.parametrize(("error", "times"), [(RequestTimedOut("no answer"), 3), (StorageError("the disk is gone"), 1)])
async def test_what_does_not_pass_is_raised_and_the_next_decision_is_stored(error: Exception, times: int) -> None:
    async with shelves(most_failures=3) as (bus, [shelf]):
        bus.log.faults.fail_next("flush", error, times=times)
        with pytest.raises(type(error)):
            await shelf.change(1)
        await shelf.change(2)
        assert await values(bus) == [b"2"]


async def test_nothing_of_a_decision_is_stored_if_one_record_is_refused() -> None:
    async with shelves() as (bus, [shelf]):
        with pytest.raises(RecordTooLarge):
            await shelf.change(1, order=b"x" * 2_000_000)
        await shelf.change(2)
        assert (await values(bus), await values(bus, OTHER)) == ([b"2"], [])


async def test_nobody_decides_for_a_caller_that_has_gone() -> None:
    async with shelves() as (bus, [shelf]):
        is_wanted = iter([True, False])
        bus.log.faults.fail_next("flush", RequestTimedOut("no answer"))

        async def decide() -> LedgerBatch:
            shelf.seen.append(0)
            return LedgerBatch([LedgerRecord(*HERE, b"k", b"1")], lambda _: None)

        await shelf._writer.write(decide, lambda: next(is_wanted))
        assert (shelf.seen, await values(bus)) == ([0], [])


async def test_a_writer_that_is_cancelled_while_it_reads_on_reads_on_before_it_decides() -> None:
    async with shelves(2) as (_, [shelf, other]):
        await other.change(1)
        reads_on, begun = shelf._read_on, anyio.Event()

        async def for_ever() -> None:
            begun.set()
            await anyio.sleep_forever()

        shelf._writer._taken = for_ever
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shelf.change, 1)
            await begun.wait()
            tasks.cancel_scope.cancel()
        shelf._writer._taken = reads_on
        await shelf.change(1)
        assert shelf.seen == [1]

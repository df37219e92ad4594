"""Commits of partitions whose records were moved to other topics: those records and the offset in one transaction."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from eventbus import errors
from eventbus.backends.base import BackendConsumer
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Commit
from eventbus.client.producer import Producer
from eventbus.errors import (
    BufferExhausted,
    ConcurrentTransactions,
    EventBusError,
    KafkaError,
    TopicAuthorizationFailed,
    UnknownProducerId,
)
from eventbus.recovery import Outgoing, Plan, Waiting
from eventbus.types import ConsumerRecord, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.runner")

TAKEN_OVER = (*errors.TAKEN_OVER, UnknownProducerId, ConcurrentTransactions)
"""Errors of a send or a commit whose transaction was ended by another producer or by the log."""


class Moving(NamedTuple):
    """The contents of one transaction: records for other topics, and the offset that they go with."""

    next_offset: int
    records: list[Outgoing]
    moved: list[int]
    """The numbers of a retry partition's moves among them."""
    plan: Plan | None
    commit: Commit | None = None
    """The commit of the `PartitionWork`, if it has one."""


class _Writer:
    """The transactional producer of one partition."""

    def __init__(self) -> None:
        self.producer: Producer | None = None
        self.unsure: tuple[str, Moving] | None = None
        """A transaction with unknown outcome, and the text that it wrote to the offset's metadata if it committed."""


class Moves:
    """The records that one handler forwards to other topics, each in the transaction that commits its offset."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        consumer: BackendConsumer,
        open_producer: Callable[[TopicPartition], Producer],
        on_stored: Callable[[PartitionDriver], Awaitable[None]],
        behind: Callable[[ConsumerRecord], Outgoing],
    ) -> None:
        """``open_producer``: opens the transactional producer of a partition. ``on_stored``: awaited when a commit is
        stored. ``behind``: builds the entry of a record that waits after an earlier record of its key."""
        self._handler = handler
        self._consumer = consumer
        self._open_producer = open_producer
        self._on_stored = on_stored
        self._behind = behind
        self.partitions: dict[str, int] = {}
        """The partition counts of the topics that records go to, filled in before the first record does."""
        self._writers: dict[TopicPartition, _Writer] = {}
        self._waiting: dict[TopicPartition, Waiting] = {}
        """The entries of each retry partition of this member."""
        self._left: list[Producer] = []
        """Producers of released partitions, to be closed."""
        self._owner = os.urandom(4).hex()
        self._count = 0

    def watch(self, topic_partition: TopicPartition, waiting: Waiting | None) -> None:
        """Register the entries of a retry partition of this member, or (None) release it."""
        if waiting is None:
            self._waiting.pop(topic_partition, None)
        else:
            self._waiting[topic_partition] = waiting

    def has(self, driver: PartitionDriver) -> bool:
        """Return True if the partition's next commit must be a transaction of this class.

        False for a retry partition that has only passed offsets: a transaction here would fence those of
        `RetryTransactions`, which has the same id. The next retry would be aborted and its function called twice.
        """
        writer = self._writers.get(driver.topic_partition)
        if writer is not None and writer.unsure is not None:
            return True
        waiting = self._waiting.get(driver.topic_partition)
        return waiting is not None and waiting.plan() is not None

    async def commit(self, driver: PartitionDriver, commit: Commit | None) -> None:
        """Commit finished records together with the records that they turned into, in one task. Raises the errors of a
        commit.

        ``commit`` comes from `PartitionWork`. None: there is nothing to commit, or the outcome of the last commit is
        not known yet, and `PartitionWork` decides after that.
        """
        writer = self._writers.get(driver.topic_partition)
        if writer is None:
            writer = self._writers[driver.topic_partition] = _Writer()
        if driver.abandoned:
            return
        # First, because the same records must not be sent again before it is known whether they were stored.
        if writer.unsure is not None:
            await self._settle(driver, writer)
        moving = self._moving(driver, commit)
        if moving is not None:
            await self._write(driver, writer, moving)
            await self._on_stored(driver)
        await self._close_left()

    def _moving(self, driver: PartitionDriver, commit: Commit | None) -> Moving | None:
        waiting = self._waiting.get(driver.topic_partition)
        if waiting is not None and (plan := waiting.plan()) is not None:
            moved = list(driver.moves)
            records = [driver.moves[number] for number in moved]
            if plan.done is not None:
                records.append(Outgoing(*driver.topic_partition, plan.done))
            return Moving(plan.next_offset, records, moved, plan)
        # In a retry partition without waiting entries, reading may have passed transaction markers.
        found = commit or driver.work.next_commit()
        if not isinstance(found, Commit):
            return None
        return Moving(found.next_offset, self.records_of(found), [], None, found)

    def records_of(self, commit: Commit) -> list[Outgoing]:
        """Return the records that a commit forwards to other topics."""
        return [forward.outgoing or self._behind(forward.records.record(forward.at)) for forward in commit.forwards]

    async def _write(self, driver: PartitionDriver, writer: _Writer, moving: Moving) -> None:
        self._count += 1
        # Stored with the offset. After a lost response, the committed offset has this token if and only if the
        # transaction was committed.
        token = f"{self._owner}-{self._count}"
        try:
            if writer.producer is None:
                writer.producer = self._open_producer(driver.topic_partition)
                await writer.producer.init()
            async with writer.producer.transaction() as transaction:
                for outgoing in moving.records:
                    await send(writer.producer, outgoing, self.partitions[outgoing.topic])
                text = " ".join(filter(None, (token if moving.records else "", driver.note and driver.note())))
                offset = OffsetAndMetadata(moving.next_offset, text)
                await transaction.send_offsets({driver.topic_partition: offset}, self._consumer.group_metadata())
        except BaseException:  # also after a lost response or a cancellation: the transaction may have been committed
            writer.unsure = token, moving
            raise
        self._stored(driver, moving)
        if self._handler.spec.exactly_once:
            # `ExactlyOnce` uses the same transactional id, and takes it back with its next transaction.
            await self._let_go(writer)

    async def _settle(self, driver: PartitionDriver, writer: _Writer) -> None:
        """Find the outcome of a commit without response: taking over the transactional id commits or aborts it."""
        assert writer.unsure is not None
        token, moving = writer.unsure
        await self._let_go(writer)
        writer.producer = self._open_producer(driver.topic_partition)
        # InitProducerId completes or aborts the open transaction, so the offset read below is final.
        await writer.producer.init()
        committed = (await self._consumer.committed([driver.topic_partition])).get(driver.topic_partition)
        writer.unsure = None
        if committed is not None and committed.metadata.partition(" ")[0] == token:
            self._stored(driver, moving)
        elif moving.commit is not None:
            driver.work.commit_failed(moving.commit)

    def _stored(self, driver: PartitionDriver, moving: Moving) -> None:
        for number in moving.moved:
            driver.moves.pop(number, None)
        waiting = self._waiting.get(driver.topic_partition)
        if moving.plan is not None and waiting is not None:
            waiting.stored(moving.plan)
        if moving.commit is not None:
            driver.stored(moving.commit)
        else:
            driver.work.done_below(moving.next_offset)

    async def _let_go(self, writer: _Writer) -> None:
        producer, writer.producer = writer.producer, None
        if producer is not None:
            await producer.aclose()

    def forget(self, topic_partition: TopicPartition) -> None:
        """Release a partition that is no longer assigned to this member."""
        writer = self._writers.pop(topic_partition, None)
        if writer is not None and writer.producer is not None:
            # Closed later, by the task that commits: this is called from a rebalance, which must not wait.
            self._left.append(writer.producer)

    async def _close_left(self) -> None:
        """Close the producers of partitions that are gone."""
        while self._left:
            await self._left.pop().aclose()


async def send(producer: Producer, outgoing: Outgoing, partitions: int) -> None:
    topic, partition, record = outgoing
    while True:
        try:
            producer.send_nowait(
                topic, record.value, key=record.key, headers=record.headers, partition=partition % partitions,
                transactional=False,
            )  # fmt: skip
            return
        except BufferExhausted:
            await producer.wait_for_room(transactional=False)


def is_final(error: EventBusError) -> bool:
    """True if retrying this commit cannot succeed. A missing permission is not final: it may be granted again."""
    while isinstance(error.__cause__, EventBusError) and not isinstance(error, KafkaError):
        error = error.__cause__
    may_end = (*TAKEN_OVER, TopicAuthorizationFailed)
    return isinstance(error, KafkaError) and not (error.retriable or isinstance(error, may_end))

"""Partitions that are assigned to a running handler, or revoked from it: finish, commit, release."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.offset_commits import OffsetCommits
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.unfinished_records import fate_of, log_lost
from eventbus.errors import EventBusError, RebalanceInProgress, TransactionalIdNotFound
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.runner")

_POLL_MS = 100


class Handovers:
    """The rebalances of one handler: partitions that its group assigns, revokes or takes away without notice."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        group: str,
        backend: Backend,
        consumer: BackendConsumer,
        drivers: dict[TopicPartition, PartitionDriver],
        commits: OffsetCommits,
        flush: Callable[[], Awaitable[None]],
        budget_seconds: float,
        on_progress: Callable[[], None],
        on_assigned: Callable[[list[TopicPartition]], Awaitable[None]],
        on_gone: Callable[[TopicPartition], object],
        unfinished: Callable[[Collection[PartitionDriver]], str] | None = None,
    ) -> None:
        """``on_assigned``: awaited before the first record of new partitions is read. ``on_gone``: called when a
        partition is no longer ours. ``unfinished``: describes the records that were begun and not finished."""
        self._handler = handler
        self._group = group
        self._backend = backend
        self._timers = backend.timers
        self._consumer = consumer
        self._drivers = drivers
        self._commits = commits
        self._flush = flush
        self._budget_seconds = budget_seconds
        """How long a revoked partition waits for its records in flight."""
        self._on_progress = on_progress
        self.last_assigned_at: float | None = None
        """Seconds on the timers."""
        self._on_assigned = on_assigned
        self._on_gone = on_gone
        self._unfinished = unfinished or named
        self.moves = {"assigned": 0, "revoked": 0, "lost": 0}
        """Partitions that came and went, so far."""
        self.is_giving_up = False
        self.ending: dict[TopicPartition, PartitionDriver] = {}
        """Drivers of released partitions whose calls may still run. A new driver of the partition waits for them."""
        self._lost: list[PartitionDriver] = []
        self._unsettled: set[PartitionDriver] = set()
        """Drivers that wait for the end of a rebalance. Each answer of the consumer wakes them, as it may end it."""
        consumer.on_assigned = self._assigned
        consumer.on_revoking = self._give_up
        consumer.on_revoked = self._abandon
        consumer.on_settled = self._settled

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        self.last_assigned_at = self._timers.current_time()
        self.moves["assigned"] += len(partitions)
        if self._handler.spec.exactly_once or self._handler.spec.retry is not None:
            for partition in partitions:
                # Before the committed offset is read, which the log does not return while a transaction may change it
                # (KIP-447).
                await self._end_what_is_open(partition)
        await self._on_assigned(partitions)
        self._on_progress()

    async def _end_what_is_open(self, partition: TopicPartition) -> None:
        """Abort the transaction that the partition's last owner left open if it was killed.

        The committed offset is not readable before that transaction ends; without this, that is its timeout, a minute.
        """
        transactional_id = transactional_id_of(self._handler, self._group, partition)
        try:
            [transaction] = await self._backend.describe_transactions([transactional_id])
            if transaction.state == "Ongoing":
                await self._backend.fence_producer(transactional_id)
        except TransactionalIdNotFound:
            pass
        except EventBusError as error:
            logger.debug(
                "handler %r: whether %r is open cannot be said: %s", self._handler.__name__, transactional_id, error
            )

    def _settled(self) -> None:
        """Wake the callers of `is_settled` that saw the rebalance, so that they check again.

        No other event wakes them if nothing moves. Another member joins, `is_settled` returns False, and this member
        joins again and keeps its partitions (a cooperative assignor), or has none. Nothing is revoked or assigned, and
        the fetch in which all this happened goes on waiting for records.
        """
        for driver in self._unsettled:
            driver.wake.set()
        self._on_progress()

    async def _give_up(self, partitions: list[TopicPartition]) -> None:
        """Finish the records in flight of revoked partitions, commit, and release them. Other partitions continue."""
        drivers = [self._drivers[partition] for partition in partitions if partition in self._drivers]
        self.is_giving_up = True
        try:
            for driver in drivers:
                driver.close()
            # The group waits for this callback, so the budget is part of the rebalance timeout of all members.
            await self._let_end(drivers)
            if not self._handler.spec.exactly_once:
                await self._settle_and_commit(drivers)
            # Not in a `finally`: if this is cancelled, the partitions are still ours, and `_leave` commits them.
            for driver in drivers:
                self._forget(driver)
            for partition in partitions:
                self._on_gone(partition)
            self.moves["revoked"] += len(partitions)
        finally:
            self.is_giving_up = False
            self._on_progress()

    async def _let_end(self, drivers: Collection[PartitionDriver]) -> None:
        """Wait until the drivers have ended. Cancel handlers that take longer than the budget."""
        with self._timers.move_on_after(self._budget_seconds):
            await self._flush()
            for driver in drivers:
                await driver.ended.wait()
        late = [driver for driver in drivers if not driver.ended.is_set()]
        if not late:
            return
        logger.warning(
            "handler %r: the group %r takes away %s, and has not finished %s within drain_timeout_ms=%d: cancelled, %s",
            self._handler.__name__, self._group, named(late), self._unfinished(late),
            self._handler.spec.drain_timeout_ms, fate_of(self._handler),
        )  # fmt: skip
        for driver in late:
            driver.scope.cancel()
        with self._timers.move_on_after(self._budget_seconds):  # a plain function in its thread cannot be cancelled
            for driver in late:
                await driver.ended.wait()
        for driver in late:
            # A thread may still run the call. From here its result is ignored, and a new driver of the partition waits
            # for it.
            driver.cut_off()

    async def _settle_and_commit(self, drivers: Collection[PartitionDriver]) -> None:
        with self._timers.move_on_after(self._budget_seconds):
            if not self._is_at_most_once and any(not driver.is_idle for driver in drivers):
                await self._flush()
        try:
            # Commit all partitions: a member that leaves may have no later opportunity, see `commit_last`.
            await self._commits.commit_of(list(self._drivers.values()))
        except EventBusError as error:
            logger.warning(
                "handler %r: what was finished of %s could not be committed before the group %r took it away: %s%s",
                self._handler.__name__, named(drivers), self._group, error,
                "" if self._is_at_most_once else "; its next owner handles those records again",
            )  # fmt: skip

    def _abandon(self, topic_partition: TopicPartition) -> None:
        """Release a partition that was lost, deleted or recreated: nothing of it may be committed any more."""
        driver = self._drivers.get(topic_partition)
        if driver is not None:
            self.moves["lost"] += 1
            # At most once, the records in flight were committed before, and are handled to the end of their slice.
            if not self._is_at_most_once and (driver.is_busy or driver.work.has_uncommitted):
                self._lost.append(driver)
            driver.close(abandon=True)
            self._forget(driver)
            self._on_progress()
        self._on_gone(topic_partition)

    @property
    def _is_at_most_once(self) -> bool:
        return self._handler.spec.delivery == "at-most-once"

    def _forget(self, driver: PartitionDriver) -> None:
        log_lost(self._handler, driver)
        # Already revoked: a commit that is still in flight must not be retried by a member without the partition.
        driver.close(abandon=True)
        if self._drivers.get(driver.topic_partition) is driver:
            del self._drivers[driver.topic_partition]
        if not driver.ended.is_set():
            self.ending[driver.topic_partition] = driver

    @property
    def is_idle_pattern(self) -> bool:
        """True if no topic matches the handler's pattern: its consumer need not be a member of the group then."""
        return self._handler.spec.pattern is not None and not self._consumer.subscription()

    async def is_settled(self) -> bool:
        """Return True if the group is not rebalancing: it and this member agree on the member's partitions."""
        if self.is_giving_up or self._consumer.polled():
            return False
        if self.is_idle_pattern:
            return True
        member = self._consumer.group_metadata()
        try:
            [group] = await self._backend.describe_groups([self._group])
        except EventBusError as error:
            if error.retriable:  # the coordinator does not answer: not known to be settled
                return False
            raise
        # A negative generation is that of a member without an assignment. Kafka does not report the group's generation.
        return group.state == "Stable" and 0 <= group.generation_id == member.generation_id

    async def wait_until_settled(self, driver: PartitionDriver) -> None:
        """Wait until the group is settled (the partition continues), or the partition is closing."""
        self._unsettled.add(driver)
        try:
            while not driver.closing:
                driver.wake.clear()
                if await self.is_settled():
                    return
                await driver.wake.wait()
        finally:
            self._unsettled.discard(driver)

    def polled(self) -> None:
        """Report lost partitions, and wake those that wait for the end of a rebalance, after each poll."""
        drivers, self._lost = self._lost, []
        if drivers:
            logger.warning(
                "handler %r: %s went to another member of the group %r (or was deleted) before everything finished was "
                "committed: its next owner handles those records again",
                self._handler.__name__, named(drivers), self._group,
            )  # fmt: skip
        for driver in self._unsettled:
            driver.wake.set()

    async def commit_last(self) -> None:
        """Commit what is finished before leaving the group. Errors are logged.

        A rebalancing group refuses commits of a member that has joined and has not received its assignment (Kafka's
        REBALANCE_IN_PROGRESS). So the member polls until it has; partitions that are revoked are committed on the way.
        """
        while True:
            try:
                await self._commits.commit()
                return
            except RebalanceInProgress:
                # Only to receive the assignment. New records are not begun any more.
                self._consumer.pause(self._consumer.assignment())
                try:
                    await self._consumer.fetch(_POLL_MS)
                except EventBusError as error:
                    logger.debug("handler %r: %s", self._handler.__name__, error)
                    break
            except EventBusError:
                break
        await self._commits.attempt()


def transactional_id_of(handler: Handler[Any, Any], group: str, partition: TopicPartition) -> str:
    """Return the transactional id of a partition. Every owner uses it, so the next owner fences the last one."""
    return f"{group}.{handler.__name__}.{partition}"


def named(drivers: Collection[PartitionDriver]) -> str:
    return ", ".join(str(driver.topic_partition) for driver in drivers)

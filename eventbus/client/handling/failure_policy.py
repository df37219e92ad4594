"""Connect a handler's failure policy to its runner: the policy's topics, waiting records, and blocked keys."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from eventbus.backends.base import Backend, BackendConsumer, ConsumerConfig
from eventbus.backends.clock import Clock
from eventbus.broker import TopicDescription, TopicSpec
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.forwarding import Moves
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.in_place_retries import InPlaceRetries
from eventbus.client.handling.offset_commits import OffsetCommits
from eventbus.client.handling.outage_policy import OutagePolicy
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.poison_pill import CrashMarks
from eventbus.client.handling.waits import Wait
from eventbus.errors import (
    ConfigError,
    EventBusError,
    InvalidConfig,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.recovery import FailurePolicy, Handling, Outgoing, Recovery, Waiting
from eventbus.types import ConsumerRecord, TopicPartition

logger = logging.getLogger("eventbus.runner")

_EARLIEST = -2
_MAX_MESSAGE_BYTES = 1_048_588
"""Kafka's default, for a log that does not report its limit."""
_LOOK_SECONDS = 0.05
_AWAY_SECONDS = 0.5
"""How long to wait before brokers that do not answer are asked again."""
_MARK = "errors.deadletterqueue.group.enable"
"""The topic configuration that marks a topic of dead letters (KIP-1191)."""
_RECORDS_PER_TRIM = 10_000
"""How many finished records at the beginning of a retry partition are deleted together."""


def recovery_of(handler: Handler[Any, Any], group: str, config: ConsumerConfig) -> Recovery | None:
    """Open the policy of a handler, if it has one. Raises ConfigError for a handler that it does not suit."""
    policy: FailurePolicy | None = handler.spec.retry
    if policy is None:
        return None
    recovery = policy.open(Handling.of(handler, group, config.client_id))
    _check_assignors(handler, recovery, config)
    return recovery


def running_policy_of(
    handler: Handler[Any, Any],
    recovery: Recovery | None,
    moves: Moves | None,
    backend: Backend,
    consumer: BackendConsumer,
    commits: OffsetCommits,
    drivers: Mapping[TopicPartition, PartitionDriver],
    dispatch: Dispatch,
    clock: Clock,
) -> RunningPolicy | None:
    """Return the `RunningPolicy` of a handler with a policy, else None.

    Without a policy the handler only waits for the end of outages. It does not wait at most once, which allows no
    second call, nor for a function with a timetable, which is called at its next time unless an error stops it.
    """
    spec = handler.spec
    if recovery is None or moves is None:
        if spec.delivery != "at-most-once" and not (spec.is_firing and spec.on_error == "skip"):
            wait_out = OutagePolicy(handler.__name__)
            dispatch.failed_calls.wait_out(InPlaceRetries(handler, wait_out, dispatch.counts, backend.timers, clock))
        return None
    retries = InPlaceRetries(handler, recovery, dispatch.counts, backend.timers, clock)
    dispatch.failed_calls.use_policy(retries)
    marks = None
    if recovery.crashes is not None:
        marks = CrashMarks(handler, recovery, retries, consumer, commits, clock)
    return RunningPolicy(handler, recovery, retries, moves, backend, consumer, commits, clock, drivers, marks)


class RunningPolicy:
    """The failure policy of one running handler.

    Retry partitions are read by the handler's own consumer, so the group assigns them together with their sources.
    """

    def __init__(
        self,
        handler: Handler[Any, Any],
        recovery: Recovery,
        retries: InPlaceRetries,
        moves: Moves,
        backend: Backend,
        consumer: BackendConsumer,
        commits: OffsetCommits,
        clock: Clock,
        drivers: Mapping[TopicPartition, PartitionDriver],
        crash_marks: CrashMarks | None = None,
    ) -> None:
        self.recovery = recovery
        self.retries = retries
        self.moves = moves
        self._handler = handler
        self._backend = backend
        self._consumer = consumer
        self._commits = commits
        self.clock = clock
        self._drivers = drivers
        self.partitions = moves.partitions
        """The partition counts of the policy's topics, filled in by `prepare`."""
        self.crash_marks = crash_marks
        self.waiting: dict[int, Waiting] = {}
        """The waiting entries of each retry partition of this member."""
        self.waits: dict[TopicPartition, Wait] = {}
        """Retry partitions that were assigned and cannot begin yet, and the reason."""
        self._loading: dict[int, int] = {}
        """Retry partitions that are not yet read to their end at assignment, and that end offset."""
        self._wakes: list[Callable[[], object]] = []
        self._trimmed: dict[TopicPartition, int] = {}
        self._is_apart = False
        """It was logged that another member than the source's owns a retry partition."""

    # topics ----------------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that the handler's consumer reads in addition to the handler's own."""
        return () if self.recovery.retry_topic is None else (self.recovery.retry_topic,)

    def is_retry(self, topic: str) -> bool:
        return topic == self.recovery.retry_topic

    def check_apart(self, others: Mapping[str, RunningPolicy | None]) -> None:
        """Raise ConfigError if another handler reads this handler's retry topic, and would receive its entries."""
        mine = self.recovery
        for name, other in others.items():
            if other is None or other.recovery.retry_topic != mine.retry_topic or mine.retry_topic is None:
                continue
            owners = {mine.owner, other.recovery.owner}
            if None in owners or len(owners) == 1:
                raise ConfigError(
                    f"handlers {name!r} and {self._handler.__name__!r} share the retry topic "
                    f"{mine.retry_topic!r}, and each would handle records of the other handler. Give one handler "
                    "another topic, Retry(topic=...), or another group"
                )

    async def prepare(self) -> None:
        """Create missing topics, with as many partitions as the widest source. Raises ConfigError and KafkaError."""
        recovery, spec = self.recovery, self._handler.spec
        own = [topic for topic in (recovery.retry_topic, recovery.dead_letter_topic) if topic is not None]
        for topic in own:
            if spec.reads(topic):
                raise ConfigError(
                    f"handler {self._handler.__name__!r} reads {topic!r}, where its own failed records go: it would "
                    "handle each of them again and again. Narrow the pattern, or name another topic with dead_letter= "
                    "or Retry(topic=...)"
                )
        if not own:
            return
        known = {topic.name: topic for topic in await self._backend.describe_topics()}
        sources = [topic for name, topic in known.items() if spec.reads(name)]
        self._check_widths({topic.name: len(topic.partitions) for topic in sources})
        width = max((len(topic.partitions) for topic in sources), default=-1)
        await self._create([topic for topic in own if topic not in known], width)
        described = await self._backend.describe_topics(own)
        for topic in described:
            count = len(topic.partitions)
            # Each source partition needs a retry partition with its number, so that both have one owner.
            if topic.name == recovery.retry_topic and count < width:
                await self._backend.add_partitions(topic.name, width)
                count = width
            self.partitions[topic.name] = count
        recovery.created(
            {topic: self.partitions[topic] for topic in own},
            {topic.name: _max_message_bytes(topic) for topic in described},
        )

    async def restore(self) -> None:
        """Create the policy's topics again if they were deleted, or have lost partitions, while the handler runs.

        Raises KafkaError if the log refuses that.
        """
        own = dict(self.partitions)
        for topic, count in own.items():
            try:
                [described] = await self._backend.describe_topics([topic])
                problem = "" if len(described.partitions) >= count else "has lost partitions"
            except UnknownTopicOrPartition:
                problem = "was deleted"
            if problem:
                await self.prepare()
                logger.error(
                    "handler %r: topic %r %s while the handler ran, and is restored%s", self._handler.__name__, topic,
                    problem, ". Records that waited there are lost" if self.is_retry(topic) else "",
                )  # fmt: skip

    def _check_widths(self, widths: Mapping[str, int]) -> None:
        """Check the partition counts: only equal counts put a partition and its retry partition at the same member."""
        if self.recovery.order != "none" and self.recovery.retry_topic is not None and len(set(widths.values())) > 1:
            counts = ", ".join(f"{topic!r} has {count}" for topic, count in sorted(widths.items()))
            raise ConfigError(
                f"handler {self._handler.__name__!r}: Retry(order={self.recovery.order!r}) keeps records after those "
                f"that wait, which needs topics with equal partition counts: {counts}. Give each topic a separate "
                "handler, or use Retry(order='none')"
            )

    async def _create(self, topics: Sequence[str], width: int) -> None:
        specs = [TopicSpec(topic, width, -1, dict(self.recovery.configs(topic))) for topic in topics]
        results = await self._backend.create_topics(specs) if specs else {}
        older = [one for one in specs if isinstance(results[one.name], InvalidConfig) and _MARK in one.configs]
        if older:  # a Kafka before 4.4: there the topic is known by its name alone
            without = [msgspec.structs.replace(one, configs=_unmarked(one.configs)) for one in older]
            results |= await self._backend.create_topics(without)
        for result in results.values():
            if isinstance(result, KafkaError) and not isinstance(result, TopicAlreadyExists):
                raise result

    # partitions come and go ------------------------------------------------------------------------------------------

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Prepare newly assigned partitions, before the first record of them is read."""
        ours = [partition for partition in partitions if self.is_retry(partition.topic)]
        sources = {partition.topic for partition in partitions} - {partition.topic for partition in ours}
        wait = Wait("the log has not answered where it begins", self._backend.timers.current_time())
        self.waits = dict.fromkeys(ours, wait)
        try:
            # Blocks the assignment on purpose: a record that was read before its waiting predecessor is known would
            # overtake it.
            while partitions:
                try:
                    if sources:
                        self.recovery.assigned(await self._consumer.topic_ids(sources))
                    if ours:
                        await self._load(ours)
                    break
                except EventBusError as error:
                    if not error.retriable:
                        raise
                    # Retry until it works, because no record of these partitions or their sources begins before that.
                    wait.again(f"the log does not answer where it begins: {error}")
                    await self._backend.timers.sleep(_AWAY_SECONDS)
        finally:
            self.waits = {}
        await self.polled({})

    async def _load(self, ours: Sequence[TopicPartition]) -> None:
        committed = await self._consumer.committed(ours)
        fresh = [partition for partition in ours if partition not in committed]
        if self._handler.spec.start != "earliest":
            # ``start=`` is about the handler's sources: no entry may be skipped, also where the topic was shortened.
            found = await self._backend.list_offsets(dict.fromkeys(ours, _EARLIEST))
            for partition, start in found.items():
                if isinstance(start, KafkaError):
                    raise start
                known = committed.get(partition)
                deleted = 0 if known is None else start.offset - known.offset
                # A partition that is not assigned any more was lost meanwhile.
                if (known is None or deleted > 0) and partition in self._consumer.assignment():
                    self._consumer.seek(partition, start.offset)
                    self._consumer.deleted_unread[partition] += deleted
        if fresh and not self._handler.spec.exactly_once:
            # While the first entry of a partition waits, nothing of it is finished and so nothing committed. Without an
            # offset neither tools nor a release with another retry topic find that the group has entries there.
            # The commit is not made here: in the middle of a rebalance it would wait for the fetch that awaits this.
            self._commits.elsewhere.update(await self._consumer.positions(fresh))
            self._commits.due()
        ends, held = await self._consumer.end_offsets(ours), set(self._consumer.assignment())
        for partition in held.intersection(ends):
            waiting = self.waiting[partition.partition] = self.recovery.waiting(partition.partition)
            self.moves.watch(partition, waiting)
            # Entries up to this offset were written before the assignment. Only when all are read is it known which
            # keys wait.
            self._loading[partition.partition] = ends[partition]

    def gone(self, partition: TopicPartition) -> None:
        if self.is_retry(partition.topic):
            self.waiting.pop(partition.partition, None)
            self._loading.pop(partition.partition, None)
            self.moves.watch(partition, None)
            for source, driver in self._drivers.items():
                if source.partition % self.partitions[partition.topic] == partition.partition:
                    driver.blocked.held = None  # drivers of its sources look it up again
        else:
            waiting = self._waiting_of(partition)
            if waiting is not None:
                waiting.release(partition)
        self.moves.forget(partition)
        if self.crash_marks is not None:
            self.crash_marks.forget(partition)

    async def polled(self, drivers: Mapping[TopicPartition, PartitionDriver]) -> None:
        """Process retry partitions that are now read to their end. Called after each poll."""
        for number in list(self._loading):
            partition = TopicPartition(self.recovery.retry_topic or "", number)
            await self.read(partition, drivers.get(partition))

    async def read(self, partition: TopicPartition, driver: PartitionDriver | None) -> None:
        """Check whether a retry partition is read to its end. ``driver`` may hold entries that it has not added."""
        end = self._loading.get(partition.partition)
        if end is None or (driver is not None and driver.chunks):
            return
        try:
            positions = await self._consumer.positions([partition])
        except EventBusError:
            return  # it is asked again after the next fetch
        if positions.get(partition, -1) >= end and self._loading.pop(partition.partition, None) is not None:
            self.change()

    def is_loading(self, partition: TopicPartition) -> bool:
        """True until a retry partition is read to the end that it had at its assignment."""
        return partition.partition in self._loading

    def change(self) -> None:
        """Wake the partitions that wait for an entry to finish or for a retry partition to be read."""
        wakes, self._wakes = self._wakes, []
        for wake in wakes:
            wake()

    def on_change(self, wake: Callable[[], object]) -> None:
        """Call ``wake`` at the next change, once."""
        self._wakes.append(wake)

    async def moved(self, driver: PartitionDriver) -> bool:
        """Wait until moved records are committed, so that later records may be called. False if the partition stops."""
        while driver.work.waits_for_commit:
            driver.on_commit_due()
            if not await self._changes(driver):
                return False
        return True

    async def _changes(self, driver: PartitionDriver) -> bool:
        """Wait for a change, or until the partition is woken. Return False if the partition stops."""
        if not (driver.closing or driver.error):
            driver.wake.clear()
            self.on_change(driver.wake.set)
            await driver.wake.wait()
        return not driver.closing and driver.error is None

    def _waiting_of(self, source: TopicPartition) -> Waiting | None:
        count = self.partitions.get(self.recovery.retry_topic or "", 0)
        return self.waiting.get(source.partition % count) if count else None

    # source partitions -----------------------------------------------------------------------------------------------

    async def ready(self, driver: PartitionDriver) -> bool:
        """Wait until a source partition may begin its next fetch. False if the caller must check it again."""
        if self.is_retry(driver.topic_partition.topic):
            return True
        is_gated = (
            self.recovery.order != "none" and self.recovery.retry_topic is not None and driver.blocked.held is None
        )
        if is_gated and not await self._gate(driver):
            return False
        waiting = self._waiting_of(driver.topic_partition)
        while driver.work.waits_for_commit or not (waiting is None or waiting.has_room):
            if driver.has_moves:
                driver.on_commit_due()
            if not await self._changes(driver):
                return False
        if self.crash_marks is not None and not await self.crash_marks.ready(driver):
            return False
        # What was fetched is let go of while all this was asked, when the partition moves away.
        return await self.retries.wait_for_circuit(driver) and bool(driver.chunks)

    async def _gate(self, driver: PartitionDriver) -> bool:
        """Wait until the retry partition is read, so that it is known which keys wait for a retry."""
        if driver.topic_partition.partition >= self.partitions[self.recovery.retry_topic or ""]:
            await self._widen()  # its topic has got partitions since the start
        count = self.partitions[self.recovery.retry_topic or ""]
        number = driver.topic_partition.partition % count
        # Records that this driver moved while another member had the retry partition block their keys too. They must be
        # read back before later records of those keys are called.
        if driver.has_moves and not await self._moves_read_back(driver, number):
            return False
        while number not in self.waiting or number in self._loading:
            if number not in self.waiting:
                self._log_apart(driver, number)
                apart = (
                    f"partition {number} of {self.recovery.retry_topic} is with another member of the group, or was "
                    "deleted and is about to be restored"
                )
                driver.wait = driver.wait or Wait(apart, self._backend.timers.current_time())
            if not await self._changes(driver):
                driver.wait = None
                return False
        driver.wait = None
        waiting = self.waiting[number]
        driver.blocked.held = waiting.holds(driver.topic_partition)
        driver.blocked.hold, driver.blocked.unhold = waiting.hold, waiting.unhold
        return True

    async def _widen(self) -> None:
        try:
            await self.prepare()
        except EventBusError as error:
            topic = self.recovery.retry_topic
            logger.warning("handler %r: %s is not widened: %s", self._handler.__name__, topic, error)

    async def _moves_read_back(self, driver: PartitionDriver, number: int) -> bool:
        """Read the records moved while another member had the retry partition and this member kept its source."""
        while driver.has_moves:
            driver.on_commit_due()
            if not await self.retries.sleep(driver, _LOOK_SECONDS):
                return False
        partition = TopicPartition(self.recovery.retry_topic or "", number)
        while number in self.waiting:
            try:
                self._loading[number] = (await self._consumer.end_offsets([partition]))[partition]
                break
            except EventBusError as error:
                if not error.retriable:
                    raise
                if not await self.retries.sleep(driver, _AWAY_SECONDS, f"the end of {partition} is not known: {error}"):
                    return False
        return True

    def _log_apart(self, driver: PartitionDriver, number: int) -> None:
        if not self._is_apart:
            self._is_apart = True
            logger.warning(
                "handler %r: %s waits for partition %d of %s, which is with another member of the group, or was "
                "deleted. Records of a key that is tried again keep their order only where both are read together, as "
                "with partition_assignment_strategy='range' and topics of equally many partitions. Retry(order='none') "
                "does without",
                self._handler.__name__, driver.topic_partition, number, self.recovery.retry_topic,
            )  # fmt: skip

    def behind(self, record: ConsumerRecord) -> Outgoing:
        """Return the entry of a record that waits after an earlier one of its key."""
        return self.recovery.behind(record, self.clock())

    async def unblocked(self, driver: PartitionDriver) -> bool:
        """Return when the partition's next record has to wait for nothing. False: the partition stops meanwhile."""
        driver.waits = True
        try:
            while driver.blocked:
                if not await self._changes(driver):
                    return False
            return True
        finally:
            driver.waits = False

    def overdue(self, partition: TopicPartition) -> int:
        """Return the number of waiting entries if one is due, else 0: entries that must wait do not count as lag."""
        waiting = self.waiting.get(partition.partition)
        due_ms = None if waiting is None else waiting.next_due_ms()
        return len(waiting) if waiting is not None and due_ms is not None and due_ms <= self.clock() else 0

    # signals, and old entries ----------------------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """True if no waiting entry is due."""
        now_ms = self.clock()
        dues = (one.next_due_ms() for one in self.waiting.values())
        return not self._loading and all(due is None or due > now_ms for due in dues)

    def gauges(self) -> dict[str, float]:
        """Return the state of the policy, for metrics."""
        self.report_depth()
        return dict(self.recovery.gauges(self.clock()))

    def depth(self) -> tuple[int, int | None]:
        """Return how many records wait for a retry, and when the first of them is due."""
        dues = [due for due in (one.next_due_ms() for one in self.waiting.values()) if due is not None]
        return sum(one.depth() for one in self.waiting.values()), min(dues, default=None)

    def report_depth(self) -> None:
        self.recovery.depth(*self.depth())

    async def stored(self, driver: PartitionDriver) -> None:
        """Delete finished entries at the beginning of a retry partition, after a commit of moved records.

        A topic that groups share is left alone, because an entry that is finished for this group may wait for another.
        """
        partition, before = driver.topic_partition, driver.work.committed
        self.change()
        if not self.is_retry(partition.topic) or self.recovery.owner is not None:
            return
        if before - self._trimmed.get(partition, 0) < _RECORDS_PER_TRIM:
            return
        self._trimmed[partition] = before
        try:
            await self._backend.delete_records({partition: before})
        except EventBusError as error:
            logger.debug("handler %r: %s is not shortened: %s", self._handler.__name__, partition, error)


def _unmarked(configs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in configs.items() if name != _MARK}


def _max_message_bytes(topic: TopicDescription) -> int:
    entry = topic.configs.get("max.message.bytes")
    return _MAX_MESSAGE_BYTES if entry is None or not entry.value else int(entry.value)


def _check_assignors(handler: Handler[Any, Any], recovery: Recovery, config: ConsumerConfig) -> None:
    """Raises ConfigError for those that may give a partition and its retry partition to different members."""
    if recovery.order == "none" or recovery.retry_topic is None:
        return
    if (apart := ways_apart(config)) is not None:
        where, fix = apart
        raise ConfigError(
            f"handler {handler.__name__!r}: Retry(order={recovery.order!r}) needs each partition at the same member as "
            f"its retry partition, and {where} may separate them. Use {fix}, or Retry(order='none')"
        )


def ways_apart(config: ConsumerConfig) -> tuple[str, str] | None:
    """Return the option that may assign a partition and its retry partition to different members, and its fix.

    Return None if they always have the same member.
    """
    name = config.assignors[0] if config.assignors else ""
    where, fix = f"partition_assignment_strategy={list(config.assignors)!r}", "partition_assignment_strategy='range'"
    if config.kafka.get("group.protocol") == "consumer":
        name = config.kafka.get("group.remote.assignor", "uniform")
        where, fix = f"group_remote_assignor={name!r}", "group_remote_assignor='range'"
    return None if name == "range" else (where, fix)

"""The content of a log in a test: records, offsets, lag, and assertions that show differences."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from eventbus.broker import Broker
from eventbus.client.bus import EventBus
from eventbus.client.handling.handlers import Handler
from eventbus.errors import ConfigError, GroupIdNotFound, UnknownTopicOrPartition
from eventbus.records import fetched_records
from eventbus.suggest import nearest
from eventbus.testing.clock import FakeClock
from eventbus.testing.decoding import Values, show
from eventbus.testing.memory import MemoryLog
from eventbus.types import ConsumerRecord, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from eventbus.testing.faults import Faults

AnyHandler = Handler[..., Any]
_FETCH_BYTES = 64 * 1024 * 1024
_MOST_SHOWN = 20
"""The most records in the message of a failed assertion."""


class _Anything:
    def __repr__(self) -> str:
        return "ANYTHING"


ANYTHING = _Anything()
"""Matches any key (None means records without a key)."""


class TestLog:
    """The log of a bus under test: ``bus.log`` of a `TestBus`, or the result of ``async with in_memory(bus) as log``.

    It shows what a read-committed reader would see, without open or aborted transactions. Its methods wait for nothing,
    not even for records in flight: call `drain` first. It also works after the bus has stopped.
    """

    __test__ = False  # pytest would collect every class called Test...

    def __init__(self, bus: EventBus, memory: MemoryLog) -> None:
        self._bus = bus
        self._memory = memory
        self._values = Values(bus.context.serdes)

    def __repr__(self) -> str:
        return f"<TestLog of {self._bus!r}>"

    @property
    def bus(self) -> EventBus:
        return self._bus

    @property
    def clock(self) -> FakeClock:
        """The clock of this log, and of every bus on it."""
        return self._memory.clock

    @cached_property
    def faults(self) -> Faults:
        """Faults to inject into the log: see `Faults`."""
        from eventbus.testing.faults import Faults  # most tests use none

        return Faults(self._bus, self._memory.backend)

    async def drain(self) -> None:
        """Wait until records are handled, outputs stored and offsets committed; see `EventBus.drain`.

        It does not move the clock: a handler that waits for the clock (`FakeClock.sleep`) continues to wait.
        """
        await self._bus.drain()

    # records ---------------------------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of topics, without internal ones."""
        with self._memory.broker() as broker:
            return _topics(broker)

    def records(
        self,
        topic: str,
        *,
        key: Any = ANYTHING,
        partition: int | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> list[ConsumerRecord]:
        """Return the records of a topic with keys and values as bytes: partition by partition, each in order.

        ``key``: only those with it (for a key the order is that of sending). Raises UnknownTopicOrPartition.
        """
        with self._memory.broker() as broker:
            partitions = self._partitions(broker, topic, partition)
            records = [record for one in partitions for record in _read(broker, one, isolation)]
        if key is ANYTHING:
            return records
        wanted = self._values.encode_key(topic, key)
        return [record for record in records if record.key == wanted]

    def values(self, topic: str, type: Any = Any, *, key: Any = ANYTHING, partition: int | None = None) -> list[Any]:
        """Return the payloads of `records`, decoded as ``type``: plain JSON (Any), your Struct, str, int, bytes.

        A null is None. Raises UnknownTopicOrPartition, and SerializationError for a record that is not a ``type``.
        """
        decode = self._values.decoder(topic, type)
        return [decode(record, record.value) for record in self.records(topic, key=key, partition=partition)]

    def keys(self, topic: str, type: Any = str, *, partition: int | None = None) -> list[Any]:
        """Return the keys of `records`, decoded as ``type``. Raises UnknownTopicOrPartition, SerializationError."""
        decode = self._values.decoder(topic, type, is_key=True)
        return [decode(record, record.key) for record in self.records(topic, partition=partition)]

    def assert_published(self, topic: str, *values: Any, key: Any = ANYTHING, partition: int | None = None) -> None:
        """Assert that the topic holds exactly these values; with ``key`` or ``partition``, that its records with it do.

        The order matters, except in a topic with several partitions, where only the records of a key or a partition
        have an order. Without values: at least one record exists. A value is compared with what a reader of its type
        would get.
        """
        records = [] if self._is_absent(topic) else self.records(topic, key=key, partition=partition)
        of = "" if key is ANYTHING else f", key {key!r}"
        of += "" if partition is None else f", partition {partition}"
        if not values:
            if not records:
                raise AssertionError(f"nothing was published to {topic!r}{of}")
            return
        with self._memory.broker() as broker:
            is_ordered = key is not ANYTHING or partition is not None or broker.partitions_of(topic) <= 1
        difference = self._values.difference(topic, values, records, is_ordered)
        if difference:
            raise AssertionError(f"topic {topic!r}{of} does not hold what was expected\n{difference}")

    def assert_nothing_published(self, topic: str, *, key: Any = ANYTHING) -> None:
        """Assert that there are no records. A missing topic has none, unless its name seems mistyped."""
        if self._is_absent(topic):
            return
        records = self.records(topic, key=key)
        if records:
            shown = [f"    {show(record)}" for record in records[:_MOST_SHOWN]]
            shown += [f"    and {len(records) - _MOST_SHOWN} more"] if len(records) > _MOST_SHOWN else []
            raise AssertionError(f"{len(records)} record(s) in {topic!r}, none expected:\n" + "\n".join(shown))

    def _is_absent(self, topic: str) -> bool:
        """Return True if the topic does not exist. Raises UnknownTopicOrPartition if a similar topic does."""
        with self._memory.broker() as broker:
            if broker.has_topic(topic):
                return False
            if nearest(topic, _topics(broker)):
                self._partitions(broker, topic, None)
            return True

    def _partitions(self, broker: Broker, topic: str, partition: int | None) -> list[TopicPartition]:
        count = broker.partitions_of(topic)
        if not count:
            known = _topics(broker)
            raise UnknownTopicOrPartition(
                f"there is no topic {topic!r}{nearest(topic, known)}; there are: {', '.join(known) or 'none'}"
            )
        if partition is not None and not 0 <= partition < count:
            raise UnknownTopicOrPartition(f"topic {topic!r} has no partition {partition}: it has {count}")
        return [TopicPartition(topic, n) for n in (range(count) if partition is None else (partition,))]

    # groups ----------------------------------------------------------------------------------------------------------

    def committed(self, group: str | AnyHandler, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return the offsets from which a group (or a handler's group) continues; partitions without a commit are
        absent.

        The offset is that of the *next* record. Raises GroupIdNotFound, and UnknownTopicOrPartition for ``topic``.
        """
        with self._memory.broker() as broker:
            name = self._group(broker, group)
            if topic is not None:
                self._partitions(broker, topic, None)
            offsets = broker.groups.fetch_offsets(name)
        return {
            topic_partition: found.offset
            for topic_partition, found in sorted(offsets.items())
            if topic is None or topic_partition.topic == topic
        }

    def lag(self, group: str | AnyHandler, topic: str | None = None) -> dict[TopicPartition, int]:
        """Return how many records of each partition a group has not committed, for all partitions it reads.

        Without a commit, all records count, whatever ``start`` is. Raises as `committed`.
        """
        with self._memory.broker() as broker:
            name = self._group(broker, group)
            committed = self.committed(group)
            topics = {topic} if topic is not None else self._topics_of(broker, name, group)
            return {
                one: len(_read(broker, one, IsolationLevel.READ_COMMITTED, committed.get(one, -1)))
                for of in sorted(topics)
                for one in self._partitions(broker, of, None)
            }

    def assert_committed(self, group: str | AnyHandler, topic: str, partition: int, offset: int) -> None:
        """Assert that the group continues at ``offset``: the *next* record's, so 3 after records 0, 1 and 2."""
        found = self.committed(group, topic).get(TopicPartition(topic, partition))
        if found != offset:
            stands = "has committed nothing" if found is None else f"has committed {found}"
            raise AssertionError(f"group {_name(group)} {stands} of {topic}-{partition}, expected {offset}")

    def assert_no_lag(self, group: str | AnyHandler) -> None:
        """Assert that everything the group reads is handled and committed."""
        behind = {one: count for one, count in self.lag(group).items() if count}
        if behind:
            committed = self.committed(group)
            lines = [
                f"    {one.topic}-{one.partition}: {count} not committed, it stands at {committed.get(one, 'nothing')}"
                for one, count in behind.items()
            ]
            raise AssertionError(f"group {_name(group)} is behind (did you `await log.drain()`?):\n" + "\n".join(lines))

    def _group(self, broker: Broker, group: str | AnyHandler) -> str:
        if isinstance(group, Handler):
            if group not in self._bus.context.handlers:
                raise ConfigError(f"{group!r} is not a handler of this bus: {self._bus!r}")
            return self._bus.context.group_of(group)
        known = {listing.group for listing in broker.groups.list()}
        known |= {self._bus.context.group_of(handler) for handler in self._bus.context.handlers}
        if group not in known:
            raise GroupIdNotFound(
                f"there is no group {group!r}{nearest(group, known)}; there are: {', '.join(sorted(known)) or 'none'}"
            )
        return group

    def _topics_of(self, broker: Broker, name: str, group: str | AnyHandler) -> set[str]:
        """Return the topics of a group: by its commits, its present members, and its declared handlers."""
        if isinstance(group, Handler) and group.spec.topics:
            return set(group.spec.topics)
        (description,) = broker.groups.describe([name])
        topics = {topic for topic, _ in broker.groups.fetch_offsets(name)}
        topics |= {topic for member in description.members for topic, _ in member.partitions}
        for handler in self._bus.context.handlers:
            topics |= set(handler.spec.topics) if self._bus.context.group_of(handler) == name else set()
        return {topic for topic in topics if broker.has_topic(topic)}


def _topics(broker: Broker) -> list[str]:
    return [topic for topic in broker.list_topics() if not topic.startswith("__")]


def _name(group: str | AnyHandler) -> str:
    return repr(group) if isinstance(group, str) else f"of {group!r}"


def _read(
    broker: Broker, topic_partition: TopicPartition, isolation: IsolationLevel, offset: int = -1
) -> list[ConsumerRecord]:
    """Read every record from ``offset`` on, or from the first."""
    topic, partition = topic_partition
    position = max(offset, broker.list_offsets(topic_partition, -2).offset)
    records: list[ConsumerRecord] = []
    while (data := broker.fetch(topic_partition, position, _FETCH_BYTES, isolation)).records:
        fetched = fetched_records(data.records, topic, partition, position, aborted=data.aborted)
        records += fetched
        position = fetched.next_offset
    return records

"""Run a sink: records are put, made durable, and then committed."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import anyio

from eventbus.connect.connector import SinkConnector, SinkRecord
from eventbus.connect.running import Run
from eventbus.errors import SerializationError
from eventbus.types import ConsumerRecord, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.client.consumer import Consumer

_IDLE_MS = 1_000
_UNFLUSHED_MS = 100
"""How long a poll waits, which is short so that put records are soon made durable."""
_JAVA = "org.apache.kafka.connect.errors.DataException"


class SinkRun(Run):
    """A sink connector that runs."""

    kind: Literal["source", "sink"] = "sink"

    def __init__(self, *args: Any, topics: tuple[str, ...], pattern: str | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._topics = topics
        self._pattern = pattern
        self._sink: SinkConnector | None = None
        self._positions: Mapping[TopicPartition, int] = {}
        """The sink's own positions."""
        self._next: dict[TopicPartition, int] = {}
        """The next offset to read, after the records that were put."""
        self._is_put = False
        """True if records were put and not flushed."""
        self._scope: anyio.CancelScope | None = None
        """The scope of a poll that may be cut short."""
        self._asked = 0
        self._answered = 0
        """The number of calls of `drain` that were served."""
        self._drained: int = 0

    @property
    def group(self) -> str:
        return f"connect-{self.name}"

    async def _bus_run(self) -> None:
        common = self._common
        dead = common["errors.deadletterqueue.topic.name"]
        await self._create_topics({*self._topics}, -1, -1, {})
        if dead:
            await self._create_topics({dead}, -1, common["errors.deadletterqueue.topic.replication.factor"], {})
        sink = self._sink = cast("SinkConnector", self._make(self._context))
        self._next, self._is_put = {}, False
        try:
            await self._in_thread(sink.start)
            self._positions = await self._in_thread(sink.positions)
            overrides: dict[str, Any] = {"start": "earliest", **common["consumer.override."]}

            async def assigned(partitions: list[TopicPartition]) -> None:
                await self._assigned(consumer, partitions)

            async def revoked(partitions: list[TopicPartition]) -> None:
                # A poll may be cut short, but only one thread at a time may use the sink.
                with anyio.CancelScope(shield=True):
                    await self._flush(consumer)
                self._lost(partitions)  # their next commit is their new owner's

            consumer = self.bus.new_consumer(
                *self._topics, pattern=self._pattern, group=self.group, **overrides,
                on_assigned=assigned,
                on_revoked=revoked,
                on_lost=self._lost,
            )  # fmt: skip
            async with consumer:
                await self._work(consumer)
        finally:
            await self._in_thread(sink.stop)

    async def _work(self, consumer: Consumer) -> None:
        timers = self.bus.context.backend.timers
        interval = self._common["offset.flush.interval.ms"] / 1000
        flush_at = timers.current_time() + interval
        self._is_running()
        while not self._stopping:
            asked = self._asked
            if asked > self._answered and await self._is_at_end(consumer):
                await self._flush(consumer)
                self._answered = asked
                self._notify()
            records = await self._poll(consumer)
            if not records and not consumer.assignment() and self._topics:
                await self.bus.context.backend.describe_topics(self._topics)  # raises if one was deleted
            await self._put(records)
            if self._is_put and (not records or timers.current_time() >= flush_at):
                await self._flush(consumer)
                flush_at = timers.current_time() + interval
        await self._flush(consumer)

    async def _poll(self, consumer: Consumer) -> list[ConsumerRecord]:
        if self._asked > self._answered:
            return await consumer.poll(_UNFLUSHED_MS)
        with anyio.CancelScope() as self._scope:
            return await consumer.poll(_UNFLUSHED_MS if self._is_put else _IDLE_MS)
        return []  # hurried

    async def _is_at_end(self, consumer: Consumer) -> bool:
        mine = consumer.assignment()
        if not mine:
            return bool(self._pattern) or await self._others_have_all()
        ends = await consumer.end_offsets(*mine)
        return all(at >= ends[one] for one, at in (await consumer.positions(*mine)).items())

    async def _others_have_all(self) -> bool:
        """True if the group has more members than partitions, and this member reads none."""
        group = await self.bus.admin.describe_group(self.group)
        return group.state == "Stable" and len(group.members) > 1

    # records ---------------------------------------------------------------------------------------------------------

    async def _put(self, records: list[ConsumerRecord]) -> None:
        if not records:
            return
        raw = {(one.topic, one.partition, one.offset): one for one in records}
        ready, refused = await self._in_thread(self._put_converted, records)
        for record, error, stage in refused:
            await self._refuse(raw[(record.topic, record.partition, record.offset)], error, stage)
        for record in records:
            self._next[record.topic_partition] = record.next_offset
        self.records += ready
        self._is_put = True

    def _put_converted(
        self, records: list[ConsumerRecord]
    ) -> tuple[int, list[tuple[ConsumerRecord | SinkRecord, Exception, str]]]:
        """Put records, in the connector's thread. Return how many were put, and those that were not."""
        assert self._sink is not None
        refused: list[tuple[ConsumerRecord | SinkRecord, Exception, str]] = []
        ready: list[SinkRecord] = []
        for record in records:
            stage = "KEY_CONVERTER"
            try:
                key = self._key_converter.from_bytes(record.topic, record.key)
                stage = "VALUE_CONVERTER"
                value = self._value_converter.from_bytes(record.topic, record.value)
            except SerializationError as error:
                refused.append((record, error, stage))
                if self._common["errors.tolerance"] == "none":
                    break
                continue
            ready.append(
                SinkRecord(
                    topic=record.topic, partition=record.partition, offset=record.offset, key=key.value,
                    value=value.value, schema=value.schema, key_schema=key.schema, headers=record.headers,
                    timestamp_ms=record.timestamp_ms,
                )
            )  # fmt: skip
        if refused and self._common["errors.tolerance"] == "none":
            return 0, refused  # nothing of this poll is put: after a fix all of it comes again
        not_put = list(self._sink.put(ready) or ())
        refused += [(one.record, one.error, "TASK_PUT") for one in not_put]
        return len(ready) - len(not_put), refused

    async def _refuse(self, record: ConsumerRecord, error: Exception, stage: str) -> None:
        place = f"{record.topic}-{record.partition} offset {record.offset}"
        dead = self._common["errors.deadletterqueue.topic.name"]
        if self._common["errors.tolerance"] == "none":
            raise SerializationError(
                f"{place} ({stage}): {error}; errors.tolerance=all passes it over, and "
                "errors.deadletterqueue.topic.name=NAME keeps it"
            )
        if dead:
            headers = list(record.headers)
            if self._common["errors.deadletterqueue.context.headers.enable"]:
                headers += _context(self.name, record, error, stage)
            await self.bus.send(dead, record.value, key=record.key, headers=headers)
        self._passed_over(place, error)

    # offsets ---------------------------------------------------------------------------------------------------------

    async def _assigned(self, consumer: Consumer, partitions: Iterable[TopicPartition]) -> None:
        """Set the positions of new partitions. A sink ahead of its group is right: it died between flush and commit."""
        assert self._sink is not None
        topic_ids = await consumer.topic_ids(*{partition.topic for partition in partitions})
        await self._in_thread(self._sink.assigned, topic_ids)
        known = [one for one in partitions if one in self._positions]
        committed = await consumer.committed(*known) if known else {}
        for one in known:
            if one not in committed or committed[one].offset < self._positions[one]:
                consumer.seek(one, self._positions[one])

    async def _flush(self, consumer: Consumer) -> None:
        if self._is_put and self._sink is not None:
            offsets = dict(self._next)
            await self._in_thread(self._sink.flush, offsets)
            mine = {*consumer.assignment()}
            await consumer.commit({one: OffsetAndMetadata(offset) for one, offset in offsets.items() if one in mine})
            self._is_put = False
            self._notify()

    def _lost(self, partitions: Iterable[TopicPartition]) -> None:
        for one in partitions:
            self._next.pop(one, None)

    # waiting ---------------------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        super().hurry()
        self._look_up()

    def _look_up(self) -> None:
        """End the wait of a poll."""
        if self._scope is not None:
            self._scope.cancel()

    async def drain(self) -> bool:
        self._asked += 1
        asked = self._asked
        self._look_up()  # a pause after a failure is not shortened
        while self._answered < asked and not self.ended.is_set() and self.state != "waiting":
            await self._progress.wait()
        moved, self._drained = self.records != self._drained, self.records
        return moved


def _context(name: str, record: ConsumerRecord, error: Exception, stage: str) -> list[tuple[str, bytes | None]]:
    """Return Kafka Connect's headers of a dead letter (KIP-298)."""
    found = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "connector.name": name,
        "task.id": 0,
        "stage": stage,
        "class.name": type(error).__module__,
        "exception.class.name": _JAVA,
        "exception.message": error,
        "exception.stacktrace": "".join(traceback.format_exception(error)),
    }
    return [(f"__connect.errors.{key}", str(value).encode()) for key, value in found.items()]

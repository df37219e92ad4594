"""Run a source: the records of a poll and the source's positions are written in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import anyio

from eventbus.connect.connector import SourceConnector, SourceRecord
from eventbus.connect.offsets import OffsetTopic, entries
from eventbus.connect.running import Run
from eventbus.errors import BufferExhausted, ConfigError, SerializationError

if TYPE_CHECKING:
    from eventbus.client.producer import Producer

_TURN = 500
"""The number of records before other tasks get a turn."""
_OWN_TOPIC_KEYS = ("topic.creation.default.partitions", "topic.creation.default.replication.factor")


def transactional_id(connector: str) -> str:
    """Return the transactional id: the producer that opens it last is the only one that may write."""
    return f"connect-{connector}-0"


class _Ready(NamedTuple):
    """An encoded record; None instead of the record if it was skipped."""

    record: SourceRecord
    key: bytes | None
    value: bytes | None


class _Polled(NamedTuple):
    records: Sequence[SourceRecord]
    ready: list[_Ready]
    refused: list[tuple[SourceRecord, SerializationError]]


class SourceRun(Run):
    """A source connector that runs."""

    kind: Literal["source", "sink"] = "source"

    def __init__(self, *args: Any, offsets: OffsetTopic, topic_configs: dict[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._offsets = offsets
        self._topic_configs = topic_configs
        self._topics: set[str] = set()
        """Topics that are known to exist."""
        self.transactions: int = 0
        self._rounds_begun: int = 0
        """The number of rounds. A round ends with an empty poll, so all that existed at its start was read."""
        self._rounds_ended: int = 0
        self._is_idle = False
        """True while it waits for the next round."""
        self._drained: int = 0
        self._repeats = False

    async def _bus_run(self) -> None:
        connector = cast("SourceConnector", self._make(self._context))
        self._repeats = connector.repeats
        self._topics.clear()
        self._rounds_begun = self._rounds_ended
        overrides: dict[str, Any] = self._common["producer.override."]
        async with AsyncExitStack() as stack:
            producer = self.bus.new_producer(**overrides, transactional_id=transactional_id(self.name))
            stack.push_async_callback(producer.aclose)
            await producer.init()  # fences earlier writers, so the offsets read next are final
            offsets = await self._offsets.of(self.bus, self.name)
            await self._create({*connector.topics()})
            stack.push_async_callback(self._stop, connector)
            await self._in_thread(connector.start, offsets)
            self._is_running()
            while not self._stopping:
                await self._round(connector, producer)

    async def _stop(self, connector: SourceConnector) -> None:
        """Stop the connector. If its task was cancelled, it may still run in its thread: it is abandoned."""
        await self._in_thread(connector.stop)

    async def _round(self, connector: SourceConnector, producer: Producer) -> None:
        self._rounds_begun += 1
        while not self._stopping:
            polled = await self._in_thread(self._poll, connector)
            if not polled.records:
                break
            await self._store(polled, producer)
        else:
            return
        self._rounds_ended = self._rounds_begun
        self._is_idle = True
        self._notify()
        await self._wait(connector.idle_ms / 1000)
        self._is_idle = False

    def _poll(self, connector: SourceConnector) -> _Polled:
        """Poll and encode, in the connector's thread, because encoding many records takes time too."""
        records = connector.poll()
        ready: list[_Ready] = []
        refused: list[tuple[SourceRecord, SerializationError]] = []
        to_key, to_value = self._key_converter.to_bytes, self._value_converter.to_bytes
        for one in records:
            try:
                if isinstance(one.value, SerializationError):
                    raise one.value
                key = to_key(one.topic, one.key_schema, one.key)
                ready.append(_Ready(one, key, to_value(one.topic, one.schema, one.value)))
            except SerializationError as error:
                refused.append((one, error))
                if self._common["errors.tolerance"] == "none":
                    break
        return _Polled(records, ready, refused)

    async def _store(self, polled: _Polled, producer: Producer) -> None:
        records = polled.records
        for record, error in polled.refused:
            if self._common["errors.tolerance"] == "none":
                # Records before the record at fault are stored: the next attempt begins with it.
                records = records[: next(index for index, one in enumerate(records) if one is record)]
                await self._transaction(records, polled.ready, producer)
                raise SerializationError(
                    f"{record.partition} at {record.offset}: {error}; fix it, or errors.tolerance=all passes it over"
                )
            self._passed_over(f"{record.partition} at {record.offset}", error)
        await self._transaction(records, polled.ready, producer)

    async def _transaction(self, records: Sequence[SourceRecord], ready: list[_Ready], producer: Producer) -> None:
        if not records:
            return
        await self._create({one.record.topic for one in ready} - self._topics)
        async with producer.transaction() as transaction:
            for number, (record, key, value) in enumerate(ready, 1):
                while True:
                    try:
                        transaction.send_nowait(
                            record.topic, value, key=key, headers=record.headers, partition=record.topic_partition,
                            timestamp_ms=record.timestamp_ms,
                        )  # fmt: skip
                        break
                    except BufferExhausted:
                        await producer.wait_for_room()
                if not number % _TURN:
                    await anyio.lowlevel.checkpoint()
            for key, value in entries(self.name, records):
                transaction.send_nowait(self._offsets.topic, value, key=key)
        self.records += len(ready)
        self.transactions += 1

    async def _create(self, names: set[str]) -> None:
        if names:
            if self._offsets.topic in names:
                raise ConfigError(f"topic {self._offsets.topic!r} holds the offsets of connectors: send elsewhere")
            partitions, factor = (self._common[key] for key in _OWN_TOPIC_KEYS)
            await self._create_topics(names, partitions, factor, self._topic_configs)
            self._topics |= names

    async def drain(self) -> bool:
        is_between = self._rounds_begun == self._rounds_ended
        wanted = 1 if self._repeats else self._rounds_begun + (1 if is_between else 2)
        while self._rounds_ended < wanted and not self.ended.is_set() and self.state != "waiting":
            if self._is_idle:
                self.hurry()
            await self._progress.wait()
        moved, self._drained = self.records != self._drained, self.records
        return moved and not self._repeats

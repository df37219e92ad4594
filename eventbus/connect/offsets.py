"""The positions of sources: a compacted topic, in the format of Kafka Connect's own.

Key: ``["connector", {"filename": "..."}]``; value: the source's position; null deletes it. An entry is written in the
transaction of the records it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from eventbus.broker import TopicSpec
from eventbus.connect.connector import Offset, SourceRecord, partition_key
from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.ledger import ends_of, find_or_create, read_to_end
from eventbus.types import IsolationLevel, TopicPartition
from serdes.nesting import shallow

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

_POLL_MS = 200
_POLL_RECORDS = 10_000


class Stored(NamedTuple):
    """The stored position of one partition of a source."""

    connector: str
    partition: dict[str, Any]
    offset: Offset


class OffsetTopic:
    """The offsets topic of a worker, ``offset.storage.topic``."""

    def __init__(self, topic: str, partitions: int = 1, replication_factor: int = -1) -> None:
        self.topic = topic
        self._partitions = partitions
        self._replication_factor = replication_factor

    async def create(self, bus: EventBus) -> None:
        """Create the topic if it is missing. Raises ConfigError for a topic that would forget offsets."""
        spec = TopicSpec(self.topic, self._partitions, self._replication_factor, {"cleanup.policy": "compact"})
        found = await find_or_create(bus.context.backend, spec)
        policy = found.configs["cleanup.policy"].value or "delete"
        if "delete" in policy:
            raise ConfigError(
                f"topic {self.topic!r} has cleanup.policy={policy} and would forget offsets of connectors: eventbus "
                f"topics alter {self.topic} --config cleanup.policy=compact, or name another as offset.storage.topic"
            )

    async def read(self, bus: EventBus) -> dict[str, Stored]:
        """Return all stored offsets, by key.

        Waits for transactions that are open when reading begins: one of them may be this worker's last.
        """
        try:
            [described] = await bus.context.backend.describe_topics([self.topic])
        except UnknownTopicOrPartition:
            return {}
        partitions = [TopicPartition(self.topic, number) for number in range(len(described.partitions))]
        ends = await ends_of(bus.context.backend, partitions, IsolationLevel.READ_UNCOMMITTED)
        found: dict[bytes, bytes | None] = {}
        async with bus.new_consumer(partitions=partitions, start="earliest") as consumer:
            await read_to_end(
                consumer, partial(consumer.poll, _POLL_MS, _POLL_RECORDS), ends,
                lambda records: found.update((record.key or b"", record.value) for record in records),
            )  # fmt: skip
        return {key.decode(): one for key, value in found.items() if (one := _stored(key, value)) is not None}

    async def of(self, bus: EventBus, connector: str) -> dict[str, Offset]:
        """Return the offsets of one connector, by `partition_key`."""
        stored = (await self.read(bus)).values()
        return {partition_key(one.partition): one.offset for one in stored if one.connector == connector}


def entry(connector: str, partition: Mapping[str, Any], offset: Offset | None) -> tuple[bytes, bytes | None]:
    """Return key and value of a record; None deletes the offset."""
    key = msgspec.json.encode([connector, dict(partition)])
    return key, None if offset is None else msgspec.json.encode(offset)


def entries(connector: str, records: Iterable[SourceRecord]) -> list[tuple[bytes, bytes | None]]:
    """Return entries with the last offset of each partition of the source."""
    last = {partition_key(one.partition): one for one in records if one.offset}
    return [entry(connector, one.partition, one.offset) for one in last.values()]


def _stored(key: bytes, value: bytes | None) -> Stored | None:
    """Decode an entry; return None for a deleted offset, or a record of another format."""
    try:
        found: Any = msgspec.json.decode(shallow(key))
        offset: Any = None if value is None else msgspec.json.decode(shallow(value))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    match found:
        case [str(name), partition] if isinstance(partition, dict) and isinstance(offset, dict):
            return Stored(name, cast("dict[str, Any]", partition), cast("Offset", offset))
        case _:
            return None

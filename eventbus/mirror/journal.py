"""The state of a mirror: stored at the destination, in a compacted topic, in the transactions of the records.

So there is never a record without its entry, or an entry without its record, wherever a mirror dies. Keys and values
are JSON: ``eventbus consume __eventbus_mirror.NAME --from-beginning`` shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from eventbus.backends.base import Backend, ConsumerConfig
from eventbus.broker import TopicSpec
from eventbus.errors import CorruptRecord, UnknownTopicOrPartition
from eventbus.ledger import ends_of, find_or_create, read_partitions
from eventbus.mirror.offset_map import OffsetMap
from eventbus.types import TopicPartition
from serdes.nesting import shallow

logger = logging.getLogger("eventbus.mirror")

PREFIX = "__eventbus_mirror."
READER = ConsumerConfig(start="earliest", client_id="eventbus-mirror", fetch_max_wait_ms=50)
"""Use a short fetch_max_wait_ms: the end offset is known, so an empty fetch must return quickly."""

Entry = tuple[bytes, bytes | None]
"""Key and value of a record of the journal; a null value deletes the entry."""


class TopicState(msgspec.Struct, kw_only=True):
    """The state of a topic that is mirrored."""

    source_id: str
    destination_id: str
    """The topic's id, which differs after the topic is deleted and created again."""
    bases: list[int]
    """The end of each partition of the destination before anything was copied."""
    configs: dict[str, str] = {}
    """The configs as the mirror set them last at the destination: changes made there by others stay."""


class Journal:
    """The entries of a mirror, loaded and to be written."""

    def __init__(self, name: str) -> None:
        self.topic = PREFIX + name
        self.owner = ""
        """The run that began last, which is the one that may continue."""
        self.topics: dict[str, TopicState] = {}
        self.maps: dict[TopicPartition, OffsetMap] = {}
        self.groups: dict[str, dict[TopicPartition, list[int]]] = {}
        """The offsets at the destination that the mirror itself may have committed for a group."""
        self._saved: dict[TopicPartition, int] = {}
        """Chunks of each map before this one are stored and will not change."""

    # reading ---------------------------------------------------------------------------------------------------------

    async def load(self, backend: Backend) -> None:
        """Load the whole journal. A mirror that writes must have taken its transactional id before."""
        try:
            await backend.describe_topics([self.topic])
        except UnknownTopicOrPartition:
            return
        where = TopicPartition(self.topic, 0)
        found: dict[bytes, bytes | None] = {}
        await read_partitions(
            backend.consumer(READER), await ends_of(backend, [where]),
            lambda records: found.update(zip(map(_key, records.keys), records.values, strict=True)),
        )  # fmt: skip
        self._take({key: value for key, value in found.items() if value is not None})

    def _take(self, found: dict[bytes, bytes]) -> None:
        chunks: dict[TopicPartition, list[tuple[int, list[int]]]] = {}
        try:
            for key, value in found.items():
                match _read_key(key, self.topic):
                    case ["owner"]:
                        self.owner = msgspec.json.decode(shallow(value), type=str)
                    case ["topic", str(topic)]:
                        self.topics[topic] = msgspec.json.decode(shallow(value), type=TopicState)
                    case ["offsets", str(topic), int(partition), int(number)]:
                        content = msgspec.json.decode(shallow(value), type=list[int])
                        chunks.setdefault(TopicPartition(topic, partition), []).append((number, content))
                    case ["group", str(group)]:
                        written = msgspec.json.decode(shallow(value), type=list[tuple[str, int, list[int]]])
                        self.groups[group] = {
                            TopicPartition(topic, number): offsets for topic, number, offsets in written
                        }
                    case _:
                        pass  # written by a later version, or another program
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            # It replaced what the mirror had stored under the key. Without that, records could be copied twice.
            raise CorruptRecord(
                f"topic {self.topic!r} of the destination is not a mirror's journal ({error}): leave it to the mirror, "
                "or give this one another name"
            ) from None
        for topic, state in self.topics.items():
            for partition, base in enumerate(state.bases):
                where = TopicPartition(topic, partition)
                found_map = self.maps[where] = OffsetMap.of_chunks(base, chunks.get(where, ()))
                self._saved[where] = found_map.last_chunk

    # writing ---------------------------------------------------------------------------------------------------------

    def claim(self, owner: str) -> Entry:
        """Return the entry that makes an earlier run stop."""
        self.owner = owner
        return _encode("owner"), msgspec.json.encode(owner)

    def take_up(self, topic: str, state: TopicState) -> Entry:
        """Return the entry of a topic that is mirrored from now on, or has changed."""
        self.topics[topic] = state
        for partition, base in enumerate(state.bases):
            self.maps.setdefault(TopicPartition(topic, partition), OffsetMap(base))
        return _encode("topic", topic), msgspec.json.encode(state)

    def forget(self, topic: str) -> list[Entry]:
        """Return the entries that end the mirroring of a topic, whose copy may then start over."""
        entries: list[Entry] = [(_encode("topic", topic), None)]
        for where in [where for where in self.maps if where.topic == topic]:
            copied = self.maps.pop(where)
            self._saved.pop(where, None)
            entries += [(_encode("offsets", *where, number), None) for number, _ in copied.chunks_from(0)]
        del self.topics[topic]
        return entries

    def grown(self, where: TopicPartition) -> list[Entry]:
        """Return entries for what was added to a partition's map since the last call."""
        found = self.maps[where]
        first, self._saved[where] = self._saved.get(where, 0), found.last_chunk
        return [
            (_encode("offsets", *where, number), msgspec.json.encode(content))
            for number, content in found.chunks_from(first)
        ]

    def dropped(self, where: TopicPartition, source: int, destination: int) -> list[Entry]:
        """Return entries that delete the part of a map that exists on neither side any more."""
        numbers = self.maps[where].drop_before(source, destination)
        return [(_encode("offsets", *where, number), None) for number in numbers]

    def committing(self, group: str, offsets: Mapping[TopicPartition, tuple[int | None, int]]) -> Entry:
        """Return the entry to write before a commit of a group: after a crash, the old or the new offset is valid."""
        written = self.groups.setdefault(group, {})
        for where, (there, new) in offsets.items():
            written[where] = [new] if there is None else [there, new]
        content = [(*where, kept) for where, kept in sorted(written.items())]
        return _encode("group", group), msgspec.json.encode(content)


async def create_journal(backend: Backend, topic: str, replication_factor: int) -> None:
    """Create the topic of a journal if it is missing. Raises the KafkaError that prevents it."""
    await find_or_create(backend, TopicSpec(topic, 1, replication_factor, {"cleanup.policy": "compact"}))


def _encode(*key: Any) -> bytes:
    return msgspec.json.encode(key)


def _read_key(key: bytes, topic: str) -> Any:
    """Return the parts of a key, or None for a key that no mirror writes: its record replaces no entry of a mirror."""
    try:
        return msgspec.json.decode(shallow(key))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        logger.warning("A record of topic %r is ignored. Its key %.100r is not a mirror's: %s", topic, key, error)
        return None


def _key(key: bytes | None) -> bytes:
    return key or b"[]"

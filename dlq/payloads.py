"""Read the payloads of letters that only refer to a source record."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dlq.reading import records_at
from dlq.selection import LetterId
from dlq.targets import id_of
from eventbus import EventBus
from eventbus.errors import PayloadGone, UnknownTopicOrPartition
from eventbus.types import ConsumerRecord, TopicPartition

if TYPE_CHECKING:
    from dlq.letters import DeadLetter


async def source_records(bus: EventBus, letters: Iterable[DeadLetter]) -> dict[LetterId, ConsumerRecord]:
    """Return the source records of letters, as far as their topics still hold them."""
    wanted: dict[TopicPartition, dict[int, list[DeadLetter]]] = {}
    for letter in letters:
        if letter.source is not None and letter.source_offset is not None:
            wanted.setdefault(letter.source, {}).setdefault(letter.source_offset, []).append(letter)
    held = await _held(bus, wanted)
    offsets = {where: sorted(wanted[where]) for where in wanted if where in held}
    found: dict[LetterId, ConsumerRecord] = {}
    if offsets:
        async for records in records_at(bus, offsets):
            for record in records:
                for letter in wanted[record.topic_partition][record.offset]:
                    if _is_source(letter, record, held[record.topic_partition]):
                        found[id_of(letter)] = record
    return found


def _is_source(letter: DeadLetter, record: ConsumerRecord, topic_id: str) -> bool:
    """False if the offset holds another record, because the topic was recreated or the letter's headers are wrong."""
    return (letter.key is None or letter.key == record.key) and letter.source_topic_id in ("", topic_id)


async def _held(bus: EventBus, wanted: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """Return the existing partitions with their topics' ids. Internal topics are excluded: they hold no payloads."""
    counts: dict[str, int] = {}
    ids: dict[str, str] = {}
    for topic in {where.topic for where in wanted}:
        try:
            found = (await bus.admin.describe_topics([topic]))[0]
        except UnknownTopicOrPartition:
            continue
        counts[topic] = 0 if found.is_internal else len(found.partitions)
        ids[topic] = found.topic_id
    return {where: ids[where.topic] for where in wanted if 0 <= where.partition < counts.get(where.topic, 0)}


def payload_gone(letter: DeadLetter) -> PayloadGone:
    where = "it does not say where it came from"
    if letter.source is not None:
        where = f"{letter.source} no longer holds offset {letter.source_offset}"
    return PayloadGone(
        f"dead letter {id_of(letter)} carries no payload, and {where}: retention or compaction removed it, or the "
        "topic was created again. Only its headers are left; resolve it, or park it with a note"
    )


async def payload_of(bus: EventBus, letter: DeadLetter) -> bytes | None:
    """Return the value of a letter, or of its source record; None for a tombstone. Raises PayloadGone."""
    if letter.has_payload:
        return letter.value
    record = (await source_records(bus, [letter])).get(id_of(letter))
    if record is None:
        raise payload_gone(letter)
    return record.value

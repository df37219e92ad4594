"""Offsets as Spark's Kafka source writes them, and the arithmetic of batches and tasks. Pure.

JSON: ``{"topic": {"0": 23, "1": -1}}``; -2 stands for the earliest offset, -1 for the latest.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from eventbus.errors import ConfigError, OffsetOutOfRange
from eventbus.types import TopicPartition

EARLIEST = -2
LATEST = -1
_MIN_RECORDS_PER_TASK = 20_000
"""Starting a task costs as much as decoding this many records."""

Offsets = dict[TopicPartition, int]
Bounds = Mapping[TopicPartition, tuple[int, int]]
"""First offset and end (the last stable offset) of each partition, as the log has them now."""


class OffsetRange(NamedTuple):
    """The offsets that a task reads: ``start`` inclusive, ``end`` exclusive."""

    topic_partition: TopicPartition
    start: int
    end: int


TOPIC_IDS = ""
"""The key of the topics' ids in a stream's offsets, which no topic has as its name."""


def to_json(offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Kafka's form, sorted, ready for a JSON encoder; with ``topic_ids`` they stand under `TOPIC_IDS`."""
    result: dict[str, dict[str, Any]] = {TOPIC_IDS: dict(topic_ids)} if topic_ids else {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def from_json(value: Mapping[str, Mapping[Any, Any]]) -> Offsets:
    """Offsets from Kafka's form."""
    topics = ((topic, parts) for topic, parts in value.items() if topic != TOPIC_IDS)
    return {TopicPartition(topic, int(p)): offset for topic, parts in topics for p, offset in parts.items()}


def parse(text: str, option: str) -> Offsets:
    """Offsets from the text of an option; `ConfigError` names the option."""
    try:
        value: Any = msgspec.json.decode(text, type=dict[str, dict[int, int]])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'{option}={text!r} is not understood ({error}): write offsets as {{"topic": {{"0": 23, "1": -1}}}}, '
            f"with -2 for the earliest and -1 for the latest"
        ) from error
    offsets = from_json(value)
    if low := [each for each, offset in offsets.items() if offset < EARLIEST]:
        raise ConfigError(f"{option}: offset {offsets[low[0]]} of {low[0]} is negative; only -2 and -1 have a meaning")
    return offsets


def resolve(wanted: int, bounds: tuple[int, int]) -> int:
    """Replace -2 by the earliest offset and -1 by the latest. Any other offset is returned unchanged."""
    return bounds[0] if wanted == EARLIEST else bounds[1] if wanted == LATEST else wanted


def check_kept(where: TopicPartition, start: int, end: int, bounds: tuple[int, int]) -> None:
    """Raise `OffsetOutOfRange` unless the log still has, and has already, all from ``start`` to ``end``."""
    first, last = bounds
    if start < first or max(start, end) > last:
        raise OffsetOutOfRange(
            f"the query reads {where} from offset {start} to {end}, but the log has {first} to {last}: retention "
            f"removed records, or the topic was deleted and created again. Set failOnDataLoss=false to skip the "
            f"missing records, or start again with another checkpoint and startingOffsets"
        )


def limited(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], max_records: int) -> Offsets:
    """``end`` cut down to about ``max_records`` beyond ``start``, shared in proportion to each partition's backlog.

    Every partition with a backlog advances by at least one record, as in Spark's Kafka source.
    """
    backlog = {each: max(0, end[each] - start.get(each, end[each])) for each in end}
    total = sum(backlog.values())
    if total <= max_records:
        return dict(end)
    return {
        each: start[each] + max(1, records * max_records // total) if records else end[each]
        for each, records in backlog.items()
    }


def split(ranges: list[OffsetRange], *, min_tasks: int, max_records: int | None) -> list[OffsetRange]:
    """Cut ranges so that about ``min_tasks`` tasks get equal work, none of them more than ``max_records``.

    A range is only cut into pieces worth a task, unless ``max_records`` asks for smaller ones. Empty ranges vanish.
    """
    total = sum(each.end - each.start for each in ranges)
    size = max(_MIN_RECORDS_PER_TASK, -(-total // max(1, min_tasks)))
    if max_records is not None:
        size = min(size, max_records)
    pieces: list[OffsetRange] = []
    for topic_partition, start, end in ranges:
        count = -(-(end - start) // size)
        cuts = [start + (end - start) * number // max(1, count) for number in range(count + 1)]
        pieces += [OffsetRange(topic_partition, low, high) for low, high in pairwise(cuts)]
    return pieces

"""A stretch of a log: from when to when, in offsets; and the log as if it ended there."""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from eventbus.cli.group_reset import parse_duration
from eventbus.cli.offsets import EARLIEST, LATEST, parse_time
from eventbus.types import FetchedRecords, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.base import Backend, BackendConsumer, ConsumerConfig
    from eventbus.client.admin import Admin


def point_in_time(text: str) -> int:
    """Return an argparse type: a time in milliseconds since 1970, how long ago (``90m``), "earliest" or "latest"."""
    if text in ("earliest", "latest", "now"):
        return EARLIEST if text == "earliest" else LATEST
    try:
        value = parse_time(text)
    except argparse.ArgumentTypeError:
        try:
            return round(time.time() * 1000) - parse_duration(text)
        except argparse.ArgumentTypeError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no time: give a date like 2013-01-31T18:00 (UTC), milliseconds since 1970, how long ago "
                "(90m, 36h, 7d), earliest or latest"
            ) from None
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: say earliest or latest")
    return value


async def offsets_at(admin: Admin, partitions: Iterable[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """Return the first offset at or after ``when``; the end where there is no record so late."""
    listed = list(partitions)
    last = await admin.list_offsets(dict.fromkeys(listed, LATEST))
    found = last if when == LATEST else await admin.list_offsets(dict.fromkeys(listed, when))
    return {at: one.offset if one.offset >= 0 else last[at].offset for at, one in found.items()}


async def offsets_within(admin: Admin, partitions: Iterable[TopicPartition], offset: int) -> dict[TopicPartition, int]:
    """``offset`` in every partition, or the nearest to it that there is."""
    first = await offsets_at(admin, partitions, EARLIEST)
    last = await offsets_at(admin, first, LATEST)
    return {at: min(max(offset, lowest), last[at]) for at, lowest in first.items()}


def up_to(log: Backend, ends: Mapping[TopicPartition, int]) -> Backend:
    """``log``, whose consumers find nothing at these offsets and behind them, nor in partitions without one."""
    return cast("Backend", _UpTo(log, ends))


class _UpTo:
    def __init__(self, log: Backend, ends: Mapping[TopicPartition, int]) -> None:
        self._log = log
        self._ends = ends

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def consumer(self, config: ConsumerConfig) -> BackendConsumer:
        consumer = self._log.consumer(config)
        fetch, end_offsets = consumer.fetch, consumer.end_offsets

        async def fetch_up_to(max_wait_ms: int | None = None) -> list[FetchedRecords]:
            cut: list[FetchedRecords] = []
            for chunk in await fetch(max_wait_ms):
                place = TopicPartition(chunk.topic, chunk.partition)
                end = self._ends.get(place, 0)
                if chunk.next_offset >= end:
                    consumer.pause([place])
                cut += before(chunk, end)
            return cut

        async def ends_up_to(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
            return {at: min(end, self._ends.get(at, 0)) for at, end in (await end_offsets(partitions)).items()}

        consumer.fetch, consumer.end_offsets = fetch_up_to, ends_up_to
        return consumer


def before(chunk: FetchedRecords, end: int) -> Sequence[FetchedRecords]:
    """What of a fetch lies before ``end``, if anything."""
    if chunk.next_offset <= end:
        return [chunk]
    count = bisect_left(chunk.offsets, end)
    if not count:
        return []
    return [
        FetchedRecords(
            chunk.topic,
            chunk.partition,
            chunk.offsets[:count],
            chunk.timestamps_ms[:count],
            chunk.keys[:count],
            chunk.values[:count],
            None if chunk.headers is None else chunk.headers[:count],
            chunk.timestamp_type,
            end,
        )
    ]

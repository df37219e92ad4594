"""Name and count the records that an end of a handler leaves unfinished, for the log."""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import Any

from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.lane import Lane
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.runner")


def described(partition: TopicPartition, offsets: Sequence[int]) -> str:
    """Return "t-0 offset 7", or "t-0 offsets 7 to 9 (3 records)"."""
    if len(offsets) == 1:
        return f"{partition} offset {offsets[0]}"
    return f"{partition} offsets {offsets[0]} to {offsets[-1]} ({len(offsets):,} records)"


def log_lost(handler: Handler[Any, Any], lane: Lane) -> None:
    """Log the records that a lane could not give back."""
    lost = () if lane.work is None else lane.work.drop_not_begun()
    if not lost:
        return
    why = "the partition belongs to another member" if lane.abandoned else "the commit that gives them back failed"
    logger.error(
        "handler %r: %s never reached the handler and are lost. They were committed before they were handled "
        "(delivery='at-most-once'), and %s. To handle them, set the group's offset back to %d",
        handler.__name__, described(lane.topic_partition, lost), why, lost[0],
    )  # fmt: skip


def unfinished_of(handler: Handler[Any, Any], lane: Lane, dispatch: Dispatch, at_work: Collection[int]) -> str:
    """Describe the records of a lane that reached the handler and are not finished.

    ``at_work``: the offset of each call in flight in the partition, the first offset of a batch.
    """
    offsets = set(at_work)
    chunk = lane.at_hand
    if handler.spec.ack == "manual":
        last = max(at_work, default=sys.maxsize)
        offsets |= {offset for taken in lane.taken for offset in taken.unfinished_offsets if offset <= last}
    elif chunk is not None and handler.spec.is_ordered:
        first = end = bisect_left(chunk.offsets, lane.reached)  # no call in flight: outputs are not stored yet
        if at_work and (call := lane.call) is not None:
            first = bisect_left(chunk.offsets, max(at_work))
            end = first + len(dispatch.records_at(call))
        if handler.spec.exactly_once:  # the open transaction is aborted, with all that was handled in it
            first = bisect_left(chunk.offsets, lane.committed)
        elif not at_work:
            first = bisect_left(chunk.offsets, lane.finished)
        offsets |= set(chunk.offsets[first:end])
    return described(lane.topic_partition, sorted(offsets)) if offsets else f"what was begun of {lane.topic_partition}"


def fate_of(handler: Handler[Any, Any]) -> str:
    """Describe what becomes of a record whose call is cancelled at the end of the handler's time."""
    if handler.spec.delivery == "at-most-once":
        return "committed before it was handled, and not handled again"
    return "not committed, and handled again by whoever reads the partition next"

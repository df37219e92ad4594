"""Name and count the records that an end of a handler leaves unfinished, for the log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.runner")


def described(partition: TopicPartition, offsets: Sequence[int]) -> str:
    """Return "t-0 offset 7", or "t-0 offsets 7 to 9 (3 records)"."""
    if len(offsets) == 1:
        return f"{partition} offset {offsets[0]}"
    return f"{partition} offsets {offsets[0]} to {offsets[-1]} ({len(offsets):,} records)"


def log_lost(handler: Handler[Any, Any], driver: PartitionDriver) -> None:
    """Log the records that a partition could not give back."""
    lost = driver.work.drop_not_begun()
    if not lost:
        return
    why = "the partition belongs to another member" if driver.abandoned else "the commit that gives them back failed"
    logger.error(
        "handler %r: %s never reached the handler and are lost. They were committed before they were handled "
        "(delivery='at-most-once'), and %s. To handle them, set the group's offset back to %d",
        handler.__name__, described(driver.topic_partition, lost), why, lost[0],
    )  # fmt: skip


def unfinished_of(driver: PartitionDriver, dispatch: Dispatch) -> str:
    """Describe the records of a partition that reached the handler and are not finished."""
    offsets = driver.work.begun(lambda call: len(dispatch.records_at(call)))
    return described(driver.topic_partition, offsets) if offsets else f"what was begun of {driver.topic_partition}"


def fate_of(handler: Handler[Any, Any]) -> str:
    """Describe what becomes of a record whose call is cancelled at the end of the handler's time."""
    if handler.spec.delivery == "at-most-once":
        return "committed before it was handled, and not handled again"
    return "not committed, and handled again by the partition's next owner"

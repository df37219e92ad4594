"""A fetch through a `Dispatch`, without a bus: what dispatch, middleware and acknowledgements are tested with."""

from __future__ import annotations

from typing import Any

from eventbus import TopicPartition
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.lane import Lane, Taken
from eventbus.client.handling.work_actions import Cursor
from eventbus.types import FetchedRecords, TimestampType


class Outputs:
    """Stands for the sender: every output gets a batch of its own, resolved by hand; "bad" cannot be sent."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.batches: list[BatchDelivery] = []

    async def publish(self, value: Any) -> Delivery | None:
        if value == b"bad":
            raise ValueError("cannot be sent")
        self.values.append(value)
        self.batches.append(BatchDelivery("out", 0))
        return Delivery(self.batches[-1], 0, 0)


def chunk_of(*values: bytes | None) -> FetchedRecords:
    count = len(values)
    no_keys: list[bytes | None] = [None] * count
    offsets = list(range(count))
    return FetchedRecords("t", 0, offsets, [0] * count, no_keys, list(values), None, TimestampType.CREATE_TIME, count)


async def dispatched(
    handler: Handler[..., Any], *values: bytes | None, outputs: Outputs | None = None, start: int = 0
) -> Lane:
    """The lane, after a fetch of these values has gone through the handler."""
    lane, chunk = lane_of(), chunk_of(*values)
    taken = lane.take(chunk) if handler.spec.ack == "manual" else None
    await run(Dispatch(handler, outputs.publish if outputs is not None else None, {}), lane, chunk, start, taken)
    return lane


async def run(
    dispatch: Dispatch, lane: Lane, chunk: FetchedRecords, start: int = 0, taken: Taken | None = None
) -> Cursor:
    """Return how far the handler got with the records of a fetch from ``start`` on."""
    cursor = lane.call = Cursor(chunk, range(len(chunk)))
    cursor.at = start
    try:
        await dispatch.run(lane, cursor, taken)
    finally:
        lane.ends(cursor)
    return cursor


def lane_of(partition: int = 0) -> Lane:
    return Lane(TopicPartition("t", partition), lambda error: False)

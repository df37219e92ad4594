"""Run a fetch through a `Dispatch` without a bus, to test dispatch, middleware and acknowledgements."""

from __future__ import annotations

from typing import Any, cast

from eventbus import TopicPartition
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.lane import Lane
from eventbus.client.handling.work_actions import Policy
from eventbus.types import FetchedRecords, TimestampType


class Outputs:
    """Stands for the sender: each output gets a separate batch, resolved by the test; "bad" cannot be sent."""

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


async def dispatched(handler: Handler[..., Any], *values: bytes | None, outputs: Outputs | None = None) -> Lane:
    """Return the lane after the handler was called with a fetch of these values."""
    lane = lane_of(handler)
    await run(Dispatch(handler, outputs.publish if outputs is not None else None, {}), lane, chunk_of(*values))
    return lane


async def run(dispatch: Dispatch, lane: Lane, chunk: FetchedRecords | None = None) -> None:
    """Add a fetch to the lane, and run all calls that are possible then."""
    if chunk is not None:
        lane.work.fetched(chunk)
    while (call := lane.work.next_call()) is not None:
        await dispatch.run(lane, call)
        lane.work.ended(call)


def lane_of(handler: Handler[..., Any] | None = None, partition: int = 0) -> Lane:
    policy = Policy(manual_ack=handler is not None and handler.spec.ack == "manual")
    return Lane(TopicPartition("t", partition), lambda error: False, policy)


async def finished(lane: Lane) -> int:
    """Store all outputs, and return the end of the finished prefix."""
    for _, output in lane.outputs:
        cast("Delivery", output).batch.resolve(0, -1)
    await lane.outputs_stored()
    return lane.work.finished

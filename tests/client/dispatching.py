"""Run a fetch through a `Dispatch` without a bus, to test dispatch, middleware and acknowledgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from eventbus import TopicPartition
from eventbus.backends.clock import Timers
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.client.handling.batches import BatchDispatch
from eventbus.client.handling.dispatch import Dispatch, Publish
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Policy
from eventbus.types import FetchedRecords, TimestampType
from serdes import Serde


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


def dispatch_of(
    handler: Handler[..., Any],
    publish: Publish | None,
    serdes: Mapping[type, Serde],
    middleware: Sequence[Middleware] = (),
    timers: Timers | None = None,
) -> Dispatch:
    """Return the dispatch that a runner makes for the handler."""
    return (BatchDispatch if handler.spec.batch else Dispatch)(handler, publish, serdes, middleware, timers)


def chunk_of(*values: bytes | None) -> FetchedRecords:
    count = len(values)
    no_keys: list[bytes | None] = [None] * count
    offsets = list(range(count))
    return FetchedRecords("t", 0, offsets, [0] * count, no_keys, list(values), None, TimestampType.CREATE_TIME, count)


async def dispatched(
    handler: Handler[..., Any], *values: bytes | None, outputs: Outputs | None = None
) -> PartitionDriver:
    """Return the driver after the handler was called with a fetch of these values."""
    driver = driver_of(handler)
    await run(dispatch_of(handler, outputs.publish if outputs is not None else None, {}), driver, chunk_of(*values))
    return driver


async def run(dispatch: Dispatch, driver: PartitionDriver, chunk: FetchedRecords | None = None) -> None:
    """Add a fetch, and run all calls that are possible then."""
    if chunk is not None:
        driver.work.fetched(chunk)
    while (call := driver.work.next_call()) is not None:
        await dispatch.run(driver, call)
        driver.work.ended(call)


def driver_of(handler: Handler[..., Any] | None = None, partition: int = 0) -> PartitionDriver:
    policy = Policy(manual_ack=handler is not None and handler.spec.ack == "manual")
    return PartitionDriver(TopicPartition("t", partition), lambda error: False, policy)


async def finished(driver: PartitionDriver) -> int:
    """Store all outputs, and return the end of the finished prefix."""
    for _, output in driver.outputs:
        cast("Delivery", output).batch.resolve(0, -1)
    await driver.outputs_stored()
    return driver.work.finished

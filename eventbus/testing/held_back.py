"""Records that are held back on the way to a log: in order, until they are released."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import anyio

from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.errors import EventBusError
from eventbus.types import TopicPartition

Wait = Callable[[], Awaitable[object]]
"""Called and awaited; called again if the first wait was cancelled."""


class Held(NamedTuple):
    """A record that has not reached the log yet."""

    waits: list[Wait]
    append: Callable[[], Delivery]
    delivery: BatchDelivery
    """The delivery that the sender has."""


class Line:
    """The records of a partition that are held back, in order."""

    def __init__(self, where: TopicPartition, fail: Callable[[BatchDelivery, EventBusError], None]) -> None:
        self.where = where
        self.held: deque[Held] = deque()
        self._fail = fail
        self._turn = anyio.Lock()

    async def release(self) -> None:
        """Pass each record to the log after its wait."""
        async with self._turn:
            while self.held:
                held = self.held[0]
                refused: EventBusError | None = None
                try:
                    for wait in held.waits:
                        await wait()
                except EventBusError as error:
                    refused = error
                if not held.delivery.done:  # otherwise its transaction was aborted meanwhile
                    self.held.popleft()
                    self._give(held, refused)

    def _give(self, held: Held, refused: EventBusError | None) -> None:
        try:
            if refused is not None:
                raise refused
            stored = held.append()
        except EventBusError as error:
            self._fail(held.delivery, error)
        else:
            stored.batch.when_done(_Outcome(stored, held.delivery))

    def discard(self, error: EventBusError) -> int:
        count = len(self.held)
        while self.held:
            self.held.popleft().delivery.discard(error)
        return count


class _Outcome:
    """Passes the outcome of a record that was held back to its sender's handle."""

    def __init__(self, stored: Delivery, delivery: BatchDelivery) -> None:
        self._stored = stored
        self._delivery = delivery

    def __call__(self) -> None:
        batch = self._stored.batch
        if batch.error is not None:
            self._delivery.discard(batch.error)  # already logged where it occurred
        else:
            self._delivery.resolve(self._stored.result().offset, batch.log_append_time_ms)

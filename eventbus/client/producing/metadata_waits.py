"""Records for topics whose metadata is being looked up. They wait here in order, without blocking the loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import msgspec

from eventbus.backends.base import BackendProducer
from eventbus.backends.delivery import BatchDelivery, Delivery, this_loop
from eventbus.errors import BufferExhausted, ConfigError, EventBusError
from eventbus.types import Headers, RecordMetadata

_PARKED = 100_000
"""Maximum number of records that wait for a topic."""


class Unplaced(msgspec.Struct, frozen=True, gc=False):
    """A serialized record whose partition is not chosen yet."""

    value: Any
    """The value as the caller passed it, for custom partitioners."""
    data: bytes | None
    key: bytes | None
    headers: Headers
    partition: int | None
    chosen_by: bytes | None
    """The key that chooses the partition if none is given."""
    timestamp_ms: int


SendParked = Callable[[str, Unplaced], Delivery]


class _LookUp:
    """A topic that is being looked up, and the records that wait for it."""

    __slots__ = ("error", "is_over", "parked")

    def __init__(self) -> None:
        self.is_over = anyio.Event()
        self.error: EventBusError | None = None
        self.parked: list[tuple[BatchDelivery, Unplaced]] = []


class LookUps:
    """The topic look-ups of one producer."""

    def __init__(self, backend: BackendProducer, send: SendParked) -> None:
        self._backend = backend
        self._send = send
        self._open: dict[str, _LookUp] = {}

    def _of(self, topic: str) -> _LookUp:
        found = self._open.get(topic)
        if found is None:
            found = self._open[topic] = _LookUp()
            self._backend.look_up(topic, partial(self._end, topic, found))
        return found

    def is_open(self, topic: str) -> bool:
        """True if records of the topic may be waiting, which no other record may overtake."""
        return topic in self._open

    async def known(self, topic: str) -> None:
        """Return when the topic's metadata is known. Raises the look-up's error, such as UnknownTopicOrPartition."""
        found = self._of(topic)
        await found.is_over.wait()
        if found.error is not None:
            raise found.error

    async def all_known(self) -> None:
        """Return when no record is waiting."""
        while self._open:
            await next(iter(self._open.values())).is_over.wait()

    def park(self, topic: str, record: Unplaced) -> Delivery:
        """Let a record wait for the look-up. Raises BufferExhausted."""
        found = self._of(topic)
        if len(found.parked) >= _PARKED:
            raise BufferExhausted(
                f"{_PARKED:,} records wait for what the cluster says of topic {topic!r}: "
                "`await producer.wait_for_room()` between sends, or `await bus.send(...)`"
            )
        batch = BatchDelivery(topic, -1, this_loop())
        batch.count = 1
        found.parked.append((batch, record))
        return Delivery(batch, 0, record.timestamp_ms)

    def _end(self, topic: str, one: _LookUp, error: EventBusError | None) -> None:
        """Send the waiting records after the look-up, or fail them."""
        if self._open.pop(topic, None) is not one:
            return  # given up meanwhile
        one.error = error
        for batch, record in one.parked:
            try:
                if error is not None:
                    raise error
                self._send(topic, record).add_callback(partial(_settle, batch))
            except EventBusError as problem:
                batch.fail(problem)
            except Exception as problem:  # a custom partitioner: records after this one must not wait forever
                batch.fail(ConfigError(f"a record for topic {topic!r} was not sent: {problem!r}"))
        one.is_over.set()

    def give_up(self, error: EventBusError) -> int:
        """Fail all waiting records. Return how many there were."""
        parked = [batch for one in self._open.values() for batch, _ in one.parked]
        for batch in parked:
            batch.discard(error)
        for one in self._open.values():
            one.error = error
            one.is_over.set()
        self._open.clear()
        return len(parked)


def _settle(batch: BatchDelivery, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
    if metadata is None:
        assert error is not None, "a record has metadata or an error"
        batch.discard(error)  # the sender has logged it
        return
    batch.partition = metadata.partition
    batch.resolve(metadata.offset, metadata.timestamp_ms)

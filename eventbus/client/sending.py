"""The three ways to send, for whoever has a producer to send with: the bus, and a transaction.

Here the options are written out and passed by name: handing them on as a dict costs a `send_nowait` a third more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from eventbus.backends.delivery import Delivery, OnDelivery
from eventbus.types import RecordMetadata

if TYPE_CHECKING:
    from eventbus.client.producer import Producer

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""Headers as a mapping, or as pairs when a name occurs more than once."""


class SendOptions(TypedDict, total=False):
    """What may be said of a record besides its topic and value; see `Producer.send`."""

    key: Any
    headers: HeadersLike | None
    partition: int | None
    partition_key: Any
    timestamp_ms: int | None


class SendNowaitOptions(SendOptions, total=False):
    """The same, and whom to tell."""

    on_delivery: OnDelivery | None


class Sending(ABC):
    """`send`, `send_nowait` and `send_many` through `_sending_producer`. Raises ConfigError in another thread."""

    @abstractmethod
    def _sending_producer(self) -> Producer:
        """The producer to send with; raises when nothing may be sent now."""

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        partition_key: Any = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Publish one record and wait for its ack; see `Producer.send`."""
        return await self._sending_producer().send(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            partition_key=partition_key,
            timestamp_ms=timestamp_ms,
        )

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        partition_key: Any = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Publish one record without waiting; see `Producer.send_nowait`."""
        return self._sending_producer().send_nowait(
            topic,
            value,
            key=key,
            headers=headers,
            partition=partition,
            partition_key=partition_key,
            timestamp_ms=timestamp_ms,
            on_delivery=on_delivery,
        )

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Publish many records and wait until all are stored; see `Producer.send_many`."""
        await self._sending_producer().send_many(topic, values, key=key, headers=headers, timestamp_ms=timestamp_ms)

    async def wait_for_room(self) -> None:
        """Return when the buffer has room for more `send_nowait`; see `Producer.wait_for_room`."""
        await self._sending_producer().wait_for_room()

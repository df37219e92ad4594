"""`send`, `send_nowait` and `send_many` of the bus and of a transaction.

`send` and `send_nowait` write out their options, because passing a dict makes `send_nowait` a third slower.
"""

from __future__ import annotations

import reprlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.backends.delivery import Delivery, OnDelivery
    from eventbus.client.producer import Producer
    from eventbus.client.scheduling.times import Delay, DeliverAt, Scheduled
    from eventbus.types import RecordMetadata

HeadersLike = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]
"""Headers as a mapping, or as pairs when a name occurs more than once."""


class SendOptions(TypedDict, total=False):
    """The options of a record besides its topic and value; see `Producer.send`."""

    key: Any
    headers: HeadersLike | None
    partition: int | None
    partition_key: Any
    timestamp_ms: int | None
    transactional: bool


class ScheduledOptions(SendOptions, total=False):
    """The options of a delayed record besides its time."""

    schedule_id: str | None


class SendNowaitOptions(SendOptions, total=False):
    """The options of `send_nowait`."""

    on_delivery: OnDelivery | None


class SendManyOptions(TypedDict, total=False):
    """Options of `Producer.send_many`, which hold for all of the records."""

    key: Callable[[Any], Any] | None
    headers: HeadersLike | None
    partition: int | None
    timestamp_ms: int | None
    transactional: bool


def explained(error: TypeError, topic: Any, partition: Any) -> Exception:
    """Return the error that names the wrong argument, if any. A check before each call would slow down every send."""
    if not isinstance(topic, str):
        return ConfigError(f"send({topic!r:.60}, ...): the topic is a text and comes first: send('orders', value)")
    if partition is not None and not isinstance(partition, int):
        return ConfigError(f"send({topic!r}, ..., partition={partition!r}): a whole number; a key is key=")
    return error


def check_values(
    topic: Any, values: Any, key: Any, name: str = "send_many", one: str = "send", *, partition: Any = None
) -> None:
    """Check the arguments of ``send_many``. Raises ConfigError, also for a str or mapping as the values."""
    given: Any = values
    if not isinstance(topic, str):
        wrong = f"the topic is a text and comes first: {name}('orders', values)"
    elif isinstance(values, AsyncIterable):
        wrong = "asynchronous; gather them first, [value async for value in ...]"
    elif isinstance(values, (str, bytes, bytearray, Mapping)) or not isinstance(values, Iterable):
        wrong = f"a list of values, or another iterable; one value is {one}()"
    elif key is not None and not callable(key):
        wrong = f"key={key!r}: a function of the value: key=lambda value: value.id"
    elif partition is not None and type(partition) is not int:
        wrong = f"partition={partition!r}: a whole number, which holds for all values; a key is key="
    else:
        return
    raise ConfigError(f"{name}({topic!r:.60}, {reprlib.repr(given)}): {wrong}")  # the values may be a million


class Sending(ABC):
    """`send`, `send_nowait` and `send_many` through `_sending_producer`. Raises ConfigError in another thread."""

    @abstractmethod
    def _sending_producer(self, transactional: bool = True) -> Producer:
        """Return the producer to send with. Raises if nothing may be sent now, or not with ``transactional=False``."""

    @overload
    async def send(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> RecordMetadata: ...

    @overload
    async def send(
        self, topic: str, value: Any, *, deliver_at: DeliverAt, **options: Unpack[ScheduledOptions]
    ) -> Scheduled: ...

    @overload
    async def send(self, topic: str, value: Any, *, delay: Delay, **options: Unpack[ScheduledOptions]) -> Scheduled: ...

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
        transactional: bool = True,
        deliver_at: DeliverAt | None = None,
        delay: Delay | None = None,
        schedule_id: str | None = None,
    ) -> RecordMetadata | Scheduled:
        """Publish one record and wait for its ack; see `Producer.send`.

        With ``deliver_at`` (a datetime with a time zone, or milliseconds since the epoch) or ``delay`` (seconds, a text
        such as "3s", or a timedelta) the record is stored durably, and published once when it is due, by any running
        process with this client_id. A time in the past means now. The result is then a `Scheduled`. A later record with
        an equal ``schedule_id`` replaces it, and `EventBus.cancel_scheduled` cancels it. Raises ConfigError for an
        invalid time.

        In a handler with ``exactly_once=True`` the record is part of the handler's transaction. "Stored" does not mean
        "committed" then: other consumers see it when the handler's records are committed, or never.
        ``transactional=False`` sends it outside of that transaction, so it stays, and a retry of the handler sends it
        again. Raises ConfigError in a task that has outlived its handler's call.
        """
        producer = self._sending_producer(transactional)
        if deliver_at is not None or delay is not None or schedule_id is not None:
            if producer.schedules is None:
                raise ConfigError(f"send({topic!r}, ...): this producer belongs to no bus, and cannot delay records")
            return await producer.schedules.add(
                producer,
                topic,
                value,
                deliver_at,
                delay,
                schedule_id,
                {
                    "key": key,
                    "headers": headers,
                    "partition": partition,
                    "partition_key": partition_key,
                    "timestamp_ms": timestamp_ms,
                },
                transactional=transactional,
            )
        try:
            return await producer.send(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                partition_key=partition_key,
                timestamp_ms=timestamp_ms,
                transactional=transactional,
            )
        except TypeError as error:
            wrong = explained(error, topic, partition)
            if wrong is error:
                raise  # unchanged, with its cause
            raise wrong from None

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
        transactional: bool = True,
    ) -> Delivery:
        """Publish one record without waiting; see `Producer.send_nowait`, and `send` for ``transactional``."""
        try:
            return self._sending_producer(transactional).send_nowait(
                topic,
                value,
                key=key,
                headers=headers,
                partition=partition,
                partition_key=partition_key,
                timestamp_ms=timestamp_ms,
                on_delivery=on_delivery,
                transactional=transactional,
            )
        except TypeError as error:
            wrong = explained(error, topic, partition)
            if wrong is error:
                raise  # unchanged, with its cause
            raise wrong from None

    async def send_many(self, topic: str, values: Iterable[Any], **options: Unpack[SendManyOptions]) -> None:
        """Publish many records and wait until all are stored; see `Producer.send_many`, and `send`."""
        await self._sending_producer(options.get("transactional", True)).send_many(topic, values, **options)

    async def wait_for_room(self, *, transactional: bool = True) -> None:
        """Return when the buffer has room for more `send_nowait`; see `Producer.wait_for_room`."""
        await self._sending_producer(transactional).wait_for_room(transactional=transactional)

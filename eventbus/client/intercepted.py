"""A producer with interceptors: a separate class, so that a producer without them pays nothing."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Unpack

import anyio

from eventbus.backends.base import BackendProducer
from eventbus.backends.delivery import BatchDelivery, Delivery
from eventbus.client.config import ProducerSettings
from eventbus.client.consuming.restoring import Restores
from eventbus.client.interceptors import (
    ProducerInterceptor,
    ProducerRecord,
    Suspends,
    passed_through,
    tell_all,
    waited_through,
)
from eventbus.client.producer import AddReady, Producer
from eventbus.client.producing.joining import called_here, joined
from eventbus.client.producing.metadata_waits import Unplaced
from eventbus.client.producing.serialization import pack_headers
from eventbus.client.producing.shutdown_work import ShutdownWork
from eventbus.client.schemas import fetched
from eventbus.client.sending import HeadersLike, SendNowaitOptions, SendOptions
from eventbus.errors import BufferExhausted, EventBusError, SchemaNotReady
from eventbus.types import Headers, RecordMetadata
from serdes import Serde

_IN_HAND = 1_000
"""Records of a `send_many` that are in flight at once."""


def open_producer(
    backend: BackendProducer,
    settings: ProducerSettings,
    clock: Callable[[], int],
    serdes: Mapping[type, Serde],
    on_close: Callable[[Producer], None],
    shutdown_work: ShutdownWork,
    interceptors: Sequence[ProducerInterceptor] = (),
) -> Producer:
    """Return a producer, with interceptors if any are given."""
    if not interceptors:
        return Producer(backend, settings, clock, serdes, on_close, shutdown_work)
    return InterceptedProducer(backend, settings, clock, serdes, on_close, shutdown_work, interceptors)


class InterceptedProducer(Producer):
    """Passes each record to its interceptors before it is serialized, and when its outcome is known."""

    def __init__(
        self,
        backend: BackendProducer,
        settings: ProducerSettings,
        clock: Callable[[], int],
        serdes: Mapping[type, Serde],
        on_close: Callable[[Producer], None],
        shutdown_work: ShutdownWork,
        interceptors: Sequence[ProducerInterceptor],
    ) -> None:
        super().__init__(backend, settings, clock, serdes, on_close, shutdown_work)
        self._interceptors = interceptors
        self.suspends = any(isinstance(one, Suspends) for one in interceptors)
        """True if an interceptor may wait. Sends then go through `accepted`."""
        self._turn = anyio.Lock(fast_acquire=True)
        """Keeps records in the order of the calls, however long interceptors take with one of them."""
        self._on_send = [one.on_send for one in interceptors]
        self._restores = any(isinstance(one, Restores) for one in interceptors)
        self._on_acknowledgement = [one.on_acknowledgement for one in interceptors]
        self._on_closed = [one.close for one in interceptors]

    def _tell(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        tell_all(self._on_acknowledgement, metadata, error)

    def _lost(self, record: ProducerRecord, error: EventBusError) -> None:
        """Report a record that was not even accepted."""
        if record.on_delivery is not None:
            tell_all([record.on_delivery], None, error)
        self._tell(None, error)

    def _accept(self, record: ProducerRecord) -> Delivery:
        """Add the record, as changed by the interceptors, to its batch. The caller reports BufferExhausted if it gives
        up.
        """
        try:
            delivery = super().send_nowait(
                record.topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition,
                partition_key=record.partition_key,
                timestamp_ms=record.timestamp_ms,
                transactional=False,  # the producer has been chosen already
            )
        except (BufferExhausted, SchemaNotReady):
            raise
        except EventBusError as error:
            self._lost(record, error)
            raise
        if record.on_delivery is not None:
            delivery.add_callback(record.on_delivery)
        delivery.add_callback(self._tell)
        return delivery

    async def _accept_with_schema(self, record: ProducerRecord) -> Delivery:
        while True:
            try:
                return self._accept(record)
            except SchemaNotReady as error:
                try:
                    await fetched(error)
                except EventBusError as problem:
                    self._lost(record, problem)
                    raise

    async def _accept_with_room(self, record: ProducerRecord) -> Delivery:
        try:
            return await self._accept_with_schema(record)
        except BufferExhausted:
            pass
        try:
            await self.wait_for_room(transactional=False)
            return self._accept(record)
        except BufferExhausted as error:
            self._lost(record, error)
            raise

    def send_nowait(self, topic: str, value: Any, **options: Unpack[SendNowaitOptions]) -> Delivery:
        transactional, on_delivery = options.pop("transactional", True), options.pop("on_delivery", None)
        if transactional and (twin := joined(self, "send_nowait")) is not self:
            if on_delivery is not None:
                options["on_delivery"] = called_here(on_delivery)
            return twin.send_nowait(topic, value, **options)
        record = self._shown(topic, value, **options)
        try:
            delivery = self._accept(record)
        except (BufferExhausted, SchemaNotReady) as error:
            self._lost(record, error)
            raise
        if on_delivery is not None:
            delivery.add_callback(on_delivery)
        return delivery

    def send(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> Coroutine[Any, Any, RecordMetadata]:
        self._home.check("send")
        if options.pop("transactional", True) and (twin := joined(self, "send")) is not self:
            return twin.send(topic, value, **options)
        if self.suspends:
            return self._send_in_turn(topic, value, options)
        return self._send(self._shown(topic, value, **options))

    async def _send_in_turn(self, topic: str, value: Any, options: SendOptions) -> RecordMetadata:
        return await (await self.accepted(topic, value, **options))

    async def accepted(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> Delivery:
        """Return when the record is in its batch, after the records that were sent before it."""
        async with self._turn:
            return await self._accept_with_room(await self._shown_in_time(topic, value, **options))

    async def _shown_in_time(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> ProducerRecord:
        if not self.suspends:
            return self._shown(topic, value, **options)
        record = _record(topic, value, options)
        return await waited_through(record, self._left(record))

    def _shown(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> ProducerRecord:
        """Return the record as changed by the interceptors."""
        record = _record(topic, value, options)
        if self._restores and record.headers:
            return passed_through(record, [one.on_send for one in self._left(record)])
        return passed_through(record, self._on_send)

    def _left(self, record: ProducerRecord) -> Sequence[ProducerInterceptor]:
        """Return the interceptors except those whose change is still in the record, because it was read and is
        forwarded.
        """
        names = {name for name, _ in record.headers} if self._restores else ()
        if not names:
            return self._interceptors
        return [one for one in self._interceptors if not (isinstance(one, Restores) and one.header in names)]

    async def _send(self, record: ProducerRecord) -> RecordMetadata:
        return await (await self._accept_with_room(record))

    async def _send_many(
        self,
        topic: str,
        values: Iterable[Any],
        key: Callable[[Any], Any] | None,
        headers: HeadersLike | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> None:
        deliveries: list[Delivery] = []
        for value in values:
            key_of_it = None if key is None else key(value)
            options = SendOptions(key=key_of_it, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
            deliveries.append(await self.accepted(topic, value, **options))
            if len(deliveries) >= _IN_HAND:
                deliveries = await _stored(deliveries)
        await _stored(deliveries)

    async def adder(self, topic: str) -> AddReady:
        def add(
            key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, partition: int | None
        ) -> BatchDelivery:
            record = self._shown(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
            return self._accept(record).batch

        await super().adder(topic)  # raises for a topic that does not exist
        return add

    async def ready(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> Unplaced:
        one = await self._shown_in_time(topic, value, **options)
        try:
            ready = await super().ready(
                one.topic,
                one.value,
                key=one.key,
                headers=one.headers,
                partition=one.partition,
                partition_key=one.partition_key,
                timestamp_ms=one.timestamp_ms,
            )
        except EventBusError as error:
            self._lost(one, error)
            raise
        if one.on_delivery is not None:
            tell_all([one.on_delivery], None, None)  # the outcome is not known before it is sent
        return ready

    async def aclose(self) -> None:
        is_open = not self._closed
        await super().aclose()
        if is_open:
            tell_all(self._on_closed)


def _record(topic: str, value: Any, options: SendOptions) -> ProducerRecord:
    headers = options.get("headers")
    fields: dict[str, Any] = {**options, "headers": pack_headers(headers) if headers else ()}
    return ProducerRecord(topic=topic, value=value, **fields)


async def _stored(deliveries: list[Delivery]) -> list[Delivery]:
    """Wait for all deliveries. Raises the error of the first that failed."""
    for delivery in deliveries:
        await delivery
    return []

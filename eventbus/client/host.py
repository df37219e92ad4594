"""Protocols for the requests that a part may make of its bus. Parts import these, never the bus itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack, runtime_checkable

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.backends.delivery import Delivery, OnDelivery
from eventbus.broker import TopicSpec
from eventbus.client.admin import Admin
from eventbus.client.consumer import Consumer
from eventbus.client.consuming.restoring import Restoring
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.producer import Producer
from eventbus.client.sending import HeadersLike, SendOptions
from eventbus.types import RecordMetadata
from serdes.choose import Serdes

if TYPE_CHECKING:
    from eventbus.client.keywords import NewConsumerOptions, ProducerOptions, ReaderOptions


@runtime_checkable
class Part(Protocol):
    """An object that starts and stops with a bus, such as a schema registry in its log."""

    async def start(self, bus: Host) -> None:
        """Start the part. The `EventBus` already sends and reads, but no handler runs yet. An error ends the start."""
        ...

    async def aclose(self) -> None:
        """Stop the part. No handler runs any more, but the bus still sends and reads."""
        ...


class Context(Protocol):
    """The interface of a bus for its parts: `EventBus.context`; see `BusContext`."""

    topics: dict[str, TopicSpec]
    serdes: Serdes
    drain_timeout_ms: int

    @property
    def backend(self) -> Backend: ...

    @property
    def service_name(self) -> str: ...

    @property
    def restoring(self) -> Restoring: ...

    def now_ms(self) -> int: ...

    def check_service(self, what: str) -> None: ...

    def main_producer(self) -> Producer: ...

    def reader(self, **config: Unpack[ReaderOptions]) -> BackendConsumer: ...

    def has_begun(self, part: Part) -> None: ...

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None: ...


class Host(Protocol):
    """The methods of `EventBus` that parts use; they are documented there."""

    @property
    def admin(self) -> Admin: ...

    @property
    def context(self) -> Context: ...

    async def send(self, topic: str, value: Any, **options: Unpack[SendOptions]) -> RecordMetadata: ...

    def send_nowait(
        self,
        topic: str,
        value: Any,
        *,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
        transactional: bool = True,
    ) -> Delivery: ...

    def new_producer(
        self, *, interceptors: Sequence[ProducerInterceptor] = (), **config: Unpack[ProducerOptions]
    ) -> Producer: ...

    def new_consumer(
        self, *names: str, key: Any = bytes, value: Any = bytes, **options: Unpack[NewConsumerOptions]
    ) -> Consumer: ...

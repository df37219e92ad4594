"""The requests that a component of a bus may make of it. A component imports these protocols, never the bus itself."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, runtime_checkable

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.backends.delivery import Delivery, OnDelivery
from eventbus.client.admin import Admin
from eventbus.client.consumer import Consumer
from eventbus.client.consuming.restoring import Restoring
from eventbus.client.producer import Producer
from eventbus.client.sending import HeadersLike
from eventbus.types import RecordMetadata, TopicPartition
from serdes.choose import Serdes


@runtime_checkable
class Part(Protocol):
    """Something that lives as long as a bus runs: a schema registry in its log, say."""

    async def start(self, bus: Host) -> None:
        """The bus, an `EventBus`, already sends and reads; its handlers do not run yet. An error ends the start."""
        ...

    async def aclose(self) -> None:
        """No handler runs any more; the bus still sends and reads."""
        ...


class Host(Protocol):
    """The part of `EventBus` that its components use; each method is described there."""

    admin: Admin

    @property
    def backend(self) -> Backend: ...

    @property
    def serdes(self) -> Serdes: ...

    @property
    def service_name(self) -> str: ...

    @property
    def drain_timeout_ms(self) -> int: ...

    @property
    def restoring(self) -> Restoring: ...

    def now_ms(self) -> int: ...

    def check_service(self, what: str) -> None: ...

    async def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        partition: int | None = None,
        transactional: bool = True,
    ) -> RecordMetadata: ...

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

    def main_producer(self) -> Producer: ...

    # The settings are those of `EventBus`, which checks their names.
    def new_producer(self, **config: Any) -> Producer: ...

    def new_consumer(self, *names: str, partitions: Iterable[TopicPartition] = (), **config: Any) -> Consumer: ...

    def reader(self, **config: Any) -> BackendConsumer: ...

    def has_begun(self, part: Part) -> None: ...

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None: ...

"""`EventBus.request`, for the bus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from eventbus.client.sending import SendOptions
from eventbus.durations import Duration, seconds
from eventbus.types import ConsumerRecord, RecordMetadata

if TYPE_CHECKING:
    from eventbus.client.bus_run import BusRun
    from eventbus.client.sending import HeadersLike

T = TypeVar("T")


class RequestOptions(SendOptions, total=False):
    """The options of a request besides the type of its reply."""

    timeout: Duration


class Asking(ABC):
    """Adds `request` to a class that can send and read while it runs."""

    @abstractmethod
    async def send(
        self, topic: str, value: Any, *, headers: HeadersLike | None = None, partition: int | None = None
    ) -> RecordMetadata: ...

    @abstractmethod
    def _running(self, what: str) -> BusRun: ...

    @overload
    async def request(
        self, topic: str, value: Any, **options: Unpack[RequestOptions]
    ) -> ConsumerRecord[bytes | None, bytes | None]: ...

    @overload
    async def request(self, topic: str, value: Any, *, returns: None, **options: Unpack[RequestOptions]) -> None: ...

    @overload
    async def request(self, topic: str, value: Any, *, returns: type[T], **options: Unpack[RequestOptions]) -> T: ...

    @overload
    async def request(self, topic: str, value: Any, *, returns: Any, **options: Unpack[RequestOptions]) -> Any: ...

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        returns: Any = ConsumerRecord,
        timeout: Duration = 30.0,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a record to a handler with ``replies=True``, and return the handler's result.

        ``returns`` is the type of the reply; without it the reply is the `ConsumerRecord`. ``timeout`` is in seconds,
        or ``"5s"``, or a timedelta.

        Replies go to the topic ``<service>.replies`` (without ``service=`` ``<client_id>.replies``), which is created
        by the first request and read by every process of the service. Raises RequestTimedOut without a reply in time
        (the handler may still finish), RequestFailed if the handler has failed, SerializationError for a reply that
        cannot be read as ``returns``, and what `send` raises.

        In a handler with ``exactly_once=True`` it raises ConfigError: the request would become visible when the
        handler's transaction commits, but the handler would wait for the reply before that. ``transactional=False``
        sends the request at once, outside of the transaction.
        """
        limit = seconds(timeout, f"request({topic!r}, ...): timeout={timeout!r}")
        return await self._running("request").requests.ask(self.send, topic, value, returns, limit, options)

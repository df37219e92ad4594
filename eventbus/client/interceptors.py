"""Hooks into every record that is sent or read, like the ``interceptor.classes`` of Kafka's clients."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from eventbus.backends.delivery import OnDelivery, check_ran
from eventbus.client.consuming.fetch_buffer import ConsumerRecords
from eventbus.client.handling.call_loop import CallLoop, Slices
from eventbus.errors import EventBusError
from eventbus.types import OffsetAndMetadata, RecordMetadata, TopicPartition

logger = logging.getLogger("eventbus.interceptors")

T = TypeVar("T")

_SLICES = Slices(time.monotonic)
"""Required by `CallLoop`; a sender never inspects its time slice."""


class ProducerRecord(msgspec.Struct, kw_only=True):
    """A record before serialization, with the arguments of `Producer.send`."""

    topic: str
    value: Any
    key: Any = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    """Always pairs, even if a mapping was given."""
    partition: int | None = None
    partition_key: Any = None
    timestamp_ms: int | None = None
    on_delivery: OnDelivery | None = None
    """Called once with the outcome of this record, for an interceptor that needs it. An interceptor that replaces a
    callback must call the earlier one too.
    """


class ProducerInterceptor:
    """Base class of interceptors of a producer. Override what you need.

    The methods are plain functions, called on the event loop for every record, so keep them short. Each call runs in a
    copy of the sender's context variables. If one raises, that is logged and the record is sent as if the interceptor
    did not exist. Several interceptors are called in order, each with the record that the previous one returned.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called before key and value are serialized and a partition is chosen. The returned record is sent."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        """Called once per record, when it is stored or has failed with ``error``, even before it was accepted."""

    def close(self) -> None:
        """Called when the producer closes."""


@runtime_checkable
class Suspends(Protocol):
    """A `ProducerInterceptor` with slow work. If the sender can wait, this is called instead of ``on_send``."""

    async def on_send_async(self, record: ProducerRecord) -> ProducerRecord: ...


class ConsumerInterceptor:
    """Base class of interceptors of a consumer. Override what you need.

    The methods are plain functions, called on the event loop, so keep them short. If one raises, that is logged and
    ignored.
    """

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Called with the records that `poll` is about to return. The result is returned instead.

        Records that it leaves out count as returned: positions and commits move past them.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called when a commit is stored."""

    def close(self) -> None:
        """Called when the consumer closes."""


def passed_through(value: T, steps: Sequence[Callable[[T], T]]) -> T:
    """Apply the interceptors in order. One that raises or returns None is skipped."""
    for step in steps:
        try:
            changed: T | None = copy_context().run(step, value)
            check_ran(changed, step)
        except Exception:  # the user's code: by Kafka's rule it never breaks the client
            logger.exception("the interceptor %s raised", step)
            continue
        if changed is None:
            logger.error("the interceptor %s returned None instead of a value, and is skipped", step)
        else:
            value = changed
    return value


async def waited_through(record: ProducerRecord, interceptors: Sequence[ProducerInterceptor]) -> ProducerRecord:
    """Like `passed_through`, for a sender that can wait."""
    for one in interceptors:
        if isinstance(one, Suspends):
            try:
                record = await CallLoop().run(_SLICES, one.on_send_async(record))
            except Exception:  # the user's code: by Kafka's rule it never breaks the client
                logger.exception("the interceptor %s raised", one)
        else:
            record = passed_through(record, [one.on_send])
    return record


def tell_all(steps: Sequence[Callable[..., object]], *args: Any) -> None:
    """Call all of them. Exceptions are logged."""
    for step in steps:
        try:
            check_ran(copy_context().run(step, *args), step)
        except Exception:  # the user's code: by Kafka's rule it never breaks the client
            logger.exception("the interceptor %s raised", step)

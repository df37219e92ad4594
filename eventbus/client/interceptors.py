"""Hooks into every record that is sent or read, where Kafka's clients have theirs (``interceptor.classes``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from eventbus.backends.delivery import OnDelivery
from eventbus.client.consuming.reading import ConsumerRecords
from eventbus.client.handling.call_loop import CallLoop, Slices
from eventbus.errors import EventBusError
from eventbus.types import OffsetAndMetadata, RecordMetadata, TopicPartition

logger = logging.getLogger("eventbus.interceptors")

T = TypeVar("T")

_SLICES = Slices(time.monotonic)
"""Required by `CallLoop`; a sender never inspects its time slice."""


class ProducerRecord(msgspec.Struct, kw_only=True):
    """A record as its sender gave it, before it is bytes; what `Producer.send` takes."""

    topic: str
    value: Any
    key: Any = None
    headers: Sequence[tuple[str, bytes | str | None]] = ()
    """Pairs, also when a mapping was given."""
    partition: int | None = None
    partition_key: Any = None
    timestamp_ms: int | None = None
    on_delivery: OnDelivery | None = None
    """For an interceptor that wants to hear of this very record: called once with its outcome. One that wraps another's
    calls that one too."""


class ProducerInterceptor:
    """What a producer tells of its records; override what you need.

    Plain functions, called on the event loop for every record: keep them short. Each call has context variables of its
    own, a copy of the sender's. One that raises is logged, and the
    record goes on as if the interceptor were not there. Several are called in their order, each with what the one
    before made of the record.
    """

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Called before key and value become bytes and a partition is chosen; what it returns is sent."""
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        """Called once per record: it is stored, or ``error`` kept it out, also before it was accepted."""

    def close(self) -> None:
        """Called when the producer closes."""


@runtime_checkable
class Suspends(Protocol):
    """A `ProducerInterceptor` that does slow work: where a sender can wait this is called in place of ``on_send``."""

    async def on_send_async(self, record: ProducerRecord) -> ProducerRecord: ...


class ConsumerInterceptor:
    """What a consumer tells of its records; override what you need.

    Plain functions, called on the event loop: keep them short. One that raises is logged, and everything goes on as if
    it were not there.
    """

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        """Called with what `poll` is about to return; what it returns is returned instead.

        What it leaves out counts as returned: positions and commits are past it.
        """
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Called when a commit is stored."""

    def close(self) -> None:
        """Called when the consumer closes."""


def passed_through(value: T, steps: Sequence[Callable[[T], T]]) -> T:
    """What the interceptors make of it, one after the other; one that raises, or answers nothing, changes nothing."""
    for step in steps:
        try:
            changed: T | None = copy_context().run(step, value)
        except Exception:  # the user's code: by Kafka's rule it never breaks the client
            logger.exception("the interceptor %s raised", step)
            continue
        if changed is None:
            logger.error("the interceptor %s returned None, not what it was given: it is passed over", step)
        else:
            value = changed
    return value


async def waited_through(record: ProducerRecord, interceptors: Sequence[ProducerInterceptor]) -> ProducerRecord:
    """`passed_through` for a sender that can wait."""
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
    """Call each of them; what one raises is logged."""
    for step in steps:
        try:
            copy_context().run(step, *args)
        except Exception:  # the user's code: by Kafka's rule it never breaks the client
            logger.exception("the interceptor %s raised", step)

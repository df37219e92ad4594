"""Undo, when records are read, the changes that interceptors made to values when they were sent.

Handlers, consumers, tables, replies and connectors all use these steps, so that no reader receives a value changed by a
claim check, encryption or compression.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import msgspec

from eventbus.client.handling.middleware import CallNext
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import ConsumerRecord, FetchedRecords, Headers

CLAIM_CHECK = "claim-check"
"""The mark of `eventbus.middleware.ClaimCheck`, for tools that read a log without the application's bus."""


@runtime_checkable
class Restores(Protocol):
    """A `ProducerInterceptor` that changes values, which every reader has to change back.

    It marks each changed record with a header. A record that already has the header is sent unchanged, because retry
    topics and redrives forward changed values. Readers call `restored` only for marked records. A bus knows the
    interceptors it was given (``EventBus(interceptors=[...])``) and those of included parts.
    """

    @property
    def header(self) -> str:
        """The name of the header that marks a changed record."""
        ...

    async def restored(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return a record with the value that was sent. ``record`` has the header and bytes as its value.

        Do not change ``record``, which retry and dead-letter topics receive in this form. For a value that cannot be
        restored, raise an EventBusError that is not ``retriable``; a consumer continues after that record. After any
        other error, for example if a store does not answer, the consumer stays at the record.
        """
        ...


class Restoring:
    """The restoring steps of a bus, in the reverse order of sending."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor] = ()) -> None:
        self._steps: list[Restores] = [one for one in reversed([*interceptors]) if isinstance(one, Restores)]
        self.marks = frozenset(one.header for one in self._steps)
        """The headers that mark changed records."""

    def __bool__(self) -> bool:
        return bool(self._steps)

    def check_known(self, interceptors: Iterable[ProducerInterceptor]) -> None:
        """Raise ConfigError for an interceptor of a single producer that changes values, because no reader would
        restore them.
        """
        for one in interceptors:
            if isinstance(one, Restores) and one not in self._steps:
                raise ConfigError(
                    f"new_producer(interceptors=[{one!r}]): readers of this bus would not undo what it does to values. "
                    "They know the interceptors of the whole bus only. Give it to the bus, with "
                    "EventBus(interceptors=[...]) or bus.include(...)."
                )

    def is_needed(self, headers: Headers) -> bool:
        """True if a record with these headers was changed."""
        return any(name in self.marks for name, _ in headers)

    def marked(self, chunk: FetchedRecords) -> set[int]:
        """Return the indexes of the records that were changed."""
        if not self._steps or chunk.headers is None:
            return set()
        needed = self.is_needed
        return {index for index, headers in enumerate(chunk.headers) if headers and needed(headers)}

    async def restored(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return the record as it was sent, without the marks, so that it counts as unchanged if it is forwarded."""
        for step in self._steps:
            if record.value is None or record.header(step.header) is None:
                continue
            record = copy.copy(await step.restored(record))  # a record with ack="manual" keeps its type
            record.headers = tuple(header for header in record.headers if header[0] != step.header)
        return record

    async def around_call(self, record: ConsumerRecord | list[ConsumerRecord], call_next: CallNext) -> Any:
        """Restore the record for the handler (a middleware). Retries and dead letters get the original record."""
        if isinstance(record, list):
            if not any(self.is_needed(one.headers) for one in record):
                return await call_next(record)
            return await call_next([await self.restored(one) for one in record])
        return await call_next(await self.restored(record) if self.is_needed(record.headers) else record)

    async def columns(self, chunk: FetchedRecords) -> tuple[FetchedRecords, dict[int, Exception]]:
        """Restore all records of a fetch. Return it with the errors by index."""
        broken: dict[int, Exception] = {}
        marked = self.marked(chunk)
        if not marked:
            return chunk, broken
        values, headers = list(chunk.values), list[Headers](chunk.headers or ())
        for index in marked:
            try:
                record = await self.restored(chunk.record(index))
            except Exception as error:  # a store of the user's may raise anything
                if not isinstance(error, EventBusError) or error.retriable:
                    raise
                broken[index] = error
            else:
                values[index], headers[index] = record.value, record.headers
        return msgspec.structs.replace(chunk, values=values, headers=headers), broken


NOTHING = Restoring()
"""The steps of a bus without such interceptors."""

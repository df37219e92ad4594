"""Undo, where records are read, what interceptors did to their values as they were sent.

Handlers, consumers, tables, replies and connectors all call the steps here. So no reader takes a value as it is that a
claim check, an encryption or a compression has changed.
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
"""The mark of `eventbus.middleware.ClaimCheck`, for tools that have a log without the bus of its application."""


@runtime_checkable
class Restores(Protocol):
    """A `ProducerInterceptor` that changes values so that every reader has to change them back.

    It marks each record that it changes with a header. A record with that header is sent on as it is: retry topics and
    redrives pass changed values on. Readers call `restored` for marked records only. A bus knows
    interceptors that it was given (``EventBus(interceptors=[...])``) or that a part included in it has.
    """

    @property
    def header(self) -> str:
        """The name of the header that marks a changed record."""
        ...

    async def restored(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return a record with the value that was sent. ``record`` has the header and bytes as its value.

        Do not change ``record``: retry and dead-letter topics get it as it is. A value that cannot be restored raises
        an EventBusError that is not ``retriable``; a consumer goes on after that record. Any other error, such as a
        store that does not answer, leaves the consumer at the record.
        """
        ...


class Restoring:
    """The restoring steps of one bus, in the reverse order of sending."""

    def __init__(self, interceptors: Iterable[ProducerInterceptor] = ()) -> None:
        self._steps: list[Restores] = [one for one in reversed([*interceptors]) if isinstance(one, Restores)]
        self.marks = frozenset(one.header for one in self._steps)
        """The headers that mark changed records."""

    def __bool__(self) -> bool:
        return bool(self._steps)

    def check_known(self, interceptors: Iterable[ProducerInterceptor]) -> None:
        """Raise ConfigError for an interceptor of one producer that changes values, and that no reader knows."""
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
        """The indexes of the records that were changed."""
        if not self._steps or chunk.headers is None:
            return set()
        needed = self.is_needed
        return {index for index, headers in enumerate(chunk.headers) if headers and needed(headers)}

    async def restored(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record as it was sent, without the marks: who sends it on, sends a record that is not changed yet."""
        for step in self._steps:
            if record.value is None or record.header(step.header) is None:
                continue
            record = copy.copy(await step.restored(record))  # a record of ack="manual" stays one
            record.headers = tuple(header for header in record.headers if header[0] != step.header)
        return record

    async def around_call(self, record: ConsumerRecord | list[ConsumerRecord], call_next: CallNext) -> Any:
        """The middleware of every handler. The record itself stays as it was read, for retries and dead letters."""
        if isinstance(record, list):
            if not any(self.is_needed(one.headers) for one in record):
                return await call_next(record)
            return await call_next([await self.restored(one) for one in record])
        return await call_next(await self.restored(record) if self.is_needed(record.headers) else record)

    async def columns(self, chunk: FetchedRecords) -> tuple[FetchedRecords, dict[int, Exception]]:
        """All of a fetch restored, and by index what could not be restored."""
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

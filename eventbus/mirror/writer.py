"""Records to the destination, in transactions that carry the journal's entries about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

import anyio
import anyio.lowlevel

from eventbus.backends.base import Backend, BackendProducer, ProducerConfig
from eventbus.backends.clock import system_clock
from eventbus.backends.delivery import Delivery
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    EventBusError,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTxnState,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
)
from eventbus.ledger import ends_of
from eventbus.mirror.journal import Entry, Journal
from eventbus.mirror.offset_map import Run
from eventbus.mirror.options import Options
from eventbus.mirror.progress import Progress
from eventbus.types import FetchedRecords, Headers, TopicPartition

_BATCH_BYTES = 262_144
_LINGER_MS = 5
_LARGEST_RECORD_BYTES = 104_857_600
"""What the destination takes is for its topics to say."""
_BUFFER_BYTES = 134_217_728
"""Room for the largest of them; a transaction is much smaller."""
_TRANSACTION_MS = 60_000
_TURN = 500
"""Records before other tasks get their turn: a mirror may live in a service's event loop."""
_CLOSE_SECONDS = 5.0
_RECORDS_FAULT = (InvalidRecord, InvalidTimestamp, RecordTooLarge)
"""Refusals that are about a single record, whatever else is in its batch."""
T = TypeVar("T")


class _Sent(NamedTuple):
    """Records without a gap between them at the source."""

    where: TopicPartition
    source: int
    length: int
    size_bytes: int
    handles: list[Delivery]
    """Of each; or of the first and the last."""

    @property
    def is_refused(self) -> bool:
        """One of these records is refused, whichever it is."""
        return any(isinstance(handle.batch.error, _RECORDS_FAULT) for handle in self.handles)

    def check(self) -> None:
        """Raise the refusal of a record with its offset at the source, if it is known which record it is."""
        errors = [handle.exception() for handle in self.handles]
        error = next((error for error in errors if isinstance(error, _RECORDS_FAULT)), None)
        # A log in this process has one error for the whole batch.
        if error is not None and len(errors) == self.length and sum(other is error for other in errors) == 1:
            raise _at_source(error, self.where, self.source + errors.index(error))

    def runs(self) -> list[Run]:
        """Where they are now. Empty: others wrote between them, and only each one's own handle could tell."""
        offsets = [handle.result().offset for handle in self.handles]
        if offsets[-1] - offsets[0] == self.length - 1:
            return [Run(self.source, offsets[0], self.length)]
        if len(offsets) < self.length:
            return []
        return [Run(self.source + index, offset, 1) for index, offset in enumerate(offsets)]


class Writer:
    """The transactional producer of a mirror: who opens one of the same name later fences this one."""

    def __init__(self, destination: Backend, journal: Journal, options: Options, progress: Progress) -> None:
        self._destination = destination
        self._journal_end = 0
        self._timers = destination.timers
        self._journal = journal
        self._progress = progress
        self._producer: BackendProducer = destination.producer(
            ProducerConfig(
                transactional_id=options.transactional_id,
                transaction_timeout_ms=_TRANSACTION_MS,
                batch_size=_BATCH_BYTES,
                linger_ms=_LINGER_MS,
                buffer_memory=_BUFFER_BYTES,
                max_request_size=_LARGEST_RECORD_BYTES,
                compression=options.compression,
            )
        )
        self.run = self._producer.run
        self._sent: list[_Sent] = []
        self._is_open = False
        self._shared: set[TopicPartition] = set()
        """Others write there too, between our records: each one's offset has to be asked for."""
        self._one_by_one: set[TopicPartition] = set()
        """A batch of several records was refused there: each record is sent alone, which shows which one it was."""
        self.count = 0
        """Records in the open transaction."""
        self.size_bytes = 0

    async def init(self) -> None:
        """Fence whoever wrote before under this name; what it left open is aborted on return."""
        await self._producer.init_transactions()

    # records ---------------------------------------------------------------------------------------------------------

    async def add(self, fetched: FetchedRecords) -> None:
        """Put records into the open transaction, or into a new one."""
        await self._begin()
        offsets = fetched.offsets
        begin = 0
        if offsets[-1] - offsets[0] != len(offsets) - 1:
            for index in range(1, len(offsets)):
                if offsets[index] != offsets[index - 1] + 1:
                    await self._add_run(fetched, begin, index)
                    begin = index
        await self._add_run(fetched, begin, len(offsets))
        self.count += len(offsets)

    async def _begin(self) -> None:
        if self._is_open:
            return
        try:
            self._producer.begin_transaction()
        except InvalidTxnState:  # Kafka's: after a transaction that took long to end the id has to be taken anew
            await self._producer.init_transactions()
            await self._check_alone()
            self._producer.begin_transaction()
        self._is_open = True

    async def _check_alone(self) -> None:
        """The id was taken anew, maybe from another mirror: what that has written is not in our journal."""
        [end] = (await ends_of(self._destination, [TopicPartition(self._journal.topic, 0)])).values()
        if end > self._journal_end:
            raise ProducerFenced(f"the journal {self._journal.topic!r} has been written by another mirror meanwhile")

    async def _add_run(self, fetched: FetchedRecords, begin: int, end: int) -> None:
        where = TopicPartition(fetched.topic, fetched.partition)
        append, add = self._producer.appender(*where), self._producer.adder(*where)
        of_each = where in self._shared
        keys, values, headers, times = fetched.keys, fetched.values, fetched.headers, fetched.timestamps_ms
        handles: list[Delivery] = []
        size_bytes = 0
        for index in range(begin, end):
            if index % _TURN == 0:
                await anyio.lowlevel.checkpoint()
            key, value, time_ms = keys[index], values[index], times[index]
            of_record = () if headers is None else headers[index]
            try:
                if of_each or index == begin or index == end - 1:
                    handles.append(await self._put(append, key, value, of_record, time_ms))
                    if where in self._one_by_one:
                        await self._producer.flush()
                        handles[-1].result()
                else:
                    try:
                        add(key, value, of_record, time_ms)
                    except (BufferExhausted, ConfigError):
                        await self._put(add, key, value, of_record, time_ms)
            except _RECORDS_FAULT as error:
                raise _at_source(error, where, fetched.offsets[index]) from error
            size_bytes += len(key or b"") + len(value or b"")
        self.size_bytes += size_bytes
        self._sent.append(_Sent(where, fetched.offsets[begin], end - begin, size_bytes, handles))

    async def _put(
        self, put: Callable[..., T], key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int
    ) -> T:
        while True:
            try:
                return put(key, value, headers, timestamp_ms)
            except BufferExhausted:
                await self._producer.wait_for_room()
            except ConfigError:
                if timestamp_ms != 0:
                    raise
                timestamp_ms = 1
                self._progress.moved_timestamps += 1

    async def commit(self) -> dict[TopicPartition, int]:
        """Commit the records of the open transaction, and what the journal says of them.

        Returns where to read again, with nothing committed: others write to the same partitions, or a record is refused
        and nobody knows which. Then each record has its own handle.
        Raises what kept a record from the destination, TransactionAborted, TransactionOutcomeUnknown, ProducerFenced.
        """
        await self._producer.flush()
        sent, self._sent = self._sent, []
        self.count = self.size_bytes = 0
        for one in sent:
            if one.is_refused:
                one.check()
                if one.where in self._shared:
                    self._one_by_one.add(one.where)
        runs = [(one.where, [] if one.is_refused else one.runs()) for one in sent]
        shared = {where for where, found in runs if not found}
        if shared:
            self._shared |= shared
            await self._producer.abort_transaction()
            self._is_open = False
            return {one.where: one.source for one in reversed(sent)}
        for where, found in runs:
            for run in found:
                self._journal.maps[where].add(*run)
        touched = dict.fromkeys(one.where for one in sent)
        await self.save([entry for where in touched for entry in self._journal.grown(where)])
        for one in sent:
            progress = self._progress.of(one.where)
            progress.copied += one.length
            progress.copied_bytes += one.size_bytes
        return {}

    async def save(self, entries: Iterable[Entry]) -> None:
        """Entries of the journal, with what else is in the transaction."""
        await self._begin()
        append = self._producer.appender(self._journal.topic, 0)
        handles = [await self._put(append, key, value, (), system_clock()) for key, value in entries]
        await self._producer.commit_transaction()
        self._is_open = False
        for handle in handles:
            self._journal_end = handle.result().offset + 2  # behind the marker of its transaction

    async def aclose(self) -> None:
        """What is open is aborted, if the destination still answers."""
        with self._timers.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._producer.aclose()
            return
        self._producer.give_up(RequestTimedOut("the mirror was closed before the destination answered"))


def _at_source(error: EventBusError, where: TopicPartition, offset: int) -> EventBusError:
    """The refusal of a record with its offset at the source, of the same class."""
    return type(error)(
        f"{where} offset {offset} of the source was not copied, nor was anything after it. The destination refuses it: "
        f"{str(error).rstrip('.')}. A mirror copies no message.timestamp.* configs. Alter them, or max.message.bytes, "
        f"of topic {where.topic!r} at the destination, and start the mirror again"
    )

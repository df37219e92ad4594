"""Writes records to the destination, in transactions that contain the journal's entries about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
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
    TransactionAborted,
)
from eventbus.ledger import ends_of
from eventbus.mirror.journal import Entry, Journal
from eventbus.mirror.offset_map import Run
from eventbus.mirror.plan import Options
from eventbus.mirror.progress import Progress
from eventbus.mirror.refusals import is_of_producer, may_pass
from eventbus.types import FetchedRecords, Headers, TopicPartition

_BATCH_BYTES = 262_144
_LINGER_MS = 5
_LARGEST_RECORD_BYTES = 104_857_600
"""The limits of records are those of the destination's topics."""
_BUFFER_BYTES = 134_217_728
"""Enough for the largest record; a transaction is much smaller."""
_TRANSACTION_MS = 60_000
_TURN = 500
"""The number of records before other tasks get a turn: a mirror may run in a service's event loop."""
_CLOSE_SECONDS = 5.0
_RECORDS_FAULT = (InvalidRecord, InvalidTimestamp, RecordTooLarge)
"""Refusals that are about a single record, whatever else is in its batch."""
T = TypeVar("T")


class Refusal(NamedTuple):
    """The reason why a partition cannot be copied further."""

    error: EventBusError
    offset: int | None = None
    """The offset at the source of the record that the destination refuses; None: it refuses any record."""


class Outcome(NamedTuple):
    """The outcome of a transaction: it is committed if nothing has to be read again."""

    again: Mapping[TopicPartition, int] = MappingProxyType({})
    """Partitions, and the offsets at the source from which they have to be read again."""
    refused: Mapping[TopicPartition, Refusal] = MappingProxyType({})
    """Those of them that cannot be copied further."""
    suspects: frozenset[TopicPartition] = frozenset()
    """Those of them of which some cannot be copied further, if the error does not show which."""


class _Sent(NamedTuple):
    """Records without a gap between them at the source."""

    where: TopicPartition
    source: int
    length: int
    size_bytes: int
    handles: list[Delivery]
    """The handle of each record; or of the first and the last only."""

    @property
    def error(self) -> EventBusError | None:
        """The error of one of these records, whichever it is."""
        return next((handle.batch.error for handle in self.handles if handle.batch.error is not None), None)

    def refusal(self) -> Refusal | None:
        """Return the refusal of a record with its offset at the source, if it is known which record it is."""
        errors = [handle.exception() for handle in self.handles]
        error = next((error for error in errors if isinstance(error, _RECORDS_FAULT)), None)
        # A log in this process has one error for the whole batch.
        if error is None or len(errors) < self.length or sum(other is error for other in errors) > 1:
            return None
        return _refusal(error, self.where, self.source + errors.index(error))

    def runs(self) -> list[Run]:
        """Return their positions at the destination. Empty if others wrote in between, unless each record has a
        handle."""
        offsets = [handle.result().offset for handle in self.handles]
        if offsets[-1] - offsets[0] == self.length - 1:
            return [Run(self.source, offsets[0], self.length)]
        if len(offsets) < self.length:
            return []
        return [Run(self.source + index, offset, 1) for index, offset in enumerate(offsets)]


class Writer:
    """The transactional producer of a mirror: a later producer with the same name fences it."""

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
        """Partitions where others write between our records: each record's offset must be requested."""
        self._one_by_one: set[TopicPartition] = set()
        """Partitions where a batch was refused: each record is sent separately, to find out which one it was."""
        self._again: dict[TopicPartition, int] = {}
        """Partitions in the open transaction, with the source offsets of their first records in it."""
        self._refused: dict[TopicPartition, Refusal] = {}
        """Partitions of which the producer did not accept a record."""
        self._failure: TransactionAborted | None = None
        """The failure of the open transaction. The outcomes of its records show the reason."""
        self.count = 0
        """The number of records in the open transaction."""
        self.size_bytes = 0

    async def init(self) -> None:
        """Fence earlier producers with this name; their open transactions are aborted on return."""
        await self._producer.init_transactions()

    # records ---------------------------------------------------------------------------------------------------------

    async def add(self, fetched: FetchedRecords) -> None:
        """Add records to the open transaction, or begin one. `commit` returns what is refused."""
        offsets = fetched.offsets
        self._again.setdefault(TopicPartition(fetched.topic, fetched.partition), offsets[0])
        self.count += len(offsets)
        if self.has_failed:
            return
        await self._begin()
        begin = 0
        if offsets[-1] - offsets[0] != len(offsets) - 1:
            for index in range(1, len(offsets)):
                if offsets[index] != offsets[index - 1] + 1:
                    await self._add_run(fetched, begin, index)
                    begin = index
        await self._add_run(fetched, begin, len(offsets))

    @property
    def has_failed(self) -> bool:
        """True if the open transaction can only be aborted, so its records have to be read again."""
        return self._failure is not None or bool(self._refused)

    async def _begin(self) -> None:
        if self._is_open:
            return
        try:
            self._producer.begin_transaction()
        # Raised for kafka:// after a transaction that took long to end: the id must be taken again.
        except InvalidTxnState:
            await self._producer.init_transactions()
            await self._check_alone()
            self._producer.begin_transaction()
        self._is_open = True

    async def _check_alone(self) -> None:
        """Raise ProducerFenced if another mirror has written the journal since the id was taken over."""
        [end] = (await ends_of(self._destination, [TopicPartition(self._journal.topic, 0)])).values()
        if end > self._journal_end:
            raise ProducerFenced(f"the journal {self._journal.topic!r} has been written by another mirror meanwhile")

    async def _add_run(self, fetched: FetchedRecords, begin: int, end: int) -> None:
        where = TopicPartition(fetched.topic, fetched.partition)
        of_each = where in self._shared
        keys, values, headers, times = fetched.keys, fetched.values, fetched.headers, fetched.timestamps_ms
        handles: list[Delivery] = []
        size_bytes = 0
        index = begin
        try:
            append, add = self._producer.appender(*where), self._producer.adder(*where)
            for index in range(begin, end):
                if index % _TURN == 0:
                    await anyio.lowlevel.checkpoint()
                key, value, time_ms = keys[index], values[index], times[index]
                of_record = () if headers is None else headers[index]
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
                size_bytes += len(key or b"") + len(value or b"")
        except TransactionAborted as error:  # caused by an earlier record
            self._failure = error
        except EventBusError as error:
            if is_of_producer(error) or isinstance(error, (BufferExhausted, RequestTimedOut)):
                raise
            self._refused[where] = _refusal(error, where, fetched.offsets[index])
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

    async def commit(self, *, is_trial: bool = False) -> Outcome:
        """Commit the records of the open transaction, and the journal's entries about them.

        Records must be read again, with nothing committed, if one is refused, or if others write to the same
        partitions: then each record has a handle the next time. ``is_trial``: others could be copied without this
        partition. Raises TransactionAborted, TransactionOutcomeUnknown, ProducerFenced, and temporary errors that
        concern every partition.
        """
        await self._producer.flush()
        sent, again, refused, failure = self._sent, self._again, self._refused, self._failure
        self._sent, self._again, self._refused, self._failure = [], {}, {}, None
        self.count = self.size_bytes = 0
        failed = {one.where: error for one in sent if (error := one.error) is not None}
        if refused or failed or failure is not None:
            outcome = (
                self._find_refused(sent, again, refused, failed, is_trial=is_trial)
                if refused or failed
                else self._find_suspects(again, failure)
            )
            await self._abort()
            return outcome
        runs = [(one.where, one.runs()) for one in sent]
        shared = {where for where, found in runs if not found}
        if shared:
            self._shared |= shared
            await self._abort()
            return Outcome(again)
        for where, found in runs:
            for run in found:
                self._journal.maps[where].add(*run)
        try:
            await self.save([entry for where in again for entry in self._journal.grown(where)])
        except TransactionAborted as error:
            outcome = self._find_suspects(again, error)
            self._is_open = False
            await self._journal.load(self._destination)  # the maps have already grown
            return outcome
        for one in sent:
            progress = self._progress.of(one.where)
            progress.copied += one.length
            progress.copied_bytes += one.size_bytes
        return Outcome()

    async def _abort(self) -> None:
        await self._producer.abort_transaction()
        self._is_open = False

    def _find_refused(
        self,
        sent: list[_Sent],
        again: dict[TopicPartition, int],
        refused: dict[TopicPartition, Refusal],
        failed: dict[TopicPartition, EventBusError],
        *,
        is_trial: bool,
    ) -> Outcome:
        for one in sent:
            if isinstance(one.error, _RECORDS_FAULT) and one.where not in refused:
                refusal = one.refusal()
                if refusal is not None:
                    refused[one.where] = refusal
                elif one.where in self._shared:
                    self._one_by_one.add(one.where)
                else:
                    self._shared.add(one.where)
        if refused or any(isinstance(error, _RECORDS_FAULT) for error in failed.values()):
            return Outcome(again, refused)  # the other errors may be consequences
        others = {where: error for where, error in failed.items() if not isinstance(error, TransactionAborted)}
        if not others:
            return self._find_suspects(again, next(iter(failed.values())))
        error = next((error for error in others.values() if is_of_producer(error)), None)
        if error is None and not is_trial and failed.keys() >= {one.where for one in sent}:
            error = next((error for error in others.values() if error.retriable), None)
        if error is not None:
            raise error
        return _suspected(again, others)

    def _find_suspects(self, again: dict[TopicPartition, int], failure: EventBusError | None) -> Outcome:
        """Find partitions with a refused record without a handle. Raises the failure if a new session may succeed."""
        cause = None if failure is None else failure.__cause__
        if not isinstance(cause, EventBusError) or may_pass(cause):
            assert failure is not None
            raise failure
        if not isinstance(cause, _RECORDS_FAULT):
            return _suspected(again, dict.fromkeys(again, cause))
        if again.keys() <= self._shared:
            raise cause
        self._shared |= again.keys()
        return Outcome(again)

    async def save(self, entries: Iterable[Entry]) -> None:
        """Write entries of the journal, together with the rest of the transaction."""
        await self._begin()
        append = self._producer.appender(self._journal.topic, 0)
        handles = [await self._put(append, key, value, (), system_clock()) for key, value in entries]
        await self._producer.commit_transaction()
        self._is_open = False
        for handle in handles:
            self._journal_end = handle.result().offset + 2  # after the marker of its transaction

    async def aclose(self) -> None:
        """Abort an open transaction, if the destination still answers."""
        with self._timers.move_on_after(_CLOSE_SECONDS, shield=True):
            await self._producer.aclose()
            return
        self._producer.give_up(RequestTimedOut("the mirror was closed before the destination answered"))


def _suspected(again: dict[TopicPartition, int], errors: Mapping[TopicPartition, EventBusError]) -> Outcome:
    """Return the suspects of a failure that is not about a record. librdkafka has one error per transaction."""
    if len(errors) > 1:
        return Outcome(again, suspects=frozenset(errors))
    return Outcome(again, {where: Refusal(refusal_of(error, where, again[where])) for where, error in errors.items()})


def refusal_of(error: EventBusError, where: TopicPartition, offset: int) -> EventBusError:
    """Return the error that stops a partition, of the same class, with the offset at the source."""
    return type(error)(
        f"{where} is not copied from offset {offset} of the source on: {str(error).rstrip('.')}. The mirror copies the "
        "other partitions. With --follow it tries this one again automatically; otherwise start it again"
    )


def _refusal(error: EventBusError, where: TopicPartition, offset: int) -> Refusal:
    if not isinstance(error, _RECORDS_FAULT):
        return Refusal(refusal_of(error, where, offset))
    text = (
        f"{where} offset {offset} of the source was not copied, nor was anything after it in this partition. The "
        f"destination refuses it: {str(error).rstrip('.')}. A mirror copies no message.timestamp.* configs. Alter "
        f"them, or max.message.bytes, of topic {where.topic!r} at the destination. With --follow the mirror then goes "
        "on automatically; otherwise start it again"
    )
    return Refusal(type(error)(text), offset)

"""The writer of a ledger: decisions become transactions of one transactional id.

1. A writer takes the transactional id. That fences the writer before it. Then it reads the topic to its end.
2. A decision is made on that state. Its records are stored in one transaction, all of them or none.
3. A writer that was fenced, or that has found records of others between its own, takes the id again, reads on, and
   decides again. Two writers of one topic alternate, with random pauses that grow.
4. A commit that failed may have happened. Taking the id again completes or aborts that transaction. So the log then
   shows whether the records are stored, and no decision is stored twice.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import anyio
import msgspec

from eventbus.backends.delivery import Delivery
from eventbus.client.host import Host
from eventbus.client.producer import Producer
from eventbus.errors import (
    TAKEN_OVER,
    BufferExhausted,
    EventBusError,
    ProducerClosed,
    StorageError,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from eventbus.ledger import ends_of, read_partitions
from eventbus.types import Headers, IsolationLevel, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.client.keywords import ProducerOptions

logger = logging.getLogger("eventbus.ledger")

FIRST_PAUSE_SECONDS = 0.01
"""Before the id is taken again: at random, and up to twice as long each time."""
LONGEST_PAUSE_SECONDS = 1.0
_FETCH_WAIT_MS = 10
_BATCH_BYTES = 1_000_000


class LedgerRecord(NamedTuple):
    """A record to be written. With ``partition`` None the partitioner chooses."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """None: the time of the write."""


class LedgerBatch(msgspec.Struct, frozen=True):
    """A decision: the records of one transaction. The last of them belongs to the ledger's topic."""

    records: Sequence[LedgerRecord]
    stored: Callable[[Sequence[RecordMetadata]], object]
    """Called once, with the places of the records, when they are stored.

    After a commit in doubt the fold has read them already: what is taken over here goes by offset, or is idempotent.
    """
    first_offset: int | None = None
    """The offset that the first record must get, if no other program may have written since. The others follow it."""


class Overtaken(EventBusError):
    """Another program has written to the topic since the decision was made. Nothing of the decision is stored."""


_OVERTAKEN = (*TAKEN_OVER, ProducerClosed, Overtaken)
_UNDECIDED = (TransactionAborted, TransactionOutcomeUnknown)


class LedgerWriter:
    """Writes the decisions of one process in turn. It holds the transactional id between decisions."""

    def __init__(
        self,
        bus: Host,
        transactional_id: str,
        taken: Callable[[], Awaitable[object]],
        *,
        deciding: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
        final: tuple[type[EventBusError], ...] = (),
        most_failures: int = sys.maxsize,
        transaction_timeout_ms: int | None = None,
    ) -> None:
        """``taken`` is awaited whenever the transactional id has been taken: it reads the topic to its end.

        ``deciding`` gives what is entered from each decision to its end. Errors of the kinds in ``final`` are raised,
        and so is the last of ``most_failures`` in a row. Being overtaken does not count as a failure.
        """
        self._bus = bus
        self._id = transactional_id
        self._options: ProducerOptions = {
            "transactional_id": transactional_id,
            "acks": "all",
            "batch_size": _BATCH_BYTES,
        }
        if transaction_timeout_ms is not None:
            self._options["transaction_timeout_ms"] = transaction_timeout_ms
        self._taken = taken
        self._deciding = deciding
        self._final = (StorageError, *final)
        self._most_failures = most_failures
        self._turn = anyio.Lock(fast_acquire=True)
        self._producer: Producer | None = None
        """The holder of the transactional id. None if the next decision must take the id."""
        self._in_doubt: tuple[LedgerBatch, Sequence[RecordMetadata]] | None = None
        """The decision whose commit has failed, and the places of its records if they are nevertheless stored."""

    async def write(
        self, decide: Callable[[], Awaitable[LedgerBatch]], is_wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Store what ``decide`` returns. It is called again, on newer state, as long as nothing of it is stored.

        Returns without a decision if no caller waits for it any more (``is_wanted``). Raises what prevents the records
        from being stored, such as RecordTooLarge, and what ``decide`` raises.
        """
        async with self._turn:
            pause, failures = FIRST_PAUSE_SECONDS, 0
            self._in_doubt = None
            while is_wanted():
                try:
                    await self._try(decide)
                    return
                except Exception as failure:
                    await self.release()
                    error = _explained(failure)
                    failures = 0 if isinstance(error, _OVERTAKEN) else failures + 1
                    if not self._passes(error) or failures >= self._most_failures:
                        raise error from error.__cause__
                    logger.info("%s: %s. The decision is made again.", self._id, error)
                await anyio.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def release(self) -> None:
        """Let go of the transactional id. The next decision takes it again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._close(producer)

    async def _close(self, producer: Producer) -> None:
        try:
            await producer.aclose()
        except EventBusError as error:
            logger.debug("closing the writer of %s: %s", self._id, error)

    async def _try(self, decide: Callable[[], Awaitable[LedgerBatch]]) -> None:
        producer = self._producer or await self._take()
        if self._in_doubt is not None:
            batch, places = self._in_doubt
            if await self._is_there(places[-1]):
                batch.stored(places)
                return
            self._in_doubt = None
        async with self._deciding():
            batch = await decide()
            if batch.records:
                await self._store(producer, batch)
            else:
                batch.stored(())

    async def _take(self) -> Producer:
        producer = self._bus.new_producer(**self._options)
        try:
            await producer.init()
            await self._taken()
        except BaseException:  # cancelled after init, it would decide on a state that was not read to its end
            with anyio.CancelScope(shield=True):
                await self._close(producer)
            raise
        self._producer = producer
        return producer

    async def _store(self, producer: Producer, batch: LedgerBatch) -> None:
        transaction = producer.transaction()
        places: list[RecordMetadata] = []
        try:
            async with transaction:
                sent = [await _send(producer, record) for record in batch.records]
                await producer.flush()
                if errors := [error for delivery in sent if (error := delivery.exception()) is not None]:
                    raise next((error for error in errors if not isinstance(error, _UNDECIDED)), errors[0])
                places = [delivery.result() for delivery in sent]
                first = batch.first_offset
                if first is not None and (places[0].offset, places[-1].offset) != (first, first + len(places) - 1):
                    raise Overtaken(f"another writer was at offset {first}")
                self._in_doubt = batch, places
        finally:
            if transaction.outcome == "committed":  # also if this task was cancelled during its commit
                self._in_doubt = None
                batch.stored(places)

    async def _is_there(self, place: RecordMetadata) -> bool:
        """True if a committed record is at this place. The transaction that wrote it has ended."""
        partition = TopicPartition(place.topic, place.partition)
        end = (await ends_of(self._bus.context.backend, [partition], IsolationLevel.READ_UNCOMMITTED))[partition]
        if end <= place.offset:
            return False
        found: list[int] = []
        await read_partitions(
            self._bus.context.reader(start="earliest", fetch_max_wait_ms=_FETCH_WAIT_MS), {partition: place.offset + 1},
            lambda records: found.extend(records.offsets), starts={partition: place.offset},
        )  # fmt: skip
        return place.offset in found

    def _passes(self, error: Exception) -> bool:
        """True if the same decision may be stored later."""
        if not isinstance(error, EventBusError):
            return False
        return isinstance(error, (*_OVERTAKEN, *_UNDECIDED)) or (error.retriable and not isinstance(error, self._final))


async def _send(producer: Producer, record: LedgerRecord) -> Delivery:
    while True:
        try:
            return producer.send_nowait(
                record.topic, record.value, key=record.key, headers=record.headers, partition=record.partition,
                timestamp_ms=record.timestamp_ms,
            )  # fmt: skip
        except BufferExhausted:
            await producer.wait_for_room()


def _explained(error: Exception) -> Exception:
    """Return the error that has aborted a transaction, if it is known and is not an outcome itself."""
    cause = error.__cause__
    if isinstance(error, TransactionAborted) and isinstance(cause, EventBusError) and not isinstance(cause, _UNDECIDED):
        return cause
    return error

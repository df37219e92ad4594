"""The one writer of what becomes of dead letters.

Whoever takes the pen, a transactional id, fences the writer before and reads what that one has written. What is decided
on that is stored in one transaction with the records it is about, and only if nobody has taken the pen meanwhile; else
all is read and decided anew. So a letter is sent once, whoever else sends it at the same time.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeGuard

import anyio
import msgspec

from dlq.following import Following
from dlq.reading import reader
from dlq.selection import LetterId
from dlq.state import LetterState, write_key, write_state
from eventbus import Consumer, Delivery, EventBus
from eventbus.errors import (
    TAKEN_OVER,
    BufferExhausted,
    EventBusError,
    ProducerClosed,
    StorageError,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnknownTopicOrPartition,
)
from eventbus.types import Headers, RecordMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.client.producer import Producer

logger = logging.getLogger("dlq")

PEN = "dlq-redrive"
_PATIENCE_SECONDS = 0.01
"""Before the pen is taken back from another writer, at random, and twice as long each time."""
_LONGEST_SECONDS = 1.0
_MOST_FAILURES = 8
"""In a row, of a log that does not answer; whoever goes on waiting would not be told."""
_OVERTAKEN = (*TAKEN_OVER, ProducerClosed)
"""Somebody else has the pen: it is taken anew."""
_UNDECIDED = (TransactionAborted, TransactionOutcomeUnknown)
"""A pen taken anew sees the transaction through, or ends it."""


class Outgoing(msgspec.Struct, frozen=True):
    """A record to be sent. ``partition`` None: the partitioner's choice."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Writes(msgspec.Struct, frozen=True):
    """What is to be stored together, and what to do when it is."""

    records: Sequence[Outgoing]
    states: Sequence[tuple[LetterId, LetterState]]
    """What becomes of letters."""
    committed: Callable[[Sequence[RecordMetadata]], None]
    """Told where the records are."""


Decide = Callable[[bool], Awaitable[Writes]]
"""Decides on the newest states. Told whether it was asked before, and what it decided then may have been stored."""


class Pen:
    """Held by ``async with`` as long as there may be something to write; its users take turns."""

    def __init__(self, bus: EventBus, following: Following) -> None:
        self._bus = bus
        self._following = following
        self._users = 0
        self._turn = anyio.Lock()
        self._producer: Producer | None = None
        self._states: Consumer | None = None

    async def __aenter__(self) -> Pen:
        self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._users -= 1
        if not self._users:
            with anyio.CancelScope(shield=True):
                await self._drop_producer()
                states, self._states = self._states, None
                if states is not None:
                    await states.aclose()

    async def write(self, decide: Decide) -> None:
        """Store what ``decide`` says of the newest states. It is asked again when somebody else was faster.

        Raises what keeps the records from being stored, RecordTooLarge say; then nothing of it is.
        """
        async with self._turn:
            patience, failures, asked = _PATIENCE_SECONDS, 0, False
            while True:
                try:
                    await self._write_once(decide, asked)
                    return
                except EventBusError as error:
                    await self._drop_producer()
                    failures = 0 if isinstance(error, _OVERTAKEN) else failures + 1
                    if failures >= _MOST_FAILURES or not _passes(error):
                        raise
                    logger.info("%s: %s; deciding anew", PEN, error)
                asked = True
                await anyio.sleep(patience * random.uniform(0.5, 1))
                patience = min(2 * patience, _LONGEST_SECONDS)

    async def _write_once(self, decide: Decide, asked: bool) -> None:
        producer, states = await self._take()
        await self._following.catch_up_states(states)
        writes = await decide(asked)
        if not writes.states:
            writes.committed(())
            return
        sent: list[Delivery] = []
        transaction = producer.transaction()
        try:
            async with transaction:
                for one in (*writes.records, *map(self._state_record, writes.states)):
                    sent.append(await _send(producer, one))  # noqa: PERF401  what was sent before an error counts too
        except TransactionAborted as error:
            causes = (error.__cause__, *map(Delivery.exception, sent))
            raise next((one for one in causes if _explains(one)), error) from None
        finally:
            if transaction.outcome == "committed":  # also when it was cancelled in the middle of its commit
                where = [one.result() for one in sent]
                count = len(writes.records)
                self._following.written(writes.states, [one.offset for one in where[count:]])
                writes.committed(where[:count])

    def _state_record(self, written: tuple[LetterId, LetterState]) -> Outgoing:
        letter, state = written
        return Outgoing(self._following.state_topic, 0, write_key(letter), write_state(state))

    async def _take(self) -> tuple[Producer, Consumer]:
        if self._states is None:
            self._states = await self._open_states()
        if self._producer is None:
            producer = self._bus.new_producer(transactional_id=PEN, acks="all", batch_size=1_000_000)
            try:
                await producer.init()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await producer.aclose()
                raise
            self._producer = producer
        return self._producer, self._states

    async def _open_states(self) -> Consumer:
        await self._following.make_state_topic()
        states = reader(self._bus, [TopicPartition(self._following.state_topic, 0)])
        await states.__aenter__()  # closes itself when that fails
        return states

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await producer.aclose()
            except EventBusError as error:
                logger.debug("closing the writer %r: %s", PEN, error)


async def _send(producer: Producer, one: Outgoing) -> Delivery:
    while True:
        try:
            return producer.send_nowait(one.topic, one.value, key=one.key, headers=one.headers, partition=one.partition)
        except BufferExhausted:
            await producer.wait_for_room()


def _passes(error: EventBusError) -> bool:
    """The same may succeed when it is tried again."""
    if isinstance(error, (*_OVERTAKEN, *_UNDECIDED)):
        return True
    return error.retriable and not isinstance(error, (StorageError, UnknownTopicOrPartition))


def _explains(error: BaseException | None) -> TypeGuard[EventBusError]:
    return isinstance(error, EventBusError) and not isinstance(error, _UNDECIDED)

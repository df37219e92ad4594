"""The one task that writes: all that wait are decided in their order, and stored in one transaction.

The pen is a transactional id: whoever takes it fences the writer before. A batch counts only if its first record got
the offset that was expected; else somebody wrote in between, it is aborted, their records are read, and all is decided
anew.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio

from eventbus.backends.delivery import Delivery
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import (
    TAKEN_OVER,
    BufferExhausted,
    EventBusError,
    ProducerClosed,
    RecordTooLarge,
    RequestTimedOut,
    StorageError,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from schema_registry import errors
from schema_registry.errors import RegistryError, RegistryRefused
from schema_registry.follower import Follower
from schema_registry.ledger import Ledger

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.client.producer import Producer

logger = logging.getLogger("schema_registry")
T = TypeVar("T")

_AT_ONCE = 500
"""Requests in a transaction."""
_TRANSACTION_MS = 30_000
_PATIENCE_SECONDS = 0.01
"""Before the pen is taken back from another writer, at random, and twice as long each time."""
_LONGEST_SECONDS = 1.0


class _Request(Generic[T]):
    """One who waits."""

    def __init__(self, decide: Callable[[], Decision[T]]) -> None:
        self.decide = decide
        self.done = anyio.Event()
        self.reply: T | None = None
        self.error: Exception | None = None

    def answer(self, reply: T) -> None:
        self.reply = reply
        self.done.set()

    def refuse(self, error: Exception) -> None:
        self.error = error
        self.done.set()


class _Overtaken(Exception):
    """Somebody else has written: decide anew."""


_AGAIN = (_Overtaken, *TAKEN_OVER, ProducerClosed, TransactionAborted)
"""With a pen taken anew."""


class Writer:
    """Takes requests one after the other, and the pen when it needs it."""

    def __init__(self, bus: EventBus, ledger: Ledger, follower: Follower, timeout_ms: int) -> None:
        self._bus = bus
        self._ledger = ledger
        self._follower = follower
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Request[Any]] = deque()
        self._wanted = anyio.Event()
        self._producer: Producer | None = None
        """The pen, while we hold it."""
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._ended.set()

    def start(self) -> None:
        self._ended = anyio.Event()
        self._bus.start_soon(self._run)

    async def aclose(self) -> None:
        self._scope.cancel()
        await self._ended.wait()

    async def submit(self, what: str, decide: Callable[[], Decision[T]]) -> T:
        """Store what ``decide`` finds on the newest state, and its reply. It is called once, or again if overtaken."""
        if self._ended.is_set():
            raise errors.store_failed(what, RegistryRefused("the registry is not running"))
        request = _Request(decide)
        self._waiting.append(request)
        self._wanted.set()
        try:
            with anyio.move_on_after(self._timeout_ms / 1000) as scope:
                await request.done.wait()
        finally:
            request.done.set()  # who has gone is not decided for any more
        if scope.cancelled_caught:
            raise errors.timed_out(what, self._timeout_ms)
        if request.error is None:
            return cast(T, request.reply)
        if isinstance(request.error, RegistryError) or not isinstance(request.error, EventBusError):
            raise request.error
        raise errors.store_failed(what, request.error) from request.error

    # the task --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        batch: list[_Request[Any]] = []
        try:
            with self._scope:
                while True:
                    await self._wanted.wait()
                    self._wanted = anyio.Event()
                    while self._waiting:
                        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _AT_ONCE))]
                        await self._write(batch)
        finally:
            closed = RegistryRefused("the registry was closed before it was stored; it may be stored, or not")
            for request in (*batch, *self._waiting):
                if not request.done.is_set():
                    request.refuse(closed)
            self._waiting.clear()
            self._ended.set()
            with anyio.CancelScope(shield=True):
                await self._drop_pen()

    async def _write(self, batch: list[_Request[Any]]) -> None:
        """Until every request of the batch has its answer, or nobody waits any more."""
        patience = _PATIENCE_SECONDS
        while any(not request.done.is_set() for request in batch):
            try:
                await self._write_once(batch)
                return
            except RecordTooLarge as error:
                await self._give_up_pen()
                await self._write_apart(batch, error)
                return
            except (_Overtaken, EventBusError) as error:
                await self._give_up_pen()
                if not isinstance(error, _AGAIN) and (not error.retriable or isinstance(error, StorageError)):
                    for request in batch:
                        request.refuse(error)
                    return
                logger.info("topic %r: %s; deciding anew", self._ledger.topic, error)
            except Exception as error:  # this task belongs to the bus: an error that leaves it ends the bus
                logger.exception("Writing to topic %r failed", self._ledger.topic)
                await self._give_up_pen()
                for request in batch:
                    request.refuse(error)
                return
            await anyio.sleep(patience * random.uniform(0.5, 1))
            patience = min(2 * patience, _LONGEST_SECONDS)

    async def _write_apart(self, batch: list[_Request[Any]], error: RecordTooLarge) -> None:
        """One of them is too large, and the others shall not suffer for it."""
        if len(batch) == 1:
            batch[0].refuse(RegistryError(422, 42209, f"the schema is larger than the topic takes: {error}"))
            return
        for request in batch:
            await self._write([request])

    async def _give_up_pen(self) -> None:
        self._ledger.undo()
        await self._drop_pen()

    async def _write_once(self, batch: list[_Request[Any]]) -> None:
        self._follower.check()  # before the pen is taken: of a topic that is gone nobody can take it
        producer = self._producer
        if producer is None:
            producer = await self._take_pen()
        async with self._follower.lock:  # nothing is read between the decision and its place in the log
            self._follower.check()
            written, replies = self._decide(batch)
            if written:
                first = await self._store(producer, written)
                self._ledger.settle(written, first)
        for request, reply in replies:
            request.answer(reply)

    def _decide(self, batch: list[_Request[Any]]) -> tuple[list[CoordinatorRecord], list[tuple[_Request[Any], Any]]]:
        """The records of all, each decided on what those before it leave; who is refused is told at once."""
        written: list[CoordinatorRecord] = []
        replies: list[tuple[_Request[Any], Any]] = []
        for request in batch:
            if request.done.is_set():
                continue
            try:
                decision = request.decide()
            except RegistryError as error:
                if not written:
                    request.refuse(error)
                    continue
                request.error = error  # decided on what is not stored yet: told when it is
                replies.append((request, None))
                continue
            except Exception as error:  # a fault of ours must not stop the others
                logger.exception("a request of the schema registry failed")
                request.refuse(error)
                continue
            request.error = None
            self._ledger.propose(decision.records)
            written += decision.records
            replies.append((request, decision.reply))
        return written, replies

    # the pen ---------------------------------------------------------------------------------------------------------

    async def _take_pen(self) -> Producer:
        """Fence whoever writes, read what they have written."""
        producer = self._producer = self._bus.new_producer(
            transactional_id=f"schema-registry.{self._ledger.topic}",
            acks="all",
            transaction_timeout_ms=_TRANSACTION_MS,
            batch_size=1_000_000,
        )
        await producer.init()
        await self._follower.check_identity()
        await self._follower.catch_up()
        await self._follower.burn()
        return producer

    async def _drop_pen(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            try:
                await producer.aclose()
            except EventBusError as error:
                logger.debug("closing the writer of topic %r: %s", self._ledger.topic, error)

    async def _store(self, producer: Producer, written: list[CoordinatorRecord]) -> int:
        """The offset of the first record. Raises _Overtaken when it is not the one that was expected."""
        await producer.begin()
        handles: list[Delivery] = []
        for key, value in written:
            while True:
                try:
                    handles.append(producer.send_nowait(self._ledger.topic, value, key=key, partition=0))
                    break
                except BufferExhausted:
                    await producer.wait_for_room()
        await producer.flush()
        offsets = [handle.result().offset for handle in handles]
        expected = self._ledger.expected
        if offsets[0] != expected or offsets[-1] != expected + len(written) - 1:
            await producer.abort()
            raise _Overtaken(f"another writer was at offset {expected}")
        try:
            await producer.commit()
        except (TransactionOutcomeUnknown, RequestTimedOut):
            if not await self._is_there(offsets[0]):
                raise _Overtaken("what became of the transaction was unknown, and it is not there") from None
        return offsets[0]

    async def _is_there(self, offset: int) -> bool:
        """Was a commit that nobody answered done? Whoever takes the pen sees it through, or ends it."""
        await self._drop_pen()
        self._follower.lock.release()
        try:
            await self._take_pen()
        finally:
            with anyio.CancelScope(shield=True):
                await self._follower.lock.acquire()
        return offset in self._follower.fetched

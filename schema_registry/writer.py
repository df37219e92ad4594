"""The only task that writes: waiting requests are decided in order and stored in one transaction.

A batch is valid only if its first record has the expected offset. Confluent's registry writes without the transactional
id: if such a record came first, the batch is aborted, the record is read, and the requests are decided again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio

from eventbus.client.ledger_writer import LedgerBatch, LedgerRecord, LedgerWriter
from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.errors import EventBusError, RecordTooLarge, RegistryRefused
from eventbus.types import RecordMetadata
from schema_registry import errors
from schema_registry.errors import RegistryError
from schema_registry.follower import Follower
from schema_registry.ledger import Ledger

if TYPE_CHECKING:
    from eventbus import EventBus

logger = logging.getLogger("schema_registry")
T = TypeVar("T")

_AT_ONCE = 500
"""Requests in a transaction."""
_TRANSACTION_MS = 30_000


class _Request(Generic[T]):
    """A request whose caller waits for the reply."""

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


class Writer:
    """Decides requests in their order. It takes the topic's transactional id when there is something to write."""

    def __init__(self, bus: EventBus, ledger: Ledger, follower: Follower, timeout_ms: int) -> None:
        self._bus = bus
        self._ledger = ledger
        self._follower = follower
        self._timeout_ms = timeout_ms
        self._waiting: deque[_Request[Any]] = deque()
        self._wanted = anyio.Event()
        self._log = LedgerWriter(
            bus, f"schema-registry.{ledger.topic}", self._taken,
            deciding=lambda: follower.lock, transaction_timeout_ms=_TRANSACTION_MS,
        )  # fmt: skip
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._ended.set()

    def start(self) -> None:
        self._ended = anyio.Event()
        self._bus.context.start_soon(self._run)

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
                await self._log.release()

    async def _write(self, batch: list[_Request[Any]]) -> None:
        """Write until every request of the batch has its reply, or all callers have given up."""

        async def decide() -> LedgerBatch:
            self._follower.check()
            return self._decide(batch)

        try:
            await self._log.write(decide, lambda: any(not request.done.is_set() for request in batch))
        except RecordTooLarge as error:
            await self._write_apart(batch, error)
        except Exception as error:  # this task belongs to the bus: an error that leaves it ends the bus
            if not isinstance(error, EventBusError):
                logger.exception("Writing to topic %r failed", self._ledger.topic)
            for request in batch:
                request.refuse(error)

    async def _write_apart(self, batch: list[_Request[Any]], error: RecordTooLarge) -> None:
        """Write each request alone, because a record that is too large must not fail the other requests."""
        if len(batch) == 1:
            batch[0].refuse(RegistryError(422, 42209, f"the schema is larger than the topic takes: {error}"))
            return
        for request in batch:
            await self._write([request])

    def _decide(self, batch: list[_Request[Any]]) -> LedgerBatch:
        """Return the records of all requests. Each request sees the records of earlier requests of the batch. A refusal
        that does not depend on these is returned at once."""
        ledger, topic = self._ledger, self._ledger.topic
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
                request.error = error  # it depends on records that are not stored yet, so it is returned when they are
                replies.append((request, None))
                continue
            except Exception as error:  # a fault of ours must not stop the others
                logger.exception("a request of the schema registry failed")
                request.refuse(error)
                continue
            request.error = None
            ledger.propose(decision.records)
            written += decision.records
            replies.append((request, decision.reply))

        def stored(places: Sequence[RecordMetadata]) -> None:
            if written:
                ledger.settle(written, places[0].offset)
            for request, reply in replies:
                request.answer(reply)

        return LedgerBatch([LedgerRecord(topic, 0, key, value) for key, value in written], stored, ledger.expected)

    async def _taken(self) -> None:
        """Read what the writer before this one has written."""
        self._follower.check()
        await self._follower.check_identity()
        await self._follower.catch_up()
        await self._follower.burn()
        self._ledger.undo()

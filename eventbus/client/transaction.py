"""Transactions: records of several topics, and the offsets they came from, all or nothing (KIP-98)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.producing.joining import outside_calls, refuse_transaction
from eventbus.client.sending import Sending
from eventbus.errors import (
    ConfigError,
    EventBusError,
    InvalidTxnState,
    ProducerFenced,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from eventbus.types import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.client.producer import GroupLike, Producer

logger = logging.getLogger("eventbus.transaction")

Outcome = Literal["open", "committed", "aborted", "unknown"]

_PATIENCE_SECONDS = 10
"""How long a transaction waits for its turn before it says so."""
_IDLE_PRODUCERS = 100
"""The limit of idle producers that a bus keeps, because a program may use a new id for each transaction."""


class Turn(Protocol):
    """Lends a transaction its producer."""

    async def take(self, transaction: Transaction) -> Producer: ...

    async def give_back(self, *, usable: bool) -> None: ...


class Transaction(Sending):
    """Records and offsets that become visible together, or not at all.

    ::

        async with bus.transaction("importer-1") as tx:
            await tx.send("orders", order, key="o-1")
            await tx.send_offsets({partition: next_offset}, consumer)

    Leaving the block commits; an exception in it aborts, and propagates. The commit waits for everything that was sent,
    so `send_nowait` is enough inside. Committing raises TransactionAborted (run the block again), ProducerFenced
    (another producer took the id over: stop), TransactionOutcomeUnknown (read what it wrote before running it again).
    `outcome` holds the result.
    """

    def __init__(self, transactional_id: str, turn: Turn, *, independent: bool = False) -> None:
        self.transactional_id = transactional_id
        self._turn = turn
        self._independent = independent
        self._producer: Producer | None = None
        self._entered = False
        self._left = False
        self._reusable = False
        """True if the producer can be used for another transaction."""
        self._outcome: Outcome = "open"

    def __repr__(self) -> str:
        return f"<Transaction of {self.transactional_id!r}, {self._outcome}>"

    @property
    def outcome(self) -> Outcome:
        """ "open", "committed" or "aborted"; "unknown" if the commit was requested but not answered.

        If the block is cancelled, it still completes a decision that was made, and aborts otherwise, so the outcome is
        known. After a second cancellation it may be unknown; call `settle` then.
        """
        return self._outcome

    async def __aenter__(self) -> Transaction:
        if self._entered:
            raise InvalidTxnState(f"{self!r} has been used: a transaction is one `async with`; open another")
        if not self._independent:
            refuse_transaction(self.transactional_id)
        self._entered = True
        producer = await self._turn.take(self)
        try:
            with outside_calls():  # whether it may begin here has been decided
                await producer.begin()
        except BaseException as error:
            self._outcome = "aborted"
            await self._turn.give_back(usable=isinstance(error, ProducerFenced))
            raise
        self._producer = producer
        producer.is_in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        producer = self._producer
        assert producer is not None
        self._left = True
        self._reusable = producer.is_in_block = False
        try:
            if error is None:
                await self._commit(producer)
            else:
                await self._abort(producer, error)
        finally:
            await self._turn.give_back(usable=self._reusable)

    async def _commit(self, producer: Producer) -> None:
        try:
            await producer.commit()
        except TransactionOutcomeUnknown:
            self._outcome = "unknown"
            raise
        except (TransactionAborted, ProducerFenced):
            self._outcome = "aborted"
            self._reusable = True  # a fenced producer raises the same error again in its next user
            raise
        except EventBusError as error:  # the log could not even write the decision down
            await self._abort(producer, error)
            raise TransactionAborted(f"the transaction of {self.transactional_id!r} was aborted: {error}") from error
        except BaseException:  # cancelled
            self._outcome = "unknown"
            self._reusable = True  # its next user settles this transaction first
            with producer.shutdown_work.shield():
                await self.settle()
            raise
        self._outcome = "committed"
        self._reusable = True

    async def _abort(self, producer: Producer, reason: BaseException) -> None:
        """Abort, even if that cannot be written: no producer is left that could commit. ``reason`` is raised to the
        caller.
        """
        self._outcome = "aborted"
        try:
            with producer.shutdown_work.shield() as scope:
                await producer.abort()
            self._reusable = not scope.cancelled_caught
            if scope.cancelled_caught:
                logger.warning(
                    "the abort of a transaction of %r was not answered in time: the next producer of the id aborts it",
                    self.transactional_id,
                )
        except ProducerFenced as error:
            if not isinstance(reason, ProducerFenced):
                logger.warning("%s", error)
            self._reusable = True
        except EventBusError as error:
            logger.warning("the abort of a transaction of %r was not written: %s", self.transactional_id, error)

    async def settle(self) -> Outcome:
        """Determine the outcome of an interrupted commit: complete it if it was decided, else abort."""
        producer = self._producer
        if self._outcome == "unknown" and producer is not None:
            try:
                try:
                    await producer.abort()
                    self._outcome = "aborted"
                except InvalidTxnState:  # the commit was requested, and cannot be taken back
                    await producer.commit()
                    self._outcome = "committed"
            except EventBusError as error:
                logger.warning("the outcome of a transaction of %r is unknown: %s", self.transactional_id, error)
        return self._outcome

    def _sending_producer(self, transactional: bool = True) -> Producer:
        if not transactional:
            raise ConfigError(
                "A transaction was given transactional=False. What is sent with it is part of it. Send the record with "
                "the bus"
            )
        return self._open_producer("send")

    def _open_producer(self, what: str) -> Producer:
        if self._producer is None or self._left:
            when = f"is over ({self._outcome})" if self._left else "has not begun: use it as `async with ... as tx:`"
            raise InvalidTxnState(f"cannot {what}: the transaction of {self.transactional_id!r} {when}")
        return self._producer

    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], group: GroupLike) -> None:
        """Commit a group's offsets with the transaction; see `Producer.send_offsets`."""
        await self._open_producer("send offsets").send_offsets(offsets, group)


class OwnProducer:
    """The turn of a producer that belongs to the caller, which waits for no other transaction."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def take(self, transaction: Transaction) -> Producer:
        return self._producer

    async def give_back(self, *, usable: bool) -> None:
        """Keep the producer open."""


class _Shared:
    """The producer of one transactional id, and the task that holds it."""

    def __init__(self) -> None:
        self.turn = anyio.Semaphore(1, fast_acquire=True)
        self.wanted = 0
        """Number of tasks that hold it or wait for it."""
        self.holder: int | None = None
        """Id of the task that holds it."""
        self.last: Transaction | None = None
        self.timeout_ms: int | None = None
        self.producer: Producer | None = None

    async def aclose(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            await producer.aclose()


class Transactions:
    """The transactions of a bus. Each transactional id has its own producer, and at most one open transaction."""

    def __init__(self, open_producer: Callable[..., Producer], timers: Timers) -> None:
        self._open_producer = open_producer
        self._timers = timers
        self._shared: dict[str, _Shared] = {}
        """Maps transactional ids to their producers, the least recently used first."""

    def transaction(self, transactional_id: str, timeout_ms: int | None, independent: bool) -> Transaction:
        turn = _SharedProducer(self, transactional_id, timeout_ms)
        return Transaction(transactional_id, turn, independent=independent)

    async def take(self, transactional_id: str, timeout_ms: int | None, transaction: Transaction) -> _Shared:
        shared = self._shared.get(transactional_id)
        if shared is None:
            shared = self._shared[transactional_id] = _Shared()
        task = anyio.get_current_task().id
        if shared.holder == task:
            raise InvalidTxnState(
                f"a transaction of {transactional_id!r} is open in this very task and would wait for itself: use the "
                "one that is open, or another transactional id"
            )
        shared.wanted += 1
        try:
            await _acquire(shared.turn, transactional_id, self._timers)
        except BaseException:
            shared.wanted -= 1
            raise
        shared.holder = task
        try:
            await self._prepare(shared, transactional_id, timeout_ms)
        except BaseException:
            await self.give_back(shared, usable=True)
            raise
        shared.last = transaction
        return shared

    async def _prepare(self, shared: _Shared, transactional_id: str, timeout_ms: int | None) -> None:
        """Make sure that the producer can begin a transaction."""
        last, shared.last = shared.last, None
        asks_again = last is not None and last.outcome == "unknown"
        if last is not None and asks_again and await last.settle() == "unknown":
            await shared.aclose()
        if timeout_ms is not None and timeout_ms != shared.timeout_ms:
            await shared.aclose()
        if shared.producer is None:
            await self._make_room()
            timeout = {} if timeout_ms is None else {"transaction_timeout_ms": timeout_ms}
            shared.producer = self._open_producer(
                transactional_id=transactional_id, acks="all", enable_idempotence=True, **timeout
            )
            shared.timeout_ms = timeout_ms

    async def _make_room(self) -> None:
        idle = [name for name, shared in self._shared.items() if not shared.wanted]
        for name in idle[: max(len(idle) - _IDLE_PRODUCERS + 1, 0)]:
            await self._shared.pop(name).aclose()

    async def give_back(self, shared: _Shared, *, usable: bool) -> None:
        try:
            if not usable:
                await shared.aclose()
        finally:
            shared.holder = None
            shared.wanted -= 1
            shared.turn.release()


async def _acquire(turn: anyio.Semaphore, transactional_id: str, timers: Timers) -> None:
    """Wait, but warn if it takes long: two tasks may wait for each other, or a task for one that waits for it."""
    with timers.move_on_after(_PATIENCE_SECONDS) as scope:
        await turn.acquire()
    if scope.cancelled_caught:
        logger.warning(
            "a transaction of %r has waited %d s for an open transaction of this id in another task. It waits on: end "
            "that one, always open several ids in one order, and none in a task that an open transaction waits for",
            transactional_id, _PATIENCE_SECONDS,
        )  # fmt: skip
        await turn.acquire()


class _SharedProducer:
    """The turn of a transaction of the bus."""

    def __init__(self, transactions: Transactions, transactional_id: str, timeout_ms: int | None) -> None:
        self._transactions = transactions
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._shared: _Shared | None = None

    async def take(self, transaction: Transaction) -> Producer:
        self._shared = shared = await self._transactions.take(self._id, self._timeout_ms, transaction)
        assert shared.producer is not None
        return shared.producer

    async def give_back(self, *, usable: bool) -> None:
        assert self._shared is not None
        await self._transactions.give_back(self._shared, usable=usable)

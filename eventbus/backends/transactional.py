"""The transactions of a producer, as every log has them: states, and the refusal of calls in the wrong state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Generic, NoReturn, TypeVar

import anyio

from eventbus.errors import EventBusError, InvalidTxnState, ProducerClosed, TransactionAborted
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition


class State(Enum):
    """The producer's state; the values are used in error messages."""

    FRESH = "its transactional id is not taken yet: init() first"
    READY = "no transaction is open: begin one first"
    OPEN = "a transaction is open: commit or abort it first"
    SPOILED = "the open transaction has failed: abort it"
    COMMITTING = "its transaction is being committed: call commit again to learn the outcome"
    ABORTING = "its transaction is being aborted: call abort again to see it through"
    LOST = "it is finished: open a new producer"


class Transactions(ABC):
    """The consecutive transactions of one producer."""

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id
        self._state = State.FRESH
        self._error: EventBusError | None = None
        """Why the transaction can only be aborted, or why the producer cannot be used any more."""
        self._initialising = anyio.Lock()

    @abstractmethod
    async def init(self) -> None: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def abort(self) -> None: ...

    def _check_not_lost(self, cause: EventBusError | None = None) -> None:
        if self._state is State.LOST:
            raise self._refusal("") from cause

    def _require(self, state: State, what: str) -> None:
        if self._state is not state:
            raise self._refusal(what)

    def _refusal(self, what: str) -> EventBusError:
        """Return the error why ``what`` is not possible now."""
        if self._state is State.LOST:
            assert self._error is not None
            return type(self._error)(str(self._error))
        if self._state is State.SPOILED:
            refusal = TransactionAborted(
                f"cannot {what}: the transaction of {self._id!r} has failed and can only be aborted: {self._error}"
            )
            refusal.__cause__ = self._error  # so that callers can distinguish a timeout from a refused record
            return refusal
        return InvalidTxnState(f"cannot {what} with the producer of {self._id!r}: {self._state.value}")

    def _taken_over(self) -> str:
        return (
            f"another producer has taken over the transactional id {self._id!r}: the transaction of this one "
            "was aborted, and it may write no more; stop it"
        )


TransactionsT = TypeVar("TransactionsT", bound=Transactions)


class TransactionalProducer(Generic[TransactionsT]):
    """The calls of a producer for its transactions, see `BackendProducer`."""

    def __init__(self) -> None:
        self.on_topics_changed: Callable[[], object] = nothing
        self.transactions: TransactionsT | None = None
        self._closed = False

    async def init_transactions(self) -> None:
        await self._transactional().init()

    def begin_transaction(self) -> None:
        self._transactional().begin()

    async def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata
    ) -> None:
        await self._transactional().send_offsets(offsets, group)

    async def commit_transaction(self) -> None:
        await self._transactional().commit()

    async def abort_transaction(self) -> None:
        await self._transactional().abort()

    def _transactional(self) -> TransactionsT:
        if self._closed:
            refuse_closed()
        if self.transactions is None:
            raise InvalidTxnState(
                "this producer has no transactional id: open one with bus.new_producer(transactional_id=...), "
                "or use `async with bus.transaction(id)`"
            )
        return self.transactions


def refuse_closed(*_: Any, **__: Any) -> NoReturn:
    """Raise ProducerClosed, in place of the calls of a closed producer."""
    raise ProducerClosed("this producer is closed: send inside `async with`, or open a new one")


def nothing(*_: object) -> None:
    """Do nothing: the default callback."""

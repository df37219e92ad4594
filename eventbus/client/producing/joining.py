"""Determine the transaction that a send joins: that of the handler's call in which it is made.

A context variable holds the call. It is inherited by tasks that the call starts, by threads of `anyio.to_thread` and
`asyncio.to_thread`, and by what such a thread runs in the event loop. It is None outside of calls of exactly-once
handlers and of handlers with ``tx=``, so that a send costs only this check.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from eventbus.backends.delivery import OnDelivery
from eventbus.client.handling.current_record import task_id
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.client.producer import Producer

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("eventbus.runner")


_CALLS_WATCHED = 1_000
"""The first calls have separate scopes. A handler that sends from its tasks does so within that many."""


class SendingCall(Protocol):
    """A handler's call that affects how records are sent."""

    def producer_for(self, producer: Producer, what: str) -> Producer:
        """Return the producer to send with in place of ``producer``. Raises ConfigError."""
        ...

    def check_current(self, what: str) -> None:
        """Raise ConfigError if the call is over and its transaction must not be extended."""
        ...

    def refuse_transaction(self, transactional_id: str | None) -> None:
        """Raise ConfigError if another transaction must not begin here."""
        ...

    def refuse_waiting(self, what: str, *, for_own: bool) -> None:
        """Raise ConfigError if ``what`` would wait for the end of the call's own transaction.

        With ``for_own`` it waits for a record that this call sent, if it has sent one.
        """
        ...


sending_call: ContextVar[SendingCall | None] = ContextVar("eventbus_sending_call", default=None)
"""The call in which this code runs; None for most code."""
call_here = sending_call.get
"""Return the call that this code runs in."""


def joined(producer: Producer, what: str) -> Producer:
    """Return the producer to send with here in place of ``producer``. Raises ConfigError."""
    call = call_here()
    return producer if call is None else call.producer_for(producer, what)


def refuse_waiting(what: str, *, for_own: bool = False) -> None:
    """Raise ConfigError in an exactly-once handler if ``what`` waits for a reader of a record that it sends.

    With ``for_own`` it waits for a record sent before, perhaps by the handler.
    """
    call = call_here()
    if call is not None:
        call.refuse_waiting(what, for_own=for_own)


def refuse_transaction(transactional_id: str | None) -> None:
    """Raise ConfigError in an exactly-once handler, where a second transaction would begin."""
    call = call_here()
    if call is not None:
        call.refuse_transaction(transactional_id)


def check_current() -> None:
    """Raise ConfigError in a task or thread that has outlived its handler's call. See `Producer.joined_to`."""
    call = call_here()
    if call is not None:
        call.check_current("send")


@contextmanager
def outside_calls() -> Generator[None]:
    """Run the bus's own work in the caller's context, but not as a part of the call. Tasks started inside inherit that.

    The first exactly-once handler to need a task of the bus starts it, but the task outlives the call and serves all
    callers.
    """
    token = sending_call.set(None)
    try:
        yield
    finally:
        sending_call.reset(token)


def outside_of_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that it runs outside of calls."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with outside_calls():
            return function(*args, **kwargs)

    return call


def called_here(callback: OnDelivery) -> OnDelivery:
    """Wrap a callback, which the producer's task calls, so that its sends count as sent here."""
    context = copy_context()
    return lambda metadata, error: context.run(callback, metadata, error)


class _Scope:
    """Marks code that may add to a transaction: one call, or all calls of the transaction."""

    __slots__ = ("_transaction",)

    def __init__(self, transaction: CallTransaction) -> None:
        self._transaction = transaction

    def producer_for(self, producer: Producer, what: str) -> Producer:
        if producer.is_in_block:
            return producer
        self.check_current(what)
        return self._transaction.producer_for(producer, what)

    def check_current(self, what: str) -> None:
        transaction = self._transaction
        if transaction.scope is not self:
            raise ConfigError(
                f"{what} was called after exactly-once handler {transaction.handler!r} had returned. Its transaction "
                "does not wait for tasks and threads that the handler does not await. Await them in the handler, or "
                "pass transactional=False to send outside of the transaction"
            )

    def refuse_transaction(self, transactional_id: str | None) -> None:
        raise ConfigError(
            f"A transaction of {transactional_id!r} was begun in exactly-once handler {self._transaction.handler!r}, "
            "whose own transaction is open. A transaction cannot be part of another. Send with the handler's bus "
            "(bus.send), which joins the open transaction, or use bus.transaction(id, independent=True), which commits "
            "whatever becomes of the handler"
        )

    def refuse_waiting(self, what: str, *, for_own: bool) -> None:
        if for_own and not self._transaction.has_sent:
            return
        raise ConfigError(
            f"{what} was called in exactly-once handler {self._transaction.handler!r} and waits for a record that "
            "no consumer reads before the handler's transaction is committed. Send it with transactional=False, "
            "outside of the transaction. Then a retry of the handler sends it again"
        )


class CallTransaction:
    """The open transaction of an exactly-once handler for one partition, and the code that may add to it now.

    A transaction holds many calls. Each has a separate scope, so that a task that outlives its call is not considered
    part of the next. A scope costs a tenth of an empty call. If none of many calls has sent from a task or thread other
    than its own, the calls of a transaction share a scope from then on. A task that outlives its call and then sends
    for the first time may join the transaction of a later call, but it is never outside of a transaction.
    """

    def __init__(self, handler: str, call_number: Callable[[], object]) -> None:
        """``call_number`` returns the number of the current call, which differs for each call of a transaction."""
        self.handler = handler
        self.scope: _Scope | None = None
        """The scope of the last call that began; None between transactions."""
        self._call_number = call_number
        self._sent_by: object = None
        """The number of the last call that has sent something."""
        self._task_id = 0
        """The task that makes the calls."""
        self._left = _CALLS_WATCHED
        """How many further calls get separate scopes."""
        self._producer: Producer | None = None
        self._twins: dict[Producer, Producer] = {}
        """Maps producers of the bus to the producers that send in their place in the transaction."""

    @contextmanager
    def calls_of(self, producer: Producer) -> Generator[None]:
        """Calls are made inside, while a transaction of ``producer`` is open."""
        if producer is not self._producer:
            self._producer = producer
            self._twins = {producer: producer}
        self._sent_by, self._task_id = None, task_id()
        self._enter()
        try:
            yield
        finally:
            self.scope = None
            sending_call.set(None)  # this task continues with the bus's own work

    def _enter(self) -> None:
        self.scope = scope = _Scope(self)
        sending_call.set(scope)

    def begins(self) -> None:
        """Note that a call begins here."""
        if self._left > 0:
            self._left -= 1
            self._enter()
        else:  # the call's context is a fresh copy of that in which the transaction began, with its first scope
            sending_call.set(self.scope)

    def beginning(self, begin: Callable[[int], Any]) -> Callable[[int], Any]:
        """Wrap ``begin``, which begins the call of a record by its index, so that the call is in the transaction."""
        if self._left <= 0:
            return begin

        def begin_in_scope(index: int) -> Any:
            self.begins()
            return begin(index)

        return begin_in_scope

    @property
    def has_sent(self) -> bool:
        """True if the call that is made now has sent something."""
        return self._sent_by is not None and self._sent_by == self._call_number()

    def producer_for(self, producer: Producer, what: str) -> Producer:
        """Return the twin of ``producer`` in the transaction, with which the current call sends something.

        Raises ConfigError for a producer that cannot have one.
        """
        twin = self._twins.get(producer)
        if twin is None:
            own = self._producer
            assert own is not None, "a call begins in an open transaction"
            if not producer.joins or producer.family is not own.family:
                raise self._cannot_join(producer, own, what)
            twin = self._twins[producer] = producer.joined_to(own)
            self._twins[twin] = twin
        self._sent_by = self._call_number()
        if task_id() != self._task_id:
            self._left = sys.maxsize
        return twin

    def _cannot_join(self, producer: Producer, own: Producer, what: str) -> ConfigError:
        if producer.family is own.family:
            who, instead = f"{producer.name} that the bus opened for the program", "Send with the handler's bus"
        else:
            who, instead = "the producer of another bus", "Send to a topic of the handler's own bus"
        return ConfigError(
            f"{what} was called in exactly-once handler {self.handler!r} with {who}. It cannot join the handler's "
            f"transaction, so a retry of the handler would send the record again. {instead} (bus.send), or pass "
            "transactional=False to send outside of the transaction"
        )


class DatabaseCalls:
    """The calls of a handler with ``tx=``. Records that they send are not part of the database's transaction."""

    def __init__(self, handler: str) -> None:
        self._handler = handler
        self._has_warned = False

    def producer_for(self, producer: Producer, what: str) -> Producer:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Handler %r calls %s inside of its database transaction (tx=). The record is not part of the "
                "transaction: it stays when that is rolled back, and is sent again when the handler is retried. Write "
                "it with outbox.publish(session, ...), which is part of the transaction, or pass transactional=False",
                self._handler, what,
            )  # fmt: skip
        return producer

    def check_current(self, what: str) -> None: ...

    def refuse_transaction(self, transactional_id: str | None) -> None: ...

    def refuse_waiting(self, what: str, *, for_own: bool) -> None: ...

    def inside(self, function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
        """Wrap the handler's function so that its sends are noticed."""

        def call(**arguments: Any) -> Any:
            token = sending_call.set(self)
            try:
                return function(**arguments)
            finally:
                sending_call.reset(token)

        async def call_async(**arguments: Any) -> Any:
            token = sending_call.set(self)
            try:
                return await function(**arguments)
            finally:
                sending_call.reset(token)

        return call_async if is_async else call

"""Which transaction a send joins: that of the handler's call that it is made in.

A context variable holds the call. Tasks that the call starts inherit it, so do threads of `anyio.to_thread` and
`asyncio.to_thread`, and what such a thread has the event loop do. Outside of calls of exactly-once handlers and of
handlers with ``tx=`` it is None, and a send costs one look at it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from eventbus.backends.delivery import OnDelivery
from eventbus.client.handling.here import task_id
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.client.producer import Producer

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger("eventbus.runner")


_CALLS_WATCHED = 1_000
"""The first calls have separate scopes. A handler that sends from its tasks does so within that many."""


class SendingCall(Protocol):
    """A call of a handler whose sends are not the business of the producer alone."""

    def producer_for(self, producer: Producer, what: str) -> Producer:
        """Return the producer to send with in place of ``producer``. Raises ConfigError."""
        ...

    def check_current(self, what: str) -> None:
        """Raises ConfigError when the call is over and its transaction is not to be added to."""
        ...

    def refuse_transaction(self, transactional_id: str | None) -> None:
        """Raises ConfigError when another transaction must not begin here."""
        ...

    def refuse_waiting(self, what: str, *, for_own: bool) -> None:
        """Raises ConfigError when ``what`` would wait for the end of the call's own transaction.

        ``for_own``: it waits for a record of this call, if this call has sent one.
        """
        ...


sending_call: ContextVar[SendingCall | None] = ContextVar("eventbus_sending_call", default=None)
"""The call that this code runs in; None for most code."""
call_here = sending_call.get
"""Return the call that this code runs in."""


def joined(producer: Producer, what: str) -> Producer:
    """Return the producer to send with here in place of ``producer``. Raises ConfigError."""
    call = call_here()
    return producer if call is None else call.producer_for(producer, what)


def refuse_waiting(what: str, *, for_own: bool = False) -> None:
    """Raises ConfigError in an exactly-once handler when ``what`` waits for a reader of a record that it sends.

    ``for_own``: it waits for a record that was sent before, maybe by the handler.
    """
    call = call_here()
    if call is not None:
        call.refuse_waiting(what, for_own=for_own)


def refuse_transaction(transactional_id: str | None) -> None:
    """Raises ConfigError in an exactly-once handler, where a second transaction would begin."""
    call = call_here()
    if call is not None:
        call.refuse_transaction(transactional_id)


def check_current() -> None:
    """Raises ConfigError in a task or thread that a handler left behind. See `Producer.joined_to`."""
    call = call_here()
    if call is not None:
        call.check_current("send")


@contextmanager
def outside_calls() -> Generator[None]:
    """Run the bus's own work in the caller's context, but not as a part of the call. Tasks begun inside inherit that.

    A task of the bus that an exactly-once handler happens to start, as the first to need it, outlives the call and
    works for all callers.
    """
    token = sending_call.set(None)
    try:
        yield
    finally:
        sending_call.reset(token)


def outside_of_calls(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function such that it runs outside of calls."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with outside_calls():
            return function(*args, **kwargs)

    return call


def called_here(callback: OnDelivery) -> OnDelivery:
    """Return the callback such that what it sends counts as sent here. Its own call is made by the producer's task."""
    context = copy_context()
    return lambda metadata, error: context.run(callback, metadata, error)


class _Scope:
    """The calls of one transaction, or one of them: code that runs in it may add to the transaction."""

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

    A transaction holds many calls. Each has a separate scope, so that a task that outlives its call is not taken for a
    part of the next call. A scope costs as much as a tenth of an empty call. So after many calls of which none has sent
    from another task or thread than its own, those of a transaction share one. Then what such a task sends for the
    first time may still join the transaction of a later call; it is never outside of one.
    """

    def __init__(self, handler: str, call_number: Callable[[], object]) -> None:
        """``call_number``: of the call that is made now; another one for each call of a transaction."""
        self.handler = handler
        self.scope: _Scope | None = None
        """The scope of the last call that began; None between two transactions."""
        self._call_number = call_number
        self._sent_by: object = None
        """The number of the call that has sent something last."""
        self._task_id = 0
        """The task that makes the calls."""
        self._left = _CALLS_WATCHED
        """The number of calls, from now on, that get separate scopes."""
        self._producer: Producer | None = None
        self._twins: dict[Producer, Producer] = {}
        """The key is a producer of the bus, the value the producer that sends in its place in the transaction."""

    @contextmanager
    def calls_of(self, producer: Producer) -> Generator[None]:
        """Calls are made inside while a transaction of ``producer`` is open."""
        if producer is not self._producer:
            self._producer = producer
            self._twins = {producer: producer}
        self._sent_by, self._task_id = None, task_id()
        self._enter()
        try:
            yield
        finally:
            self.scope = None
            sending_call.set(None)  # in the task that makes the calls, whose next steps are the bus's own

    def _enter(self) -> None:
        self.scope = scope = _Scope(self)
        sending_call.set(scope)

    def begins(self) -> None:
        """A call begins here."""
        if self._left > 0:
            self._left -= 1
            self._enter()
        else:  # the context of a call is a fresh copy of the one in which the transaction began, with its first scope
            sending_call.set(self.scope)

    def beginning(self, begin: Callable[[int], Any]) -> Callable[[int], Any]:
        """Return ``begin``, which begins the call of the record with an index, as a part of the transaction."""
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
    """The calls of a handler with ``tx=``: what they send is not part of the database's transaction."""

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
        """Return the handler's function, such that what it sends is noticed."""

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

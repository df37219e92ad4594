"""The bus for programs without an event loop, and for plain threads alongside one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import anyio
import anyio.from_thread
import anyio.lowlevel

from eventbus.backends.process_exit import carrying_exits, raising_exits
from eventbus.client.admin import Admin
from eventbus.client.bus import EventBus
from eventbus.client.consumer import Consumer
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.producer import Producer
from eventbus.client.sending import Sending, SendNowaitOptions
from eventbus.client.threads import Bridge, settle
from eventbus.client.transaction import Outcome, Transaction
from eventbus.durations import Milliseconds
from eventbus.errors import BufferExhausted, ConfigError, EventBusError, InvalidTxnState
from eventbus.forks import ForkLock, never_free, watch_forks
from eventbus.types import ConsumerRecord, KeyT, RecordMetadata, ValueT

if TYPE_CHECKING:
    from eventbus.client.consuming.fetch_buffer import ConsumerRecords
    from eventbus.client.keywords import NewConsumerOptions, ProducerOptions
    from eventbus.types import ReadKeyT, ReadValueT

R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

BridgeOf = Callable[[str], Bridge | None]
"""Returns the access to the bus. The argument names the call, for the error in a forked child."""


_starting = ForkLock()
"""Held while a bus starts, so that the second of two threads that enter at once joins the first."""


class _OpenHere(threading.local):
    """The transactional ids of this thread's open transactions."""

    def __init__(self) -> None:
        self.ids: set[str] = set()


_open_here = _OpenHere()


class _Asked:
    """Forwards calls from other threads to an object on the bus's loop."""

    def __init__(self, bridge: BridgeOf, it: Callable[[], Any]) -> None:
        self._bridge_of = bridge
        self._it = it

    def _bridge(self, what: str) -> Bridge:
        bridge = self._bridge_of(what)
        if bridge is None:
            raise ConfigError(f"{what}: the bus is not running; use it inside `with bus.blocking() as b:`")
        return bridge

    @staticmethod
    def _waits(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[_Asked, P], R]:
        """Call the async method of the same name on the loop, and wait for its result."""
        name = method.__name__

        @wraps(method)
        def call(self: _Asked, *args: P.args, **kwargs: P.kwargs) -> R:
            return self._bridge(name).call(lambda: getattr(self._it(), name)(*args, **kwargs), name)

        return call

    @staticmethod
    def _asks(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[_Asked, P], R]:
        """Call the plain method of the same name in the loop's thread."""
        name = method.__name__

        @wraps(method)
        def call(self: _Asked, *args: P.args, **kwargs: P.kwargs) -> R:
            return self._bridge(name).ask(lambda: getattr(self._it(), name)(*args, **kwargs), name)

        return call


class BlockingAdmin(_Asked):
    """`Admin` for threads: the same methods, which block."""

    create_topic = _Asked._waits(Admin.create_topic)
    create_topics = _Asked._waits(Admin.create_topics)
    delete_topics = _Asked._waits(Admin.delete_topics)
    list_topics = _Asked._waits(Admin.list_topics)
    describe_topics = _Asked._waits(Admin.describe_topics)
    add_partitions = _Asked._waits(Admin.add_partitions)
    alter_configs = _Asked._waits(Admin.alter_configs)
    list_offsets = _Asked._waits(Admin.list_offsets)
    group_offsets = _Asked._waits(Admin.group_offsets)
    alter_group_offsets = _Asked._waits(Admin.alter_group_offsets)
    delete_group_offsets = _Asked._waits(Admin.delete_group_offsets)
    list_groups = _Asked._waits(Admin.list_groups)
    describe_group = _Asked._waits(Admin.describe_group)
    describe_groups = _Asked._waits(Admin.describe_groups)
    delete_group = _Asked._waits(Admin.delete_group)
    remove_group_members = _Asked._waits(Admin.remove_group_members)
    delete_records = _Asked._waits(Admin.delete_records)
    list_transactions = _Asked._waits(Admin.list_transactions)
    describe_transactions = _Asked._waits(Admin.describe_transactions)
    abort_transaction = _Asked._waits(Admin.abort_transaction)
    fence_producer = _Asked._waits(Admin.fence_producer)
    describe_producers = _Asked._waits(Admin.describe_producers)


class _BlockingSending(_Asked):
    """Sending, which blocks. The values of `send_many` are read on the loop: a generator that blocks blocks the bus."""

    send_many = _Asked._waits(Producer.send_many)

    def send_nowait(self, topic: str, value: Any, **options: Unpack[SendNowaitOptions]) -> Future[RecordMetadata]:
        """Add one record to its batch and return a future of its metadata. `send_many` is faster for many records.

        Waits for buffer space where `Producer.send_nowait` raises BufferExhausted, and otherwise raises what it raises
        before the record is accepted. ``on_delivery`` is called on the loop's thread.
        """
        bridge = self._bridge("send_nowait")
        future: Future[RecordMetadata] = bridge.promise("send_nowait")

        def accept() -> None:
            delivery = self._it().send_nowait(topic, value, **options)
            delivery.add_callback(partial(_settle_delivery, future))

        try:
            try:
                bridge.ask(accept, "send_nowait")
            except BufferExhausted:
                transactional = options.get("transactional", True)
                bridge.call(lambda: self._it().wait_for_room(transactional=transactional), "send_nowait")
                bridge.ask(accept, "send_nowait")
        except BaseException:
            future.cancel()
            raise
        return future


class _BlockingScheduling(_BlockingSending):
    """Sending, also with a delay."""

    send = _Asked._waits(Sending.send)


def _settle_delivery(
    future: Future[RecordMetadata], metadata: RecordMetadata | None, error: EventBusError | None
) -> None:
    settle(future, metadata, error)


class BlockingProducer(_BlockingSending):
    """`Producer` for threads. Several threads may share it. Close it with `close` or a ``with`` block."""

    send = _Asked._waits(Producer.send)
    flush = _Asked._waits(Producer.flush)
    wait_for_room = _Asked._waits(Producer.wait_for_room)
    init = _Asked._waits(Producer.init)
    begin = _Asked._waits(Producer.begin)
    send_offsets = _Asked._waits(Producer.send_offsets)
    commit = _Asked._waits(Producer.commit)
    abort = _Asked._waits(Producer.abort)
    close = _Asked._waits(Producer.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._bridge("close").is_closed:  # otherwise it was flushed and closed with its bus
            self.close()


class BlockingConsumer(_Asked, Generic[KeyT, ValueT]):
    """`Consumer` for threads: ``with b.new_consumer("orders", group="audit") as consumer:``.

    Only one thread may poll it at a time. Iterating calls the loop for each record, `poll` once per batch.
    Listeners and callbacks are called on the loop's thread.
    """

    subscribe = _Asked._waits(Consumer.subscribe)
    unsubscribe = _Asked._waits(Consumer.unsubscribe)
    subscription = _Asked._asks(Consumer.subscription)
    assign = _Asked._waits(Consumer.assign)
    assignment = _Asked._asks(Consumer.assignment)
    assigned = _Asked._waits(Consumer.assigned)
    position = _Asked._waits(Consumer.position)
    positions = _Asked._waits(Consumer.positions)
    seek = _Asked._asks(Consumer.seek)
    seek_to_beginning = _Asked._waits(Consumer.seek_to_beginning)
    seek_to_end = _Asked._waits(Consumer.seek_to_end)
    seek_to_time = _Asked._waits(Consumer.seek_to_time)
    offsets_for_times = _Asked._waits(Consumer.offsets_for_times)
    pause = _Asked._asks(Consumer.pause)
    resume = _Asked._asks(Consumer.resume)
    paused = _Asked._asks(Consumer.paused)
    beginning_offsets = _Asked._waits(Consumer.beginning_offsets)
    end_offsets = _Asked._waits(Consumer.end_offsets)
    topic_ids = _Asked._waits(Consumer.topic_ids)
    lag = _Asked._waits(Consumer.lag)
    uncommitted = _Asked._waits(Consumer.uncommitted)
    commit = _Asked._waits(Consumer.commit)
    commit_nowait = _Asked._asks(Consumer.commit_nowait)
    commit_async = commit_nowait
    committed = _Asked._waits(Consumer.committed)
    group_metadata = _Asked._asks(Consumer.group_metadata)
    close = _Asked._waits(Consumer.aclose)
    _poll = _Asked._waits(Consumer.poll)
    _open = _Asked._waits(Consumer.__aenter__)
    _next = _Asked._waits(Consumer.__anext__)

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._bridge("close").is_closed:  # otherwise it was closed with its bus
            self.close()

    def poll(self, timeout_ms: Milliseconds = 1_000, max_records: int = 500) -> ConsumerRecords[KeyT, ValueT]:
        """Return up to ``max_records`` records, or an empty list after ``timeout_ms``; see `Consumer.poll`."""
        return self._poll(timeout_ms, max_records)

    def __iter__(self) -> Iterator[ConsumerRecord[KeyT, ValueT]]:
        return self

    def __next__(self) -> ConsumerRecord[KeyT, ValueT]:
        return self._next()


def _pass_on(entered: Future[None], left: Future[None]) -> None:
    if not left.cancelled():
        settle(entered, error=left.exception())


class _BlockRaised(Exception):
    """The block of a transaction has raised an exception in its own thread."""


class BlockingTransaction(_BlockingScheduling):
    """`Transaction` for threads: ``with b.transaction("importer-1") as tx:`` commits, or aborts if the block raises."""

    send_offsets = _Asked._waits(Transaction.send_offsets)

    def __init__(self, bridge: BridgeOf, transactional_id: str, transaction: Transaction) -> None:
        super().__init__(bridge, lambda: transaction)
        self.transactional_id = transactional_id
        self._transaction = transaction
        self._leaving: anyio.Event | None = None
        self._raised = False
        self._left: Future[None] | None = None

    @property
    def outcome(self) -> Outcome:
        """ "open", "committed", "aborted" or "unknown"; see `Transaction.outcome`."""
        return self._transaction.outcome

    def __enter__(self) -> Self:
        ids = _open_here.ids
        if self.transactional_id in ids:
            raise InvalidTxnState(
                f"a transaction of {self.transactional_id!r} is open in this very thread and would wait for itself: "
                "use the one that is open, or another transactional id"
            )
        bridge = self._bridge("transaction")
        entered: Future[None] = bridge.promise("transaction")
        self._left = bridge.start(partial(self._live, entered), "transaction")
        self._left.add_done_callback(partial(_pass_on, entered))
        try:
            entered.result()
        except BaseException:
            self._left.cancel()  # Ctrl-C during the wait. If entering has raised, there is nothing to cancel.
            raise
        ids.add(self.transactional_id)
        return self

    async def _live(self, entered: Future[None]) -> None:
        """Enter and leave in one task, which holds the turn. If the bus is cancelled, the transaction is aborted."""
        try:
            async with self._transaction:
                self._leaving = anyio.Event()
                settle(entered)
                await self._leaving.wait()
                if self._raised:
                    raise _BlockRaised
        except _BlockRaised:
            return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _open_here.ids.discard(self.transactional_id)
        self._raised = error is not None
        left, leaving = self._left, self._leaving
        assert left is not None and leaving is not None
        try:
            self._bridge("transaction").ask(leaving.set, "transaction")
            left.result()
        except EventBusError:
            if error is None:
                raise


class BlockingBus(_BlockingScheduling):
    """A bus for plain programs, and for plain threads alongside a bus that runs.

    ::

        with bus.blocking() as b:
            b.send("orders", order, key="o-1")
            with b.new_consumer("orders", group="audit") as consumer:
                for record in consumer: ...

    If the bus is not running, entering starts it on an event loop in a new thread, and leaving closes both. If several
    threads are inside the block, the last to leave closes it. If the bus is running already (in a plain handler's
    thread, or a web framework's), entering joins it and leaving closes nothing.

    Any number of threads may use it at once. Every call raises ConfigError on the loop's own thread, which would wait
    for itself, and if the bus closes before it can reply.
    """

    def __init__(self, bus: EventBus, bridge: BridgeOf) -> None:
        super().__init__(bridge, lambda: bus)
        self._bus = bus
        self._own: ExitStack | None = None
        self._inside = 0
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            never_free(own)  # leaving it, or freeing it at exit, would wait for the parent's event loop

    def __enter__(self) -> Self:
        _refuse_in_a_loop()
        with _starting.lock:
            if self._bridge_of("bus.blocking()") is None:
                with raising_exits(), ExitStack() as stack:
                    portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
                    stack.enter_context(portal.wrap_async_context_manager(carrying_exits(self._bus)))
                    self._own = stack.pop_all()
            self._inside += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        with _starting.lock:
            self._inside -= 1
            own, self._own = (None, self._own) if self._inside else (self._own, None)
        if own is None:
            return None
        with raising_exits():
            return own.__exit__(kind, error, traceback)

    @property
    def admin(self) -> BlockingAdmin:
        """Topics, offsets and groups."""
        return BlockingAdmin(self._bridge_of, lambda: self._bus.admin)

    flush = _Asked._waits(EventBus.flush)
    request = _Asked._waits(EventBus.request)
    cancel_scheduled = _Asked._waits(EventBus.cancel_scheduled)
    drain = _Asked._waits(EventBus.drain)
    health = _Asked._waits(EventBus.health)
    metrics = _Asked._asks(EventBus.metrics)

    def call(self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run an ``async def`` on the bus's loop and wait for its result. It can use all of `EventBus`."""
        return self._bridge("call").call(lambda: function(*args, **kwargs), "call")

    def submit(self, function: Callable[P, Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Like `call`, without waiting. Cancelling the future cancels the task."""
        return self._bridge("submit").start(lambda: function(*args, **kwargs), "submit")

    def transaction(
        self, transactional_id: str, *, timeout_ms: Milliseconds | None = None, independent: bool = False
    ) -> BlockingTransaction:
        """Write several records atomically: ``with b.transaction("importer-1") as tx:``; see `EventBus.transaction`."""
        bridge = self._bridge("transaction")
        opened = bridge.ask(
            lambda: self._bus.transaction(transactional_id, timeout_ms=timeout_ms, independent=independent),
            "transaction",
        )
        return BlockingTransaction(lambda _: bridge, transactional_id, opened)

    def new_producer(
        self, *, interceptors: Sequence[ProducerInterceptor] = (), **config: Unpack[ProducerOptions]
    ) -> BlockingProducer:
        """Open a producer with other settings; see `EventBus.new_producer`."""
        bridge = self._bridge("new_producer")
        one = bridge.ask(lambda: self._bus.new_producer(interceptors=interceptors, **config), "new_producer")
        return BlockingProducer(lambda _: bridge, lambda: one)

    @overload
    def new_consumer(
        self,
        *names: str,
        key: type[ReadKeyT] = bytes,
        value: type[ReadValueT] = bytes,
        **options: Unpack[NewConsumerOptions],
    ) -> BlockingConsumer[ReadKeyT | None, ReadValueT | None]: ...

    @overload
    def new_consumer(
        self, *names: str, key: Any = bytes, value: Any = bytes, **options: Unpack[NewConsumerOptions]
    ) -> BlockingConsumer[Any, Any]: ...

    def new_consumer(
        self, *names: str, key: Any = bytes, value: Any = bytes, **options: Unpack[NewConsumerOptions]
    ) -> BlockingConsumer[Any, Any]:
        """Return a consumer for an explicit loop, opened by ``with``; see `EventBus.new_consumer`."""
        bridge = self._bridge("new_consumer")
        one = bridge.ask(lambda: self._bus.new_consumer(*names, key=key, value=value, **options), "new_consumer")
        return BlockingConsumer(lambda _: bridge, lambda: one)


def _refuse_in_a_loop() -> None:
    try:
        anyio.lowlevel.current_token()
    except RuntimeError:
        return
    raise ConfigError(
        "bus.blocking() was entered on an event loop's thread, and would block it: use `async with bus:` there"
    )

"""PostgreSQL's NOTIFY and LISTEN, so that relays in other processes learn of new events at once.

A NOTIFY within the business transaction would serialize all commits of the server. A writer therefore sends it after
the commit, on a separate connection and at most every few milliseconds. If a NOTIFY is lost, the relay finds the events
at its next poll.

Both sides use a daemon thread with its own connection: writers need no event loop, relays may run under trio, and no
task blocks. The connection is made as the engine's connections are, with the same settings and listeners, but does not
count against the engine's pool.

Through a PgBouncer that pools transactions, LISTEN succeeds but notifications never arrive. A listener therefore sends
itself a NOTIFY over a second connection, and reports "polling" if it does not arrive.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import anyio.to_thread

from eventbus.forks import watch_forks
from outbox.database import Database

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine, Pool
    from sqlalchemy.ext.asyncio import AsyncEngine

P = ParamSpec("P")
T = TypeVar("T")
State = Literal["off", "connecting", "listening", "polling"]
"""``off``: not PostgreSQL, or an unsupported driver. ``polling``: LISTEN does not work at the moment and is retried."""

logger = logging.getLogger("outbox")

_DEBOUNCE_SECONDS = 0.02
"""Minimum time between two NOTIFYs of a process."""
_IDLE_SECONDS = 30.0
"""Idle time after which a writer's connection is closed."""
_PAUSE_SECONDS = 5.0
"""Pause after a NOTIFY that could not be sent."""
_ECHO_SECONDS = 3.0
"""How long a listener waits for its own NOTIFY."""
_CHECK_SECONDS = 60.0
"""How often a listener checks that notifications still arrive."""
_BACK_OFF_SECONDS = (1.0, 5.0, 30.0, 120.0)
_CLOSE_SECONDS = 2.0


# the separate connection ----------------------------------------------------------------------------------------------


def _engine_like(engine: Engine) -> Engine:
    """Return an engine with its own pool, whose connections are made as those of ``engine``."""
    from sqlalchemy import Engine

    return Engine(
        engine.pool.recreate(), engine.dialect, engine.url, execution_options={"isolation_level": "AUTOCOMMIT"}
    )


async def _call(engine: Engine, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that uses a plain engine, even if its driver is async. It may block, so run it in a dedicated
    thread.
    """
    if not engine.dialect.is_async:
        return fn(*args, **kwargs)
    from sqlalchemy.util import greenlet_spawn

    return await greenlet_spawn(fn, *args, **kwargs)


def _runner() -> asyncio.Runner:
    # Not the default loop: psycopg cannot wait on Windows' default loop, and a program's uvloop need not be used here.
    return asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)


def _send(connection: Connection, channel: str, payload: str = "") -> None:
    from sqlalchemy import text

    connection.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": channel, "payload": payload})


# writers --------------------------------------------------------------------------------------------------------------


class Notifier:
    """Sends NOTIFYs on a channel after events were committed."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._lock = threading.Lock()
        self._senders: WeakKeyDictionary[Pool, _Sender] = WeakKeyDictionary()
        """Senders by pool, because engines that differ only in their options share a pool."""
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._lock, self._senders = threading.Lock(), WeakKeyDictionary()  # the threads run only in the parent
        _senders.clear()

    def notify(self, engine: Engine) -> None:
        """Send a NOTIFY soon. Does nothing for databases other than PostgreSQL.

        Call it after the commit, from any thread. It neither blocks nor raises, because a NOTIFY is only a hint.
        """
        if engine.dialect.name != "postgresql":
            return
        with self._lock:
            sender = self._senders.get(engine.pool)
            if sender is None:
                sender = self._senders[engine.pool] = _Sender(self.channel)
        sender.ask(engine)

    def close(self) -> None:
        """Stop threads and close connections after pending NOTIFYs are sent. `notify` starts them again."""
        with self._lock:
            senders = list(self._senders.values())
            self._senders = WeakKeyDictionary()
        for sender in senders:
            sender.close()


_senders: WeakSet[_Sender] = WeakSet()


@atexit.register
def _close_senders() -> None:
    """Send pending NOTIFYs before the program ends, which also ends its daemon threads."""
    for sender in list(_senders):
        sender.close()


class _Sender:
    """Sends NOTIFYs from a thread that runs, and references the engine, only while there is something to send."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._is_asked = False
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._fails = 0

    def ask(self, engine: Engine) -> None:
        with self._changed:
            self._is_asked = True
            self._changed.notify()
            if self._thread is None:
                thread = threading.Thread(target=self._run, args=(engine,), name="outbox-notify", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter is shutting down, so no thread can be started
                    thread.start()
                    self._thread = thread
                    _senders.add(self)

    def close(self) -> None:
        with self._changed:
            thread, self._is_closing = self._thread, True
            self._changed.notify()
        if thread is not None:
            thread.join(_CLOSE_SECONDS)

    def _run(self, engine: Engine) -> None:
        own = _engine_like(engine)
        while self._has_work():
            if own.dialect.is_async:
                with _runner() as runner:
                    runner.run(_call(own, self._serve, own))
            else:
                self._serve(own)

    def _has_work(self) -> bool:
        """True if a NOTIFY is pending. Otherwise this thread ends, and the next request starts another."""
        with self._changed:
            if not self._is_asked:
                self._thread = None
            return self._is_asked

    def _serve(self, own: Engine) -> None:
        """Send on one connection until it was idle for a while."""
        try:
            with own.connect() as connection:
                while self._is_next():
                    _send(connection, self._channel)
                    self._fails = 0
                    self._pause(_DEBOUNCE_SECONDS)
        except Exception as error:  # whatever the driver raises: relays still poll
            self._fails += 1
            if self._fails == 1:  # the connection may have broken while it was idle, so retry at once on a new one
                self._is_asked = True
                return
            if self._fails == 2:
                logger.info("no NOTIFY on %s; relays find events by polling: %s", self._channel, error)
            self._is_asked = False
            self._pause(_PAUSE_SECONDS)
        finally:
            own.dispose()

    def _is_next(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._is_asked or self._is_closing, _IDLE_SECONDS)
            is_asked, self._is_asked = self._is_asked, False
            return is_asked

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closing, seconds)


# relays ---------------------------------------------------------------------------------------------------------------


class Listener:
    """Calls ``wake`` from another thread for each notification, and whenever one may have been missed.

    Errors are logged, and listening is retried.
    """

    def __init__(self, engine: Engine | AsyncEngine, channel: str, wake: Callable[[], object]) -> None:
        self.channel = channel
        self.reason = ""
        """Why it does not listen."""
        self._engine = Database(engine).plain
        self._wake = wake
        self._listen_on = _LISTEN_BY_DRIVER.get(self._engine.dialect.driver)
        self._state: State = "off"
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._echo: tuple[str, asyncio.Event] | None = None
        """The payload last sent to itself, and an event that is set when it arrives."""

    @property
    def state(self) -> State:
        return self._state

    def start(self) -> None:
        """Start to listen. Does nothing for a database or a driver that does not support it."""
        if self._engine.dialect.name != "postgresql" or self._thread is not None:
            return
        if self._listen_on is None:
            self.reason = f"with the driver {self._engine.dialect.driver} it polls; psycopg and asyncpg can listen"
            return
        self._set_state("connecting")
        self._thread = threading.Thread(target=self._run, args=(self._listen_on,), name="outbox-listen", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """Stop the thread and close its connection. While it is connecting, it stops on its own afterwards."""
        await anyio.to_thread.run_sync(self.close, abandon_on_cancel=True)

    def close(self) -> None:
        """Like `aclose`, from any other thread."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with self._changed:
            self._changed.wait_for(lambda: self._stop is not None, _CLOSE_SECONDS)
            loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(stop.set)
        thread.join(_CLOSE_SECONDS)

    def wait_for(self, state: State, seconds: float) -> bool:
        """Block until it is in a state. Return False if it is not within ``seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state == state, seconds)

    def _set_state(self, state: State, reason: str = "") -> None:
        with self._changed:
            self._state, self.reason = state, reason
            self._changed.notify_all()

    def _run(self, listen: _Listen) -> None:
        with _runner() as runner:
            runner.run(self._listen_again(listen))
        self._set_state("off")

    async def _listen_again(self, listen: _Listen) -> None:
        stop = asyncio.Event()
        with self._changed:
            self._loop, self._stop = asyncio.get_running_loop(), stop
            self._changed.notify_all()
        fails = 0
        while not stop.is_set():
            try:
                await self._listen(listen, stop)
            except Exception as error:  # whatever a driver raises
                fails = 1 if self._state == "listening" else fails + 1
                self._set_state("polling", str(error).partition("\n")[0])
                if fails == 1:
                    logger.info("not listening on %s; polling: %s", self.channel, self.reason)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BACK_OFF_SECONDS[min(fails, len(_BACK_OFF_SECONDS)) - 1]):
                        await stop.wait()

    async def _listen(self, listen: _Listen, stop: asyncio.Event) -> None:
        """Listen on one connection until ``stop`` is set. Raises the error that breaks the connection."""
        own, ended = _engine_like(self._engine), asyncio.Event()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_call, own, own.dispose)
            connection = await _call(own, own.connect)
            stack.push_async_callback(_call, own, _end, connection)
            await stack.enter_async_context(listen(own, connection, self.channel, self._received, ended.set))
            stopping = asyncio.create_task(stop.wait())
            stack.callback(stopping.cancel)
            stopping.add_done_callback(lambda _: ended.set())
            while not ended.is_set():
                await self._check_echo(own)
                if self._state != "listening":
                    self._set_state("listening")
                    self._wake()  # for notifications sent before LISTEN
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await ended.wait()
            if not stop.is_set():
                raise ConnectionError("the connection was closed")

    async def _check_echo(self, own: Engine) -> None:
        """Raise TimeoutError if a NOTIFY sent over another connection does not arrive on this one."""
        self._echo = payload, arrived = uuid.uuid4().hex, asyncio.Event()
        await _call(own, _send_once, own, self.channel, payload)
        try:
            async with asyncio.timeout(_ECHO_SECONDS):
                await arrived.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the connection listens, and no NOTIFY arrives within {_ECHO_SECONDS:g} s, as with a PgBouncer "
                "that pools transactions: give the relay's engine the server's own address, or leave it at polling"
            ) from None

    def _received(self, payload: str) -> None:
        if not payload:
            self._wake()
        elif self._echo is not None and self._echo[0] == payload:
            self._echo[1].set()


def _end(connection: Connection) -> None:
    """Discard the connection. An invalidated one is closed without a handshake, which its server may not answer."""
    connection.invalidate()
    connection.close()


def _send_once(engine: Engine, channel: str, payload: str) -> None:
    own = _engine_like(engine)
    try:
        with own.connect() as connection:
            _send(connection, channel, payload)
    finally:
        own.dispose()


class _Listen(Protocol):
    """LISTEN on a connection. ``received`` is called with each payload, ``ended`` when the connection is closed."""

    def __call__(
        self,
        own: Engine,
        connection: Connection,
        channel: str,
        received: Callable[[str], None],
        ended: Callable[[], None],
    ) -> AbstractAsyncContextManager[None]: ...


@asynccontextmanager
async def _listen_with_psycopg(
    own: Engine, connection: Connection, channel: str, received: Callable[[str], None], ended: Callable[[], None]
) -> AsyncGenerator[None]:
    """Listen on a plain or an async connection. Both use libpq, which is read directly."""
    await _call(own, connection.exec_driver_sql, f'LISTEN "{channel}"')
    raw: Any = connection.connection.driver_connection
    libpq: Any = raw.pgconn
    loop, file = asyncio.get_running_loop(), raw.fileno()

    def read() -> None:
        try:
            libpq.consume_input()
        except Exception:  # psycopg's OperationalError, which is not imported here: the connection broke
            loop.remove_reader(file)
            ended()
            return
        while (notice := libpq.notifies()) is not None:
            received(bytes(notice.extra).decode())

    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)


@asynccontextmanager
async def _listen_with_asyncpg(
    own: Engine, connection: Connection, channel: str, received: Callable[[str], None], ended: Callable[[], None]
) -> AsyncGenerator[None]:
    raw: Any = connection.connection.driver_connection

    def on_notify(_connection: object, _pid: int, _channel: str, payload: str) -> None:
        received(payload)

    def on_termination(_connection: object) -> None:
        ended()

    raw.add_termination_listener(on_termination)
    await raw.add_listener(channel, on_notify)
    try:
        yield
    finally:
        raw.remove_termination_listener(on_termination)


_LISTEN_BY_DRIVER: dict[str, _Listen] = {"psycopg": _listen_with_psycopg, "asyncpg": _listen_with_asyncpg}

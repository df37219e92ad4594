"""PostgreSQL's NOTIFY and LISTEN: relays in other processes hear at once that there are events.

A NOTIFY within the business transaction would make all commits of the server wait for each other. So a writer sends it
afterwards, on a connection of its own and at most every few milliseconds; one that is lost costs a relay one interval
of its polling. Both sides are a daemon thread with a connection of its own: writers need no event loop for it, relays
may run under trio, and nobody waits. The connection comes from the same creator, with the same settings and listeners,
as those of the engine it is for, and counts against none of its pools.

Behind a PgBouncer that shares connections by transaction, a LISTEN is taken and never heard of again: a listener sends
itself a NOTIFY over a second connection, and says "polling" where it does not arrive.
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
"""``off``: no PostgreSQL, or a driver that is not known; ``polling``: it does not hear now, and tries again."""

logger = logging.getLogger("outbox")

_DEBOUNCE_SECONDS = 0.02
"""Between two NOTIFYs of a process."""
_IDLE_SECONDS = 30.0
"""A writer's connection is closed when there was nothing to say for so long."""
_PAUSE_SECONDS = 5.0
"""After a NOTIFY that could not be sent."""
_ECHO_SECONDS = 3.0
"""How long a listener's own NOTIFY may take."""
_CHECK_SECONDS = 60.0
"""How often a listener sees whether it still hears."""
_BACK_OFF_SECONDS = (1.0, 5.0, 30.0, 120.0)
_CLOSE_SECONDS = 2.0


# a connection of one's own --------------------------------------------------------------------------------------------


def _engine_like(engine: Engine) -> Engine:
    """An engine with a pool of its own, whose connections are made as those of ``engine`` are."""
    from sqlalchemy import Engine

    return Engine(
        engine.pool.recreate(), engine.dialect, engine.url, execution_options={"isolation_level": "AUTOCOMMIT"}
    )


async def _call(engine: Engine, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What talks to a plain engine, also where its driver is asynchronous; in a thread where nobody else waits."""
    if not engine.dialect.is_async:
        return fn(*args, **kwargs)
    from sqlalchemy.util import greenlet_spawn

    return await greenlet_spawn(fn, *args, **kwargs)


def _runner() -> asyncio.Runner:
    # Not the default loop: psycopg cannot wait on the one of Windows, and uvloop is none of this thread's business.
    return asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)


def _send(connection: Connection, channel: str, payload: str = "") -> None:
    from sqlalchemy import text

    connection.execute(text("SELECT pg_notify(:channel, :payload)"), {"channel": channel, "payload": payload})


# writers --------------------------------------------------------------------------------------------------------------


class Notifier:
    """Says on a channel that events were committed; see `notify`."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._lock = threading.Lock()
        self._senders: WeakKeyDictionary[Pool, _Sender] = WeakKeyDictionary()
        """By pool: engines that differ in their options share one."""
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._lock, self._senders = threading.Lock(), WeakKeyDictionary()  # the threads are the parent's
        _senders.clear()

    def notify(self, engine: Engine) -> None:
        """Have a NOTIFY sent soon; nothing for other databases than PostgreSQL.

        From any thread, after the commit. Does not wait and raises nothing: a NOTIFY is a hint, no more.
        """
        if engine.dialect.name != "postgresql":
            return
        with self._lock:
            sender = self._senders.get(engine.pool)
            if sender is None:
                sender = self._senders[engine.pool] = _Sender(self.channel)
        sender.ask(engine)

    def close(self) -> None:
        """End threads and connections, once what is asked for is sent. `notify` begins anew."""
        with self._lock:
            senders = list(self._senders.values())
            self._senders = WeakKeyDictionary()
        for sender in senders:
            sender.close()


_senders: WeakSet[_Sender] = WeakSet()


@atexit.register
def _last_words() -> None:
    """A program that commits and ends: its threads end with it, whether they have said it or not."""
    for sender in list(_senders):
        sender.close()


class _Sender:
    """One thread, while there is something to say. It keeps the engine alive no longer than that."""

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
                with contextlib.suppress(RuntimeError):  # the interpreter ends: no thread is to be had
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
        """Whether there is something to say; if not, this thread has ended, for whoever asks next."""
        with self._changed:
            if not self._is_asked:
                self._thread = None
            return self._is_asked

    def _serve(self, own: Engine) -> None:
        """Send on one connection until there was nothing to say for a while."""
        try:
            with own.connect() as connection:
                while self._is_next():
                    _send(connection, self._channel)
                    self._fails = 0
                    self._pause(_DEBOUNCE_SECONDS)
        except Exception as error:  # whatever a driver raises: relays poll
            self._fails += 1
            if self._fails == 1:  # the connection may have broken long ago: once more on another one, at once
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
    """Calls ``wake`` when something is said on a channel: from another thread, and also whenever something may have
    been missed. What goes wrong is logged, and tried again."""

    def __init__(self, engine: Engine | AsyncEngine, channel: str, wake: Callable[[], object]) -> None:
        self.channel = channel
        self.reason = ""
        """Why it does not listen."""
        self._engine = Database(engine).plain
        self._wake = wake
        self._ear = _EARS.get(self._engine.dialect.driver)
        self._state: State = "off"
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._echo: tuple[str, asyncio.Event] | None = None
        """What it has said to itself, and whether it has heard it."""

    @property
    def state(self) -> State:
        return self._state

    def start(self) -> None:
        """Begin to listen. Nothing happens for a database or a driver that cannot."""
        if self._engine.dialect.name != "postgresql" or self._thread is not None:
            return
        if self._ear is None:
            self.reason = f"with the driver {self._engine.dialect.driver} it polls; psycopg and asyncpg can listen"
            return
        self._tell("connecting")
        self._thread = threading.Thread(target=self._run, args=(self._ear,), name="outbox-listen", daemon=True)
        self._thread.start()

    async def aclose(self) -> None:
        """End the thread and its connection. One that is just connecting ends by itself."""
        await anyio.to_thread.run_sync(self.close, abandon_on_cancel=True)

    def close(self) -> None:
        """The same, from any other thread."""
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
        """Wait in this thread until it is in a state; False when it is not by then."""
        with self._changed:
            return self._changed.wait_for(lambda: self._state == state, seconds)

    def _tell(self, state: State, reason: str = "") -> None:
        with self._changed:
            self._state, self.reason = state, reason
            self._changed.notify_all()

    def _run(self, ear: _Ear) -> None:
        with _runner() as runner:
            runner.run(self._listen_again(ear))
        self._tell("off")

    async def _listen_again(self, ear: _Ear) -> None:
        stop = asyncio.Event()
        with self._changed:
            self._loop, self._stop = asyncio.get_running_loop(), stop
            self._changed.notify_all()
        fails = 0
        while not stop.is_set():
            try:
                await self._listen(ear, stop)
            except Exception as error:  # whatever a driver raises
                fails = 1 if self._state == "listening" else fails + 1
                self._tell("polling", str(error).partition("\n")[0])
                if fails == 1:
                    logger.info("not listening on %s; polling: %s", self.channel, self.reason)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_BACK_OFF_SECONDS[min(fails, len(_BACK_OFF_SECONDS)) - 1]):
                        await stop.wait()

    async def _listen(self, ear: _Ear, stop: asyncio.Event) -> None:
        """On one connection, until it is to end. Raises whatever breaks it."""
        own, ended = _engine_like(self._engine), asyncio.Event()
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_call, own, own.dispose)
            connection = await _call(own, own.connect)
            stack.push_async_callback(_call, own, _end, connection)
            await stack.enter_async_context(ear(own, connection, self.channel, self._heard, ended.set))
            stopping = asyncio.create_task(stop.wait())
            stack.callback(stopping.cancel)
            stopping.add_done_callback(lambda _: ended.set())
            while not ended.is_set():
                await self._hear_oneself(own)
                if self._state != "listening":
                    self._tell("listening")
                    self._wake()  # for what was said before
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_SECONDS):
                        await ended.wait()
            if not stop.is_set():
                raise ConnectionError("the connection was closed")

    async def _hear_oneself(self, own: Engine) -> None:
        """Raises TimeoutError when a NOTIFY over another connection is not heard on this one."""
        self._echo = payload, heard = uuid.uuid4().hex, asyncio.Event()
        await _call(own, _send_once, own, self.channel, payload)
        try:
            async with asyncio.timeout(_ECHO_SECONDS):
                await heard.wait()
        except TimeoutError:
            raise TimeoutError(
                f"the connection listens, and no NOTIFY arrives within {_ECHO_SECONDS:g} s, as behind a PgBouncer "
                "that pools transactions: give the relay's engine the server's own address, or leave it at polling"
            ) from None

    def _heard(self, payload: str) -> None:
        if not payload:
            self._wake()
        elif self._echo is not None and self._echo[0] == payload:
            self._echo[1].set()


def _end(connection: Connection) -> None:
    """Close it for good. One that is invalid is not given long to say goodbye: its server may be gone."""
    connection.invalidate()
    connection.close()


def _send_once(engine: Engine, channel: str, payload: str) -> None:
    own = _engine_like(engine)
    try:
        with own.connect() as connection:
            _send(connection, channel, payload)
    finally:
        own.dispose()


class _Ear(Protocol):
    """LISTEN on a connection: ``heard`` is called with each payload, ``ended`` when the connection is no more."""

    def __call__(
        self, own: Engine, connection: Connection, channel: str, heard: Callable[[str], None], ended: Callable[[], None]
    ) -> AbstractAsyncContextManager[None]: ...


@asynccontextmanager
async def _psycopg_ear(
    own: Engine, connection: Connection, channel: str, heard: Callable[[str], None], ended: Callable[[], None]
) -> AsyncGenerator[None]:
    """Of a plain or an asynchronous connection: below both is the same libpq."""
    await _call(own, connection.exec_driver_sql, f'LISTEN "{channel}"')
    raw: Any = connection.connection.driver_connection
    libpq: Any = raw.pgconn
    loop, file = asyncio.get_running_loop(), raw.fileno()

    def read() -> None:
        try:
            libpq.consume_input()
        except Exception:  # psycopg's OperationalError, which this module does not import: the connection broke
            loop.remove_reader(file)
            ended()
            return
        while (notice := libpq.notifies()) is not None:
            heard(bytes(notice.extra).decode())

    loop.add_reader(file, read)
    try:
        yield
    finally:
        loop.remove_reader(file)


@asynccontextmanager
async def _asyncpg_ear(
    own: Engine, connection: Connection, channel: str, heard: Callable[[str], None], ended: Callable[[], None]
) -> AsyncGenerator[None]:
    raw: Any = connection.connection.driver_connection

    def hear(_connection: object, _pid: int, _channel: str, payload: str) -> None:
        heard(payload)

    def end(_connection: object) -> None:
        ended()

    raw.add_termination_listener(end)
    await raw.add_listener(channel, hear)
    try:
        yield
    finally:
        raw.remove_termination_listener(end)


_EARS: dict[str, _Ear] = {"psycopg": _psycopg_ear, "asyncpg": _asyncpg_ear}
"""By the name of the driver."""

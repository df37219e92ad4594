"""Who is told that a transaction with events in it was committed: relays in this process, and the notifier."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from eventbus.forks import ForkLock, watch_forks
from outbox.autocommit import is_driver_in_autocommit, is_in_driver_transaction

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Dialect, Engine

Callback = Callable[[], object]
"""Called in any thread: by whoever commits. It is quick, and hands over to its own thread or loop."""
Committed = Callable[["Engine"], object]
"""Called with the engine whose transaction was committed."""

logger = logging.getLogger("outbox")


class _Entry:
    """One that was added: the same callback may be added twice, and be removed once."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback = callback


class Wakes:
    """Callbacks for "there are new events". Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: tuple[_Entry, ...] = ()
        """Replaced, never changed: it is walked without the lock."""
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._lock, self._entries = threading.Lock(), ()  # the relays run in the parent

    def add(self, callback: Callback) -> Callable[[], None]:
        """Have ``callback`` called after every commit of events; call what this returns to end that."""
        entry = _Entry(callback)
        with self._lock:
            self._entries = (*self._entries, entry)

        def remove() -> None:
            with self._lock:
                self._entries = tuple(one for one in self._entries if one is not entry)

        return remove

    def wake(self) -> None:
        """Call them all. What one raises is logged: the business transaction is committed, and is not to blame."""
        for entry in self._entries:
            try:
                entry.callback()
            except Exception:  # whatever it is: the caller has just committed, and must hear of that alone
                logger.exception("a callback of the outbox failed; relays find the events at their next poll")


class _Levels:
    """Whom to tell when the transaction of a connection commits, apart for each open savepoint."""

    __slots__ = ("_levels", "has_no_begin")

    def __init__(self) -> None:
        self.has_no_begin = False
        """A savepoint of SQLite was opened in AUTOCOMMIT: its RELEASE commits."""
        self._levels: list[tuple[str | None, dict[Committed, Engine]]] = [(None, {})]
        """The transaction itself, then its savepoints by name, the innermost last."""

    def add(self, tell: Committed, engine: Engine) -> None:
        self._levels[-1][1][tell] = engine

    def open(self, name: str | None) -> None:
        self._levels.append((name, {}))

    def release(self, name: str) -> None:
        """What was added since the savepoint belongs to what is around it."""
        for _, told in self._since(name):
            self._levels[-1][1].update(told)

    def roll_back(self, name: str) -> None:
        """What was added since the savepoint is gone."""
        self._since(name)

    def _since(self, name: str) -> list[tuple[str | None, dict[Committed, Engine]]]:
        """Take the savepoint's level, and those inside of it, away."""
        names = [one for one, _ in self._levels]
        # One that was opened before this was watched has no name here: it is the outermost.
        at = names.index(name) if name in names else 1
        cut, self._levels = self._levels[at:], self._levels[:at]
        return cut

    def tell(self) -> None:
        for _, told in self._levels:
            for tell, engine in told.items():
                tell(engine)


_KEY = "eventbus.outbox.levels"
"""In ``Connection.info``, which lives as long as the driver's connection, and is the same for all who use it."""
_watched: WeakSet[Dialect] = WeakSet()


_watching = ForkLock()
"""Held while a dialect is wrapped: two threads must not wrap it twice."""


def after_commit(connection: Connection, tell: Committed) -> None:
    """Call ``tell(engine)`` once when the outermost transaction of ``connection`` is committed.

    In the thread that commits; never when it, or the savepoint that is open now, is rolled back.
    """
    dialect = connection.dialect
    info = connection.info
    if dialect not in _watched:
        watch(dialect)
        if connection.get_nested_transaction() is not None:  # a savepoint that was opened unseen
            levels = info[_KEY] = _Levels()
            levels.open(None)
    levels = info.get(_KEY)
    if levels is None:
        levels = info[_KEY] = _Levels()
    levels.add(tell, connection.engine)


def is_savepoint_unseen(connection: Connection) -> bool:
    """True if a savepoint of SQLite is open that may be the whole transaction, because it was opened unwatched."""
    is_open = connection.get_nested_transaction() is not None
    return is_open and connection.dialect.name == "sqlite" and connection.dialect not in _watched


def is_savepoint_in_autocommit(connection: Connection) -> bool:
    """True if a savepoint of SQLite was opened outside of a transaction, as AUTOCOMMIT has it."""
    levels: _Levels | None = connection.info.get(_KEY)
    return levels is not None and levels.has_no_begin


def watch(dialect: Dialect) -> None:
    """Hear what the transactions of an engine come to, from now on."""
    with _watching.lock:
        if dialect not in _watched:
            _Watch(dialect)
            _watched.add(dialect)


class _Watch:
    """The methods of a dialect that end transactions, wrapped: whatever commits comes through them.

    SQLAlchemy's own event tells of a commit *before* it happens, and a relay that is woken then finds nothing.

    SQLite's transaction stays open when its commit fails (the database is locked, a deferred constraint). SQLAlchemy
    gives the connection back to its pool without a rollback, and its next user would commit ghosts: it is ended here.

    SQLite's drivers send BEGIN before the first INSERT, UPDATE or DELETE, not before SAVEPOINT. A savepoint that comes
    first would be the transaction: RELEASE would commit it, and nothing could roll it back. BEGIN is sent here.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._is_sqlite = dialect.name == "sqlite"
        self._commit = dialect.do_commit
        self._rollback = dialect.do_rollback
        self._savepoint = dialect.do_savepoint
        self._release = dialect.do_release_savepoint
        self._roll_back_to = dialect.do_rollback_to_savepoint
        self._commit_twophase = dialect.do_commit_twophase
        self._rollback_twophase = dialect.do_rollback_twophase
        dialect.do_commit = self.commit
        dialect.do_rollback = self.rollback
        dialect.do_savepoint = self.savepoint
        dialect.do_release_savepoint = self.release
        dialect.do_rollback_to_savepoint = self.roll_back_to
        dialect.do_commit_twophase = self.commit_twophase
        dialect.do_rollback_twophase = self.rollback_twophase

    def commit(self, dbapi_connection: Any) -> None:
        try:
            self._commit(dbapi_connection)
        except Exception:  # of the driver's
            if self._is_sqlite:
                self.rollback(dbapi_connection)
            raise
        info = _info_of(dbapi_connection)
        levels: _Levels | None = None if info is None else info.pop(_KEY, None)
        if levels is not None:
            levels.tell()

    def rollback(self, dbapi_connection: Any) -> None:
        _taken(_info_of(dbapi_connection))
        self._rollback(dbapi_connection)

    def savepoint(self, connection: Connection, name: str) -> None:
        is_first = self._is_sqlite and not is_in_driver_transaction(connection)
        is_autocommit = is_first and is_driver_in_autocommit(connection)
        if is_first and not is_autocommit:
            connection.exec_driver_sql("BEGIN")
        self._savepoint(connection, name)
        levels: _Levels = connection.info.setdefault(_KEY, _Levels())
        levels.open(name)
        levels.has_no_begin |= is_autocommit

    def release(self, connection: Connection, name: str) -> None:
        self._release(connection, name)
        _known(connection).release(name)

    def roll_back_to(self, connection: Connection, name: str) -> None:
        _known(connection).roll_back(name)
        self._roll_back_to(connection, name)

    def commit_twophase(
        self, connection: Connection, xid: Any, is_prepared: bool = True, recover: bool = False
    ) -> None:
        # Taken first: on its way the dialect may end what it sees as another transaction.
        levels = _taken(None if recover else connection.info)
        self._commit_twophase(connection, xid, is_prepared, recover)
        levels.tell()

    def rollback_twophase(
        self, connection: Connection, xid: Any, is_prepared: bool = True, recover: bool = False
    ) -> None:
        _taken(None if recover else connection.info)
        self._rollback_twophase(connection, xid, is_prepared, recover)


def _known(connection: Connection) -> _Levels:
    return connection.info.get(_KEY) or _Levels()


def _taken(info: dict[Any, Any] | None) -> _Levels:
    """What a transaction that is over leaves behind."""
    return _Levels() if info is None else info.pop(_KEY, None) or _Levels()


def _info_of(dbapi_connection: Any) -> dict[Any, Any] | None:
    """The same as ``Connection.info``; None for a connection that no pool has, as while an engine makes its first."""
    try:
        info = dbapi_connection.info
    except (AttributeError, NotImplementedError):  # a driver, or a stand-in for one, that has no such thing
        return None
    return cast("dict[Any, Any]", info) if isinstance(info, dict) else None  # a driver may call something else so

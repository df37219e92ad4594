"""Call relays and the notifier after a transaction that wrote events has committed."""

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
"""Called in the thread that commits, so it must return quickly and hand over to its own thread or loop."""
Committed = Callable[["Engine"], object]
"""Called with the engine whose transaction was committed."""

logger = logging.getLogger("outbox")


class _Entry:
    """A registration. It gives each `add` its own identity, so that a callback may be added twice and removed once."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callback) -> None:
        self.callback = callback


class CommitListeners:
    """Callbacks for "there are new events". Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: tuple[_Entry, ...] = ()
        """Replaced, never changed, because it is iterated without the lock."""
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self._lock, self._entries = threading.Lock(), ()  # the relays run only in the parent

    def add(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` after every commit of events. Return a function that removes it."""
        entry = _Entry(callback)
        with self._lock:
            self._entries = (*self._entries, entry)

        def remove() -> None:
            with self._lock:
                self._entries = tuple(other for other in self._entries if other is not entry)

        return remove

    def wake(self) -> None:
        """Call all callbacks. Their errors are only logged, because the business transaction is already committed."""
        for entry in self._entries:
            try:
                entry.callback()
            except Exception:  # must not reach the caller, whose commit has succeeded
                logger.exception("a callback of the outbox failed; relays find the events at their next poll")


class _Levels:
    """The callbacks of a connection's open transaction, kept separately for each savepoint."""

    __slots__ = ("_levels", "has_no_begin")

    def __init__(self) -> None:
        self.has_no_begin = False
        """True if a SQLite savepoint was opened in AUTOCOMMIT, so that its RELEASE commits."""
        self._levels: list[tuple[str | None, dict[Committed, Engine]]] = [(None, {})]
        """The transaction itself, then its savepoints by name, innermost last."""

    def add(self, callback: Committed, engine: Engine) -> None:
        self._levels[-1][1][callback] = engine

    def open(self, name: str | None) -> None:
        self._levels.append((name, {}))

    def release(self, name: str) -> None:
        """Merge callbacks added since the savepoint into the level around it."""
        for _, callbacks in self._since(name):
            self._levels[-1][1].update(callbacks)

    def roll_back(self, name: str) -> None:
        """Drop callbacks added since the savepoint."""
        self._since(name)

    def _since(self, name: str) -> list[tuple[str | None, dict[Committed, Engine]]]:
        """Remove and return the levels of the savepoint and of those inside it."""
        names = [level for level, _ in self._levels]
        # A savepoint opened before the dialect was watched has no name here. It is the outermost one.
        at = names.index(name) if name in names else 1
        cut, self._levels = self._levels[at:], self._levels[:at]
        return cut

    def committed(self) -> None:
        for _, callbacks in self._levels:
            for callback, engine in callbacks.items():
                callback(engine)


_KEY = "eventbus.outbox.levels"
"""Key in ``Connection.info``, which lives as long as the driver's connection and is shared by its users."""
_watched: WeakSet[Dialect] = WeakSet()


_watching = ForkLock()
"""Held while a dialect is wrapped, so that two threads do not wrap it twice."""


def after_commit(connection: Connection, callback: Committed) -> None:
    """Call ``callback(engine)`` once when the outermost transaction of ``connection`` commits.

    It runs in the thread that commits. It is not called if the transaction, or the savepoint that is open now, rolls
    back.
    """
    dialect = connection.dialect
    info = connection.info
    if dialect not in _watched:
        watch(dialect)
        if connection.get_nested_transaction() is not None:  # opened before the dialect was watched
            levels = info[_KEY] = _Levels()
            levels.open(None)
    levels = info.get(_KEY)
    if levels is None:
        levels = info[_KEY] = _Levels()
    levels.add(callback, connection.engine)


def is_savepoint_unseen(connection: Connection) -> bool:
    """True if a SQLite savepoint is open that may be the whole transaction, because it was opened unwatched."""
    is_open = connection.get_nested_transaction() is not None
    return is_open and connection.dialect.name == "sqlite" and connection.dialect not in _watched


def is_savepoint_in_autocommit(connection: Connection) -> bool:
    """True if a SQLite savepoint was opened outside a transaction, as AUTOCOMMIT allows."""
    levels: _Levels | None = connection.info.get(_KEY)
    return levels is not None and levels.has_no_begin


def watch(dialect: Dialect) -> None:
    """Track the transactions of all engines with this dialect from now on."""
    with _watching.lock:
        if dialect not in _watched:
            _Watch(dialect)
            _watched.add(dialect)


class _Watch:
    """Wraps the methods of a dialect that end transactions. Every commit goes through them.

    SQLAlchemy's own event fires *before* the commit, when a relay would not find the events yet.

    If a commit fails on SQLite (locked database, deferred constraint), the transaction stays open. SQLAlchemy returns
    the connection to its pool without a rollback, and its next user would commit the old rows. It is rolled back here.

    SQLite's drivers send BEGIN before the first INSERT, UPDATE or DELETE, but not before SAVEPOINT. A savepoint that
    comes first would be the transaction itself: its RELEASE would commit, and nothing could roll it back. BEGIN is sent
    here.
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
        except Exception:  # of the driver
            if self._is_sqlite:
                self.rollback(dbapi_connection)
            raise
        info = _info_of(dbapi_connection)
        levels: _Levels | None = None if info is None else info.pop(_KEY, None)
        if levels is not None:
            levels.committed()

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
        # Taken first, because the dialect may end the commands around it as if they were another transaction.
        levels = _taken(None if recover else connection.info)
        self._commit_twophase(connection, xid, is_prepared, recover)
        levels.committed()

    def rollback_twophase(
        self, connection: Connection, xid: Any, is_prepared: bool = True, recover: bool = False
    ) -> None:
        _taken(None if recover else connection.info)
        self._rollback_twophase(connection, xid, is_prepared, recover)


def _known(connection: Connection) -> _Levels:
    return connection.info.get(_KEY) or _Levels()


def _taken(info: dict[Any, Any] | None) -> _Levels:
    """Remove and return the callbacks of a transaction that has ended."""
    return _Levels() if info is None else info.pop(_KEY, None) or _Levels()


def _info_of(dbapi_connection: Any) -> dict[Any, Any] | None:
    """Return ``Connection.info``, or None for a connection outside a pool, such as an engine's very first."""
    try:
        info = dbapi_connection.info
    except (AttributeError, NotImplementedError):  # a driver, or a substitute for one, without this attribute
        return None
    # a driver may use the name for something else
    return cast("dict[Any, Any]", info) if isinstance(info, dict) else None

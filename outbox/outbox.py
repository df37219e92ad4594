"""The outbox: events written in the caller's own database transaction, and published by a relay after its commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from eventbus.backends.delivery import this_loop
from eventbus.client.schema_uses import prepare, uses_of_types
from eventbus.client.schemas import fetched
from eventbus.client.sending import check_values
from eventbus.errors import ConfigError, SchemaNotReady
from outbox import schema as in_database
from outbox.commit_listeners import CommitListeners, after_commit
from outbox.database import Database, now_ms, trouble_of
from outbox.inserting import Inserter
from outbox.notify import Notifier
from outbox.serializing import Packer, fetch_here
from outbox.sessions import Asynchronous, Plain, connection_of, own
from outbox.table_names import channel_of
from outbox.tables import PRESETS, OutboxTables
from outbox.writing import EventOptions, Rows, Writer
from serdes import Serde
from serdes.choose import Others, Serdes

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outbox.relay.relay import Relay, RelayOptions
    from outbox.status import OutboxStatus

    AnyEngine = Engine | AsyncEngine


_MOST_CREATIONS = 12
"""How often creating tables may fail, each time because another process was faster with a table or its rows.
"""


def _may_be_concurrent(error: BaseException, failures: int) -> bool:
    """True if the error may come from another process that creates the tables concurrently, so a retry may succeed."""
    return failures < _MOST_CREATIONS and trouble_of(error) != "away"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _engine_of(target: object) -> AnyEngine | None:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    if isinstance(target, MetaData):
        return None
    if isinstance(target, (Engine, AsyncEngine)):
        return target
    raise ConfigError(
        f"Outbox({target!r:.80}): an engine, from create_engine(...) or create_async_engine(...), or the MetaData "
        "of your models"
    )


class Outbox:
    """Events that are part of a database transaction: they are published if, and only if, it commits.

    ::

        outbox = Outbox(engine)
        outbox.create_tables()
        bus.include(outbox.relay())

        with Session.begin() as session:
            session.add(order)
            outbox.publish(session, "orders", OrderPlaced(order.id), key=order.id)

    ``target`` is a plain or async engine, or the `MetaData` of your models. The tables are attached to that MetaData,
    so that migrations include them; then pass an engine to `relay` and `create_tables`.
    """

    def __init__(
        self,
        target: AnyEngine | MetaData,
        name: str = "eventbus_outbox",
        *,
        schema: str | None = None,
        shards: int = 64,
        columns: Literal["plain", "debezium"] = "plain",
        archive: bool = False,
        serde: Serde | None = None,
        serdes: Mapping[type, Serde] | None = None,
        max_message_bytes: int = 1_048_576,
        strict_order: bool = False,
        notify: bool = True,
    ) -> None:
        """``name`` is the prefix of all table names, and ``schema`` their schema in the database.

        ``shards`` is the number of parts into which relays divide the keys; it is stored in the tables and must be the
        same for all programs. ``columns="debezium"`` names the columns as Debezium's event router expects, and stores
        keys as text. ``archive`` keeps published events in a separate table. ``serde`` and ``serdes`` are those of the
        bus; ``serdes=bus.context.serdes`` also applies the declared types of its topics. An event whose record would
        exceed ``max_message_bytes`` is refused.

        With ``strict_order``, transactions that write events of the same shard commit one after another. Events of a
        key are then ordered by commit, even if these transactions share no other lock. With ``notify``, commits on
        PostgreSQL wake relays in other processes. Raises ConfigError.
        """
        from sqlalchemy import MetaData

        if columns not in PRESETS:
            raise ConfigError(f"columns={columns!r}: {' or '.join(map(repr, PRESETS))}")
        if isinstance(max_message_bytes, bool) or max_message_bytes < 1:
            raise ConfigError(f"max_message_bytes={max_message_bytes!r}: bytes, as max.message.bytes of the topics")
        self.engine = _engine_of(target)
        """The engine it was created with, or None for a `MetaData`."""
        self.tables = OutboxTables(
            target if isinstance(target, MetaData) else MetaData(),
            name=name,
            schema=schema,
            shards=shards,
            columns=PRESETS[columns],
            archive=archive,
        )
        self.name = name
        given = (
            serdes if isinstance(serdes, Serdes) else Serdes(serdes)
        )  # those of a bus include the types of its topics
        self.serdes = given if serde is None else given.joined_with({Others: serde, **given})
        self.listeners = CommitListeners()
        """Called after each commit of events in this process."""
        self._notifier = Notifier(channel_of(name, schema)) if notify else None
        self._writer = Writer(
            self.tables, Packer(self.serdes, max_message_bytes), strict_order=strict_order, clock_ms=_now_ms
        )
        self._inserter = Inserter(self.tables, strict_order=strict_order)
        if self.engine is not None:
            self.database()  # raises if the engine is unsuitable

    # writing ---------------------------------------------------------------------------------------------------------

    @overload
    def publish(
        self, session: Plain, topic: str, value: Any, *, key: Any = None, **options: Unpack[EventOptions]
    ) -> str: ...

    @overload
    def publish(
        self, session: Asynchronous, topic: str, value: Any, *, key: Any = None, **options: Unpack[EventOptions]
    ) -> Coroutine[Any, Any, str]: ...

    def publish(
        self, session: Plain | Asynchronous, topic: str, value: Any, *, key: Any = None, **options: Unpack[EventOptions]
    ) -> str | Coroutine[Any, Any, str]:
        """Write one event in the transaction of ``session`` and return its id. With an async session, await the result.

        ``value`` and ``key`` are serialized now, as `eventbus.Producer` does; ``headers`` and ``timestamp_ms`` are as
        there. Without ``partition`` the key chooses one. ``deliver_at`` is the earliest time of publication: an aware
        datetime, or a delay. ``expires_after`` (seconds if it is a number) is how long after its due time the event is
        dropped if it was not published. Both use the database's clock. ``type`` is the event type of the Debezium
        preset, by default the name of the value's class.

        Raises ConfigError without an open transaction, InvalidTopic, RecordTooLarge, SerializationError, and what the
        database raises. Raises SchemaNotReady in a plain call on an event loop; call `prepare` first.
        """
        make = partial(self._writer.rows, topic, (value,), lambda _: key, options)
        target, is_async = own(session)
        if is_async:
            return self._publish_async(target, make)
        return self._publish(target, make)[0]

    @overload
    def publish_many(
        self,
        session: Plain,
        topic: str,
        values: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        **options: Unpack[EventOptions],
    ) -> list[str]: ...

    @overload
    def publish_many(
        self,
        session: Asynchronous,
        topic: str,
        values: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        **options: Unpack[EventOptions],
    ) -> Coroutine[Any, Any, list[str]]: ...

    def publish_many(
        self,
        session: Plain | Asynchronous,
        topic: str,
        values: Iterable[Any],
        *,
        key: Callable[[Any], Any] | None = None,
        **options: Unpack[EventOptions],
    ) -> list[str] | Coroutine[Any, Any, list[str]]:
        """Write many events with one statement and return their ids in order; see `publish`.

        ``key`` computes each event's key from its value. The options apply to all events.
        """
        check_values(topic, values, key, "publish_many", "publish")
        make = partial(self._writer.rows, topic, list(values), key, options)
        target, is_async = own(session)
        if is_async:
            return self._publish_many_async(target, make)
        return self._publish(target, make)

    def _publish(self, session: Any, make: Callable[[], Rows]) -> list[str]:
        while True:
            try:
                return self._write(session, make())
            except SchemaNotReady as needed:
                if this_loop() is not None:
                    raise
                fetch_here(needed)

    async def _publish_many_async(self, session: Any, make: Callable[[], Rows]) -> list[str]:
        while True:
            try:
                rows = make()
                break
            except SchemaNotReady as needed:
                await fetched(needed)
        return await session.run_sync(self._write, rows)

    async def _publish_async(self, session: Any, make: Callable[[], Rows]) -> str:
        return (await self._publish_many_async(session, make))[0]

    def _write(self, session: Any, rows: Rows) -> list[str]:
        connection = connection_of(session, self.tables.events)
        if rows.rows:
            if rows.deliver_at is not None:
                rows = rows.placed(now_ms(connection))
            self._inserter.insert(connection, rows.rows, is_later=rows.is_later, relative=rows.relative)
            after_commit(connection, self._committed)
        return rows.event_ids

    def _committed(self, engine: Engine) -> None:
        """Called after the commit, in the committing thread. It does not block."""
        self.listeners.wake()
        if self._notifier is not None:
            self._notifier.notify(engine)

    async def prepare(self, topic: str, *types: Any, key: Any = None) -> None:
        """Register or look up the schemas of these types for ``topic``, so that a plain `publish` can use them.

        Raises ConfigError for what the registry refuses, or SchemaUnavailable.
        """
        await prepare(uses_of_types(topic, types, key, self.serdes))

    # tables ----------------------------------------------------------------------------------------------------------

    def create_tables(self, engine: Engine | None = None) -> None:
        """Create and fill missing tables. It may run at every start, and in several processes at once.

        Raises ConfigError for an async engine (see `create_tables_async`) and for tables with another number of shards
        or version, and what the database raises.
        """
        from sqlalchemy.exc import DBAPIError
        from sqlalchemy.ext.asyncio import AsyncEngine

        database = self.database(engine)
        if isinstance(database.engine, AsyncEngine):
            raise ConfigError("this outbox has an asynchronous engine: `await outbox.create_tables_async()`")
        create = partial(in_database.create, tables=self.tables)
        for failures in itertools.count():
            try:
                return database.run_here(create)
            except DBAPIError as error:
                if not _may_be_concurrent(error, failures):
                    raise

    async def create_tables_async(self, engine: AnyEngine | None = None) -> None:
        """Like `create_tables`, with any engine."""
        from sqlalchemy.exc import DBAPIError

        database = self.database(engine)
        for failures in itertools.count():
            try:
                return await database.run(in_database.create, self.tables)
            except DBAPIError as error:
                if not _may_be_concurrent(error, failures):
                    raise

    def check(self, connection: Connection) -> list[str]:
        """Return the problems of the tables, each with its fix. Empty if there are none. Changes nothing.

        Raises ConfigError for anything but a plain connection; with an AsyncConnection use ``run_sync(outbox.check)``.
        """
        from sqlalchemy import Connection

        if not isinstance(cast("object", connection), Connection):
            raise ConfigError(
                f"check({connection!r:.80}): a Connection: `with engine.connect() as connection: "
                "outbox.check(connection)`; of an AsyncConnection: `await connection.run_sync(outbox.check)`"
            )
        return in_database.check(connection, self.tables)

    def ddl(self, dialect_name: str) -> str:
        """Return the SQL that creates and fills the tables, for "sqlite", "postgresql", "mysql" or "mariadb".

        Raises ConfigError for any other dialect.
        """
        return in_database.ddl(self.tables, dialect_name)

    # others ----------------------------------------------------------------------------------------------------------

    def database(self, engine: AnyEngine | None = None) -> Database:
        """Return a `Database` for ``engine``, or for this outbox's own. Raises ConfigError if there is none."""
        from sqlalchemy import Engine
        from sqlalchemy.ext.asyncio import AsyncEngine

        engine = self.engine if engine is None else engine
        if engine is None:
            raise ConfigError("this outbox was made with a MetaData and knows no database: give it an engine here")
        if not isinstance(cast("object", engine), (Engine, AsyncEngine)):
            raise ConfigError(f"{engine!r:.80}: an engine, from create_engine(...) or create_async_engine(...)")
        return Database(engine)

    def relay(self, engine: AnyEngine | None = None, **options: Unpack[RelayOptions]) -> Relay:
        """Return the part that publishes the events: ``bus.include(outbox.relay())``. It may run in other processes;
        see `Relay`.
        """
        from outbox.relay.relay import Relay

        return Relay(self, self.database(engine).engine, **options)

    async def status(self, engine: AnyEngine | None = None) -> OutboxStatus:
        """Return what waits, for how long, and which relays publish it. Raises what the database raises."""
        from outbox.status import read_status

        return await self.database(engine).run(read_status, self.tables)

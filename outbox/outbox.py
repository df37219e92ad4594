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
from eventbus.durations import Milliseconds
from eventbus.errors import ConfigError, SchemaNotReady
from outbox import schema as in_database
from outbox.database import Database, now_ms, trouble_of
from outbox.inserting import Inserter
from outbox.notify import Notifier
from outbox.serializing import Packer, fetch_here
from outbox.sessions import Asynchronous, Plain, connection_of, own
from outbox.table_names import channel_of
from outbox.tables import PRESETS, OutboxTables
from outbox.wakes import Wakes, after_commit
from outbox.writing import EventOptions, Rows, Writer
from serdes import Serde
from serdes.choose import Others, Serdes

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from outbox.relay.relay import Relay
    from outbox.status import OutboxStatus

    AnyEngine = Engine | AsyncEngine


_RIVALS = 12
"""How often making the tables may fail: each time another process was faster with one of them, or with its rows."""


def _is_rivals(error: BaseException, failures: int) -> bool:
    """Another process that makes the tables may be why this failed, and the next try finds more of them."""
    return failures < _RIVALS and trouble_of(error) != "away"


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
    """Events that belong to a database transaction: they are published if, and only if, it is committed.

    ::

        outbox = Outbox(engine)
        outbox.create_tables()
        bus.include(outbox.relay())

        with Session.begin() as session:
            session.add(order)
            outbox.publish(session, "orders", OrderPlaced(order.id), key=order.id)

    ``target``: the engine, synchronous or not; or the `MetaData` of your models, which the tables are attached to, so
    that migrations see them (then give `relay` and `create_tables` an engine).
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
        """``name`` begins the names of all its tables, in the database's ``schema``.

        ``shards``: into how many parts relays divide the keys; stored with the table, the same for all programs.
        ``columns``: "debezium" names them as Debezium's event router expects, and keeps keys as text. ``archive``:
        published events are kept in a table of their own. ``serde`` and ``serdes`` are as the bus's;
        ``serdes=bus.context.serdes`` keeps the declared types of its topics too. An event that would be larger than
        ``max_message_bytes`` as a record is refused. ``strict_order``: transactions that write events of one shard
        commit one after the other, so that the order of a key is that of the commits, even where nothing else of
        these transactions excludes each other. ``notify``: on PostgreSQL, relays in other processes are told of
        commits. Raises ConfigError.
        """
        from sqlalchemy import MetaData

        if columns not in PRESETS:
            raise ConfigError(f"columns={columns!r}: {' or '.join(map(repr, PRESETS))}")
        if isinstance(max_message_bytes, bool) or max_message_bytes < 1:
            raise ConfigError(f"max_message_bytes={max_message_bytes!r}: bytes, as max.message.bytes of the topics")
        self.engine = _engine_of(target)
        """What it was made with; None if that was a `MetaData`."""
        self.tables = OutboxTables(
            target if isinstance(target, MetaData) else MetaData(),
            name=name,
            schema=schema,
            shards=shards,
            columns=PRESETS[columns],
            archive=archive,
        )
        self.name = name
        given = serdes if isinstance(serdes, Serdes) else Serdes(serdes)  # a bus's know the types of its topics
        self.serdes = given if serde is None else given.joined_with({Others: serde, **given})
        self.wakes = Wakes()
        """Told after each commit of events in this process."""
        self._notifier = Notifier(channel_of(name, schema)) if notify else None
        self._writer = Writer(
            self.tables, Packer(self.serdes, max_message_bytes), strict_order=strict_order, clock_ms=_now_ms
        )
        self._inserter = Inserter(self.tables, strict_order=strict_order)
        if self.engine is not None:
            self.database()  # it may be refused

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
        """Write one event into the transaction of ``session``, and return its id. Await it for an asynchronous one.

        ``value`` and ``key`` become bytes now, as `eventbus.Producer` makes them. ``headers``, ``timestamp_ms``: as
        there. ``partition`` names the partition; without it the key picks one. ``deliver_at``: not before that time
        (with its zone), or so long from now. ``expires_after``: not later than so long (seconds, if it is a number)
        after it was due; what is left then is dropped. Both by the database's clock. ``type``: the Debezium preset's
        event type, by default the name of the value's class.

        Raises ConfigError where there is no transaction to be part of, InvalidTopic, RecordTooLarge,
        SerializationError; SchemaNotReady when nothing is awaited on an event loop (call `prepare` first); and what the
        database raises.
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
        """Write many events with one statement, and return their ids in order; see `publish`.

        ``key`` computes each event's key from its value; the options hold for all.
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
        """In the thread that committed, which does not wait for any of it."""
        self.wakes.wake()
        if self._notifier is not None:
            self._notifier.notify(engine)

    async def prepare(self, topic: str, *types: Any, key: Any = None) -> None:
        """Have the schemas of these types registered, or looked up, for ``topic``: then a plain `publish` takes them.

        Raises ConfigError for what the registry refuses, SchemaUnavailable.
        """
        await prepare(uses_of_types(topic, types, key, self.serdes))

    # tables ----------------------------------------------------------------------------------------------------------

    def create_tables(self, engine: Engine | None = None) -> None:
        """Create and fill the tables that are missing. Safe to call at each start, by several processes at once.

        Raises ConfigError for an asynchronous engine (see `create_tables_async`), and for tables that were made with
        another number of shards, or by another version; and what the database raises.
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
                if not _is_rivals(error, failures):
                    raise

    async def create_tables_async(self, engine: AnyEngine | None = None) -> None:
        """The same of any engine."""
        from sqlalchemy.exc import DBAPIError

        database = self.database(engine)
        for failures in itertools.count():
            try:
                return await database.run(in_database.create, self.tables)
            except DBAPIError as error:
                if not _is_rivals(error, failures):
                    raise

    def check(self, connection: Connection) -> list[str]:
        """What is wrong with the tables, each with its cure; an empty list: nothing. Changes nothing.

        Raises ConfigError for anything but a connection; of an AsyncConnection: ``run_sync(outbox.check)``.
        """
        from sqlalchemy import Connection

        if not isinstance(cast("object", connection), Connection):
            raise ConfigError(
                f"check({connection!r:.80}): a Connection: `with engine.connect() as connection: "
                "outbox.check(connection)`; of an AsyncConnection: `await connection.run_sync(outbox.check)`"
            )
        return in_database.check(connection, self.tables)

    def ddl(self, dialect_name: str) -> str:
        """The statements that make and fill the tables: "sqlite", "postgresql", "mysql", "mariadb".

        Raises ConfigError for any other dialect.
        """
        return in_database.ddl(self.tables, dialect_name)

    # others ----------------------------------------------------------------------------------------------------------

    def database(self, engine: AnyEngine | None = None) -> Database:
        """Whole transactions on ``engine``, or on the one it was made with. Raises ConfigError when it has none."""
        from sqlalchemy import Engine
        from sqlalchemy.ext.asyncio import AsyncEngine

        engine = self.engine if engine is None else engine
        if engine is None:
            raise ConfigError("this outbox was made with a MetaData and knows no database: give it an engine here")
        if not isinstance(cast("object", engine), (Engine, AsyncEngine)):
            raise ConfigError(f"{engine!r:.80}: an engine, from create_engine(...) or create_async_engine(...)")
        return Database(engine)

    def relay(
        self,
        engine: AnyEngine | None = None,
        *,
        delivery: Literal["exactly-once", "at-least-once"] = "exactly-once",
        batch_size: int = 5_000,
        on_poison: Literal["block", "skip"] = "block",
        lease_ms: Milliseconds = 9_000,
        poll_ms: tuple[int, int] = (5, 2_500),
        listen: bool = True,
        create_tables: bool = True,
        patience_ms: Milliseconds = 600_000,
    ) -> Relay:
        """What publishes the events: ``bus.include(outbox.relay())``, in this process or in others; see `Relay`."""
        from outbox.relay.relay import Relay

        return Relay(
            self,
            self.database(engine).engine,
            delivery=delivery,
            batch_size=batch_size,
            on_poison=on_poison,
            lease_ms=lease_ms,
            poll_ms=poll_ms,
            listen=listen,
            create_tables=create_tables,
            patience_ms=patience_ms,
        )

    async def status(self, engine: AnyEngine | None = None) -> OutboxStatus:
        """What waits, since when, and who publishes it. Raises what the database raises."""
        from outbox.status import read_status

        return await self.database(engine).run(read_status, self.tables)

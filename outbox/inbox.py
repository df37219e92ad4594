"""The inbox: a handler's changes, the offset of its record, and its outgoing events commit in one transaction."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any, cast

from eventbus.durations import FORMS, Duration, exact_ms
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord, TopicPartition
from outbox.claims import Claims
from outbox.database import Database
from outbox.units import AsynchronousUnits, BlockingUnits, MessageId

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
    from sqlalchemy.orm import sessionmaker

    Source = Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]

_EXAMPLE = "tx=sessionmaker(engine), or tx=async_sessionmaker(engine) for an `async def`"


class Inbox:
    """A database for ``tx=`` of a handler, with options that a sessionmaker alone cannot express.

    ::

        Session = sessionmaker(create_engine("postgresql+psycopg://..."))

        @bus.consumer("orders", group="billing", tx=Inbox(Session, message_ids="event-id"))
        def bill(order: Order, session: Session) -> None:
            session.add(Bill(order_id=order.order_id))
            outbox.publish(session, "bills", ...)

    Each call is one transaction, which claims the offset of its record, runs the handler, and commits when it returns.
    Each record therefore changes this database once, whatever process dies and whenever. If the handler raises, nothing
    is stored. If it rolls the session back, the record counts as handled without effect, and it must not write
    afterwards. Put statements whose failure should not end the call into a savepoint, ``with session.begin_nested()``.
    Never commit in the handler.

    ``message_ids`` detects messages that their sender sent twice: it names a header, or is a function of the record. A
    message whose id was seen within ``keep`` is finished without a call; records without an id are always handled.
    ``table`` is the name of the table of offsets; a second table stores the ids. Both are created if missing, unless
    ``create_tables`` is False. Pass your models' ``metadata`` to attach the tables to it, because Alembic's
    autogenerate drops tables that the metadata does not contain.
    """

    def __init__(
        self,
        source: Source,
        *,
        message_ids: str | MessageId | None = None,
        keep: Duration = "7d",
        table: str = "eventbus_offsets",
        schema: str | None = None,
        metadata: MetaData | None = None,
        create_tables: bool = True,
    ) -> None:
        """Raises ConfigError for a source that is not a database, and for invalid names."""
        if message_ids is not None and not (isinstance(message_ids, str) and message_ids) and not callable(message_ids):
            raise ConfigError(
                f"message_ids={message_ids!r}: the name of a header, or a function of the record: "
                'message_ids="event-id"'
            )
        keep_ms = exact_ms(keep)
        if keep_ms is None or not 0 < keep_ms < math.inf:
            raise ConfigError(f"keep={keep!r}: how long message ids are remembered: {FORMS}")
        engine, self._factory = _engine_and_factory(source)
        self.database = Database(engine)
        self.is_async = engine is not self.database.plain
        self._message_id = _by_header(message_ids) if isinstance(message_ids, str) else message_ids
        self._keep_ms = int(keep_ms)
        self._table = table
        self._schema = schema
        self._metadata = metadata
        self._creates = create_tables
        self._claims("group")  # checks the names and attaches the tables

    def __repr__(self) -> str:
        return f"<Inbox on {self.database.plain.url.render_as_string()}>"

    # called by the runner
    # ----------------------------------------------------------------------------------------------

    def fills(self, annotation: Any) -> bool:
        """True if a parameter with this annotation receives the open transaction."""
        return inspect.isclass(annotation) and (
            issubclass(self._made_class, annotation)
            if issubclass(annotation, self._session_class)
            else issubclass(annotation, self._connection_class)
        )

    def example(self) -> str:
        """Return an example of a parameter that receives the transaction."""
        return f"session: {self._session_class.__name__}"

    @property
    def _made_class(self) -> type:
        return self._factory.class_

    @property
    def _session_class(self) -> type:
        from sqlalchemy.ext.asyncio import AsyncSession
        from sqlalchemy.orm import Session

        return AsyncSession if self.is_async else Session

    @property
    def _connection_class(self) -> type:
        from sqlalchemy.engine import Connection
        from sqlalchemy.ext.asyncio import AsyncConnection

        return AsyncConnection if self.is_async else Connection

    def open(self, handler: str, group: str, parameter: str, annotation: Any) -> AsynchronousUnits | BlockingUnits:
        """Return the units of work for one handler of a starting bus."""
        factory = None if issubclass(annotation, self._connection_class) else self._factory
        claims = self._claims(group)
        kind = AsynchronousUnits if self.is_async else BlockingUnits
        return kind(
            self.database, claims, handler, parameter, factory, self._message_id, self._keep_ms, creates=self._creates
        )

    async def forget(self, group: str, *partitions: TopicPartition) -> None:
        """Delete the stored offsets of these partitions, for a recreated topic or to handle all records again.

        Call it while no handler of the group runs. The next one starts at the group's offset in the log. Message ids
        are kept.
        """
        await self.database.run(self._claims(group).forget, partitions)

    def _claims(self, group: str) -> Claims:
        return Claims(group, table=self._table, schema=self._schema, metadata=self._metadata)


def units_of(tx: Any, where: str) -> Inbox:
    """Return the inbox for the value of ``tx=``. Raises ConfigError if it is not a database."""
    if isinstance(tx, Inbox):
        return tx
    try:
        return Inbox(tx)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _engine_and_factory(source: Any) -> tuple[Engine | AsyncEngine, Any]:
    try:
        from sqlalchemy.engine import Engine
        from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
        from sqlalchemy.orm import sessionmaker
    except ImportError:
        raise ConfigError("tx= needs SQLAlchemy: pip install 'eventbus-log[sql]'") from None

    if isinstance(source, Engine):
        return _plain(source), sessionmaker(source)
    if isinstance(source, AsyncEngine):
        return source, async_sessionmaker(source)
    if isinstance(source, (sessionmaker, async_sessionmaker)):
        made = cast("sessionmaker[Any]", source)
        engine: Any = made.kw.get("bind")
        for option in ("binds", "twophase"):
            if made.kw.get(option):
                raise ConfigError(
                    f"tx={made!r} has {option}=, and a transaction cannot span databases: use sessionmaker(engine)"
                )
        if isinstance(engine, (Engine, AsyncEngine)):
            return engine if isinstance(engine, AsyncEngine) else _plain(engine), made
        raise ConfigError(f"tx={made!r} is not bound to an engine: use sessionmaker(engine)")
    what = source.__name__ if inspect.isclass(source) else f"a {type(source).__name__}"
    raise ConfigError(f"tx= takes what opens sessions or connections, not {what}: {_EXAMPLE}")


def _plain(engine: Engine) -> Engine:
    if engine.dialect.is_async:
        raise ConfigError(f"tx= is the inside of an AsyncEngine ({engine!r}): tx=async_sessionmaker(engine)")
    return engine


def _by_header(name: str) -> MessageId:
    def message_id(record: ConsumerRecord) -> str | None:
        for header, value in record.headers:
            if header == name:
                return None if value is None else _text_of(value)
        return None

    return message_id


def _text_of(value: bytes) -> str:
    """Decode a header. Bytes that are not UTF-8 are shown in hex, so that different bytes give different ids."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"hex:{value.hex()}"

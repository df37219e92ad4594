"""The outbox's tables: what stands in each, and under which names.

- **events**: rows that wait to be published. Its primary key is its only index, so that a business transaction pays for
  one row and no more; a relay takes rows in the order of their ids.
- **later**: events with a time (``deliver_at``), moved into events when it has come.
- **failed**: events that the log refuses, and those that wait behind one of their key.
- **relays** and **shards**: who publishes what. A relay holds a *slot* for as long as it renews its lease.
- **meta**: version, number of shards, the id of the database's outbox and of the log it is published to.
- **archive**, where it is asked for: what was published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.errors import ConfigError
from outbox.table_names import check_name, index_name

if TYPE_CHECKING:
    from sqlalchemy import Column, MetaData, Table

VERSION = 1
"""Of the tables, as meta has it."""


class ColumnNames(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns of an event are called in the database; in code they have the names of these fields."""

    id: str = "id"
    event_id: str = "event_id"
    topic: str = "topic"
    key: str = "key"
    value: str = "value"
    type: str | None = None
    """The event's type, by name, for whoever routes by it; None: there is no such column."""
    text_keys: bool = False
    """The key is a text column, so keys are text."""


PLAIN = ColumnNames()
DEBEZIUM = ColumnNames(
    id="seq", event_id="id", topic="aggregatetype", key="aggregateid", value="payload", type="type", text_keys=True
)
"""The names of Debezium's outbox event router, so that change data capture can take over from the relay later."""
PRESETS = {"plain": PLAIN, "debezium": DEBEZIUM}


class OutboxTables:
    """Table objects of one outbox, attached to a `MetaData`.

    ``name`` begins the names of all of them. Raises ConfigError for a name that is none.
    """

    def __init__(
        self,
        metadata: MetaData,
        *,
        name: str = "eventbus_outbox",
        schema: str | None = None,
        shards: int = 64,
        columns: ColumnNames = PLAIN,
        archive: bool = False,
    ) -> None:
        from sqlalchemy import BigInteger, Column, Index, Integer, SmallInteger, String, Table, Text

        check_name("name", name, "_archive")
        check_name("schema", schema)
        if isinstance(shards, bool) or not 1 <= shards <= 1_024:
            raise ConfigError(f"shards={shards!r}: 1 to 1024, the same for everybody who uses the table")
        self.name = name
        self.schema = schema
        self.metadata = metadata
        self.shard_count = shards
        self.columns = columns
        bloat = {"autovacuum_vacuum_scale_factor": "0.0", "autovacuum_vacuum_threshold": "1000"}
        """PostgreSQL: a queue's table is mostly dead rows; cleaned by count, not by share."""

        def number() -> Any:
            return BigInteger().with_variant(Integer(), "sqlite")

        self.events: Table = Table(
            name,
            metadata,
            Column(columns.id, number(), primary_key=True, autoincrement=True, key="id"),
            *_event_columns(columns),
            sqlite_autoincrement=True,  # an id that was given once is never given again
            postgresql_with=bloat,
            schema=schema,
        )
        later = f"{name}_later"
        self.later: Table = Table(
            later,
            metadata,
            Column(columns.id, number(), primary_key=True, autoincrement=True, key="id"),
            Column("due_ms", BigInteger, nullable=False),
            *_event_columns(columns),
            Index(index_name(later, "due_ms"), "due_ms"),
            sqlite_autoincrement=True,
            schema=schema,
        )
        self.failed: Table = Table(
            f"{name}_failed",
            metadata,
            Column(columns.id, BigInteger, primary_key=True, autoincrement=False, key="id"),
            Column("is_behind", SmallInteger, nullable=False),
            Column("reason", Text, nullable=False),
            Column("failed_at_ms", BigInteger, nullable=False),
            *_event_columns(columns),
            schema=schema,
        )
        self.relays: Table = Table(
            f"{name}_relays",
            metadata,
            Column("slot", Integer, primary_key=True, autoincrement=False),
            Column("token", String(36), nullable=False),
            Column("host", String(255), nullable=False),
            Column("expires_at_ms", BigInteger, nullable=False),
            Column("started_at_ms", BigInteger, nullable=False),
            Column("published", BigInteger, nullable=False),
            Column("seen_at_ms", BigInteger, nullable=False),
            schema=schema,
        )
        self.shards: Table = Table(
            f"{name}_shards",
            metadata,
            Column("shard", Integer, primary_key=True, autoincrement=False),
            Column("slot", Integer, nullable=True),
            schema=schema,
        )
        self.meta: Table = Table(
            f"{name}_meta",
            metadata,
            Column("name", String(63), primary_key=True),
            Column("value", String(255), nullable=False),
            schema=schema,
        )
        self.archive: Table | None = None
        if archive:
            self.archive = Table(
                f"{name}_archive",
                metadata,
                Column(columns.id, BigInteger, primary_key=True, autoincrement=False, key="id"),
                Column("published_at_ms", BigInteger, nullable=False),
                *_event_columns(columns),
                schema=schema,
            )

    @property
    def all(self) -> tuple[Table, ...]:
        """In the order in which they are made."""
        tables = (self.events, self.later, self.failed, self.relays, self.shards, self.meta)
        return tables if self.archive is None else (*tables, self.archive)


def _event_columns(names: ColumnNames) -> list[Column[Any]]:
    """What every table of events has, besides its id."""
    from sqlalchemy import BigInteger, Column, Integer, LargeBinary, SmallInteger, String
    from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY

    def exact(length: int) -> Any:
        # MySQL compares text without regard to case, and topics and ids do not.
        return String(length).with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")

    def data() -> Any:
        return LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")

    key: Any = exact(255) if names.text_keys else LargeBinary().with_variant(VARBINARY(16_000), "mysql", "mariadb")
    columns: list[Column[Any]] = [
        Column(names.event_id, exact(36), nullable=False, key="event_id"),
        Column("shard", SmallInteger, nullable=False),
        Column(names.topic, exact(249), nullable=False, key="topic"),
        Column(names.key, key, nullable=True, key="key"),
        Column(names.value, data(), nullable=True, key="value"),
        Column("headers", data(), nullable=True),
        Column("partition", Integer, nullable=True),
        Column("timestamp_ms", BigInteger, nullable=False),
        Column("expires_at_ms", BigInteger, nullable=True),
    ]
    if names.type is not None:
        columns.append(Column(names.type, String(255), nullable=True, key="type"))
    return columns

"""The outbox's tables.

- **events**: rows waiting to be published. The primary key is the only index, so that a business transaction pays for
  one row and no more. Relays publish in order of id.
- **later**: scheduled events (``deliver_at``), moved to events when they are due.
- **failed**: events that the log refused, and events that wait because an earlier one with their key was refused.
- **relays** and **shards**: which relay publishes what. A relay holds a *slot* for as long as it renews its lease.
- **meta**: the version, the number of shards, the id of this outbox, and the id of the log it is published to.
- **archive** (optional): published events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.errors import ConfigError
from outbox.table_names import check_name, index_name

if TYPE_CHECKING:
    from sqlalchemy import Column, MetaData, Table

VERSION = 1
"""Version of the tables, stored in meta."""


class ColumnNames(msgspec.Struct, frozen=True, kw_only=True):
    """The database's names for an event's columns. In code, columns are named after these fields."""

    id: str = "id"
    event_id: str = "event_id"
    topic: str = "topic"
    key: str = "key"
    value: str = "value"
    type: str | None = None
    """The event's type, for consumers that route by it. None if the column does not exist."""
    text_keys: bool = False
    """True if the key is stored in a text column, so that keys must be text."""


PLAIN = ColumnNames()
DEBEZIUM = ColumnNames(
    id="seq", event_id="id", topic="aggregatetype", key="aggregateid", value="payload", type="type", text_keys=True
)
"""The names that Debezium's outbox event router expects, so that it can replace the relay later."""
PRESETS = {"plain": PLAIN, "debezium": DEBEZIUM}


class OutboxTables:
    """The table objects of one outbox, attached to a `MetaData`. Raises ConfigError for an invalid name.

    ``name`` is the prefix of all table names.
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
        """PostgreSQL's vacuum settings: a queue's table is mostly dead rows, so vacuum by count instead of by share."""

        def number() -> Any:
            return BigInteger().with_variant(Integer(), "sqlite")

        self.events: Table = Table(
            name,
            metadata,
            Column(columns.id, number(), primary_key=True, autoincrement=True, key="id"),
            *_event_columns(columns),
            sqlite_autoincrement=True,  # ids of deleted rows are never reused
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
        """All tables, in the order in which they are created."""
        tables = (self.events, self.later, self.failed, self.relays, self.shards, self.meta)
        return tables if self.archive is None else (*tables, self.archive)


def _event_columns(names: ColumnNames) -> list[Column[Any]]:
    """Return the columns that every table of events has besides the id."""
    from sqlalchemy import BigInteger, Column, Integer, LargeBinary, SmallInteger, String
    from sqlalchemy.dialects.mysql import LONGBLOB, VARBINARY

    def exact(length: int) -> Any:
        # MySQL compares text case-insensitively by default, but topics and ids are case-sensitive.
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

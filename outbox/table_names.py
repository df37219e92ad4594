"""Table names: validate them, derive other names from them, and resolve a table's schema for a connection.

A connection may have a ``schema_translate_map``. SQLAlchemy applies it to statements that it compiles, but not in an
inspector or in textual SQL. Those use `schema_of` and `quoted`.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

LONGEST_BYTES = 63
"""PostgreSQL cuts longer names without an error."""
_NOT_IN_TOPICS = re.compile(r"[^A-Za-z0-9._-]")


def check_name(what: str, name: str | None, longest_suffix: str = "") -> None:
    """Raise ConfigError for a name that no database accepts, or that is too long with the longest suffix."""
    if name is None:
        return
    longest = LONGEST_BYTES - len(longest_suffix)
    size = len(name.encode(errors="replace")) if isinstance(name, str) else 0  # pyright: ignore[reportUnnecessaryIsInstance]
    if not 0 < size <= longest or "\0" in name:
        suffix = f", because its longest table ends with {longest_suffix}" if longest_suffix else ""
        raise ConfigError(
            f"{what}={name!r:.100} is not a name of a table or schema. A name is a text of 1 to {longest} bytes{suffix}"
            ", without NUL. Choose another name."
        )


def index_name(table: str, column: str) -> str:
    """Return ``ix_TABLE_COLUMN``, with a digest of the table's name if that would be too long."""
    name = f"ix_{table}_{column}"
    return name if len(name.encode()) <= LONGEST_BYTES else f"ix_{_digest(table)}_{column}"


def name_in_log(name: str) -> str:
    """Return a name that is valid in topic names: the given one if possible."""
    plain = _NOT_IN_TOPICS.sub("_", name)
    return name if plain == name else f"{plain}.{_digest(name)}"


def channel_of(name: str, schema: str | None = None) -> str:
    """Return the channel of PostgreSQL's NOTIFY for an outbox. A channel has at most 63 bytes."""
    full = full_name(name, schema)
    plain = _NOT_IN_TOPICS.sub("_", full)
    if full == plain and len(full) <= LONGEST_BYTES:
        return full
    return f"{plain[:30]}.{_digest(full)}"


def full_name(name: str, schema: str | None) -> str:
    """Return ``SCHEMA.NAME``, or the name if no schema is given."""
    return name if schema is None else f"{schema}.{name}"


def _digest(name: str) -> str:
    return hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()


# where a table is for a connection -----------------------------------------------------------------------------------


def schema_of(connection: Connection, table: Table) -> str | None:
    """Return the schema that statements of this connection use for the table."""
    return connection.schema_for_object(table)


def shown(connection: Connection, table: Table) -> str:
    """Return the table's name for a message."""
    return full_name(table.name, schema_of(connection, table))


def quoted(connection: Connection, table: Table) -> str:
    """Return the table's name, quoted for SQL."""
    preparer, schema = connection.dialect.identifier_preparer, schema_of(connection, table)
    name = preparer.quote(table.name)
    name = name if schema is None else f"{preparer.quote_schema(schema)}.{name}"
    # These drivers need each % in a quoted name doubled, for statements that are sent unchanged. `text` doubles it
    # itself.
    return name.replace("%%", "%") if connection.dialect.paramstyle in ("format", "pyformat") else name


def exists(connection: Connection, table: Table) -> bool:
    """Return True if the table is in the database."""
    from sqlalchemy import inspect

    return inspect(connection).has_table(table.name, schema=schema_of(connection, table))

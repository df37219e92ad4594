"""Detect a database that does not match the log, because it was restored from a backup or is a clone.

Each slot numbers its batches. The log has the number of the last batch, as the offset of the receipt, and the receipt
names the rows of the batches that may still be in the table. The database has the number of the last batch whose rows
are deleted, written in the transaction that deletes them. So at whatever step a relay dies, the database has recorded
every batch that the receipt leaves out, and has the rows of all others. That is not true of a database that went back
in time. Nor is it true of a clone, once a relay of the original or of another clone has published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventbus.errors import ConfigError
from outbox.schema import read_meta

if TYPE_CHECKING:
    from sqlalchemy import BindParameter, Update
    from sqlalchemy.engine import Connection

    from outbox.relay.receipts import Receipt
    from outbox.tables import OutboxTables

_PREFIX = "deleted "


class DatabaseMismatch(ConfigError):
    """The database is not the one from which the log was published last."""

    def __init__(self, name: str, slot: int, receipt: Receipt, recorded: int) -> None:
        super().__init__(
            f"The outbox {name!r} does not match the log. The log has batch {receipt.number} of relay slot {slot}, and "
            f"this database has recorded batches up to {recorded}. The database was restored from a backup, or it is a "
            "clone of the one that publishes to this log. Nothing is published, because events could be published "
            "twice. Stop this service if it should not publish to this log. Otherwise run `eventbus outbox adopt`"
        )


def identity_and_batches(connection: Connection, tables: OutboxTables) -> tuple[str | None, dict[int, int]]:
    """Return the id of the outbox, and by slot the number of the last batch whose rows are deleted."""
    meta = read_meta(connection, tables)
    recorded = {int(name.removeprefix(_PREFIX)): int(value) for name, value in meta.items() if name.startswith(_PREFIX)}
    return meta.get("id"), recorded


def check_batch(tables: OutboxTables, slot: int, receipt: Receipt, recorded: int) -> None:
    """Raise DatabaseMismatch if batches that the receipt does not name any more are not recorded."""
    if receipt.deleted > recorded:
        raise DatabaseMismatch(tables.name, slot, receipt, recorded)


def lock_batch(connection: Connection, tables: OutboxTables, slot: int) -> int:
    """Return the recorded batch of a slot. Until the transaction ends, no deletion of published rows is committed."""
    from sqlalchemy import select

    meta = tables.meta
    asked = select(meta.c.value).where(meta.c.name == _name(slot))
    found = connection.scalar(asked.with_for_update())
    if found is None:
        connection.execute(meta.insert(), {"name": _name(slot), "value": _text(0)})
    return int(found or 0)


def set_batch(connection: Connection, tables: OutboxTables, slot: int, number: int) -> None:
    """Record a batch. The number may be lower than before if the log has expired the receipt, or is another log."""
    meta = tables.meta
    connection.execute(meta.update().where(meta.c.name == _name(slot)).values(value=_text(number)))


def recording(tables: OutboxTables) -> Update:
    """Build the statement of `record_batch` once, because it runs for each batch."""
    from sqlalchemy import bindparam

    meta = tables.meta
    number: BindParameter[str] = bindparam("number")
    return meta.update().where(meta.c.name == bindparam("of_slot"), meta.c.value < number).values(value=number)


def record_batch(connection: Connection, statement: Update, slot: int, number: int) -> None:
    """Record that the rows of all batches up to this one are deleted. Call it first in the transaction that deletes
    them.

    A relay that has lost its slot may come late. The rows it deletes are published, but its number may be too low.
    """
    connection.execute(statement, {"of_slot": _name(slot), "number": _text(number)})


def adopt(connection: Connection, tables: OutboxTables, new_id: str) -> None:
    """Give the outbox another id, under which nothing was published yet. Only while no relay of it is alive."""
    from sqlalchemy import or_

    meta = tables.meta
    connection.execute(meta.delete().where(or_(meta.c.name == "id", meta.c.name.startswith(_PREFIX))))
    connection.execute(meta.insert(), {"name": "id", "value": new_id})
    connection.execute(tables.shards.update().values(slot=None))
    connection.execute(tables.relays.delete())


def _name(slot: int) -> str:
    return f"{_PREFIX}{slot:04}"


def _text(number: int) -> str:
    """Pad numbers so that their texts sort in numeric order."""
    return f"{number:020}"

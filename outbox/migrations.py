"""Alembic operations: ``op.create_outbox()`` and ``op.drop_outbox()``, and for the tables of ``tx=``
``op.create_inbox()`` and ``op.drop_inbox()``. Importing this module registers them.

::

    import outbox.migrations
    from alembic import op

    def upgrade() -> None:
        op.create_outbox()

    def downgrade() -> None:
        op.drop_outbox()

If the tables are attached to your models' MetaData (``Outbox(Base.metadata)``), ``alembic revision --autogenerate``
handles them like any other tables. Add ``op.fill_outbox()`` after its output, or call `Outbox.create_tables` at start.
Attach the tables of an inbox with ``Inbox(..., metadata=Base.metadata)``; they need no initial rows.
"""

from __future__ import annotations

from typing import Any, Literal, cast

from alembic.operations import MigrateOperation, Operations
from sqlalchemy import MetaData

from outbox.claims import Claims
from outbox.schema import meta_rows, shard_rows
from outbox.tables import PRESETS, OutboxTables


class _OutboxOp(MigrateOperation):
    """Base of the outbox operations. The arguments are those of `Outbox`."""

    def __init__(
        self,
        name: str = "eventbus_outbox",
        *,
        schema: str | None = None,
        shards: int = 64,
        columns: Literal["plain", "debezium"] = "plain",
        archive: bool = False,
    ) -> None:
        self.tables = OutboxTables(
            MetaData(), name=name, schema=schema, shards=shards, columns=PRESETS[columns], archive=archive
        )


@Operations.register_operation("create_outbox")
class CreateOutboxOp(_OutboxOp):
    """Create and fill the tables of an outbox."""

    @classmethod
    def create_outbox(cls, operations: Operations, *args: Any, **kwargs: Any) -> None:
        """Create and fill the tables. Arguments as for `Outbox`: ``name``, ``schema``, ``shards``, ``columns``,
        ``archive``.
        """
        operations.invoke(cls(*args, **kwargs))


@Operations.register_operation("fill_outbox")
class FillOutboxOp(_OutboxOp):
    """Fill tables that were created separately, as autogenerate does."""

    @classmethod
    def fill_outbox(cls, operations: Operations, *args: Any, **kwargs: Any) -> None:
        """Fill the tables. The arguments are those of `Outbox`."""
        operations.invoke(cls(*args, **kwargs))


@Operations.register_operation("drop_outbox")
class DropOutboxOp(_OutboxOp):
    """Drop the tables of an outbox with their contents."""

    @classmethod
    def drop_outbox(cls, operations: Operations, *args: Any, **kwargs: Any) -> None:
        """Drop the tables. The arguments are those of `Outbox`."""
        operations.invoke(cls(*args, **kwargs))


class _InboxOp(MigrateOperation):
    """Base of the inbox operations. The arguments are those of `Inbox`."""

    def __init__(self, table: str = "eventbus_offsets", *, schema: str | None = None) -> None:
        self.tables = Claims("", table=table, schema=schema).tables


@Operations.register_operation("create_inbox")
class CreateInboxOp(_InboxOp):
    """Create the tables of an inbox."""

    @classmethod
    def create_inbox(
        cls, operations: Operations, table: str = "eventbus_offsets", *, schema: str | None = None
    ) -> None:
        """Create the tables. The arguments are those of `Inbox`: ``table`` and ``schema``."""
        operations.invoke(cls(table, schema=schema))


@Operations.register_operation("drop_inbox")
class DropInboxOp(_InboxOp):
    """Drop the tables of an inbox. Its handlers then start at their groups' offsets in the log."""

    @classmethod
    def drop_inbox(cls, operations: Operations, table: str = "eventbus_offsets", *, schema: str | None = None) -> None:
        """Drop the tables. The arguments are those of `Inbox`."""
        operations.invoke(cls(table, schema=schema))


@Operations.implementation_for(CreateInboxOp)
def _create_inbox(operations: Operations, operation: CreateInboxOp) -> None:
    for table in operation.tables:
        _implementation(operations).create_table(table)


@Operations.implementation_for(DropInboxOp)
def _drop_inbox(operations: Operations, operation: DropInboxOp) -> None:
    for table in reversed(operation.tables):
        _implementation(operations).drop_table(table)


@Operations.implementation_for(CreateOutboxOp)
def _create(operations: Operations, operation: CreateOutboxOp) -> None:
    for table in operation.tables.all:
        _implementation(operations).create_table(table)  # and its indexes
    _insert(operations, operation.tables)


@Operations.implementation_for(FillOutboxOp)
def _fill(operations: Operations, operation: FillOutboxOp) -> None:
    _insert(operations, operation.tables)


@Operations.implementation_for(DropOutboxOp)
def _drop(operations: Operations, operation: DropOutboxOp) -> None:
    for table in reversed(operation.tables.all):
        _implementation(operations).drop_table(table)


def _insert(operations: Operations, tables: OutboxTables) -> None:
    operations.bulk_insert(tables.meta, meta_rows(tables))
    operations.bulk_insert(tables.shards, shard_rows(tables))


def _implementation(operations: Operations) -> Any:
    return cast("Any", operations).impl  # some releases of SQLAlchemy lack the types of `impl`

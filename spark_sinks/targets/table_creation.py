"""Create the account of a table, check it, and take it over: shared by all targets."""

from __future__ import annotations

import uuid

import msgspec

from eventbus.errors import ConfigError, ProducerFenced
from spark_sinks.shape import KEY
from spark_sinks.targets.target import NewTable, SinkState


def new_id() -> str:
    """Return an id for a table: 8 hexadecimal digits. It is in the names of its files."""
    return uuid.uuid4().hex[:8]


def new_account(new_table: NewTable, id: str, now_ms: int) -> SinkState:
    """Return the account of a table that does not exist yet. Epoch 0: it still has to be taken over."""
    return SinkState(
        id=id,
        topic=new_table.topic,
        partition_by=new_table.partition_by,
        upsert=new_table.upsert,
        transformed=new_table.transformed,
        started=dict(new_table.started),
        topic_id=new_table.topic_id,
        offsets=dict(new_table.started),
        committed_at_ms=now_ms,
    )


def take_over(state: SinkState, new_table: NewTable) -> SinkState:
    """Return the account with a new epoch, which fences the landing before.

    Before its first rows, which decide whether it is ``_key`` or ``key``, the record's key may get its other name.
    """
    upsert = state.upsert if state.schema else new_table.upsert
    topic_id = state.topic_id or new_table.topic_id
    return msgspec.structs.replace(state, epoch=state.epoch + 1, topic_id=topic_id, upsert=upsert)


def check_new_table(name: str, state: SinkState, new_table: NewTable) -> None:
    """Raise `ConfigError` if a table belongs to another topic, or was created with other options.

    The start offsets may differ, because the account has the current offsets.
    """
    if state.topic != new_table.topic:
        raise ConfigError(f"{name} holds topic {state.topic!r}, not {new_table.topic!r}: land it into its own table")
    if state.topic_id and new_table.topic_id and state.topic_id != new_table.topic_id:
        raise ConfigError(
            f"{name} holds a topic {state.topic!r} that was deleted. The present topic of this name was "
            f"created later, or is in another log, and its offsets mean other records. Land it into another table."
        )
    if state.partition_by != new_table.partition_by:
        raise ConfigError(
            f"{name} is partitioned by {_columns(state.partition_by)}, not by {_columns(new_table.partition_by)}: "
            f"pass the same partition_by=, or land into another table"
        )
    renames_key = not state.schema and {*state.upsert, *new_table.upsert} == {KEY, "key"}
    if state.upsert != new_table.upsert and not renames_key:
        raise ConfigError(
            f"{name} was made with upsert={list(state.upsert)}, not upsert={list(new_table.upsert)}: "
            f"pass the same upsert=, or land into another table"
        )
    if state.transformed != new_table.transformed:
        has, asked = ("a transform", "none") if state.transformed else ("no transform", "one")
        raise ConfigError(f"{name} was made with {has} and is landed with {asked}: land into another table")


def fenced(name: str, state: SinkState) -> ProducerFenced:
    """Return the error for a commit of a landing that is not the table's any more."""
    return ProducerFenced(
        f"another landing took {name} over (this one is epoch {state.epoch}): nothing of this batch was landed; "
        f"stop one of the two"
    )


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"

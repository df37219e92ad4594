"""Create the account of a table, check it, and take it over: shared by all targets."""

from __future__ import annotations

import uuid

import msgspec

from eventbus.errors import ConfigError, ProducerFenced
from spark_sinks.shape import KEY
from spark_sinks.targets.target import Founding, SinkState


def new_id() -> str:
    """Return an id for a table: 8 hexadecimal digits. It is in the names of its files."""
    return uuid.uuid4().hex[:8]


def found(founding: Founding, id: str, now_ms: int) -> SinkState:
    """Return the account of a table that does not exist yet. Epoch 0: it still has to be taken over."""
    return SinkState(
        id=id,
        topic=founding.topic,
        partition_by=founding.partition_by,
        upsert=founding.upsert,
        transformed=founding.transformed,
        started=dict(founding.started),
        topic_id=founding.topic_id,
        offsets=dict(founding.started),
        committed_at_ms=now_ms,
    )


def take_over(state: SinkState, founding: Founding) -> SinkState:
    """Return the account with a new epoch, which fences the landing before.

    Before its first rows, which decide whether it is ``_key`` or ``key``, the record's key may get its other name.
    """
    upsert = state.upsert if state.schema else founding.upsert
    topic_id = state.topic_id or founding.topic_id
    return msgspec.structs.replace(state, epoch=state.epoch + 1, topic_id=topic_id, upsert=upsert)


def check_founding(name: str, state: SinkState, founding: Founding) -> None:
    """Raise `ConfigError` when a table is another topic's, or was founded otherwise.

    Where it started is its own affair: the account knows where it is by now.
    """
    if state.topic != founding.topic:
        raise ConfigError(f"{name} holds topic {state.topic!r}, not {founding.topic!r}: land it into its own table")
    if state.topic_id and founding.topic_id and state.topic_id != founding.topic_id:
        raise ConfigError(
            f"{name} holds a topic {state.topic!r} that was deleted. The present topic of this name was "
            f"created later, or is in another log, and its offsets mean other records. Land it into another table."
        )
    if state.partition_by != founding.partition_by:
        raise ConfigError(
            f"{name} is partitioned by {_columns(state.partition_by)}, not by {_columns(founding.partition_by)}: "
            f"pass the same partition_by=, or land into another table"
        )
    renames_key = not state.schema and {*state.upsert, *founding.upsert} == {KEY, "key"}
    if state.upsert != founding.upsert and not renames_key:
        raise ConfigError(
            f"{name} was made with upsert={list(state.upsert)}, not upsert={list(founding.upsert)}: "
            f"pass the same upsert=, or land into another table"
        )
    if state.transformed != founding.transformed:
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

"""The pattern of all state machines: decide, append, replay.

A shard is a state machine over one partition of an internal topic::

    decision = shard.<request>(...)      # reads state, may refuse; never changes hard state
    log.append(decision.records)         # one batch: all of them are stored, or none
    shard.replay(key, value)             # per record: the only writer of hard state

After a crash between decide and append, nothing has happened. After a crash that follows the append, the records are
replayed at the next start. So recovery runs the live code path again, and *hard state after a live run == hard state
after replaying its records*.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class CoordinatorRecord(NamedTuple):
    """A record that a shard stores. A null value is a tombstone."""

    key: bytes
    value: bytes | None


class Decision(msgspec.Struct, Generic[ReplyT_co], frozen=True):
    """The result of a request: records to store, and the reply to send once they are stored."""

    records: tuple[CoordinatorRecord, ...]
    reply: ReplyT_co


class Shard(Protocol):
    """A state machine built from one partition's records. Its ``repr`` is one sorted line of all hard state."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one stored record to the hard state. Raises ValueError if the bytes do not belong to this shard."""
        ...


@runtime_checkable
class TransactionalShard(Shard, Protocol):
    """A shard that also takes part in producers' transactions: their records wait for the marker."""

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Hold one record of the producer's open transaction. Raises ValueError as `replay` does."""
        ...

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply or discard the held records of the producer, if there are any."""
        ...


@runtime_checkable
class IdentifyingShard(Shard, Protocol):
    """A shard whose keys alone do not distinguish its records."""

    def identify(self, key: bytes, value: bytes | None) -> tuple[bytes, bool]:
        """Return the name under which a later record replaces this record, and whether this record is kept.

        A record that is not kept deletes the record that has its name. Raises ValueError as `replay` does.
        """
        ...

"""One pattern for all state: decide, append, replay.

A shard is a state machine over one partition of an internal topic::

    decision = shard.<request>(...)      # looks, may refuse; never writes hard state
    log.append(decision.records)         # one batch: all of them are stored, or none
    shard.replay(key, value)             # per record: the only writer of hard state

A crash between decide and append: nothing happened. After append: the records are replayed at the next start. So
recovery is the live path run again, and *hard state after a live run == hard state after replaying its records*.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import msgspec

ReplyT_co = TypeVar("ReplyT_co", covariant=True)


class CoordinatorRecord(NamedTuple):
    """What a shard wants written. A null value is a tombstone: the key is gone."""

    key: bytes
    value: bytes | None


class Decision(msgspec.Struct, Generic[ReplyT_co], frozen=True):
    """What a request leads to: records to store, and the answer once they are."""

    records: tuple[CoordinatorRecord, ...]
    reply: ReplyT_co


class Shard(Protocol):
    """A state machine folded from one partition's records. Its ``repr`` is one sorted line of all hard state."""

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Fold one stored record into the hard state. Raises ValueError when the bytes are not of this shard."""
        ...


@runtime_checkable
class TransactionalShard(Shard, Protocol):
    """A shard that also takes part in producers' transactions: their records wait for the marker."""

    def replay_pending(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """Keep one record of the producer's open transaction. Raises ValueError as `replay` does."""
        ...

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        """Apply what is pending of the producer, or drop it. Nothing may be pending."""
        ...


@runtime_checkable
class IdentifyingShard(Shard, Protocol):
    """A shard whose keys alone do not distinguish its records."""

    def identify(self, key: bytes, value: bytes | None) -> tuple[bytes, bool]:
        """Return the name under which a later record replaces this record, and whether this record is kept.

        A record that is not kept deletes the record that has its name. Raises ValueError as `replay` does.
        """
        ...
